"""Charts of reproductions: points with intervals, curves, and maps of matrices; bars are in `reports.figures.panels`.

A declaration can name `differences`, `epochs`, `tradeoff` and `grid`. They take the name of the figure, its
declaration, the comparisons and the trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.figure
import numpy as np
from matplotlib.lines import Line2D

from reports import formatting
from reports.data.estimates import Estimate, Missing
from reports.figures import svg
from reports.figures.figure import Figure
from reports.figures.panels import Line, Panel, curves_figure
from reports.papers.comparison import Comparison
from reports.papers.contract import ReproductionData, named, over_seeds
from reports.papers.paper import Chart
from suite.trials.folder.records import TrialRecord

WIDTH = 7.2
_OURS, _THEIRS = 1, 2
_ZERO = "#8c959f"
_HOLLOW: dict[str, Any] = {"marker": "D", "markerfacecolor": "none", "linestyle": "none"}


def differences(name: str, chart: Chart, comparisons: Sequence[Comparison], data: ReproductionData) -> Figure | None:
    """Draw differences to dense in points, one row per method: the published number, and ours with its interval."""
    rows = [one for one in comparisons if one.is_difference and one.unit == "points" and isinstance(one.ours, Estimate)]
    if not rows:
        return None
    alts = []
    with svg.style():
        figure = matplotlib.figure.Figure(figsize=(WIDTH, 1.2 + 0.3 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        axes.axvline(0, color=svg.DENSE, linewidth=1.0)
        for height, row in enumerate(rows):
            texts = []
            if row.published is not None:
                axes.plot(row.published, height - 0.14, color=svg.colour(_THEIRS), markersize=5.5, **_HOLLOW)
                texts.append(f"published {formatting.signed(row.published, 1)}")
            if isinstance(row.ours, Estimate):
                axes.errorbar(row.ours.mean, height + 0.14, xerr=row.ours.half_width, color=svg.colour(_OURS),
                              marker="o", markersize=5.5, linestyle="none", capsize=2.5, elinewidth=1.1)  # fmt: skip
                texts.append(f"ours {formatting.interval(row.ours, 2, sign=True)}")
            alts.append(f"{row.quantity}: {', '.join(texts)}")
        axes.set_yticks(range(len(rows)), [row.quantity.removesuffix(" minus dense") for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(False, axis="y")
        axes.set(xlabel="Accuracy minus dense (points); ours measured, with its 95 % interval over seeds")
        handles = [
            Line2D([], [], color=svg.colour(_OURS), marker="o", linestyle="none", label="ours"),
            Line2D([], [], color=svg.colour(_THEIRS), label="published", **_HOLLOW),
            Line2D([], [], color=svg.DENSE, linewidth=1.0, label="dense"),
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=3, fontsize=8.5, handletextpad=0.3)
        alt = f"{chart.title}. {'; '.join(alts)}."
        inline, standalone = svg.render(figure, name, chart.title, alt)
    caption = "Differences to the dense network of the same setting. A single seed has no interval."
    return Figure(name, chart.title, alt, caption, inline, standalone)


def epochs(name: str, chart: Chart, comparisons: Sequence[Comparison], data: ReproductionData) -> Figure | None:
    """Draw values over the epochs, for the first part of which most methods are done: means over the first seeds."""
    by_part = [
        {label: trials for label, method in methods.items() if (trials := data.done(part, method))}
        for part, methods in chart.lines.items()
    ]
    drawn = max(by_part, key=len)  # the first of equal ones
    panels = []
    for panel in chart.panels:
        values = named(panel.values)
        lines = [
            Line(label, mean_curve([values(trial) for trial in trials[: panel.seeds]]))
            for label, trials in drawn.items()
        ]
        panels.append(Panel(panel.title, "Epoch", panel.y, lines, True, panel.from_zero))
    return curves_figure(name, chart.title, chart.caption, panels)


def mean_curve(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[float, float | Estimate]]:
    """Return the mean over seeds at each epoch that all of them have."""
    by_epoch = [dict(curve) for curve in curves]
    shared = sorted(set.intersection(*map(set, by_epoch))) if by_epoch else []
    return [(float(epoch), sum(values[epoch] for values in by_epoch) / len(by_epoch)) for epoch in shared]


def tradeoff(name: str, chart: Chart, comparisons: Sequence[Comparison], data: ReproductionData) -> Figure | None:
    """Draw accuracy over a cost relative to dense, one line per label and one point per method."""
    groups = {
        label: [next(filter(None, (data.done(part, method) for part in data.trials)), []) for method in methods]
        for label, methods in chart.lines.items()
    }

    def point(trials: Sequence[TrialRecord], column: str, dense: str) -> list[tuple[float, float | Estimate]]:
        def share(trial: TrialRecord) -> float | None:
            cost, whole = trial.number(column), trial.number(dense)
            return 100 * cost / whole if cost is not None and whole else None

        x, y = over_seeds(trials, share, ""), over_seeds(trials, lambda trial: trial.number("test_accuracy"), "")
        return [] if isinstance(x, Missing) or isinstance(y, Missing) else [(x.mean, y.scaled(100))]

    panels = [
        Panel(panel.title, panel.x, "Test accuracy (%), measured", [
            Line(label, [one for trials in several for one in point(trials, panel.column, panel.over)])
            for label, several in groups.items()
        ])
        for panel in chart.panels
    ]  # fmt: skip
    return curves_figure(name, chart.title, chart.caption, panels)


def grid(name: str, chart: Chart, comparisons: Sequence[Comparison], data: ReproductionData) -> Figure:
    """Draw accuracies and their differences to dense as two maps, published and ours, one cell per pair of settings."""
    by_name = {one.quantity: one for one in comparisons}
    axes, rows, columns = chart.panels[0], list(chart.lines), list(next(iter(chart.lines.values())))
    values = {title: np.full((len(rows), len(columns)), np.nan) for title in ("Published", "Ours, measured")}
    texts = {title: np.full((len(rows), len(columns)), "N/A", object) for title in values}
    alts = []
    for (line, column), quantity in np.ndenumerate([[*cells.values()] for cells in chart.lines.values()]):
        if not quantity:
            continue
        absolute, gap = by_name[f"accuracy, {quantity}"], by_name[f"{quantity} minus dense"]
        for title, accuracy, difference in (
            ("Published", absolute.published, gap.published),
            ("Ours, measured", absolute.ours, gap.ours),
        ):
            values[title][line, column] = _mean(difference)
            known = (_written(accuracy), f"({_written(difference, sign=True)})" if _written(difference) else "")
            texts[title][line, column] = "\n".join(filter(None, known)) or "not run"
        both = ", ".join(f"{title} {texts[title][line, column]}".replace("\n", " ") for title in texts)
        alts.append(f"{axes.y} {rows[line]}, {axes.x} {columns[column]}: {both}")
    gaps = np.concatenate([one[np.isfinite(one)] for one in values.values()])
    low, high = (float(gaps.min()), float(gaps.max())) if gaps.size else (-1.0, 0.0)
    scale = Scale("Minus dense (points)", min(low, high - 0.1), high, "cividis")
    maps = [[Map(title, grid, texts[title], rows, columns) for title, grid in values.items()]]
    return maps_figure(name, chart.title, chart.caption, maps, scale, alts, (axes.x, axes.y))


def _mean(value: Any) -> float:
    value = value.mean if isinstance(value, Estimate) else value
    return value if isinstance(value, float) else np.nan


def _written(value: Any, *, sign: bool = False) -> str:
    if isinstance(value, Estimate):
        return formatting.interval(value, 2, sign=sign)
    if not isinstance(value, float):
        return ""
    return formatting.signed(value, 1) if sign else formatting.plain(value, 1)


@dataclass(frozen=True)
class Map:
    """A matrix to draw, with a title, the texts of its cells, and the labels of its rows and columns, if any."""

    title: str
    values: np.ndarray
    texts: np.ndarray | None = None
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()


@dataclass(frozen=True)
class Scale:
    """The colour scale of all maps of a figure: its label, ends and colours."""

    label: str
    low: float
    high: float
    colours: str


def maps_figure(
    name: str, title: str, caption: str, maps: Sequence[Sequence[Map]], scale: Scale, alts: Sequence[str],
    axis_names: tuple[str, str] = ("", ""), row_labels: Sequence[str] = (),
) -> Figure:  # fmt: skip
    """Draw matrices as rows of heat maps on one colour scale. Zeros of a scale around 0 are grey.

    Args:
        name, title, caption: Texts of the figure.
        maps: Rows of maps.
        scale: Colour scale.
        alts: What the figure shows, for readers who do not see it.
        axis_names: Names of the horizontal and the vertical axis of every map.
        row_labels: Label of each row of maps.
    """
    around_zero = scale.low == -scale.high
    colours = matplotlib.colormaps[scale.colours].with_extremes(bad=_ZERO if around_zero else "none")
    height = max(len(one.values) for one in maps[0])
    with svg.style():
        size = (WIDTH + 2.0, 1.0 + len(maps) * (1.3 if maps[0][0].texts is None else 0.5 * height))
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(maps), len(maps[0]), squeeze=False)
        for number, (line, several) in enumerate(zip(grid, maps, strict=True)):
            for axes, one in zip(line, several, strict=True):
                shown = np.ma.masked_where((one.values == 0) & around_zero | np.isnan(one.values), one.values)
                limits: Any = {"vmin": scale.low, "vmax": scale.high, "interpolation": "none", "aspect": "auto"}
                drawn = axes.imshow(shown, cmap=colours, **limits)
                for (row, column), text in np.ndenumerate(one.texts) if one.texts is not None else ():
                    place = (one.values[row, column] - scale.low) / (scale.high - scale.low)
                    dark = not np.isnan(place) and (place < 0.2 or place > 0.8 if around_zero else place < 0.55)
                    ink = "#ffffff" if dark else svg.MUTED if np.isnan(place) else "#000000"
                    axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color=ink)
                axes.set_title(one.title, fontsize=9.0)
                axes.set_xticks(range(len(one.columns)), one.columns)
                axes.set_yticks(range(len(one.rows)), one.rows)
                axes.set_xlabel(axis_names[0])
                axes.tick_params(length=0)
                axes.grid(False)
                axes.spines[:].set_visible(False)
            line[0].set_ylabel(row_labels[number] if row_labels else axis_names[1])
        bar = figure.colorbar(drawn, ax=grid, pad=0.01, aspect=25)
        bar.set_label(scale.label)
        bar.outline.set_visible(False)  # type: ignore[operator]
        alt = f"{title}. {'; '.join(alts)}."
        inline, standalone = svg.render(figure, name, title, alt)
    return Figure(name, title, alt, caption, inline, standalone, wide=True)
