"""Figures over epochs: accuracy, loss, accuracy over time, and FLOPs per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.figure
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import MaxNLocator

from reports import formatting
from reports.data.method_rows import MethodRow
from reports.data.records import Look
from reports.data.targets import dense_timed, share_until
from reports.figures import svg
from reports.figures.figure import Figure
from reports.figures.svg import add_legend, draw_lines, is_long
from reports.figures.tradeoff import SIZE
from suite.trials.folder.reader import finite
from suite.trials.folder.records import TrialRecord
from suite.trials.groups import seed_of

Looks = Mapping[str, Look]


@dataclass(frozen=True)
class _Drawing:
    """A figure over epochs.

    Attributes:
        name: Part of the file name.
        title: Title of the figure.
        caption: Text below the figure.
        needs: Values that a record must have to be drawn.
        draw: Function that draws the records of all methods, and returns the ends of their curves as text.
    """

    name: str
    title: str
    caption: str
    needs: tuple[str, ...]
    draw: Callable[[Axes, pd.DataFrame, Looks], str]


def curve_figures(rows: Sequence[MethodRow], slug: str) -> tuple[list[Figure], list[str]]:
    """Draw the figures; return them, and one line for each figure that cannot be drawn."""
    if not any(trial.epochs for row in rows for trial in row.done):
        return [], ["Training curves are not drawn, because no finished trial has an epochs.jsonl."]
    records = _records(rows)
    figures, missing = [], []
    for drawing in _DRAWINGS:
        title, name = drawing.title, f"{slug}-{drawing.name}"
        known = records.dropna(subset=drawing.needs)
        looks = {row.label: row.look for row in rows if row.done}
        if known.empty:
            missing.append(f"{title}: not drawn, because no epochs.jsonl has {' and '.join(drawing.needs)}.")
            continue
        with svg.style():
            figure = matplotlib.figure.Figure(figsize=SIZE, layout="constrained")
            axes = figure.add_subplot()
            alt = f"{title}. {drawing.draw(axes, known, looks)}"
            svg.say_where_axes_start(axes)
            inline, standalone = svg.render(figure, name, title, alt)
        figures.append(
            Figure(name, title, alt, drawing.caption, inline, standalone, is_long(known["method"].nunique()))
        )
    return figures, missing


def _records(rows: Sequence[MethodRow]) -> pd.DataFrame:
    """Return a row for each epoch of each finished trial, in order, with the values that figures need.

    The time is that of the time passes if there are any, in units of dense's whole training; otherwise in seconds.
    Disturbed times are left out.
    """
    timed = dense_timed(rows)

    def times(row: MethodRow, trial: TrialRecord) -> list[float | None]:
        """Return the time until the end of each epoch. The last one agrees with the mean over the time passes."""
        if timed is None:
            return [None if row.time_is_disturbed else finite(record.get("train_time_s")) for record in trial.epochs]
        share, whole = share_until(row.label, timed if row.is_baseline else row.sound_time), row.timed_share
        if share is None or whole is None:
            return [None] * len(trial.epochs)
        parts = [share(trial, record["epoch"]) or 0.0 for record in trial.epochs]
        return [whole * part / parts[-1] for part in parts]

    return pd.DataFrame(
        {"method": row.label, "trial": trial.name, "seed": seed_of(trial), "is_share": timed is not None}
        | {"undisturbed time": time}
        | _values(record)
        for row in rows
        for trial in row.done
        for record, time in zip(trial.epochs, times(row, trial), strict=True)
    ).sort_values("epoch", kind="stable")


def _values(record: Mapping[str, Any]) -> dict[str, float | None]:
    flops = record.get("step_flops") or {}
    values = {name: record.get(name) for name in ("test_accuracy", "train_loss")}
    values |= {f"step_{kind}": flops.get(kind) for kind in ("executed", "effective")}
    # A loss may be text ("NaN") or infinite. `finite` turns both into None, which is not drawn.
    return {"epoch": float(record["epoch"]), **{name: finite(value) for name, value in values.items()}}


def _draw_accuracy(axes: Axes, records: pd.DataFrame, looks: Looks) -> str:
    return _draw_means(axes, records.assign(value=100 * records["test_accuracy"]), looks, "Test accuracy (%)", "%")


def _draw_loss(axes: Axes, records: pd.DataFrame, looks: Looks) -> str:
    return _draw_means(axes, records.assign(value=records["train_loss"]), looks, "Training loss (nats)", "nats")


def _draw_means(axes: Axes, records: pd.DataFrame, looks: Looks, title: str, unit: str) -> str:
    """Draw the mean over seeds of the column `value`, and a band from the smallest to the largest."""
    means = _over_seeds(
        records,
        value=("value", "mean"),
        low=("value", "min"),
        high=("value", "max"),
        seeds=("value", "size"),
    )
    draw_lines(axes, means, "epoch", "value", looks)
    for method, rows in means[means["seeds"] > 1].groupby("method", sort=False):
        colour = svg.colour(looks[str(method)].colour)
        axes.fill_between(rows["epoch"], rows["low"], rows["high"], color=colour, alpha=0.18, linewidth=0)
    axes.set(xlabel="Epoch", ylabel=title)
    _set_epoch_axis(axes, records)
    return _name(axes, means, looks, unit)


def _draw_accuracy_over_time(axes: Axes, records: pd.DataFrame, looks: Looks) -> str:
    is_share = records["is_share"].any()
    divisor, unit = (1.0, "× dense") if is_share else formatting.time_scale(records["undisturbed time"].max())
    records = records.assign(time=records["undisturbed time"] / divisor, value=100 * records["test_accuracy"])
    # A collection draws the lines of 1,000 trials in a tenth of the time of single lines.
    for method, several in records.groupby("method", sort=False):
        trials = [curve for _, curve in several.groupby("trial", sort=False)]
        lines = LineCollection(
            [curve[["time", "value"]].to_numpy() for curve in trials], colors=svg.colour(looks[str(method)].colour),
            linewidths=0.7, alpha=0.5,
        )  # fmt: skip
        axes.add_collection(lines)
    means = _over_seeds(records, time=("time", "mean"), value=("value", "mean"))
    draw_lines(axes, means, "time", "value", looks)
    axes.set(xlabel=f"Training time, measured ({unit})", ylabel="Test accuracy (%)")
    axes.set_xlim(left=0)
    return _name(axes, means, looks, "%")


def _draw_step_flops(axes: Axes, records: pd.DataFrame, looks: Looks) -> str:
    largest = records["step_executed"].max()
    divisor, prefix = formatting.si_scale(largest)
    executed = pd.DataFrame()
    for kind, width in (("effective", 0.8), ("executed", 1.8)):
        known = records.dropna(subset=[f"step_{kind}"])
        if known.empty:
            continue
        executed = _over_seeds(known.assign(value=known[f"step_{kind}"] / divisor), value=("value", "mean"))
        draw_lines(axes, executed, "epoch", "value", looks, drawstyle="steps-post", linewidth=width)
    axes.set(xlabel="Epoch", ylabel=f"FLOPs of a training step, counted ({prefix}FLOPs)")
    axes.set_ylim(0, 1.06 * largest / divisor)
    _set_epoch_axis(axes, records)
    return _name(axes, executed, looks, f"{prefix}FLOPs executed")


def _over_seeds(records: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """Return aggregates over the trials of each method at each epoch, indexed by method and epoch."""
    return records.groupby(["method", "epoch"], sort=False).agg(**columns).reset_index()


def _name(axes: Axes, means: pd.DataFrame, looks: Looks, unit: str) -> str:
    """Name the lines in a legend. Return their last values as text."""
    last = {row["method"]: row["value"] for row in means.to_dict("records")}  # rows are in the order of epochs
    drawn = {name: look for name, look in looks.items() if name in last}
    add_legend(axes, [*drawn.items()], [*looks], lines=True)
    ends = (f"{look.named(name)} {last[name]:.4g} {unit}" for name, look in drawn.items())
    return f"At the end: {'; '.join(ends)}."


def _set_epoch_axis(axes: Axes, records: pd.DataFrame) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    # Epochs are counted from 1; 0 is the untrained network.
    axes.set_xlim(0, 1.02 * max(2.0, records["epoch"].max()))


_BAND = "Line: mean over seeds. Band: smallest to largest value over seeds."
_DRAWINGS = (
    _Drawing("accuracy-epochs", "Test accuracy over epochs", _BAND, ("test_accuracy",), _draw_accuracy),
    _Drawing("loss-epochs", "Training loss over epochs", _BAND, ("train_loss",), _draw_loss),
    _Drawing(
        "accuracy-seconds",
        "Test accuracy over measured training time",
        "Thin lines: single trials. Thick lines: means over seeds of time and accuracy at each epoch. Times are those "
        "of the time passes, if there are any; methods without an undisturbed time are left out.",
        ("test_accuracy", "undisturbed time"),
        _draw_accuracy_over_time,
    ),
    _Drawing(
        "step-flops",
        "FLOPs of a training step over epochs",
        "Means over seeds at the end of each epoch. Thick: executed. Thin: effective, on hardware that skips.",
        ("step_executed",),
        _draw_step_flops,
    ),
)
