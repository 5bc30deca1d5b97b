"""ClickTrain's figure of dense networks: Fig. 1 (share of the backward pass).

Source: Zhang, Yuan, Niu, Tian, Jin, Zhuang, Jiang, Wang, Ren, Song, Tao, "ClickTrain: Efficient and Accurate End-to-End
Deep Learning Training via Fine-Grained Architecture-Preserving Pruning", ICS 2021, slides.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from reports.papers.clicktrain.charts import stacked_figure
from reports.papers.clicktrain.quantities import SMALL
from reports.papers.contract import Outcome, Part, Reproduction, ReproductionData
from reports.papers.trial_networks import final_model, image_shape
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
