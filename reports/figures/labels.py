"""Names of methods inside figures: at the ends of lines if these are few, otherwise in a legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.data.groups import Look
from reports.figures import svg

_MAX_NAMED_LINES = 4
_MOST_ABOVE = 12  # methods in a legend above the axes; a longer legend is to the right of them, in a wide figure
_WIDE = 8.6  # inches
_SHORT, _LONG = 30, 60  # characters of a name to the right of the axes, and above them
_ROW = 0.17  # inches
_LETTERS = 74  # that fit side by side above the axes; six of them for each marker


@dataclass(frozen=True)
class LineEnd:
    """Last point of a method's line, in data coordinates."""

    label: str
    look: Look
    x: float
    y: float


def name_lines(axes: Axes, ends: Sequence[LineEnd], unit: str) -> str:
    """Name lines at their right ends if they are few, otherwise in a legend. Return their last values as text."""
    if len(ends) > _MAX_NAMED_LINES:
        add_legend(axes, [(end.label, end.look) for end in ends], lines=True)
    else:
        low, high = axes.get_ylim()
        names = short_names([end.label for end in ends])
        heights = spread_heights([(end.y - low) / (high - low) for end in ends], 0.085)
        for end, height in zip(ends, heights, strict=True):
            # The name is to the right of the axes. A thin dotted line in neutral grey leads to it.
            axes.annotate(
                "",
                (end.x, end.y),
                xytext=(1.02, height),
                textcoords="axes fraction",
                annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": svg.MUTED, "linewidth": 0.6, "linestyle": (0, (1, 3))},
            )
            axes.plot(
                [1.025],
                [height],
                transform=axes.transAxes,
                clip_on=False,
                color=svg.colour(end.look.colour),
                marker=svg.marker(end.look.marker),
                markersize=5,
                markeredgewidth=0,
                linestyle="none",
            )
            axes.annotate(names[end.label], (1.045, height), xycoords="axes fraction", va="center", fontsize=8.5)
        axes.set_ylim(low, high)
    return "At the end: " + "; ".join(f"{end.label} {end.y:.4g} {unit}" for end in ends) + "."


def spread_heights(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights in [0, 1] until any two are at least `gap` from each other, and keep their order."""
    order = sorted(range(len(heights)), key=lambda position: heights[position])
    placed = list(heights)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    # Push down what was moved past the top.
    overshoot = max(0.0, placed[order[-1]] - 1.0) if order else 0.0
    if overshoot:
        placed[order[-1]] -= overshoot
        for above, below in pairwise(reversed(order)):
            placed[below] = min(placed[below], placed[above] - gap)
    return placed


def short_names(labels: Sequence[str], most: int = _SHORT) -> dict[str, str]:
    """Return distinct names that fit into a figure. The tables show the full ones.

    Parameters that all variants of a method share are left out; "[…]" replaces them if no others remain. Longer names
    are cut at `most` characters, and names that become equal are numbered.
    """
    parts: dict[str, tuple[str, list[str]]] = {}
    for label in dict.fromkeys(labels):
        name, _, rest = " ".join(label.split()).partition("[")
        parts[label] = (name, rest.removesuffix("]").split(",") if rest else [])
    shorts: dict[str, str] = {}
    for label, (name, parameters) in parts.items():
        siblings = [set(others) for other, (same, others) in parts.items() if same == name and other != label]
        distinct = [one for one in parameters if not siblings or any(one not in own for own in siblings)]
        short = f"{name}[{','.join(distinct)}]" if distinct else f"{name}[…]" if parameters else name
        short = short if len(short) <= most else f"{short[: most - 1]}…"
        number = 2
        unique = short
        while unique in shorts.values():
            unique, number = f"{short} ({number})", number + 1
        shorts[label] = unique
    return shorts


def _fits(names: Sequence[str], columns: int) -> bool:
    """Return whether names fit above the axes in so many columns, which are as wide as their longest names."""
    rows = math.ceil(len(names) / columns)
    widest = [max(map(len, names[start : start + rows])) for start in range(0, len(names), rows)]
    return sum(6 + width for width in widest) <= _LETTERS and len(widest) == columns


def is_long(methods: int) -> bool:
    """Return whether a legend of so many methods is to the right of the axes, in a wide figure."""
    return methods > _MOST_ABOVE


def add_legend(axes: Axes, methods: Sequence[tuple[str, Look]], *, lines: bool) -> None:
    """Add a legend above the axes, or to the right of them if it is long (`is_long`).

    Args:
        axes: The only axes of a figure.
        methods: Label of each method, and how it is drawn.
        lines: Whether the methods are drawn as lines, and not only as markers.
    """
    at_side = is_long(len(methods))
    names = short_names([label for label, _ in methods], _SHORT if at_side else _LONG)
    handles = [
        Line2D(
            [],
            [],
            color=svg.colour(look.colour),
            marker=svg.marker(look.marker),
            linestyle=((0, svg.dash(look.dash)) if svg.dash(look.dash) else "-") if lines else "none",
            label=names[label],
        )
        for label, look in methods
    ]
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    if at_side:
        figure.set_size_inches(_WIDE, max(figure.get_figheight(), 0.4 + _ROW * len(handles)))
        figure.legend(handles=handles, loc="outside right upper", fontsize=8.5, handletextpad=0.3, labelspacing=0.3)
        return
    columns = next(count for count in range(len(handles), 0, -1) if count == 1 or _fits(list(names.values()), count))
    # Make the figure taller, so that the axes keep their height.
    figure.set_figheight(figure.get_figheight() + _ROW * (math.ceil(len(handles) / columns) - 1))
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=columns,
        fontsize=8.5,
        handletextpad=0.3,
        columnspacing=1.2,
    )
