"""The rows of SDGP's Table I for ImageNet.

Source: McDanel, Dinh, Magallanes, "Accelerating DNN Training with Structured Data Gradient Pruning", ICPR 2022
(arXiv 2202.00774), Sec. IV.
"""

from __future__ import annotations

from reports.figures.figure import Figure
from reproductions.comparison import Comparison
from reproductions.contract import Part, Reproduction
from reproductions.sdgp.tables import COLUMNS, columns
from suite.registry import register

GROUP = "sdgp-table1-imagenet"
# The networks of the rows, the models that are trained, and the ends of the names of their published numbers.
ROWS = {
    "resnet18": ("resnet18[blur=true]", "resnet18"),
    "regnet_x_400mf": ("regnet_x_400mf", "regnetx400mf"),
    "resnet50": ("resnet50[blur=true]", "resnet50"),
}
ONE_SEED = {"smoke": 1, "quick": 1, "paper": 1}


@register("reproduction", "sdgp-table1-imagenet")
class Table1OfImageNet(Reproduction):
    """SDGP's Table I, rows for ImageNet: accuracy of three networks; in short presets, ResNet-18 on Imagenette."""

    title = "SDGP, Table I: accuracy on ImageNet, dense and pruned"
    reference = f"{GROUP}-resnet18"
    also = ("sdgp-repository-imagenet-resnet18",)
    compared_with = tuple(f"{GROUP}-{name}" for _, name in ROWS.values())
    remarks = (
        "The presets smoke and quick train ResNet-18 on Imagenette, which has 10 of the 1,000 classes: its accuracies "
        "are higher, and its differences to dense say nothing certain about ImageNet. Preset paper trains on ImageNet.",
        "The code of SDGP lets the images grow during training; here they have one size. Its pruned ResNet-18 blurs "
        "the input of strided convolutions, and its dense one does not, so that their difference is not that of "
        "pruning alone. In preset paper both blur here, as do both ResNet-50; SDGP's RegNet blurs too, ours does not.",
    )
    parts = (
        Part(
            name="imagenette",
            title="ResNet-18 on Imagenette: dense and 2:4 random, magnitude and rescaled",
            methods=COLUMNS,
            task="imagenette",
            model="resnet18",
            seeds=ONE_SEED,
            presets=("smoke", "quick"),
            compared=columns(f"{GROUP}-resnet18", "resnet18 on imagenette"),
        ),
        *(
            Part(
                name=network,
                title=f"{network} on ImageNet: dense and 2:4 random, magnitude and rescaled",
                methods=COLUMNS,
                task="imagenet",
                model=model,
                seeds=ONE_SEED,
                presets=("paper",),
                recipe="sdgp",
                compared=columns(f"{GROUP}-{name}", f"{network} on imagenet"),
            )
            for network, (model, name) in ROWS.items()
        ),
    )

    def draw(self, comparisons: tuple[Comparison, ...]) -> Figure | None:
        from reproductions.figures import differences_figure

        return differences_figure(self.registered_name, "Accuracy minus dense, published and ours", comparisons)
