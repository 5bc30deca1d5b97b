"""ClickTrain compared with other methods: Fig. 12 (pruning after training, on ImageNet) and Fig. 17 (PruneTrain).

Source: Zhang, Yuan, Niu, Tian, Jin, Zhuang, Jiang, Wang, Ren, Song, Tao, "ClickTrain: Efficient and Accurate End-to-End
Deep Learning Training via Fine-Grained Architecture-Preserving Pruning", ICS 2021, slides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from reports.figures.figure import Figure
from reports.figures.panels import Line, Panel, curves_figure
from reports.papers.clicktrain.quantities import compression_at_the_end, recipe_name
from reports.papers.comparison import Compared, Comparison
from reports.papers.contract import Outcome, Part, Reproduction, ReproductionData
from reports.papers.figures import differences_figure
from reports.papers.trial_networks import learned_nothing
from reports.papers.trial_values import done, point, slower_than_dense, with_own_trials
from suite.registry import register
from suite.trials.folder.reader import Trial

TUNED = "resnet9[width=0.25]"  # PruneTrain's thresholds in the short presets are tuned for it
SLIDES_EPOCHS = 90  # the published configuration of ResNet-50 has 95, whose schedule is scaled to these


def solved(compression: float) -> str:
    """Return the label of ClickTrain with a compression of the 3x3 convolutions, by one share of kernels in all."""
    return f"clicktrain[ratios=solved,compression={compression},schedule=paper]"


# Row of the slides by network: the compression and the method that gives it here.
ROWS = {
    "resnet18": ("4.1x", solved(4.1)),
    "resnet50": ("4.3x", "clicktrain[schedule=paper]"),
    "resnet101": ("4.2x", solved(8.0)),
    "vgg16": ("6.6x", solved(6.6)),
}
NOTES = {
    "resnet50": "Uses the ratios of the published configuration, which compress 2.82 times.",
    "resnet101": "No ratios were published, and 3x3 convolutions hold half of its weights: pruning only them cannot "
    "compress the network 4.2 times.",
}
STANDING_IN = "resnet18"  # the only row that the short presets train, on Imagenette


def _lines(where: str, network: str, note: str = "") -> tuple[Compared, ...]:
    row, method = ROWS[network]
    key = f"{network}, {row}"
    return (
        Compared(f"accuracy, {where}", method),
        Compared(f"{where} minus dense", method, against="difference", unit="points",
                 published=f"clicktrain-fig12-accuracy/{key}", note=note),
        Compared(f"{where}: compression", method, column="compression", scale=1.0, unit="×", kind="counted",
                 published=f"clicktrain-fig12-compression/{key}", note=note),
        Compared(f"{where}: inference FLOPs saved, effective", method, column="inference_flops_effective",
                 against="saving", kind="counted"),
        Compared(f"{where}: training FLOPs saved, effective", method, column="train_flops_effective",
                 against="saving", kind="counted"),
        Compared(f"{where}: training FLOPs saved, executed", method, column="train_flops_executed", against="saving",
                 kind="counted"),
        Compared(f"{where}: training time, of dense's", method, column="train_time_s", against="ratio"),
    )  # fmt: skip


def imagenet_parts() -> tuple[Part, ...]:
    """Return one part for each row on ImageNet."""
    return tuple(
        Part(
            name=f"{network}-imagenet",
            title=f"{network} on imagenet, dense and clicktrain",
            methods=f"dense,{method}",
            task="imagenet",
            model=network,
            presets=("paper",),
            seeds={"smoke": 1, "quick": 1, "paper": 1},
            recipe="clicktrain",
            paper_recipe={"epochs": SLIDES_EPOCHS},
            compared=(
                Compared(f"accuracy, {network}, dense", "dense", published=f"clicktrain-fig12-dense/{network}"),
                *_lines(network, network, NOTES.get(network, "")),
            ),
        )
        for network, (_, method) in ROWS.items()
    )


def _stand_in() -> Part:
    network = STANDING_IN
    return Part(
        name="imagenette",
        title=f"{network} on imagenette, dense and clicktrain at the compression of its row",
        methods=f"dense,{ROWS[network][1]}",
        task="imagenette",
        model=network,
        presets=("smoke", "quick"),
        seeds={"smoke": 1, "quick": 1, "paper": 1},
        compared=(
            Compared(f"accuracy, {network} on imagenette, dense", "dense"),
            *_lines(f"{network} on imagenette", network, "Theirs is for 1,000 classes, ours for ten of them."),
        ),
    )


SHORT = (
    "The presets smoke and quick train ResNet-18 on Imagenette, which has 10 of the 1,000 classes. Its accuracy at the "
    "same compression says nothing about ImageNet. Preset paper trains on ImageNet."
)


@register("reproduction", "clicktrain-fig12")
class Figure12(Reproduction):
    """ClickTrain's Fig. 12: accuracy and compression on ImageNet, compared with published pruning after training."""

    title = "ClickTrain, Fig. 12: comparison with pruning after training, on ImageNet"
    reference = "clicktrain-fig12-accuracy"
    also = ("clicktrain-fig12-others-accuracy", "clicktrain-fig12-others-compression", "clicktrain-fig12-dense")
    remarks = (
        SHORT,
        "Methods that prune after training are not run here; their rows show only published numbers.",
    )
    parts = (
        _stand_in(),
        *imagenet_parts(),
    )

    def columns(self, trial: Trial) -> Mapping[str, float]:
        return compression_at_the_end(trial)

    def outcome(self, data: ReproductionData) -> Outcome:
        lines = self.compare(data)
        dense = done(data, self.parts[0].name, "dense")
        remarks = (*learned_nothing(data, dense), *slower_than_dense(lines), *self.remarks)
        return Outcome(lines, self.draw(lines), remarks)

    def draw(self, comparisons: tuple[Comparison, ...]) -> Figure | None:
        title = "Accuracy minus dense, published on ImageNet and ours"
        return differences_figure(self.registered_name, title, comparisons)


PRUNETRAIN_RATIOS = (0.1, 0.2)
COMPRESSIONS = (4.0, 8.0)
METHODS = {
    "dense": ("dense",),
    "prunetrain": tuple(f"prunetrain[ratio={ratio}]" for ratio in PRUNETRAIN_RATIOS),
    "clicktrain": tuple(map(solved, COMPRESSIONS)),
}
NAMES = {
    **{f"prunetrain[ratio={ratio}]": f"prunetrain, ratio {ratio}" for ratio in PRUNETRAIN_RATIOS},
    **{solved(compression): f"clicktrain, 3x3 layers {compression:g}x" for compression in COMPRESSIONS},
}
COSTS = (
    ("inference FLOPs left, effective", "inference_flops_effective", "inference_flops_dense"),
    ("inference FLOPs left, of the shapes", "inference_flops", "inference_flops_dense"),
    ("training FLOPs left, effective", "train_flops_effective", "train_flops_dense"),
    ("training FLOPs left, executed", "train_flops_executed", "train_flops_dense"),
    ("parameters that are not 0", "nonzero_params", "params_dense"),
)


def _of_both(network: str) -> tuple[Compared, ...]:
    lines = [Compared(f"accuracy, {network}, dense", "dense")]
    for method, name in NAMES.items():
        where = f"{network}, {name}"
        lines += [
            Compared(f"accuracy, {where}", method),
            Compared(f"{where} minus dense", method, against="difference", unit="points"),
            *(
                Compared(f"{where}: {what}", method, column=column, over=over, kind="counted")
                for what, column, over in COSTS
            ),
            Compared(f"{where}: training time, of dense's", method, column="train_time_s", against="ratio"),
        ]
    return tuple(lines)


@register("reproduction", "clicktrain-fig17")
class Figure17(Reproduction):
    """ClickTrain's Fig. 17: PruneTrain and ClickTrain, here on the same networks, unlike in the paper."""

    title = "ClickTrain, Fig. 17: PruneTrain and ClickTrain on the same networks"
    source = "clicktrain-slides"
    also = tuple(
        f"clicktrain-fig11-prunetrain-{what}"
        for what in ("dense", "accuracy", "compression", "train-flops", "inference-flops")
    )
    remarks = (
        "The paper compares its numbers with PruneTrain's published ones, although networks of the same name differ in "
        "size (ResNet-32: 0.47 against 20.1 million parameters). Here both methods prune the same network with the "
        "same recipe and seed. The bars of Fig. 17 have no numbers; those of Fig. 11 are below and cannot be compared "
        "with ours.",
        "Effective FLOPs leave out masked weights, whether a kernel skipped them or not; executed FLOPs count every "
        "multiplication. PruneTrain's network becomes smaller and needs no special kernels. ClickTrain's network keeps "
        "its shape and saves time only with kernels that skip masked weights, in layers where they were measured to be "
        "faster. Times are measured trial by trial, not interleaved.",
    )
    parts = tuple(
        Part(
            name=f"{network}-cifar10",
            title=f"{network} on cifar10: dense, prunetrain at two ratios, clicktrain at two compressions",
            methods=",".join(method for several in METHODS.values() for method in several),
            task="cifar10",
            model=network,
            small_model=TUNED if network == "vgg11_click" else "",
            seeds={"smoke": 1, "quick": 1, "paper": 3},
            presets=("smoke", "quick", "paper") if network == "vgg11_click" else ("paper",),
            recipe=recipe_name(network),
            compared=_of_both(network),
        )
        for network in ("vgg11_click", "resnet32_wide", "resnet32")
    )

    def compare(self, data: ReproductionData) -> tuple[Comparison, ...]:
        """Compare as declared, with the name of the trained network. Parts with the same trials appear once."""
        own = {part.name: trials for part, trials in with_own_trials(self, data)}
        lines = []
        for line in super().compare(data):
            part = next((part for part in self.parts if part.name == line.part), None)
            if part is None:
                lines.append(line)
            elif part.name in own:
                trained = [trial.text("model") for several in own[part.name].values() for trial in several]
                lines.append(replace(line, quantity=line.quantity.replace(part.model, (trained or [part.model])[0], 1)))
        return tuple(lines)

    def outcome(self, data: ReproductionData) -> Outcome:
        lines = self.compare(data)
        part = next((part.name for part in self.parts if done(data, part.name, "dense")), self.parts[0].name)
        dense = done(data, part, "dense")
        remarks = (*learned_nothing(data, dense), *slower_than_dense(lines), *self.remarks)
        return Outcome(lines, self._figure(data, part), remarks)

    def _figure(self, data: ReproductionData, part: str) -> Figure | None:
        groups = {name: [done(data, part, method) for method in several] for name, several in METHODS.items()}
        trials = [trial for several in groups.values() for each in several for trial in each]
        seconds = max((trial.number("train_time_s") or 0.0 for trial in trials), default=0.0)
        unit, each = ("min", 60.0) if seconds > 180 else ("s", 1.0)

        def lines(cost: Callable[[Trial], float | None], scale: float) -> list[Line]:
            return [
                Line(name, [one for several in of_name if (one := point(several, cost, scale)) is not None])
                for name, of_name in groups.items()
            ]

        accuracy = "Test accuracy (%), measured"
        panels = [
            Panel("Effective: assumes skipping", "Training FLOPs (% of dense), counted", accuracy,
                  lines(share_left("train_flops_effective"), 100)),
            Panel("Executed: really multiplied", "Training FLOPs (% of dense), counted", accuracy,
                  lines(share_left("train_flops_executed"), 100)),
            Panel("Time", f"Training time ({unit}), measured", accuracy,
                  lines(lambda trial: trial.number("train_time_s"), 1 / each)),
        ]  # fmt: skip
        model = trials[0].text("model") if trials else ""
        return curves_figure(
            self.registered_name,
            "Accuracy over training FLOPs and over training time, PruneTrain and ClickTrain on one network",
            f"{model} on cifar10. One point per penalty ratio ({', '.join(map(str, PRUNETRAIN_RATIOS))}) or "
            f"compression of the 3x3 convolutions ({', '.join(f'{one:g}' for one in COMPRESSIONS)}): the mean over "
            "seeds with its 95 % interval. Points further up and left are better.",
            panels,
        )


def share_left(column: str) -> Callable[[Trial], float | None]:
    """Return a function that gives the training FLOPs of a trial over those of the dense network."""

    def share(trial: Trial) -> float | None:
        cost, dense = trial.number(column), trial.number("train_flops_dense")
        return cost / dense if cost is not None and dense else None

    return share
