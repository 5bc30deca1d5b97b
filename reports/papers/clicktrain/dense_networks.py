"""ClickTrain's figures of dense networks: Fig. 1 (share of the backward pass) and Fig. 3 (large weights).

Source: Zhang, Yuan, Niu, Tian, Jin, Zhuang, Jiang, Wang, Ren, Song, Tao, "ClickTrain: Efficient and Accurate End-to-End
Deep Learning Training via Fine-Grained Architecture-Preserving Pruning", ICS 2021, slides.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from reports.papers.clicktrain.charts import positions_figure, stacked_figure
from reports.papers.clicktrain.quantities import SMALL
from reports.papers.comparison import Comparison
from reports.papers.contract import Outcome, Part, Reproduction, ReproductionData
from reports.papers.trial_networks import classes, final_model, image_shape, learned_nothing
from reports.papers.trial_values import done, line, trained_model
from suite.choices import build_model
from suite.engine.cost.flops import LayerCost, count_layers
from suite.engine.cost.paper_conventions import prunetrain
from suite.registry import register
from suite.trials.estimates import estimate
from suite.trials.folder.reader import Trial

ONE_SEED = {"smoke": 1, "quick": 1, "paper": 1}
NOT_DONE = "its trial is not done"
CIFAR, IMAGENET = ((3, 32, 32), 10), ((3, 224, 224), 1000)  # shape of an image, and classes
NETWORKS = {
    **dict.fromkeys(("resnet32_wide", "resnet50_wide", "vgg11_click", "vgg13_click", "vgg16_click"), CIFAR),
    **dict.fromkeys(("resnet18", "resnet50", "resnet101", "vgg16"), IMAGENET),
}
PRODUCTS = ("forward", "data gradient", "weight gradient")
COUNTS = ("this suite's count", "PruneTrain's count")
TWO_THIRDS = (
    "Each of the two gradients of a layer takes as many multiply-adds as its forward, and the input of the first layer "
    "needs no gradient. With this count the backward pass never exceeds two thirds (66.7 %) in any network. The code "
    "of PruneTrain counts a data gradient at the padded input of its layer, which is more than needed, especially "
    "where images are small. With that count all of these networks except ImageNet's VGG-16 are above 70 %. The slides "
    "do not state how they count."
)


@register("reproduction", "clicktrain-fig1")
class Figure1(Reproduction):
    """ClickTrain's Fig. 1: shares of forward and backward in the FLOPs of a training step, by network."""

    title = "ClickTrain, Fig. 1: the share of the backward pass in training FLOPs"
    reference = "clicktrain-fig1-backward"
    remarks = (
        "Counted from the shapes of convolutions and linear layers, for the networks that the slides name; this needs "
        "no training. One short trial shows that the counted FLOPs of real steps have the same shares.",
        TWO_THIRDS,
        "The slides do not state which networks Fig. 1 draws.",
    )
    parts = (
        Part(
            name="steps",
            title="dense, one epoch, to count the FLOPs of real steps",
            methods="dense",
            task="cifar10",
            model="vgg11_click",
            small_model=SMALL,
            seeds=ONE_SEED,
            overrides={"epochs": 1},
        ),
    )

    def outcome(self, data: ReproductionData) -> Outcome:
        shares = {network: network_shares(network) for network in NETWORKS}
        part, lines = self.parts[0].name, []
        for index, count in enumerate(COUNTS):
            backward = {network: sum(both[index][1:]) for network, both in shares.items()}
            largest = max(backward, key=lambda network: backward[network])
            lines.append(
                line(f"backward, most of all networks, {count}", part, estimate([backward[largest]], ""), "counted",
                     published="clicktrain-fig1-backward/more than", among=self.published, note=f"That is {largest}.")
            )  # fmt: skip
        for network, both in shares.items():
            for index, count in enumerate(COUNTS):
                where = f"{network}, {NETWORKS[network][0][1]}x{NETWORKS[network][0][2]}"
                name = f"backward, {where}, {count}"
                lines.append(line(name, part, estimate([sum(both[index][1:])], ""), "counted"))
        trials = done(data, part, "dense")
        model = trained_model(self.parts[0], trials)
        for name, values in (
            (f"{COUNTS[0]}", [sum(own_shares(_costs(data, trial))[1:]) for trial in trials]),
            ("as the ledger of its steps has it", [sum(executed_shares(trial)[1:]) for trial in trials]),
        ):
            what = f"backward, {model}, the trial's network, {name}"
            lines.append(line(what, part, estimate(values, NOT_DONE), "counted"))
        figure = stacked_figure(
            self.registered_name,
            "Forward and backward in the FLOPs of a training step",
            "Counted. If a forward bar ends left of the dashed line, the backward pass takes more than the "
            "published 70 %.",
            "Share of a step's FLOPs (%), counted",
            {count: {network: both[index] for network, both in shares.items()} for index, count in enumerate(COUNTS)},
            PRODUCTS,
            (30.0, "backward 70 %, published"),
        )
        return Outcome(tuple(lines), figure, self.remarks)


def network_shares(network: str) -> tuple[list[float], list[float]]:
    """Return the percent of a step's FLOPs in each of `PRODUCTS`, by this suite's count and by PruneTrain's."""
    shape, count = NETWORKS[network]
    with torch.device("meta"):  # counting needs only shapes
        costs = count_layers(build_model(network, shape, count), shape).values()
    return own_shares(costs), prunetrain_shares(costs)


def _costs(data: ReproductionData, trial: Trial) -> Iterable[LayerCost]:
    return count_layers(final_model(data, trial), image_shape(data, trial)).values()


def own_shares(costs: Iterable[LayerCost]) -> list[float]:
    """Return the shares in percent by this suite's count, in which the first layer has no data gradient."""
    costs = list(costs)
    return _percents([sum(cost.flops(product) for cost in costs) for product in ("forward", "dgrad", "wgrad")])


def prunetrain_shares(costs: Iterable[LayerCost]) -> list[float]:
    """Return the shares in percent by PruneTrain's count: data gradients of the padded input, also in the first layer.

    Source: PruneTrain's code; `suite.engine.cost.paper_conventions`.
    """
    counted = prunetrain(costs)
    forward = counted["inference_flops"]
    return _percents([forward, counted["train_flops"] - 2 * forward, forward])


def executed_shares(trial: Trial) -> list[float]:
    """Return the share in percent of each product in the FLOPs that a trial executed, from its ledger."""
    columns = ("forward_executed", "dgrad_executed", "wgrad_executed")
    return _percents([sum(float(row[column] or 0) for row in trial.layers) for column in columns])


def _percents(values: list[float]) -> list[float]:
    return [100 * value / sum(values) for value in values]


POSITIONS, LARGEST = 9, 4  # number of weights in a kernel, and number that a pattern keeps
UNIFORM = 100 * LARGEST / POSITIONS
BLOCKS = ((4, 5, 7, 8), (3, 4, 6, 7), (1, 2, 4, 5), (0, 1, 3, 4))  # the four published patterns
DRAWN = 8  # layers in the figure


@register("reproduction", "clicktrain-fig3")
class Figure3(Reproduction):
    """ClickTrain's Fig. 3: positions and shapes of the largest weights in 3x3 kernels of a dense network."""

    title = "ClickTrain, Fig. 3: positions of large weights in 3x3 kernels"
    source = "clicktrain-slides"
    remarks = (
        f"A weight is large if it is among the {LARGEST} largest |w| of its kernel, as many as a pattern keeps. With "
        f"no preference, each position would be large in {UNIFORM:.1f} % of the kernels. All 3x3 convolutions count, "
        "including the first.",
        "The trained network is compared with its initial weights from the same seed. A property that both have is due "
        "to chance.",
        "The slides show one layer of a VGG-16, only as a picture without numbers. They state that large weights form "
        "shapes that repeat.",
    )
    parts = (
        Part(
            name="weights",
            title="dense",
            methods="dense",
            task="cifar10",
            model="vgg16_click",
            small_model=SMALL,
            seeds={"smoke": 1, "quick": 1, "paper": 1},
            recipe="clicktrain",
        ),
    )

    def outcome(self, data: ReproductionData) -> Outcome:
        trials = done(data, "weights", "dense")
        networks = {
            "trained": [large_weights(final_model(data, trial)) for trial in trials],
            "untrained": [large_weights(untrained(data, trial)) for trial in trials],
        }
        lines: list[Comparison] = []
        for quantity in QUANTITIES:
            for network, of_seeds in networks.items():
                ours = estimate([statistics(layers)[quantity] for layers in of_seeds if layers], NOT_DONE)
                lines.append(line(f"{quantity}, {network}", "weights", ours, "counted"))
        figure = None
        if trials and networks["trained"][0]:
            names = list(networks["trained"][0])
            drawn = [names[round(index * (len(names) - 1) / max(DRAWN - 1, 1))] for index in range(DRAWN)]
            drawn = list(dict.fromkeys(drawn if len(names) > DRAWN else names))
            figure = positions_figure(
                self.registered_name,
                "Positions of the four largest weights in 3x3 kernels",
                f"{trials[0].text('model')}, first seed, {_of(drawn, names)} 3x3 convolutions. A number is "
                f"the percent of kernels in which that position has one of the {LARGEST} largest |w|; {UNIFORM:.0f} "
                "is chance. Counted.",
                "Among the four largest (%)",
                {network: {name: heat(of_seeds[0][name]) for name in drawn} for network, of_seeds in networks.items()},
                UNIFORM,
            )
        return Outcome(tuple(lines), figure, (*learned_nothing(data, trials), *self.remarks))


def _of(drawn: list[str], names: list[str]) -> str:
    return f"all {len(names)}" if drawn == names else f"{len(drawn)} of {len(names)}"


def untrained(data: ReproductionData, trial: Trial) -> nn.Module:
    """Return the network of a trial before its training, with weights drawn from the seed of the trial."""
    spec = data.specs[trial.name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        return build_model(spec.model, image_shape(data, trial), classes(data, trial))


def large_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return for each 3x3 convolution which weights are the largest of their kernels, (kernels, 9) bool.

    Kernels that are all zero are left out.
    """
    layers = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3):
            sizes = layer.weight.detach().abs().reshape(-1, POSITIONS)
            sizes = sizes[sizes.amax(1) > 0]
            largest = torch.zeros(sizes.shape, dtype=torch.bool)
            layers[name] = largest.scatter_(1, sizes.argsort(dim=1, descending=True, stable=True)[:, :LARGEST], True)
    return layers


def heat(largest: Tensor) -> np.ndarray:
    """Return the percent of kernels with a large weight at each position, (3, 3)."""
    shares: np.ndarray = 100 * largest.double().mean(0).view(3, 3).numpy()
    return shares


QUANTITIES = (
    "the centre is among the four largest",
    "the middle of a side is among the four largest, mean of four",
    "a corner is among the four largest, mean of four",
    "the four largest are a 2x2 block through the centre",
    "kernels that have one of the four most frequent shapes",
)


def statistics(layers: dict[str, Tensor]) -> dict[str, float]:
    """Return `QUANTITIES` over the kernels of all layers, in percent."""
    whole = torch.cat([*layers.values()])
    places = heat(whole).ravel()
    codes = (whole.long() << torch.arange(POSITIONS)).sum(1)
    counts = torch.bincount(codes, minlength=1 << POSITIONS).double() / len(whole)
    blocks = [sum(1 << position for position in block) for block in BLOCKS]
    values = (
        float(places[4]),
        float(places[[1, 3, 5, 7]].mean()),
        float(places[[0, 2, 6, 8]].mean()),
        100 * float(counts[blocks].sum()),
        100 * float(counts.sort(descending=True).values[:4].sum()),
    )
    return dict(zip(QUANTITIES, values, strict=True))
