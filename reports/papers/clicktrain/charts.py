"""Charts of ClickTrain's figures: stacked bars, and heat maps of positions in 3x3 kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from reports.figures import svg
from reports.figures.figure import Figure

WIDTH = 8.6
_DASHES = (0, (4, 2))
_NARROW = 0.03  # of the longest bar; shorter parts have no number


def stacked_figure(
    name: str,
    title: str,
    caption: str,
    x: str,
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    kinds: Sequence[str],
    mark: tuple[float, str] | None = None,
) -> Figure:
    """Draw stacked horizontal bars in adjacent panels, one row per item.

    Args:
        name, title, caption: Texts of the figure.
        x: Label of the horizontal axis, with its unit.
        panels: Lengths of the parts, in the order of `kinds`, by title and row; all panels have the same rows.
        kinds: Names of the parts.
        mark: Position and label of a line across all rows.
    """
    alts = []
    rows = list(next(iter(panels.values())))
    longest = max(sum(parts) for bars in panels.values() for parts in bars.values())
    with svg.style():
        figure = matplotlib.figure.Figure(figsize=(WIDTH, 1.5 + 0.3 * len(rows)), layout="constrained")
        grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (panel, bars) in zip(grid, panels.items(), strict=True):
            for height, (row, parts) in enumerate(bars.items()):
                left = 0.0
                for index, part in enumerate(parts):
                    axes.barh(height, part, 0.72, left, color=svg.colour(index + 1))
                    if part > _NARROW * longest:
                        text = f"{part:.0f}" if part >= 10 else f"{part:.2g}"
                        axes.text(left + part / 2, height, text, ha="center", va="center", fontsize=7.5,
                                  color="#ffffff" if index < 1 else "#000000")  # fmt: skip
                    left += part
                texts = [f"{kind} {part:.3g}" for kind, part in zip(kinds, parts, strict=True) if part]
                alts.append(f"{panel and panel + ', '}{row}: {', '.join(texts)}")
            if mark:
                axes.axvline(mark[0], color=svg.INK, linewidth=1.2, linestyle=_DASHES)
            axes.set_title(panel, fontsize=9.0)
            axes.set(xlabel=x, xlim=(0, longest))
            axes.grid(False, axis="y")
        grid[0].set_yticks(range(len(rows)), rows)
        grid[0].set_ylim(len(rows) - 0.5, -0.5)
        handles: list[Patch | Line2D] = [
            Patch(color=svg.colour(index + 1), label=kind) for index, kind in enumerate(kinds)
        ]
        if mark:
            handles.append(Line2D([], [], color=svg.INK, linewidth=1.2, linestyle=_DASHES, label=mark[1]))
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), fontsize=8.5)
        alt = f"{title}. {'; '.join(alts)}."
        inline, standalone = svg.render(figure, name, title, alt)
    return Figure(name, title, alt, caption, inline, standalone, wide=True)
