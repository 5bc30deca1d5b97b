"""SDGP's accuracies: Table I and Fig. 8, for ResNet-9 on CIFAR-10.

Source: McDanel, Dinh, Magallanes, "Accelerating DNN Training with Structured Data Gradient Pruning", ICPR 2022
(arXiv 2202.00774), Sec. IV.
"""

from __future__ import annotations

from reports.figures.figure import Figure
from reports.papers.comparison import Compared, Comparison, accuracy
from reports.papers.contract import Part, Reproduction
from reports.papers.figures import differences_figure, grid_figure
from suite.registry import register

TABLE = "sdgp-table1-cifar10-resnet9"
GRID = "sdgp-repository-cifar10-resnet9"
# The published n:m have these ratios m/n and these group sizes m.
RATIOS, SIZES = (8, 4, 2), (4, 8, 16, 32)
PAIRS = tuple((m // ratio, m) for m in SIZES for ratio in RATIOS if m >= ratio)
MODES = ("random", "magnitude", "rescaled")
PRUNED = f"sdgp[n=2,m=4,mode={'|'.join(MODES)}]"
COLUMNS = f"dense,{PRUNED}"


def label(n: int, m: int, mode: str = "rescaled") -> str:
    """Return the label of SDGP with n:m and a mode, as in the lists of methods and in the tables."""
    return f"sdgp[n={n},m={m},mode={mode}]"


def pair_accuracy(n: int, m: int, where: str = "") -> tuple[Compared, ...]:
    """Return the two lines of one rescaled n:m. The number of dense comes from the table: the repository has none."""
    return accuracy(f"rescaled {n}:{m}{where}", label(n, m), f"{GRID}/{n}:{m}", f"{TABLE}/dense")


def methods(*pairs: tuple[int, int]) -> str:
    """Return dense and each rescaled n:m in the form that `--methods` takes."""
    return ",".join(["dense", *(label(n, m) for n, m in pairs)])


def columns(group: str, where: str = "") -> tuple[Compared, ...]:
    """Return the lines of a row of Table I: dense, and 2:4 random, magnitude and rescaled.

    Args:
        group: Group of the published numbers.
        where: Network and task, for a page with several of them.
    """
    return (*dense_column(group, where), *pruned_columns(group, where))


def dense_column(group: str, where: str = "") -> tuple[Compared, ...]:
    """Return the line of dense in a row of Table I; arguments as in `columns`."""
    return accuracy(f"dense{_of(where)}", "dense", f"{group}/dense")


def pruned_columns(group: str, where: str = "") -> tuple[Compared, ...]:
    """Return the lines of 2:4 random, magnitude and rescaled in a row of Table I; arguments as in `columns`."""
    return tuple(
        line
        for mode in MODES
        for line in accuracy(f"{mode} 2:4{_of(where)}", label(2, 4, mode), f"{group}/{mode}", f"{group}/dense")
    )


def _of(where: str) -> str:
    return f" of {where}" if where else ""


@register("reproduction", "sdgp-table1")
class Table1(Reproduction):
    """SDGP's Table I: accuracy of ResNet-9 on CIFAR-10, dense and pruned, and for the eleven n:m of its repository."""

    title = "SDGP, Table I: accuracy of ResNet-9 on CIFAR-10, dense and pruned"
    reference = TABLE
    also = (
        "sdgp-data-gradient-share-resnet18",
        "sdgp-time-saved-abstract",
    )
    parts = (
        Part(
            name="columns",
            title="the columns of the table: dense and 2:4 random, magnitude and rescaled",
            methods=COLUMNS,
            task="cifar10",
            compared=(
                *columns(TABLE),
                Compared(
                    "training time saved, rescaled 2:4, against dense",
                    label(2, 4),
                    column="train_time_s",
                    against="saving",
                    published="sdgp-time-saved-resnet18/2:4",
                    note="The published number is a projection for ResNet-18's convolutions at batch 256 on an A100."
                    " It assumes a sparse product that was not run, and pruning at no cost. Ours is the wall time "
                    "of the "
                    "whole training loop with dense products.",
                ),
            ),
        ),
        Part(
            name="group-sizes",
            title="the eleven n:m of the repository, rescaled, one seed",
            methods=methods(*PAIRS),
            task="cifar10",
            seeds={"smoke": 1, "quick": 1, "paper": 1},
            presets=("smoke", "paper"),
            compared=tuple(line for n, m in PAIRS for line in pair_accuracy(n, m, " (repository)")),
        ),
    )

    def draw(self, comparisons: tuple[Comparison, ...]) -> Figure | None:
        return differences_figure(self.registered_name, "Accuracy minus dense, published and ours", comparisons)


def _corner(n: int, m: int) -> bool:
    return m in (SIZES[0], SIZES[-1])


@register("reproduction", "sdgp-fig8")
class Figure8(Reproduction):
    """SDGP's Fig. 8: final accuracy of ResNet-9 on CIFAR-10 by ratio m/n and group size m, rescaled."""

    title = "SDGP, Fig. 8: accuracy over sparsity ratio and group size"
    reference = GRID
    also = ("sdgp-data-gradient-share-resnet9", "sdgp-data-gradient-share-left-resnet9", "sdgp-time-to-accuracy")
    remarks = (
        "The paper shows the values of the cells only in the picture. The published numbers here are those that its "
        "repository prints for the same eleven pairs; the dense accuracy is from Table I. Ratio 8 is impossible with "
        "m = 4.",
    )
    parts = (
        Part(
            name="corners",
            title="dense and the outer columns of the figure: m = 4 and m = 32",
            methods=methods(*(pair for pair in PAIRS if _corner(*pair))),
            task="cifar10",
            compared=(
                *accuracy("dense", "dense", f"{TABLE}/dense"),
                *(line for pair in PAIRS if _corner(*pair) for line in pair_accuracy(*pair)),
            ),
        ),
        Part(
            name="inner",
            title="the inner columns of the figure: m = 8 and m = 16",
            methods=methods(*(pair for pair in PAIRS if not _corner(*pair))),
            task="cifar10",
            presets=("smoke", "paper"),
            compared=tuple(line for pair in PAIRS if not _corner(*pair) for line in pair_accuracy(*pair)),
        ),
    )

    def draw(self, comparisons: tuple[Comparison, ...]) -> Figure | None:
        by_name = {line.quantity: line for line in comparisons}
        cells = {}
        for ratio in RATIOS:
            for m in SIZES:
                name = f"rescaled {m // ratio}:{m}"
                pair = (by_name[f"accuracy, {name}"], by_name[f"{name} minus dense"]) if m >= ratio else None
                cells[str(ratio), str(m)] = pair
        return grid_figure(
            self.registered_name,
            "Accuracy of rescaled n:m, published and ours",
            [str(ratio) for ratio in RATIOS],
            [str(m) for m in SIZES],
            cells,
            ("Sparsity ratio m/n", "Group size m"),
        )
