"""Figures of accuracy against cost: measured training time, and effective training FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import matplotlib.figure
import pandas as pd
from matplotlib.axes import Axes

from reports import formatting
from reports.data.estimates import Estimate, estimate
from reports.data.method_rows import MethodRow
from reports.data.records import Look
from reports.data.rule import Budget
from reports.data.verdict import Cost
from reports.figures import svg
from reports.figures.figure import Figure
from reports.figures.svg import add_legend, draw_points, is_long
from suite.trials.folder.records import TrialRecord

# An interval: half-widths below and above, or `None`.
Spread = tuple[float, float] | None

SIZE = (5.6, 3.7)
_COLUMNS: Mapping[Cost, str] = {"time": "train_time_s", "flops": "train_flops_executed"}
_MEANS = "Small markers: trials. Large markers: means over seeds"
_PAIRED = "with 95 % intervals of the differences to dense."
_OWN = "with their 95 % intervals."
_TIMED = "Times: mean ratio of the time passes."
_PARETO = "Grey steps: Pareto line, the highest mean accuracy for at most this cost."
_LONGER = "Arrowheads: the interval goes on."
_BELOW = "Arrows at the lower edge: accuracies far below the axis, with their values."
_MARGIN = 0.14  # between the data and the axes, as a share of the data's range
_ROOM = 0.04  # for half a marker, as a share of the axis
_FAR = 2.0  # times the range of the other accuracies
_LARGEST_INTERVAL = 2.0  # times the largest cost; the interval of two seeds may be a hundred times as long
_BUDGET = (
    "Dashed: dense training for fewer epochs. A method above this line is more accurate than dense for the same cost."
)


@dataclass(frozen=True)
class _Point:
    """A trial: seed, cost in the unit of the axis, and accuracy in percent."""

    seed: float | None
    cost: float
    accuracy: float


@dataclass(frozen=True)
class _Axis:
    """The axis of costs.

    Attributes:
        kind: The kind of the costs.
        title: Title of the figure.
        label: Name of the axis, without its unit.
        unit: Unit of the costs.
        divisor: What a trial's cost is divided by, to be in this unit.
        needs: What a method needs to be drawn, in words.
        from_passes: Whether the costs are those of the time passes, relative to dense.
    """

    kind: Cost
    title: str
    label: str
    unit: str
    divisor: float
    needs: str
    from_passes: bool = False

    def cost(self, row: MethodRow, trial: TrialRecord) -> float | None:
        """Return the cost of a trial of a row; `None` if it is not known, or a disturbed time."""
        if self.from_passes:
            return row.timed_share
        if self.kind == "time" and row.time_is_disturbed:
            return None
        value = trial.number(_COLUMNS[self.kind])
        return None if value is None else value / self.divisor


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
            name, budget = f"{slug}-accuracy-{axis.kind}", _budget_line(methods, budgets[axis.kind])
            figures.append(_scatter(axis, methods, budget, name, [row for row in rows if row.done]))
        else:
            missing.append(f"{axis.title}: not drawn, because no finished trial has an accuracy and {axis.needs}.")
    return figures, missing


def _time_axis(rows: Sequence[MethodRow]) -> _Axis:
    passes, undisturbed = any(row.sound_time for row in rows), [row for row in rows if not row.time_is_disturbed]
    divisor, unit = (1.0, "× dense") if passes else formatting.time_scale(_largest(undisturbed, "time"))
    title, needs = "Accuracy against measured training time", f"an undisturbed time{' pass' if passes else ''}"
    return _Axis("time", title, "Training time, measured", unit, divisor, needs, passes)


def _flops_axis(rows: Sequence[MethodRow]) -> _Axis:
    divisor, prefix = formatting.si_scale(_largest(rows, "flops"))
    title = "Accuracy against executed training FLOPs"
    return _Axis("flops", title, "Executed training FLOPs, counted", f"{prefix}FLOPs", divisor, "executed FLOPs")


def _largest(rows: Sequence[MethodRow], kind: Cost) -> float:
    values = [trial.number(_COLUMNS[kind]) for row in rows for trial in row.done]
    return max((value for value in values if value is not None), default=0.0)


def _points(row: MethodRow, axis: _Axis) -> list[_Point]:
    points = []
    for trial in row.done:
        cost, accuracy = axis.cost(row, trial), trial.number("test_accuracy")
        if cost is not None and accuracy is not None:
            seed = trial.number("seed")
            points.append(_Point(seed, cost, 100 * accuracy))
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
    done: Sequence[MethodRow],
) -> Figure:
    alts, means, intervals = [], [*budget], []
    dense = next((_mean_over_seeds(points, "cost").mean for row, points in methods if row.is_baseline), None)
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
            alts.append(f"{row.name}: {y.mean:.2f} % at {x.mean:.3g} {axis.unit}")
            _draw_mean(axes, row.look, (x.mean, y.mean), x_spread, y_spread)
            intervals.append((row.look, (x.mean, y.mean), x_spread, y_spread))
        front = pareto_line(means)
        _draw_references(axes, budget, front)
        axes.set(xlabel=f"{axis.label} ({axis.unit})", ylabel="Test accuracy, measured (%)")
        axes.margins(_MARGIN)
        places = [*means, *((point.cost, point.accuracy) for _, points in methods for point in points)]
        costs, accuracies = zip(*places, strict=True)
        low, high = axes.get_ylim()
        edge = lower_edge(lows)
        if edge is not None:
            high -= _MARGIN * (high - low) / (1 + 2 * _MARGIN)  # the highest that is drawn
            # The arrows need room below the edge.
            low, high = edge - 0.3 * (high - edge), high + _MARGIN * (high - edge)
        shown = [accuracy for accuracy in accuracies if accuracy >= low]
        span = max(1.0, max(shown) - min(shown))  # as much of an interval is drawn below and above
        axes.set_ylim(_limits((low, high), shown, max(0.0, min(shown) - span), min(100.0, max(shown) + span)))
        low = axes.get_ylim()[0]
        below = [(row, mean) for (row, _), mean in zip(methods, means[len(budget) :], strict=True) if mean[1] < low]
        _draw_below(axes, below)
        axes.set_xlim(_limits(axes.get_xlim(), costs, 0.0, _LARGEST_INTERVAL * max(costs)))
        longer = sum(_draw_arrowheads(axes, *interval) for interval in intervals)
        svg.say_where_axes_start(axes)
        drawn = {row.label: row.look for row, _ in methods}
        add_legend(axes, [*drawn.items()], [row.label for row in done], lines=False)
        alt = f"{axis.title}. {'; '.join(alts)}."
        inline, standalone = svg.render(figure, name, axis.title, alt)
    left_out = [row.name for row in done if row.label not in drawn]
    parts = (
        f"{_MEANS}, {_OWN if dense is None else _PAIRED}", _TIMED if axis.from_passes else "",
        _BUDGET if budget else "", _PARETO if len(front) > 1 else "", _LONGER if longer else "",
        _BELOW if below else "", f"Not drawn, for want of {axis.needs}: {', '.join(left_out)}." if left_out else "",
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
    if axis.from_passes:
        cost = (x.mean - row.cost.low, row.cost.high - x.mean) if row.cost is not None else None
    elif axis.kind == "time":
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


def _limits(data: tuple[float, float], places: Sequence[float], least: float, most: float) -> tuple[float, float]:
    """Return the limits of an axis: those of the data, but within `least` and `most`, with room for whole markers."""
    low, high = max(data[0], least), min(data[1], most)
    room = _ROOM * (high - low)
    return min(low, min(places) - room), max(high, max(places) + room)


def _draw_arrowheads(axes: Axes, look: Look, mean: tuple[float, float], x_spread: Spread, y_spread: Spread) -> bool:
    """Draw an arrowhead where an interval goes on beyond the axes. Return whether one does."""
    (x, y), (left, right), (low, high) = mean, axes.get_xlim(), axes.get_ylim()
    (before, after), (below, above) = x_spread or (0.0, 0.0), y_spread or (0.0, 0.0)
    ends = ((x - before < left, left, y, "<"), (x + after > right, right, y, ">"),
            (y - below < low, x, low, "v"), (y + above > high, x, high, "^"))  # fmt: skip
    heads = [end[1:] for end in ends if end[0] and y >= low]  # a mean below the axis is drawn as an arrow itself
    for across, upright, head in heads:
        axes.plot(across, upright, linestyle="none", marker=head, color=svg.colour(look.colour), clip_on=False)
    return bool(heads)
