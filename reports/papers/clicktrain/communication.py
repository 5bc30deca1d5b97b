"""ClickTrain's figures of distributed training: Fig. 15 (the whole training) and Fig. 16 (its communication).

Source: Zhang, Yuan, Niu, Tian, Jin, Zhuang, Jiang, Wang, Ren, Song, Tao, "ClickTrain: Efficient and Accurate End-to-End
Deep Learning Training via Fine-Grained Architecture-Preserving Pruning", ICS 2021, slides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import pairwise

from reports.figures.figure import Figure
from reports.figures.panels import Line, Panel, bars_figure, curves_figure
from reports.papers.clicktrain.training_time import DENSE, OF_A_PART, WAYS, part
from reports.papers.comparison import Compared, compare
from reports.papers.contract import Outcome, Reproduction, ReproductionData
from reports.papers.trial_values import done, learned_nothing
from suite.engine.cost.ring import all_reduce_seconds
from suite.registry import register
from suite.trials.folder.reader import Trial

PROCESSES = (4, 16)
LINK = 56e9 / 8
"""Bytes per second of the modelled links."""
PART = "backends"
MASKED = "masked"
NO_NUMBERS = "The bars of the slides have no numbers, and the slides do not state the number of GPUs or their links."
COUNTED = (
    "Gradients are counted in every step, from shapes and masks, as data-parallel training sums them: until hard "
    "pruning all of them, and then those of the remaining weights, which are packed. The count does not depend on the "
    "number of processes. For data-parallel trials (--nproc-per-trial) there are further lines with measured numbers."
)
RING = (
    f"Communication time is modelled by a ring all-reduce over links of {8 * LINK / 1e9:.0f} Gb/s, which is an "
    "assumption, without latency and without overlap with the backward pass."
)
SCALED = (
    "Each of p processes is assumed to train with batches of the size of our single process, so that there are p times "
    "fewer steps, as in the published code. The modelled time is the measured time of one process plus the modelled "
    "communication of its steps, divided by p."
)


def time_column(processes: int) -> str:
    """Return the column of the modelled training time; its ending marks it as a time."""
    return f"modelled_{processes}_processes_time_s"


class _OfSeveralProcesses(Reproduction):
    """What both figures share: the trials, and the columns of their communication."""

    reference = "clicktrain-fig11-cifar10-accuracy"

    def columns(self, trial: Trial) -> Mapping[str, float]:
        gradients = gradient_bytes(trial)
        if not gradients:
            return {}
        steps = [float(record["steps"]) for record in trial.epochs]
        found = {
            "gradient_bytes": float(sum(gradients)),
            "last_gradients": (gradients[-1] / steps[-1]) / (gradients[0] / steps[0]),
        }
        for processes in PROCESSES:
            seconds = communication_seconds(trial, processes)
            found[f"communication_{processes}"] = seconds
            time = trial.number("train_time_s")
            if time is not None and not is_distributed(trial):
                found[time_column(processes)] = (time + processes * seconds) / processes
        return found


def gradient_bytes(trial: Trial) -> list[int]:
    """Return the counted bytes of the gradients of each epoch, over all steps; empty if they were not recorded."""
    sums = [record.get("train_communication", {}).get("gradients") for record in trial.epochs]
    if not sums or None in sums:
        return []
    return [after - before for before, after in pairwise([0, *sums])]


def communication_seconds(trial: Trial, processes: int) -> float:
    """Return the modelled seconds in which processes that share the steps of a trial sum their gradients."""
    total = 0.0
    for record, gradients in zip(trial.epochs, gradient_bytes(trial), strict=True):
        steps = float(record["steps"])
        total += steps * all_reduce_seconds(gradients / steps, processes, LINK)
    return total / processes


def is_distributed(trial: Trial) -> bool:
    """Return whether several processes trained the model, so that the trial's time includes communication."""
    return int(trial.spec.get("processes", 1)) > 1


@register("reproduction", "clicktrain-fig15")
class Figure15(_OfSeveralProcesses):
    """ClickTrain's Fig. 15: time of the whole training by several processes; modelled, or measured if there are any."""

    title = "ClickTrain, Fig. 15: total time of distributed training"
    remarks = (NO_NUMBERS, SCALED, RING, COUNTED)
    parts = (
        part(
            PART,
            f"dense and clicktrain, backend {' and '.join(OF_A_PART[PART])}",
            [
                Compared(f"{way}: training time, {processes} processes, of dense's", WAYS[way],
                         column=time_column(processes), against="ratio", kind="modelled")
                for way in OF_A_PART[PART]
                for processes in PROCESSES
            ],
        ),
    )  # fmt: skip

    def outcome(self, data: ReproductionData) -> Outcome:
        trials = first_trials(data, (DENSE, *(WAYS[way] for way in OF_A_PART[PART])))
        dense = trials.get(DENSE)
        bars = {}
        for label, trial in trials.items():
            times = [self.columns(trial).get(time_column(processes)) for processes in PROCESSES]
            theirs = [self.columns(dense).get(time_column(processes)) for processes in PROCESSES] if dense else []
            if None not in (*times, *theirs) and theirs:
                bars[label] = [100 * time / whole for time, whole in zip(times, theirs, strict=True)]  # type: ignore[operator]
        figure = None
        if bars:
            figure = bars_figure(
                self.registered_name,
                "Time of the training by several processes",
                f"{describe(trials)}, first seed. Modelled: measured time of one process, and a ring all-reduce over "
                f"links of {8 * LINK / 1e9:.0f} Gb/s.",
                "Training time (% of dense), modelled",
                [f"{processes} processes" for processes in PROCESSES],
                bars,
            )
        measured = [
            Compared(f"{way}: training time of the data-parallel trials, of dense's", WAYS[way],
                     column="train_time_s", against="ratio")
            for way in OF_A_PART[PART]
        ]  # fmt: skip
        outcome = finished(self, data, figure, measured)
        timed = [one for one in outcome.comparisons if one.kind == "measured"]
        # After trials of several processes, nothing is modelled.
        return dataclasses.replace(outcome, comparisons=tuple(timed)) if timed else outcome


@register("reproduction", "clicktrain-fig16")
class Figure16(_OfSeveralProcesses):
    """ClickTrain's Fig. 16: communication of the whole training, with only the gradients of kept weights summed."""

    title = "ClickTrain, Fig. 16: total communication time"
    remarks = (NO_NUMBERS, COUNTED, RING, SCALED)
    parts = (
        part(
            PART,
            f"dense and clicktrain, backend {' and '.join(OF_A_PART[PART])}",
            [
                Compared("clicktrain: gradients communicated, of dense's", WAYS[MASKED], column="gradient_bytes",
                         against="ratio", kind="counted"),
                Compared("clicktrain: gradients of a step in the last epoch, of those in the first", WAYS[MASKED],
                         column="last_gradients", kind="counted"),
                *(
                    Compared(f"{name}: communication time, {processes} processes, seconds", label,
                             column=f"communication_{processes}", scale=1.0, unit="s", kind="modelled")
                    for name, label in ((DENSE, DENSE), ("clicktrain", WAYS[MASKED]))
                    for processes in PROCESSES
                ),
                *(
                    Compared(f"clicktrain: communication time, {processes} processes, of dense's", WAYS[MASKED],
                             column=f"communication_{processes}", against="ratio", kind="modelled")
                    for processes in PROCESSES
                ),
            ],
        ),
    )  # fmt: skip

    def outcome(self, data: ReproductionData) -> Outcome:
        trials = first_trials(data, (DENSE, WAYS[MASKED]))
        dense = gradient_bytes(trials[DENSE]) if DENSE in trials else []
        courses = [
            Line(name, [(epoch, 100 * some / whole) for epoch, (some, whole) in enumerate(pairs, start=1)])
            for name, label in ((DENSE, DENSE), ("clicktrain", WAYS[MASKED]))
            if label in trials and (pairs := list(zip(gradient_bytes(trials[label]), dense, strict=False)))
        ]
        figure = curves_figure(
            self.registered_name,
            "Gradients that are communicated per epoch",
            f"{describe(trials)}, first seed. Counted.",
            [Panel("Communication", "Epoch", "Gradients (% of dense), counted", courses, whole_x=True, from_zero=True)],
        )
        measured = [
            Compared("clicktrain: bytes handed to the all-reduce, of dense's", WAYS[MASKED], column="allreduce_bytes",
                     against="ratio")
        ]  # fmt: skip
        return finished(self, data, figure, measured)


def first_trials(data: ReproductionData, labels: Sequence[str]) -> dict[str, Trial]:
    """Return the finished trial of the first seed, by label."""
    return {label: trials[0] for label in labels if (trials := done(data, PART, label))}


def describe(trials: Mapping[str, Trial]) -> str:
    """Return network and task of trials, for a caption."""
    return next((f"{trial.text('model')} on {trial.text('task')}" for trial in trials.values()), "No trial")


def finished(
    reproduction: Reproduction, data: ReproductionData, figure: Figure | None, measured: Sequence[Compared]
) -> Outcome:
    """Return the outcome with the declared lines and, after trials of several processes, the measured ones.

    Args:
        reproduction: The reproduction.
        data: Its trials.
        figure: Its figure.
        measured: Lines that only trials of several processes have.
    """
    trials = data.trials.get(PART, {})
    several = any(is_distributed(trial) for label in trials for trial in done(data, PART, label))
    more = compare(measured, PART, trials, reproduction.published) if several else ()
    dense = done(data, PART, DENSE)
    return Outcome((*reproduction.compare(data), *more), figure, (*learned_nothing(data, dense), *reproduction.remarks))
