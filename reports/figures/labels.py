"""Names of methods inside figures: at the ends of their lines where they are few, else in a legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.figures import svg

_FEW = 4


def name_lines(axes: Axes, frame: pd.DataFrame, ends: list[tuple[str, int, float, float]], unit: str) -> str:
    """Name the lines at their right ends where they are few, else in a legend; returns the ends as text."""
    if len(ends) > _FEW:
        legend(axes, frame[["method", "colour"]].drop_duplicates(), lines=True)
    else:
        low, high = axes.get_ylim()
        names = short_names([label for label, *_ in ends])
        heights = spread([(y - low) / (high - low) for *_, y in ends], 0.085)
        for (label, index, x, y), height in zip(ends, heights, strict=True):
            # The name stands right of the axes; a thin dotted leader, grey so that it is no part of the line, finds it.
            axes.annotate(
                "",
                (x, y),
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
                color=svg.colour(index),
                marker=svg.marker(index),
                markersize=5,
                markeredgewidth=0,
                linestyle="none",
            )
            axes.annotate(names[label], (1.045, height), xycoords="axes fraction", va="center", fontsize=8.5)
        axes.set_ylim(low, high)
    return "At the end: " + "; ".join(f"{label} {y:.4g} {unit}" for label, _, _, y in ends) + "."


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights in [0, 1] apart until any two are `gap` from each other, keeping their order."""
    order = sorted(range(len(heights)), key=lambda position: heights[position])
    placed = list(heights)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    overshoot = max(0.0, placed[order[-1]] - 1.0) if order else 0.0
    if overshoot:
        placed[order[-1]] -= overshoot
        for above, below in pairwise(reversed(order)):
            placed[below] = min(placed[below], placed[above] - gap)
    return placed


def short_names(labels: Sequence[str], most: int = 30) -> dict[str, str]:
    """Names that fit into a figure; the tables have them whole.

    Parameters that all variants of a method share are left out, and "[…]" stands for them where none is left; what is
    still longer than `most` is cut, and names that this would make alike are numbered.
    """
    parts: dict[str, tuple[str, list[str]]] = {}
    for label in dict.fromkeys(labels):
        name, _, rest = " ".join(label.split()).partition("[")
        parts[label] = (name, rest.removesuffix("]").split(",") if rest else [])
    shorts: dict[str, str] = {}
    for label, (name, parameters) in parts.items():
        siblings = [set(others) for other, (same, others) in parts.items() if same == name and other != label]
        told = [parameter for parameter in parameters if not siblings or any(parameter not in own for own in siblings)]
        short = f"{name}[{','.join(told)}]" if told else f"{name}[…]" if parameters else name
        short = short if len(short) <= most else f"{short[: most - 1]}…"
        number = 2
        unique = short
        while unique in shorts.values():
            unique, number = f"{short} ({number})", number + 1
        shorts[label] = unique
    return shorts


def legend(axes: Axes, methods: pd.DataFrame, *, lines: bool) -> None:
    """A legend above the axes; `methods` has the columns `method` and `colour`."""
    names = short_names([str(name) for name in methods["method"]])
    handles = [
        Line2D(
            [],
            [],
            color=svg.colour(int(index)),
            marker=svg.marker(int(index)),
            linestyle="-" if lines else "none",
            label=names[name],
        )
        for name, index in zip(methods["method"], methods["colour"], strict=True)
    ]
    # As many columns as the longest name lets stand beside each other above one figure.
    columns = max(1, min(len(handles), 74 // (6 + max(len(name) for name in names.values()))))
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    # The axes keep their height whatever stands above them.
    figure.set_figheight(figure.get_figheight() + 0.17 * (math.ceil(len(handles) / columns) - 1))
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=columns,
        fontsize=8.5,
        handletextpad=0.3,
        columnspacing=1.2,
    )
