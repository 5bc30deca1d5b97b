"""How it went: loss and accuracy over epochs, accuracy over seconds, FLOPs of a step over epochs, shapes by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.figure
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from reports import formatting
from reports.data.disturbed_times import DISTURBED, is_disturbed
from reports.data.method_rows import MethodRow
from reports.data.trial_files import finite
from reports.figures import svg
from reports.figures.figure import Figure
from reports.figures.heat_map import shape_figures
from reports.figures.labels import name_lines
from reports.figures.tradeoff import SIZE

_DOTTED = (0, (1, 1.5))


@dataclass(frozen=True)
class _Drawing:
    """One figure over epochs: the `columns` that it needs, and what draws it and returns its ends as text."""

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    draw: Callable[[Axes, pd.DataFrame], str]


def curve_figures(rows: Sequence[MethodRow], slug: str) -> tuple[list[Figure], list[str]]:
    """The figures, and one line for each that cannot be drawn."""
    records = _epoch_frame(rows)
    if records.empty:
        return [], ["How it went is not drawn: no trial that is done has an epochs.jsonl."]
    figures, missing = [], []
    for drawing in _DRAWINGS:
        title, name = drawing.title, f"{slug}-{drawing.name}"
        usable = records.dropna(subset=list(drawing.columns))
        if usable.empty:
            missing.append(f"{title}: not drawn, since no epochs.jsonl has {' and '.join(drawing.columns)}.")
            continue
        with svg.style():
            figure = matplotlib.figure.Figure(figsize=SIZE, layout="constrained")
            alt = f"{title}. {drawing.draw(figure.add_subplot(), usable)}"
            inline, standalone = svg.render(figure, name, title, alt)
        figures.append(Figure(name, title, alt, drawing.caption, inline, standalone))
    return figures + shape_figures(rows, slug), missing


def _epoch_frame(rows: Sequence[MethodRow]) -> pd.DataFrame:
    records = []
    for row in rows:
        for trial in row.done:
            for record in trial.epochs:
                records.append({"method": row.label, "colour": row.colour, "trial": trial.name, **_epoch(record)})
                records[-1]["disturbed"] = is_disturbed(trial)
    return pd.DataFrame(records)


def _epoch(record: Mapping[str, Any]) -> dict[str, float | None]:
    flops = record.get("step_flops") or {}
    wanted = {name: record.get(name) for name in ("test_accuracy", "train_loss", "train_time_s")}
    wanted |= {f"step_{kind}": flops.get(kind) for kind in ("executed", "effective")}
    # A loss may be written as text ("NaN") or be infinite: neither can be drawn.
    return {"epoch": record["epoch"], **{name: finite(value) for name, value in wanted.items()}}


def _draw_accuracy(axes: Axes, records: pd.DataFrame) -> str:
    frame = records.assign(y=100 * records["test_accuracy"].astype(float))
    return _lines(axes, frame, "Test accuracy (%)", "%")


def _draw_loss(axes: Axes, records: pd.DataFrame) -> str:
    return _lines(axes, records.assign(y=records["train_loss"].astype(float)), "Training loss (nats)", "nats")


def _lines(axes: Axes, frame: pd.DataFrame, axis: str, unit: str) -> str:
    ends = []
    for label, own in frame.groupby("method", sort=False):
        index = int(own["colour"].iloc[0])
        seaborn.lineplot(
            data=own,
            x="epoch",
            y="y",
            ax=axes,
            color=svg.colour(index),
            marker=svg.marker(index),
            markersize=4.5,
            markeredgewidth=0,
            markevery=_every(own),
            errorbar=("pi", 100),
            err_kws={"alpha": 0.18, "linewidth": 0},
            legend=False,
        )
        last = own[own["epoch"] == own["epoch"].max()]
        ends.append((str(label), index, float(last["epoch"].iloc[0]), float(last["y"].mean())))
    axes.set(xlabel="Epoch", ylabel=axis)
    _epoch_axis(axes, frame)
    return name_lines(axes, frame, ends, unit)


def _draw_accuracy_over_time(axes: Axes, records: pd.DataFrame) -> str:
    divisor, unit = formatting.time_scale(float(records["train_time_s"].max()))
    frame = records.assign(
        x=records["train_time_s"].astype(float) / divisor, y=100 * records["test_accuracy"].astype(float)
    )
    ends = []
    for label, own in frame.groupby("method", sort=False):
        index = int(own["colour"].iloc[0])
        for _, trial in own.groupby("trial", sort=False):
            dashes = _DOTTED if trial["disturbed"].any() else "-"
            axes.plot(trial["x"], trial["y"], color=svg.colour(index), linewidth=0.7, alpha=0.5, linestyle=dashes)
        mean = own.groupby("epoch")[["x", "y"]].mean()
        axes.plot(
            mean["x"],
            mean["y"],
            color=svg.colour(index),
            marker=svg.marker(index),
            markersize=4.5,
            markeredgewidth=0,
            markevery=_every(own),
            linestyle=_DOTTED if own["disturbed"].any() else "-",
        )
        ends.append((str(label), index, float(mean["x"].iloc[-1]), float(mean["y"].iloc[-1])))
    doubt = f"; dotted: {DISTURBED}, not to be trusted" if frame["disturbed"].any() else ""
    axes.set(xlabel=f"Training time, measured ({unit}){doubt}", ylabel="Test accuracy (%)")
    return name_lines(axes, frame, ends, "%")


def _draw_step_flops(axes: Axes, records: pd.DataFrame) -> str:
    divisor, prefix = formatting.si_scale(float(records["step_executed"].max()))
    ends = []
    for label, own in records.groupby("method", sort=False):
        index = int(own["colour"].iloc[0])
        for kind, dashes in (("executed", "-"), ("effective", (0, (4, 2)))):
            mean = own.dropna(subset=[f"step_{kind}"]).groupby("epoch")[f"step_{kind}"].mean() / divisor
            axes.step(
                mean.index,
                mean.to_numpy(),
                where="post",
                color=svg.colour(index),
                linestyle=dashes,
                marker=svg.marker(index),
                markersize=4.5,
                markeredgewidth=0,
                markevery=_every(own),
            )
            if kind == "executed":
                ends.append((str(label), index, float(mean.index[-1]), float(mean.iloc[-1])))
    axes.set(xlabel="Epoch", ylabel=f"FLOPs of a training step, counted ({prefix}FLOPs)")
    axes.set_ylim(0, 1.06 * float(records["step_executed"].max()) / divisor)
    _epoch_axis(axes, records)
    return name_lines(axes, records, ends, f"{prefix}FLOPs executed")


def _epoch_axis(axes: Axes, frame: pd.DataFrame) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    first, last = frame["epoch"].min(), frame["epoch"].max()
    if first == last:  # one point: room for its whole number, not for fractions around it
        axes.set_xlim(first - 1, last + 1)


def _every(own: pd.DataFrame) -> int:
    return max(1, own["epoch"].nunique() // 10)


_BAND = "Line: mean over seeds; band: smallest to largest seed."
_DRAWINGS = (
    _Drawing("accuracy-epochs", "Test accuracy over epochs", _BAND, ("test_accuracy",), _draw_accuracy),
    _Drawing("loss-epochs", "Training loss over epochs", _BAND, ("train_loss",), _draw_loss),
    _Drawing(
        "accuracy-seconds",
        "Test accuracy over measured training time",
        "Thin: one trial. Thick: mean over seeds of time and accuracy, epoch by epoch. Dotted: with a disturbed time.",
        ("test_accuracy", "train_time_s"),
        _draw_accuracy_over_time,
    ),
    _Drawing(
        "step-flops",
        "FLOPs of a training step over epochs",
        "Mean over seeds, at each epoch's end. Solid: executed. Dashed: effective, assuming hardware that skips.",
        ("step_executed",),
        _draw_step_flops,
    ),
)
