"""Figures of accuracy against cost: measured training time, and effective training FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.figure

from reports import formatting
from reports.data.budget import BudgetCurve
from reports.data.disturbed_times import DISTURBED, is_disturbed, mark_disturbed
from reports.data.estimates import Estimate, estimate
from reports.data.method_rows import MethodRow
from reports.figures import svg
from reports.figures.figure import Figure
from reports.figures.labels import add_legend

SIZE = (5.6, 3.7)
_CAPTION = (
    "Small markers: single trials. Large hollow markers: means over seeds, with their 95 % intervals in both "
    "directions if there are at least two seeds. Up and to the left is better."
)
_CROSSES = "Crosses mark disturbed times, and means that include one: do not rely on their position on this axis."
_BUDGET = "Dashed: dense training for fewer epochs, at its share of dense's mean cost."
_BEATS = "A method above this line is more accurate than dense training for the same time."
_WOULD_BEAT = "A method above this line would be more accurate than dense training for the same cost on such hardware."
_SKIPS = "Effective FLOPs assume hardware that skips; the part below the executed FLOPs is not a measured saving."


@dataclass(frozen=True)
class _Point:
    """A trial: seed, cost in the unit of the axis, accuracy in percent, and whether the cost is a disturbed time."""

    seed: float | None
    cost: float
    accuracy: float
    disturbed: bool


def tradeoff_figures(rows: Sequence[MethodRow], slug: str, curve: BudgetCurve) -> tuple[list[Figure], list[str]]:
    """Draw accuracy against measured training time and against effective training FLOPs.

    Args:
        rows: Rows of one group.
        slug: Prefix of the figures' names.
        curve: Dense training for shares of the epochs, drawn as a line.

    Returns:
        The figures, and one line for each figure that cannot be drawn.
    """
    figures: list[Figure] = []
    missing: list[str] = []

    def draw(name: str, column: str, scale: float, unit: str, axis: str, title: str, caption: str) -> None:
        points = {row: found for row in range(len(rows)) if (found := _points(rows[row], column, scale))}
        if not points:
            missing.append(f"{title}: not drawn, because no finished trial has both numbers.")
            return
        disturbed = any(point.disturbed for several in points.values() for point in several)
        warning = f"; ×: {DISTURBED}, not reliable" if disturbed else ""
        by_method = [(rows[row], several) for row, several in points.items()]
        line = _budget_line(by_method, curve)
        if line:
            caption = f"{caption} {_BUDGET} {_BEATS if column == 'train_time_s' else _WOULD_BEAT}"
        figures.append(_scatter(by_method, line, f"{slug}-{name}", title, caption, f"{axis} ({unit}){warning}", unit))

    divisor, unit = formatting.time_scale(_largest(rows, "train_time_s"))
    title = "Accuracy against measured training time"
    crosses = f" {_CROSSES}" if any(row.time_is_disturbed for row in rows) else ""
    draw("accuracy-time", "train_time_s", divisor, unit, "Training time, measured", title, f"{_CAPTION}{crosses}")
    divisor, prefix = formatting.si_scale(_largest(rows, "train_flops_effective"))
    title, axis = "Accuracy against effective training FLOPs", "Effective training FLOPs, counted, assumes skipping"
    caption = f"{_CAPTION} {_SKIPS}"
    draw("accuracy-flops", "train_flops_effective", divisor, f"{prefix}FLOPs", axis, title, caption)
    return figures, missing


def _largest(rows: Sequence[MethodRow], column: str) -> float:
    values = [trial.number(column) for row in rows for trial in row.done]
    return max((value for value in values if value is not None), default=0.0)


def _points(row: MethodRow, column: str, scale: float) -> list[_Point]:
    points = []
    for trial in row.done:
        cost, accuracy = trial.number(column), trial.number("test_accuracy")
        if cost is not None and accuracy is not None:
            disturbed = column.endswith("_time_s") and is_disturbed(trial)
            points.append(_Point(trial.number("seed"), cost / scale, 100 * accuracy, disturbed))
    return points


def _mean_over_seeds(points: Sequence[_Point], name: str) -> Estimate:
    """Return mean and interval of an attribute. A seed that was run several times counts once, with its mean."""
    by_seed: dict[float | None, list[float]] = {}
    for point in points:
        by_seed.setdefault(point.seed, []).append(getattr(point, name))
    found = estimate([sum(several) / len(several) for several in by_seed.values()], "")
    assert isinstance(found, Estimate)
    return found


def _budget_line(
    methods: Sequence[tuple[MethodRow, Sequence[_Point]]], curve: BudgetCurve
) -> list[tuple[float, float]]:
    """Return the points (cost, accuracy in percent) of dense training for fewer epochs, as means over seeds."""
    dense = next((points for row, points in methods if row.is_baseline), None)
    if dense is None or len(curve.shares) < 2:
        return []
    whole = _mean_over_seeds(dense, "cost").mean
    found = ((share, list(curve.with_share(share).values())) for share in curve.shares)
    return [(share * whole, 100 * sum(several) / len(several)) for share, several in found]


def _scatter(
    methods: Sequence[tuple[MethodRow, Sequence[_Point]]],
    line: Sequence[tuple[float, float]],
    name: str,
    title: str,
    caption: str,
    axis: str,
    unit: str,
) -> Figure:
    alts = []
    with svg.style():
        figure = matplotlib.figure.Figure(figsize=SIZE, layout="constrained")
        axes = figure.add_subplot()
        if line:
            axes.plot(*zip(*line, strict=True), color=svg.INK, linestyle="--", marker=".", linewidth=1.1, zorder=2)
        for row, points in methods:
            colour, marker = svg.colour(row.look.colour), svg.marker(row.look.marker)
            xs, ys = [point.cost for point in points], [point.accuracy for point in points]
            x, y = _mean_over_seeds(points, "cost"), _mean_over_seeds(points, "accuracy")
            axes.scatter(xs, ys, color=colour, marker=marker, s=22, alpha=0.65, linewidth=0)
            axes.errorbar(
                x.mean,
                y.mean,
                xerr=x.half_width,
                yerr=y.half_width,
                color=colour,
                fmt="none",
                capsize=2.5,
                elinewidth=1.1,
                zorder=3,
            )
            axes.plot(
                x.mean,
                y.mean,
                linestyle="none",
                marker=marker,
                markersize=9.5,
                # Hollow, so that methods with equal accuracy and cost do not hide each other.
                markerfacecolor="none",
                markeredgecolor=colour,
                markeredgewidth=1.7,
                zorder=3,
            )
            # Cross out disturbed times, and the mean that includes them.
            crossed = [point for point in points if point.disturbed]
            if crossed:
                trials = [point.cost for point in crossed], [point.accuracy for point in crossed]
                for places, size in ((trials, 30), (([x.mean], [y.mean]), 130)):
                    axes.scatter(*places, s=size, marker="x", color=svg.INK, linewidth=1.1, zorder=4)
            alts.append(mark_disturbed(f"{row.label}: {y.mean:.2f} % at {x.mean:.3g} {unit}", bool(crossed)))
        axes.set(xlabel=axis, ylabel="Test accuracy, measured (%)")
        axes.margins(0.14)
        # The interval of few seeds may extend to impossible accuracies and times.
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0.0), min(high, 100.0))
        axes.set_xlim(left=max(axes.get_xlim()[0], 0.0))
        add_legend(axes, [(row.label, row.look) for row, _ in methods], lines=False)
        alt = f"{title}. {'; '.join(alts)}."
        inline, standalone = svg.render(figure, name, title, alt)
    return Figure(name, title, alt, caption, inline, standalone)
