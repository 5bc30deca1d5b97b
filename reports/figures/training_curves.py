"""Figures over epochs: accuracy, loss, accuracy over time, FLOPs per step, and shapes by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import MaxNLocator

from reports import formatting
from reports.data.disturbed_times import DISTURBED, is_disturbed
from reports.data.groups import Look
from reports.data.method_rows import MethodRow
from reports.data.records import Trial
from reports.data.trial_files import finite
from reports.figures import svg
from reports.figures.figure import Figure
from reports.figures.heat_map import shape_figures
from reports.figures.interactive import Plot
from reports.figures.labels import LineEnd, is_long, name_lines, short_names
from reports.figures.tradeoff import SIZE

_DOTTED = (0, (1, 1.5))
_MARKERS_PER_LINE = 10

# The values of an epoch by name, with the number of the epoch as "epoch".
Record = dict[str, float]


@dataclass(frozen=True)
class _Curve:
    """Records of one method: for each trial, those of its epochs that have all values of a figure."""

    label: str
    look: Look
    ids: tuple[str, ...]
    trials: tuple[tuple[Record, ...], ...]
    disturbed: tuple[bool, ...]

    def by_epoch(self, name: str) -> dict[float, list[float]]:
        """Return the values of all trials by epoch, in the order of epochs."""
        found: dict[float, list[float]] = {}
        for record in (record for trial in self.trials for record in trial):
            if name in record:
                found.setdefault(record["epoch"], []).append(record[name])
        return dict(sorted(found.items()))

    def means(self, name: str, divisor: float = 1.0) -> tuple[list[float], list[float]]:
        """Return the epochs, and the mean over trials at each."""
        values = self.by_epoch(name)
        return list(values), [float(np.mean(several)) / divisor for several in values.values()]

    @property
    def style(self) -> dict[str, Any]:
        """Colour, markers and dashes of the line over epochs."""
        epochs = {record["epoch"] for trial in self.trials for record in trial}
        return {
            "color": svg.colour(self.look.colour),
            "marker": svg.marker(self.look.marker),
            "linestyle": svg.dash(self.look.dash),
            "markersize": 4.5,
            "markeredgewidth": 0,
            "markevery": max(1, len(epochs) // _MARKERS_PER_LINE),
        }


@dataclass(frozen=True)
class _Drawing:
    """A figure over epochs.

    Attributes:
        name: Part of the file name.
        title: Title of the figure.
        caption: Text below the figure.
        needs: Values that a record must have to be drawn.
        draw: Draws the curves, adds them to the interactive figure, and returns their ends as text.
    """

    name: str
    title: str
    caption: str
    needs: tuple[str, ...]
    draw: Callable[[Axes, Plot, Sequence[_Curve]], str]


def curve_figures(rows: Sequence[MethodRow], slug: str) -> tuple[list[Figure], list[str]]:
    """Return the figures, and one line for each figure that cannot be drawn."""
    if not any(trial.epochs for row in rows for trial in row.done):
        return [], ["Training curves are not drawn, because no finished trial has an epochs.jsonl."]
    records = {trial.name: [_record(record) for record in trial.epochs] for row in rows for trial in row.done}
    figures, missing = [], []
    for drawing in _DRAWINGS:
        title, name = drawing.title, f"{slug}-{drawing.name}"
        curves = [curve for row in rows if (curve := _curve(row, records, drawing.needs)).trials]
        if not curves:
            missing.append(f"{title}: not drawn, because no epochs.jsonl has {' and '.join(drawing.needs)}.")
            continue
        with svg.style():
            figure = matplotlib.figure.Figure(figsize=SIZE, layout="constrained")
            axes, plot = figure.add_subplot(), Plot()
            alt = f"{title}. {drawing.draw(axes, plot, curves)}"
            svg.say_where_axes_start(axes)
            inline, standalone = svg.render(figure, name, title, alt)
            interactive = plot.figure(axes, at_side=is_long(len(curves)))
        wide = is_long(len(curves))
        figures.append(Figure(name, title, alt, drawing.caption, inline, standalone, wide, interactive))
    return figures + shape_figures(rows, slug), missing


def _curve(row: MethodRow, records: dict[str, list[Record]], needs: Sequence[str]) -> _Curve:
    usable: list[tuple[Trial, tuple[Record, ...]]] = []
    for trial in row.done:
        found = tuple(record for record in records[trial.name] if all(name in record for name in needs))
        if found:
            usable.append((trial, found))
    return _Curve(
        row.label,
        row.look,
        tuple(trial.name for trial, _ in usable),
        tuple(found for _, found in usable),
        tuple(is_disturbed(trial) for trial, _ in usable),
    )


def _record(record: Any) -> Record:
    flops = record.get("step_flops") or {}
    values = {name: record.get(name) for name in ("test_accuracy", "train_loss", "train_time_s")}
    values |= {f"step_{kind}": flops.get(kind) for kind in ("executed", "effective")}
    # A loss may be text ("NaN") or infinite; neither can be drawn.
    numbers = {name: finite(value) for name, value in values.items()}
    return {"epoch": float(record["epoch"]), **{name: value for name, value in numbers.items() if value is not None}}


def _draw_accuracy(axes: Axes, plot: Plot, curves: Sequence[_Curve]) -> str:
    return _draw_means(axes, plot, curves, "test_accuracy", 100, "Test accuracy (%)", "%")


def _draw_loss(axes: Axes, plot: Plot, curves: Sequence[_Curve]) -> str:
    return _draw_means(axes, plot, curves, "train_loss", 1, "Training loss (nats)", "nats")


def _draw_means(
    axes: Axes, plot: Plot, curves: Sequence[_Curve], name: str, factor: float, axis: str, unit: str
) -> str:
    ends, names = [], short_names([curve.label for curve in curves])
    for curve in curves:
        values = {epoch: [factor * value for value in several] for epoch, several in curve.by_epoch(name).items()}
        means = [float(np.mean(several)) for several in values.values()]
        axes.plot(list(values), means, **curve.style)
        # A band shows the range over seeds, where there are several.
        lows = [min(several) if len(several) > 1 else np.nan for several in values.values()]
        highs = [max(several) if len(several) > 1 else np.nan for several in values.values()]
        axes.fill_between(list(values), lows, highs, color=svg.colour(curve.look.colour), alpha=0.18, linewidth=0)
        ends.append(LineEnd(curve.label, curve.look, max(values), means[-1]))
        hover = [
            [
                curve.label,
                f"epoch {epoch:g}",
                f"mean {_digits(mean)} {unit}",
                f"seeds: {', '.join(map(_digits, several))}",
            ]
            for (epoch, several), mean in zip(values.items(), means, strict=True)
        ]
        if any(len(several) > 1 for several in values.values()):
            spans = [(min(several), max(several)) for several in values.values()]
            plot.band(names[curve.label], curve.look, list(values), *(list(side) for side in zip(*spans, strict=True)))
        plot.line(names[curve.label], curve.look, list(values), means, hover)
    axes.set(xlabel="Epoch", ylabel=axis)
    _set_epoch_axis(axes, curves)
    return name_lines(axes, ends, unit)


def _digits(value: float) -> str:
    return f"{value:.4g}"


def _draw_accuracy_over_time(axes: Axes, plot: Plot, curves: Sequence[_Curve]) -> str:
    longest = max(record["train_time_s"] for curve in curves for trial in curve.trials for record in trial)
    divisor, unit = formatting.time_scale(longest)
    ends, names = [], short_names([curve.label for curve in curves])
    for curve in curves:
        thin: dict[bool, list[list[tuple[float, float]]]] = {False: [], True: []}
        for trial_id, trial, disturbed in zip(curve.ids, curve.trials, curve.disturbed, strict=True):
            xs = [record["train_time_s"] / divisor for record in trial]
            ys = [100 * record["test_accuracy"] for record in trial]
            thin[disturbed].append(list(zip(xs, ys, strict=True)))
            hover = _time_hover(trial_id, [record["epoch"] for record in trial], xs, ys, unit)
            plot.line(names[curve.label], curve.look, xs, ys, hover, width=0.8, dotted=disturbed, markers=False,
                      legend=False)  # fmt: skip
        # One collection draws the lines of 1,000 trials in a tenth of the time that single lines take.
        for disturbed, lines in thin.items():
            axes.add_collection(LineCollection(lines, colors=svg.colour(curve.look.colour), linewidths=0.7, alpha=0.5,
                                               linestyles=_DOTTED if disturbed else "-"))  # fmt: skip
        epochs, xs = curve.means("train_time_s", divisor)
        _, ys = curve.means("test_accuracy", 0.01)
        axes.plot(xs, ys, **(curve.style | ({"linestyle": _DOTTED} if any(curve.disturbed) else {})))
        ends.append(LineEnd(curve.label, curve.look, xs[-1], ys[-1]))
        hover = _time_hover(f"{curve.label}, mean over seeds", epochs, xs, ys, unit)
        plot.line(names[curve.label], curve.look, xs, ys, hover, dotted=any(curve.disturbed))
    warning = f"; dotted: {DISTURBED}, not reliable" if any(any(curve.disturbed) for curve in curves) else ""
    axes.set(xlabel=f"Training time, measured ({unit}){warning}", ylabel="Test accuracy (%)")
    axes.set_xlim(left=0)
    return name_lines(axes, ends, "%")


def _time_hover(
    name: str, epochs: Sequence[float], times: Sequence[float], accuracies: Sequence[float], unit: str
) -> list[list[str]]:
    return [
        [name, f"epoch {epoch:g}", f"{_digits(accuracy)} % after {_digits(time)} {unit}"]
        for epoch, time, accuracy in zip(epochs, times, accuracies, strict=True)
    ]


def _draw_step_flops(axes: Axes, plot: Plot, curves: Sequence[_Curve]) -> str:
    largest = max(record["step_executed"] for curve in curves for trial in curve.trials for record in trial)
    divisor, prefix = formatting.si_scale(largest)
    ends, names = [], short_names([curve.label for curve in curves])
    for curve in curves:
        for kind, width in (("executed", 1.8), ("effective", 0.8)):
            epochs, means = curve.means(f"step_{kind}", divisor)
            axes.step(epochs, means, where="post", linewidth=width, **curve.style)
            hover = [
                [curve.label, f"epoch {epoch:g}", f"{kind} {_digits(mean)} {prefix}FLOPs"]
                for epoch, mean in zip(epochs, means, strict=True)
            ]
            executed = kind == "executed"
            plot.line(names[curve.label], curve.look, epochs, means, hover, width=2.2 if executed else 0.9, steps=True,
                      markers=executed, legend=executed)  # fmt: skip
            if executed:
                ends.append(LineEnd(curve.label, curve.look, epochs[-1], means[-1]))
    axes.set(xlabel="Epoch", ylabel=f"FLOPs of a training step, counted ({prefix}FLOPs)")
    axes.set_ylim(0, 1.06 * largest / divisor)
    _set_epoch_axis(axes, curves)
    return name_lines(axes, ends, f"{prefix}FLOPs executed")


def _set_epoch_axis(axes: Axes, curves: Sequence[_Curve]) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    epochs = [record["epoch"] for curve in curves for trial in curve.trials for record in trial]
    # Epochs are counted from 1; 0 is the untrained network.
    axes.set_xlim(0, 1.02 * max(2.0, *epochs))


_BAND = "Line: mean over seeds. Band: smallest to largest value over seeds."
_DRAWINGS = (
    _Drawing("accuracy-epochs", "Test accuracy over epochs", _BAND, ("test_accuracy",), _draw_accuracy),
    _Drawing("loss-epochs", "Training loss over epochs", _BAND, ("train_loss",), _draw_loss),
    _Drawing(
        "accuracy-seconds",
        "Test accuracy over measured training time",
        "Thin lines: single trials. Thick lines: means over seeds of time and accuracy at each epoch. "
        "Dotted: disturbed times.",
        ("test_accuracy", "train_time_s"),
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
