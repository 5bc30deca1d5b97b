"""Figures of accuracy against cost: measured training time, and effective training FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import matplotlib.figure
import pandas as pd
from matplotlib.axes import Axes

from reports import formatting
from reports.data.disturbed_times import DISTURBED, is_disturbed, mark_disturbed
from reports.data.looks import Look
from reports.data.method_rows import MethodRow, all_timed
from reports.data.rule import Budget
from reports.data.verdict import Cost
from reports.figures import svg
from reports.figures.figure import Figure
from reports.figures.svg import add_legend, draw_points, is_long
from suite.trials.estimates import Estimate, estimate, mean_of
from suite.trials.folder.records import TrialRecord

# An interval: half-widths below and above, or `None`.
Spread = tuple[float, float] | None

SIZE = (5.6, 3.7)
_COLUMNS: Mapping[Cost, str] = {"time": "train_time_s", "flops": "train_flops_executed"}
_MEANS = "Small markers: trials. Large markers: means over seeds"
_PAIRED = "with 95 % intervals of the differences to dense."
_OWN = "with their 95 % intervals."
_CROSSES = "Crosses: disturbed times; do not rely on them."
_TIMED = "Times: mean ratio of the time passes."
_PARETO = "Grey steps: Pareto line, the highest mean accuracy for at most this cost."
_BELOW = "Arrows at the lower edge: accuracies far below the axis, with their values."
_MARGIN = 0.14  # between the data and the axes, as a share of the data's range
_FAR = 2.0  # times the range of the other accuracies
_LARGEST_INTERVAL = 2.0  # times the largest cost; the interval of two seeds may be a hundred times as long
_BUDGET = (
    "Dashed: dense training for fewer epochs. A method above this line is more accurate than dense for the same cost."
)


@dataclass(frozen=True)
class _Point:
    """A trial: seed, cost in the unit of the axis, accuracy in percent, and whether its time is disturbed."""

    seed: float | None
    cost: float
    accuracy: float
    disturbed: bool


@dataclass(frozen=True)
class _Axis:
    """The axis of costs.

    Attributes:
        kind: The kind of the costs.
        title: Title of the figure.
        label: Name of the axis, without its unit.
        unit: Unit of the costs.
        divisor: What a trial's cost is divided by, to be in this unit.
        from_passes: Whether the costs are those of the time passes, relative to dense.
    """

    kind: Cost
    title: str
    label: str
    unit: str
    divisor: float
    from_passes: bool = False

    def cost(self, row: MethodRow, trial: TrialRecord) -> float | None:
        """Return the cost of a trial of a row."""
        if self.from_passes:
            return mean_of(row.time.share) if row.time.passes else 1.0
        value = trial.number(_COLUMNS[self.kind])
        return None if value is None else value / self.divisor

    def is_disturbed(self, row: MethodRow, trial: TrialRecord) -> bool:
        """Return whether the cost of a trial of a row is a disturbed time."""
        if self.from_passes:
            return bool(row.time.passes) and row.time.is_disturbed
        return self.kind == "time" and is_disturbed(trial)


def tradeoff_figures(
    rows: Sequence[MethodRow], slug: str, budgets: Mapping[Cost, Sequence[Budget]]
) -> tuple[list[Figure], list[str]]:
    """Draw accuracy against measured training time and against executed training FLOPs.

    Args:
        rows: Rows of one group.
        slug: Prefix of the figures' names.
        budgets: Dense trainings of several lengths at each cost, ascending, drawn as a line.

    Returns:
        The figures, and one line for each figure that cannot be drawn.
    """
    figures: list[Figure] = []
    missing: list[str] = []
    for axis in (_time_axis(rows), _flops_axis(rows)):
        methods = [(row, points) for row in rows if (points := _points(row, axis))]
        if methods:
            figures.append(
                _scatter(axis, methods, _budget_line(methods, budgets[axis.kind]), f"{slug}-accuracy-{axis.kind}")
            )
        else:
            missing.append(f"{axis.title}: not drawn, because no finished trial has both numbers.")
    return figures, missing


def _time_axis(rows: Sequence[MethodRow]) -> _Axis:
    passes = all_timed(rows)
    divisor, unit = (1.0, "× dense") if passes else formatting.time_scale(_largest(rows, "time"))
    title = "Accuracy against measured training time"
    return _Axis("time", title, "Training time, measured", unit, divisor, passes)


def _flops_axis(rows: Sequence[MethodRow]) -> _Axis:
    divisor, prefix = formatting.si_scale(_largest(rows, "flops"))
    title = "Accuracy against executed training FLOPs"
    return _Axis("flops", title, "Executed training FLOPs, counted", f"{prefix}FLOPs", divisor)


def _largest(rows: Sequence[MethodRow], kind: Cost) -> float:
    values = [trial.number(_COLUMNS[kind]) for row in rows for trial in row.done]
    return max((value for value in values if value is not None), default=0.0)


def _points(row: MethodRow, axis: _Axis) -> list[_Point]:
    points = []
    for trial in row.done:
        cost, accuracy = axis.cost(row, trial), trial.number("test_accuracy")
        if cost is not None and accuracy is not None:
            seed = trial.number("seed")
            points.append(_Point(seed, cost, 100 * accuracy, axis.is_disturbed(row, trial)))
    return points


def _mean_over_seeds(points: Sequence[_Point], name: str) -> Estimate:
    """Return mean and interval of a field of points. A seed that was run several times counts once, with its mean."""
    mean = estimate(pd.DataFrame(points).groupby("seed", sort=False, dropna=False)[name].mean().to_list(), "")
    assert isinstance(mean, Estimate)
    return mean


def _accuracy(row: MethodRow, points: Sequence[_Point]) -> Estimate:
    """Return the mean accuracy in percent. Trials of other machines count too, although they have no cost here."""
    if any(trial.elsewhere for trial in row.done) and isinstance(row.accuracy, Estimate):
        return row.accuracy.scaled(100)
    return _mean_over_seeds(points, "accuracy")


def _budget_line(
    methods: Sequence[tuple[MethodRow, Sequence[_Point]]], budgets: Sequence[Budget]
) -> list[tuple[float, float]]:
    """Return the points (cost, accuracy in percent) of dense training for fewer epochs, as means over seeds."""
    dense = next((points for row, points in methods if row.is_baseline), None)
    known = [budget for budget in budgets if budget.accuracies]
    if dense is None or len(known) < 2:
        return []
    whole = _mean_over_seeds(dense, "cost").mean
    return [(budget.share * whole, fmean(budget.accuracies)) for budget in known]


def pareto_line(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return, by cost, the points (cost, accuracy) that no other point beats in one without losing in the other."""
    line: list[tuple[float, float]] = []
    for cost, accuracy in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not line or accuracy > line[-1][1]:
            line.append((cost, accuracy))
    return line


def _scatter(
    axis: _Axis,
    methods: Sequence[tuple[MethodRow, Sequence[_Point]]],
    budget: Sequence[tuple[float, float]],
    name: str,
) -> Figure:
    alts, means = [], [*budget]
    dense = next((_mean_over_seeds(points, "cost").mean for row, points in methods if row.is_baseline), None)
    crossed: list[tuple[float, float]] = []
    lows: list[tuple[float, float]] = [(accuracy, accuracy) for _, accuracy in budget]
    with svg.style():
        figure = matplotlib.figure.Figure(figsize=SIZE, layout="constrained")
        axes = figure.add_subplot()
        _draw_trials(axes, methods)
        for row, points in methods:
            x, y = _mean_over_seeds(points, "cost"), _accuracy(row, points)
            means.append((x.mean, y.mean))
            x_spread, y_spread = _spreads(axis, row, x, y, dense)
            lowest = min([y.mean - (y_spread[0] if y_spread else 0.0), *(point.accuracy for point in points)])
            lows.append((y.mean, lowest))
            disturbed = [(point.cost, point.accuracy) for point in points if point.disturbed]
            if disturbed:
                crossed += [*disturbed, (x.mean, y.mean)]
                _draw_crosses(axes, disturbed, (x.mean, y.mean))
            alts.append(mark_disturbed(f"{row.name}: {y.mean:.2f} % at {x.mean:.3g} {axis.unit}", bool(disturbed)))
            _draw_mean(axes, row.look, (x.mean, y.mean), x_spread, y_spread)
        front = [] if crossed else pareto_line(means)
        _draw_references(axes, budget, front)
        warning = f"; ×: {DISTURBED}, not reliable" if crossed else ""
        axes.set(xlabel=f"{axis.label} ({axis.unit}){warning}", ylabel="Test accuracy, measured (%)")
        axes.margins(_MARGIN)
        # The interval of few seeds may extend to impossible accuracies and times.
        low, high = axes.get_ylim()
        edge = lower_edge(lows)
        if edge is not None:
            high -= _MARGIN * (high - low) / (1 + 2 * _MARGIN)  # the highest that is drawn
            # The arrows need room below the edge.
            low, high = edge - 0.3 * (high - edge), high + _MARGIN * (high - edge)
        axes.set_ylim(max(low, 0.0), min(high, 100.0))
        below = [(row, mean) for (row, _), mean in zip(methods, means[len(budget) :], strict=True) if mean[1] < low]
        _draw_below(axes, below)
        left, right = axes.get_xlim()
        most = max(cost for cost, _ in [*means, *((point.cost, 0.0) for _, points in methods for point in points)])
        axes.set_xlim(max(left, 0.0), min(right, _LARGEST_INTERVAL * most))
        svg.say_where_axes_start(axes)
        add_legend(axes, [(row.label, row.look) for row, _ in methods], lines=False)
        alt = f"{axis.title}. {'; '.join(alts)}."
        inline, standalone = svg.render(figure, name, axis.title, alt)
    parts = (
        f"{_MEANS}, {_OWN if dense is None else _PAIRED}", _TIMED if axis.from_passes else "",
        _CROSSES if crossed else "",
        _BUDGET if budget else "", _PARETO if len(front) > 1 else "", _BELOW if below else "",
    )  # fmt: skip
    caption, wide = " ".join(filter(None, parts)), is_long(len(methods))
    return Figure(name, axis.title, alt, caption, inline, standalone, wide)


def lower_edge(lows: Sequence[tuple[float, float]]) -> float | None:
    """Return where the axis of accuracies begins, if a few means are so low that the others would overlap.

    Args:
        lows: For each method, its mean and the lowest accuracy that is drawn for it.

    Returns:
        The lowest accuracy of the others, which have to be most methods and at least three; `None` if all means fit.
    """
    ordered = sorted(lows)
    for count in range(len(ordered) // 3, 0, -1):
        others = ordered[count:]
        if len(others) >= 3 and others[0][0] - ordered[count - 1][0] > _FAR * max(1.0, others[-1][0] - others[0][0]):
            return min(low for _, low in others)
    return None


def _draw_below(axes: Axes, below: Sequence[tuple[MethodRow, tuple[float, float]]]) -> None:
    """Draw means below the range of the axis at its lower edge, with their accuracies."""
    for row, (cost, accuracy) in below:
        at_edge = axes.get_xaxis_transform()
        axes.plot(cost, 0.035, transform=at_edge, linestyle="none", marker=svg.marker(row.look.marker), markersize=9.5,
                  markerfacecolor="none", markeredgecolor=svg.colour(row.look.colour), markeredgewidth=1.7)  # fmt: skip
        text = f"↓ {accuracy:.1f} %"
        axes.text(cost, 0.075, text, transform=at_edge, ha="center", va="bottom", fontsize=8.5)


def _draw_references(axes: Axes, budget: Sequence[tuple[float, float]], front: Sequence[tuple[float, float]]) -> None:
    """Draw dense training for fewer epochs and the Pareto line, each if it has several points."""
    if budget:
        axes.plot(*zip(*budget, strict=True), color=svg.INK, linestyle="--", linewidth=1.1, marker="o", markersize=3.5,
                  markeredgewidth=0, zorder=2)  # fmt: skip
    if len(front) > 1:
        axes.step(*zip(*front, strict=True), where="post", color=svg.MUTED, linewidth=0.8, zorder=1)


def _spreads(axis: _Axis, row: MethodRow, x: Estimate, y: Estimate, dense: float | None) -> tuple[Spread, Spread]:
    """Return the intervals of a mean: those of the differences to dense. Dense, the reference, has no interval."""
    if dense is None:
        return _both(x.half_width), _both(y.half_width)
    if row.is_baseline:
        return None, None
    points, ratio = row.accuracy_difference, row.time_ratio
    cost = _both(x.half_width)
    if axis.kind == "time" and not axis.from_passes:
        cost = None
        if isinstance(ratio, Estimate) and ratio.half_width is not None:
            cost = dense * (ratio.mean - ratio.low), dense * (ratio.high - ratio.mean)
    return cost, _both(points.scaled(100).half_width if isinstance(points, Estimate) else None)


def _both(half_width: float | None) -> Spread:
    return None if half_width is None else (half_width, half_width)


def _draw_trials(axes: Axes, methods: Sequence[tuple[MethodRow, Sequence[_Point]]]) -> None:
    frame = pd.DataFrame(
        {"method": row.label, "cost": point.cost, "accuracy": point.accuracy}
        for row, points in methods
        for point in points
    )
    draw_points(axes, frame, "cost", "accuracy", {row.label: row.look for row, _ in methods}, s=22, alpha=0.65)


def _draw_mean(axes: Axes, look: Look, mean: tuple[float, float], x_spread: Spread, y_spread: Spread) -> None:
    colour = svg.colour(look.colour)
    x_error, y_error = ([[width] for width in spread] if spread else None for spread in (x_spread, y_spread))
    axes.errorbar(*mean, xerr=x_error, yerr=y_error, color=colour, fmt="none", capsize=2.5, elinewidth=1.1, zorder=3)
    # The marker is hollow, so that methods with equal accuracy and cost do not hide each other.
    axes.plot(*mean, linestyle="none", marker=svg.marker(look.marker), markersize=9.5, markerfacecolor="none",
              markeredgecolor=colour, markeredgewidth=1.7, zorder=3)  # fmt: skip


def _draw_crosses(axes: Axes, places: Sequence[tuple[float, float]], mean: tuple[float, float]) -> None:
    """Cross out disturbed times, and the mean that includes them."""
    for several, size in ((places, 30), ([mean], 130)):
        xs, ys = zip(*several, strict=True)
        axes.scatter(xs, ys, s=size, marker="x", color=svg.INK, linewidth=1.1, zorder=4)
