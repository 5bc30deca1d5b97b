"""ClickTrain compared with pruning after training, on ImageNet: Fig. 12.

Source: Zhang, Yuan, Niu, Tian, Jin, Zhuang, Jiang, Wang, Ren, Song, Tao, "ClickTrain: Efficient and Accurate End-to-End
Deep Learning Training via Fine-Grained Architecture-Preserving Pruning", ICS 2021, slides.
"""

from __future__ import annotations

from collections.abc import Mapping

from reports.figures.figure import Figure
from reports.papers.clicktrain.quantities import compression_at_the_end
from reports.papers.comparison import Compared, Comparison
from reports.papers.contract import Outcome, Part, Reproduction, ReproductionData
from reports.papers.figures import differences_figure
from reports.papers.trial_networks import learned_nothing
from reports.papers.trial_values import done, slower_than_dense
from suite.registry import register
from suite.trials.folder.reader import Trial

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
