"""Figures of reproductions: lines in panels side by side, and bars by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from reports import formatting
from reports.data.estimates import Estimate
from reports.figures import svg
from reports.figures.figure import Figure
from suite.trials.groups import BASELINE

WIDTH, HEIGHT = 8.6, 3.4
_WIDE = 1e3  # a logarithmic axis with a larger range is labelled only at powers of ten
_LEVEL = 4  # the names of this many groups fit next to each other
_LABELS = 26  # with more layers on an axis, only some are named


@dataclass(frozen=True)
class Line:
    """A line of a panel, or a set of points.

    Attributes:
        label: Entry of the legend. Equal labels in several panels share one entry and colour.
        points: Pairs of x and y. If y is an `Estimate`, it is drawn with its interval.
        joined: Whether a line joins the points in the order of x.
    """

    label: str
    points: Sequence[tuple[float, float | Estimate]]
    joined: bool = True


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: Title above the axes.
        x: Name of the x axis, with its unit.
        y: Name of the y axis, with its unit.
        lines: Lines to draw.
        whole_x: Whether the ticks of x are whole numbers.
        from_zero: Whether y starts at 0, which shows changes in proportion.
    """

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    whole_x: bool = False
    from_zero: bool = False


def curves_figure(name: str, title: str, caption: str, panels: Sequence[Panel]) -> Figure | None:
    """Draw panels side by side, with one legend.

    Args:
        name: File name without suffix.
        title: Title of the figure.
        caption: Text below the figure.
        panels: Panels; those without points are left out. Lines of dense training have their own colour.

    Returns:
        The figure; `None` if no panel has points.
    """
    panels = [panel for panel in panels if any(line.points for line in panel.lines)]
    if not panels:
        return None
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines if line.points))
    others = [label for label in labels if label != BASELINE]
    place = {label: 0 if label == BASELINE else 1 + others.index(label) for label in labels}
    alts = []
    with svg.style():
        figure = matplotlib.figure.Figure(figsize=(WIDTH, HEIGHT + 0.18 * len(labels)), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for line in panel.lines:
                if line.points:
                    alts.append(f"{panel.title}, {line.label}: {_draw_line(axes, line, place[line.label])}")
            axes.set(xlabel=panel.x, ylabel=panel.y)
            axes.set_title(panel.title, fontsize=9.0)
            if panel.from_zero:
                axes.set_ylim(min(0.0, axes.dataLim.ymin), 1.05 * axes.get_ylim()[1])
            if panel.whole_x:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles = [
            Line2D([], [], color=svg.colour(place[label]), marker=svg.marker(place[label]), markersize=4.5, label=label)
            for label in labels
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=2, fontsize=8.5)
        alt = f"{title}. {'; '.join(alts)}."
        inline, standalone = svg.render(figure, name, title, alt)
    return Figure(name, title, alt, caption, inline, standalone, wide=True)


def _draw_line(axes: Axes, line: Line, place: int) -> str:
    """Draw a line. Return its first and last point as text."""
    points = sorted(line.points, key=lambda point: point[0]) if line.joined else list(line.points)
    xs = [x for x, _ in points]
    ys = [y.mean if isinstance(y, Estimate) else y for _, y in points]
    widths = [y.half_width or 0.0 if isinstance(y, Estimate) else 0.0 for _, y in points]
    axes.errorbar(
        xs, ys, yerr=widths if any(widths) else None, linestyle="-" if line.joined else "none", capsize=2.5,
        elinewidth=1.1, color=svg.colour(place), marker=svg.marker(place), markersize=4.5, clip_on=False,
    )  # fmt: skip
    ends = [f"{formatting.plain(y, 2)} at {x:.4g}" for x, y in zip(xs, ys, strict=True)]
    return ends[0] if len(ends) == 1 else f"{ends[0]}, {ends[-1]}"


def bars_figure(
    name: str,
    title: str,
    caption: str,
    y: str,
    groups: Sequence[str],
    bars: Mapping[str, Sequence[float]],
    spreads: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    *,
    logarithmic: bool = False,
    stacked: bool = False,
    mark: tuple[float, str] | None = None,
) -> Figure:
    """Draw bars of several kinds for each group, side by side or stacked.

    A logarithmic axis has no 0 where a bar could start, and gets markers instead.

    Args:
        name: File name without suffix.
        title: Title of the figure.
        caption: Text below the figure.
        y: Name of the y axis, with its unit.
        groups: Names along the x axis, for example layers in their order.
        bars: For each kind, one value per group. Dense training has its own colour.
        spreads: For each kind, the smallest and largest single measurement per group, drawn as a vertical line.
        logarithmic: Whether the y axis is logarithmic, for values that differ by orders of magnitude.
        stacked: Whether the bars of a group are parts of one.
        mark: Height and label of a line across all groups.
    """
    others = [kind for kind in bars if kind != BASELINE]
    order = {kind: 0 if kind == BASELINE else 1 + others.index(kind) for kind in bars}
    handles: list[Patch | Line2D] = []
    with svg.style():
        figure = matplotlib.figure.Figure(figsize=(WIDTH, HEIGHT + 0.4), layout="constrained")
        axes = figure.add_subplot()
        width = 0.8 / (1 if stacked else len(bars))
        bottoms = np.zeros(len(groups))
        for index, (kind, heights) in enumerate(bars.items()):
            places = np.arange(len(groups)) + (0 if stacked else (index - (len(bars) - 1) / 2) * width)
            colour, marker = svg.colour(order[kind]), svg.marker(order[kind])
            if logarithmic:
                axes.plot(places, heights, linestyle="none", marker=marker, markersize=5.0, color=colour)
                handles.append(Line2D([], [], linestyle="none", marker=marker, color=colour, label=kind))
            else:
                axes.bar(places, heights, width, bottoms, color=colour)
                bottoms += np.asarray(heights) if stacked else 0.0
                handles.append(Patch(color=colour, label=kind))
            if spreads and kind in spreads:
                lows, highs = zip(*spreads[kind], strict=True)
                axes.vlines(places, lows, highs, color=svg.MUTED, linewidth=1.4)
        if mark:
            handles.append(axes.axhline(mark[0], color=svg.INK, linewidth=1.2, linestyle="--", label=mark[1]))
        every = -(-len(groups) // _LABELS)
        few = len(groups) <= _LEVEL
        axes.set_xticks(range(0, len(groups), every), groups[::every], rotation=0 if few else 60,
                        ha="center" if few else "right", fontsize=8.5 if few else 7.0)  # fmt: skip
        axes.grid(False, axis="x")
        axes.set_ylabel(y)
        if logarithmic:
            axes.set_yscale("log")
            low, high = axes.get_ylim()
            subdivisions = (1.0, 2.0, 5.0) if high / low < _WIDE else (1.0,)
            axes.yaxis.set_major_locator(LogLocator(subs=subdivisions))
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        figure.legend(handles=handles, loc="outside upper left", ncols=min(len(handles), 4), fontsize=8.5)
        means = [f"{kind}: mean {float(np.mean(heights)):.3g}" for kind, heights in bars.items()]
        what = "marks" if logarithmic else "bars"
        alt = f"{title}. {len(groups)} {what} each. {'; '.join(means)}."
        inline, standalone = svg.render(figure, name, title, alt)
    return Figure(name, title, alt, caption, inline, standalone, wide=True)
