"""The trade as a picture: accuracy against measured training time, and against effective training FLOPs."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.figure
import pandas as pd
import seaborn

from reports import formatting
from reports.data.disturbed_times import DISTURBED, is_disturbed, mark_disturbed
from reports.data.estimates import Estimate, estimate
from reports.data.method_rows import MethodRow
from reports.figures import svg
from reports.figures.figure import Figure
from reports.figures.labels import legend

SIZE = (5.6, 3.7)
_CAPTION = (
    "Small: one trial. Large and hollow: the mean over seeds, with its 95 % interval in both directions where there "
    "are two seeds or more. Up and left is better."
)
CROSSED = "Crossed out: a disturbed time, or a mean with one in it; do not trust where it is on this axis."
_SKIPS = "Effective assumes hardware that skips; where it is less than executed, this is no measured saving."


def tradeoff_figures(rows: Sequence[MethodRow], slug: str) -> tuple[list[Figure], list[str]]:
    """Accuracy against measured training time and against effective training FLOPs.

    Returns:
        The figures, and one line for each that cannot be drawn.
    """
    figures: list[Figure] = []
    missing: list[str] = []

    def draw(name: str, column: str, scale: float, unit: str, axis: str, title: str, caption: str) -> None:
        points = _points(rows, column, scale)
        if points.empty:
            missing.append(f"{title}: not drawn, since no trial that is done has both numbers.")
        else:
            doubt = f"; ×: {DISTURBED}, not to be trusted" if points["disturbed"].any() else ""
            figures.append(_scatter(points, f"{slug}-{name}", title, caption, f"{axis} ({unit}){doubt}", unit))

    divisor, unit = formatting.time_scale(_largest(rows, "train_time_s"))
    title = "Accuracy against measured training time"
    doubt = f" {CROSSED}" if any(row.time_is_disturbed for row in rows) else ""
    draw("accuracy-time", "train_time_s", divisor, unit, "Training time, measured", title, f"{_CAPTION}{doubt}")
    divisor, prefix = formatting.si_scale(_largest(rows, "train_flops_effective"))
    title, axis = "Accuracy against effective training FLOPs", "Effective training FLOPs, counted, assumes skipping"
    caption = f"{_CAPTION} {_SKIPS}"
    draw("accuracy-flops", "train_flops_effective", divisor, f"{prefix}FLOPs", axis, title, caption)
    return figures, missing


def _largest(rows: Sequence[MethodRow], column: str) -> float:
    values = [trial.number(column) for row in rows for trial in row.done]
    return max((value for value in values if value is not None), default=0.0)


def _points(rows: Sequence[MethodRow], column: str, scale: float) -> pd.DataFrame:
    points = []
    for row in rows:
        for trial in row.done:
            x, accuracy = trial.number(column), trial.number("test_accuracy")
            if x is not None and accuracy is not None:
                points.append(
                    {
                        "method": row.label,
                        "colour": row.colour,
                        "seed": trial.number("seed"),
                        "x": x / scale,
                        "accuracy": 100 * accuracy,
                        "disturbed": column.endswith("_time_s") and is_disturbed(trial),
                    }
                )
    return pd.DataFrame(points)


def _scatter(points: pd.DataFrame, name: str, title: str, caption: str, axis: str, unit: str) -> Figure:
    alts = []
    with svg.style():
        figure = matplotlib.figure.Figure(figsize=SIZE, layout="constrained")
        axes = figure.add_subplot()
        for label, own in points.groupby("method", sort=False):
            index = int(own["colour"].iloc[0])
            colour, marker = svg.colour(index), svg.marker(index)
            per_seed = own.groupby("seed", dropna=False)[["x", "accuracy"]].mean()
            x, y = (estimate(per_seed[column].tolist(), "") for column in ("x", "accuracy"))
            assert isinstance(x, Estimate)
            assert isinstance(y, Estimate)
            seaborn.scatterplot(
                data=own,
                x="x",
                y="accuracy",
                ax=axes,
                color=colour,
                marker=marker,
                s=22,
                alpha=0.65,
                linewidth=0,
                legend=False,
            )
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
                # Hollow: two methods of one accuracy and cost hide one another otherwise.
                markerfacecolor="none",
                markeredgecolor=colour,
                markeredgewidth=1.7,
                zorder=3,
            )
            doubtful = own[own["disturbed"]]
            if len(doubtful):
                for xs, ys, size in ((doubtful["x"], doubtful["accuracy"], 30), ([x.mean], [y.mean], 130)):
                    axes.scatter(xs, ys, s=size, marker="x", color=svg.INK, linewidth=1.1, zorder=4)
            alts.append(mark_disturbed(f"{label}: {y.mean:.2f} % at {x.mean:.3g} {unit}", bool(len(doubtful))))
        axes.set(xlabel=axis, ylabel="Test accuracy, measured (%)")
        axes.margins(0.14)
        # An interval of few seeds may reach where no accuracy and no time can be.
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0.0), min(high, 100.0))
        axes.set_xlim(left=max(axes.get_xlim()[0], 0.0))
        legend(axes, points[["method", "colour"]].drop_duplicates(), lines=False)
        alt = f"{title}. {'; '.join(alts)}."
        inline, standalone = svg.render(figure, name, title, alt)
    return Figure(name, title, alt, caption, inline, standalone)
