"""The rows of SDGP's Table I for ImageNet.

Source: McDanel, Dinh, Magallanes, "Accelerating DNN Training with Structured Data Gradient Pruning", ICPR 2022
(arXiv 2202.00774), Sec. IV.
"""

from __future__ import annotations

from dataclasses import replace

from reports.figures.figure import Figure
from reports.papers.comparison import Compared, Comparison
from reports.papers.contract import Part, Reproduction
from reports.papers.figures import differences_figure
from reports.papers.sdgp.tables import COLUMNS, PRUNED, columns, dense_column, pruned_columns
from suite.registry import register

GROUP = "sdgp-table1-imagenet"
ROWS = ("resnet18", "regnetx400mf", "resnet50")  # networks, with which the names of the groups end
ONE_SEED = {"smoke": 1, "quick": 1, "paper": 1}
MODES = "2:4 random, magnitude and rescaled"


def _row(name: str, title: str, methods: str, model: str, recipe: str, compared: tuple[Compared, ...]) -> Part:
    return Part(
        name=name,
        title=title,
        methods=methods,
        task="imagenet",
        model=model,
        seeds=ONE_SEED,
        presets=("paper",),
        recipe=recipe,
        compared=compared,
    )


@register("reproduction", "sdgp-table1-imagenet")
class Table1OfImageNet(Reproduction):
    """SDGP's Table I, rows for ImageNet: accuracy of three networks; in short presets, ResNet-18 on Imagenette."""

    title = "SDGP, Table I: accuracy on ImageNet, dense and pruned"
    reference = f"{GROUP}-resnet18"
    also = ("sdgp-repository-imagenet-resnet18",)
    compared_with = tuple(f"{GROUP}-{name}" for name in ROWS)
    remarks = (
        "The presets smoke and quick train ResNet-18 on Imagenette, which has 10 of the 1,000 classes: its accuracies "
        "are higher, and its differences to dense say nothing certain about ImageNet. Preset paper trains on ImageNet.",
        "The settings of SDGP's repository blur the input of strided convolutions in the pruned ResNet-18 and not in "
        "the dense one, so that the published differences of ResNet-18 are not those of pruning alone. Preset paper "
        "trains both as published; RegNetX-400MF and ResNet-50 are blurred both dense and pruned.",
    )
    parts = (
        Part(
            name="imagenette",
            title=f"ResNet-18 on Imagenette: dense and {MODES}",
            methods=COLUMNS,
            task="imagenette",
            model="resnet18",
            seeds=ONE_SEED,
            presets=("smoke", "quick"),
            compared=columns(f"{GROUP}-resnet18", "resnet18 on imagenette"),
        ),
        _row(
            "resnet18-dense",
            "resnet18 on ImageNet: dense, without blurred inputs",
            "dense",
            "resnet18",
            "sdgp",
            dense_column(f"{GROUP}-resnet18", "resnet18 on imagenet"),
        ),
        replace(
            _row(
                "resnet18",
                f"resnet18 on ImageNet: {MODES}, with blurred inputs",
                PRUNED,
                "resnet18[blur=true]",
                "sdgp",
                pruned_columns(f"{GROUP}-resnet18", "resnet18 on imagenet"),
            ),
            baseline="resnet18-dense",
        ),
        _row(
            "regnet_x_400mf",
            f"regnet_x_400mf on ImageNet: dense and {MODES}, with blurred inputs",
            COLUMNS,
            "regnet_x_400mf[blur=true]",
            "sdgp_regnet",
            columns(f"{GROUP}-regnetx400mf", "regnet_x_400mf on imagenet"),
        ),
        _row(
            "resnet50",
            f"resnet50 on ImageNet: dense and {MODES}, with blurred inputs",
            COLUMNS,
            "resnet50[blur=true]",
            "sdgp_resnet50",
            columns(f"{GROUP}-resnet50", "resnet50 on imagenet"),
        ),
    )

    def draw(self, comparisons: tuple[Comparison, ...]) -> Figure | None:
        return differences_figure(self.registered_name, "Accuracy minus dense, published and ours", comparisons)
