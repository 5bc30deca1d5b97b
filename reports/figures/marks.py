"""Lines and points of methods, drawn by seaborn from frames with a row a point.

A frame has the columns `method` (the label), `text` (what is shown when the pointer is on the point) and those of both
axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import seaborn
from matplotlib.axes import Axes

from reports.data.groups import Look
from reports.figures import svg
from reports.figures.labels import short_names

if TYPE_CHECKING:
    import pandas as pd

LETTERS = 45
"""Of the name of a row."""
DOTTED = (1, 1.5)
"""Dashes of what contains disturbed times."""


def draw_lines(
    axes: Axes,
    frame: pd.DataFrame,
    x: str,
    y: str,
    looks: Mapping[str, Look],
    dotted: frozenset[str] = frozenset(),
    **options: Any,
) -> None:
    """Draw a line for each method, through its points in their order.

    Args:
        axes: Axes.
        frame: Points, in the order of the lines.
        x, y: Columns of the axes.
        looks: How each method is drawn.
        dotted: Methods whose lines are dotted, for disturbed times.
        options: Further options of `seaborn.lineplot`.
    """
    dashes = {name: DOTTED if name in dotted else svg.dash(look.dash) for name, look in looks.items()}
    seaborn.lineplot(
        frame, x=x, y=y, hue="method", style="method", palette=_colours(looks), dashes=dashes, sort=False,
        estimator=None, legend=False, ax=axes, **options,
    )  # fmt: skip


def draw_points(axes: Axes, frame: pd.DataFrame, x: str, y: str, looks: Mapping[str, Look], **options: Any) -> None:
    """Draw a small marker for each point, with its text. `options` are those of `seaborn.scatterplot`."""
    markers = {name: svg.marker(look.marker) for name, look in looks.items()}
    seaborn.scatterplot(
        frame, x=x, y=y, hue="method", style="method", palette=_colours(looks), markers=markers, legend=False,
        linewidth=0, ax=axes, **options,
    )  # fmt: skip
    svg.hover(axes.collections[-1], frame["text"])


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Give a row to each label, the first on top, with its name in place of a tick."""
    names = short_names(labels, LETTERS)
    axes.set_yticks(range(len(labels)), [names[label] for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")


def _colours(looks: Mapping[str, Look]) -> dict[str, str]:
    return {name: svg.colour(look.colour) for name, look in looks.items()}
