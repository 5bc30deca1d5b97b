"""What a command will take: a probe of each kind of its trials (`suite.measure.probe`), and the sum over the trials.

This module imports no torch: each probe has its own process.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from suite.engine.cost.hardware import busy_advice, competition
from suite.measure.calls import call_in_subprocess
from suite.trials.controls import dense_spec
from suite.trials.folder.store import RUNNING, Store
from suite.trials.process import environment
from suite.trials.progress import Measurements, duration
from suite.trials.spec import TrialSpec

FUNCTION = "suite.measure.probe:probe"


@dataclass(frozen=True)
class TrialKind:
    """Trials of a command that differ only in their seeds.

    Attributes:
        trials: All of them.
        runs: Those that the command would run.
        found: Result of the probe of one of these; only `error`, the reason, if it could not be probed.
        notes: What the numbers leave out or assume.
    """

    trials: tuple[TrialSpec, ...]
    runs: tuple[TrialSpec, ...]
    found: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether its trials run and could be probed."""
        return bool(self.found) and "error" not in self.found

    @property
    def trial_s(self) -> float:
        """Seconds of one trial, from the start of its process to its end."""
        return sum(self.found[name] for name in ("train_s", "eval_s", "other_s")) if self.is_known else 0.0

    @property
    def name(self) -> str:
        """The method with its parameters."""
        return f"{self.trials[0].label}{' (control)' if self.trials[0].control else ''}"

    @property
    def epochs(self) -> float:
        """Epochs of a trial."""
        return float(self.trials[0].recipe["epochs"])

    @property
    def where(self) -> str:
        """Model, task and number format."""
        return f"{self.trials[0].model} on {self.trials[0].task}, {self.trials[0].dtype}"


def predict(
    trials: Sequence[TrialSpec],
    folder: Path,
    only: str,
    jobs: int,
    console: Console,
    threads: int | None = None,
) -> list[TrialKind]:
    """Probe each kind of the trials that a command would run.

    Args:
        trials: The trials of the command, in order.
        folder: Its output folder, which may not exist.
        only: Which trials the command runs: `missing`, `failed` or `all`.
        jobs: Number of trials that run at the same time. As many probes run at once, and disturb each other alike.
        console: Where the progress is shown.
        threads: Threads of each process; `None` for OMP_NUM_THREADS, or its share of the cores.
    """
    store = Store(folder)
    states = store.states(trials, in_use=folder.is_dir() and store.is_locked())
    status = {trial.trial_id: state for trial, (state, _) in zip(trials, states, strict=True)}
    ended = {"missing": {"done"}, "failed": {"", "done", RUNNING}, "all": set[str]()}[only]
    groups: dict[tuple[str, bool], list[TrialSpec]] = {}
    for one in trials:
        groups.setdefault((replace(one, seed=0, depends_on={}).hash, one.control), []).append(one)

    kinds = [
        TrialKind(tuple(group), tuple(one for one in group if status[one.trial_id] not in ended))
        for group in groups.values()
    ]
    shown = Measurements([kind.runs[0] for kind in kinds if kind.runs], console)

    def probed(kind: TrialKind) -> TrialKind:
        if not kind.runs:
            return kind
        first = kind.runs[0]
        missing = [other for other in first.depends_on.values() if status.get(other) != "done"]
        share = int(environment(jobs * first.processes)["OMP_NUM_THREADS"].partition(",")[0])
        with shown.measuring(first, f"steps of {kind.name}, {kind.epochs:g} epochs, {kind.where}"):
            found = _probed(dense_spec(first) if missing else first, folder, threads or share)
        return replace(kind, found=found, notes=tuple(_notes(found, missing)))

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(probed, kinds))


def _probed(trial: TrialSpec, folder: Path, threads: int) -> dict[str, Any]:
    arguments = {"spec": trial.to_json(), "trials": str(folder / "trials")}
    try:
        called = call_in_subprocess(FUNCTION, arguments, trial.device, trial.plugins, threads, trial.arithmetic)
    except RuntimeError as error:
        return {"error": str(error)}
    return {"busy_cores": called.busy_cores, **called.value}


def _notes(found: Mapping[str, Any], missing: Sequence[str]) -> list[str]:
    if "error" in found:
        return [f"not predicted: {found['error']}"]
    unseen, busy, needed = found["epochs"] - found["visited"], found["busy_cores"], ", ".join(missing)
    notes = [
        (
            missing,
            f"measured as dense training, which costs at least as much: it depends on {needed}, which is not done",
        ),
        (found["leaves_out"], "FLOPs executed count residual branches that steps leave out: an upper bound"),
        (found["shrinks"], "the network keeps its size here, so that time, FLOPs executed and memory are upper bounds"),
        (found["late"], f"for lack of time, {unseen} later epochs were not looked at, and count as the last one"),
        (competition(busy, found["threads"]), f"disturbed: other programs used {busy:.1f} cores{busy_advice()}"),
    ]
    return [note for applies, note in notes if applies]


def total_s(kinds: Sequence[TrialKind], trials: Sequence[TrialSpec], jobs: int) -> float:
    """Return the seconds of all trials that run, `jobs` at a time: each starts as soon as it can, in order."""
    seconds = {one.trial_id: kind.trial_s for kind in kinds if kind.is_known for one in kind.runs}
    free, ends = [0.0] * jobs, dict[str, float]()
    for trial in trials:
        if trial.trial_id in seconds:
            began = max([heapq.heappop(free), *(ends.get(other, 0.0) for other in trial.depends_on.values())])
            ends[trial.trial_id] = began + seconds[trial.trial_id]
            heapq.heappush(free, ends[trial.trial_id])
    return max(ends.values(), default=0.0)


def _names(kinds: Sequence[TrialKind]) -> list[str]:
    several = len({kind.where for kind in kinds}) > 1
    names = [f"{kind.name}, {kind.where}" if several else kind.name for kind in kinds]
    return [
        f"{name}, {kind.epochs:g} epochs" if names.count(name) > 1 else name
        for name, kind in zip(names, kinds, strict=True)
    ]


def table(kinds: Sequence[TrialKind]) -> Table:
    """Return the table with a row for each kind of trial."""
    where = "; ".join(dict.fromkeys(kind.where for kind in kinds))
    shown = Table(title=escape(f"What one trial takes, projected from measured steps: {where}"))
    shown.add_column("trial", overflow="fold")
    for name in ("to run", "epochs", "ms a step", "training", "in all", "FLOPs dense", "FLOPs executed", "memory"):
        shown.add_column(name, justify="right", overflow="fold")
    for name, kind in zip(_names(kinds), kinds, strict=True):
        shown.add_row(escape(name), f"{len(kind.runs)} of {len(kind.trials)}", *_cells(kind))
    return shown


def _cells(kind: TrialKind) -> list[str]:
    if not kind.is_known:
        return []
    found = kind.found
    most = "at most " if found["shrinks"] else ""
    return [
        str(found["epochs"]),
        ", ".join(dict.fromkeys(f"{1e3 * stage['step_s']:.3g}" for stage in found["stages"])),
        f"{most}{duration(found['train_s'])}",
        f"{most}{duration(kind.trial_s)}",
        f"{found['flops_dense']:.3g}",
        f"{most}{found['flops_executed']:.3g}",
        f"{most}{found['memory_bytes'] / 1e6:,.1f} MB",
    ]


def lines(kinds: Sequence[TrialKind], seconds: float, jobs: int) -> list[str]:
    """Return a line for each note with the kinds of trials that it is about, and one for the whole command."""
    about: dict[str, list[str]] = {}
    for name, kind in zip(_names(kinds), kinds, strict=True):
        for note in kind.notes:
            about.setdefault(note, []).append(name)
    to_run = sum(len(kind.runs) for kind in kinds)
    if not to_run:
        return ["nothing to run: all trials are done"]
    lost = sum(len(kind.runs) for kind in kinds if not kind.is_known)
    return [
        *(f"{'; '.join(names)}: {note}" for note, names in about.items()),
        f"{to_run} of {sum(len(kind.trials) for kind in kinds)} trials to run: about {duration(seconds)}"
        f"{f' with --jobs {jobs}' if jobs > 1 else ''}, projected from measured steps"
        f"{f', without {lost} that could not be measured' if lost else ''}",
    ]


def as_json(kinds: Sequence[TrialKind]) -> list[dict[str, Any]]:
    """Return the kinds of trials as plain data."""
    names = ("task", "model", "dtype", "device", "processes", "control")
    return [
        {
            "method": kind.trials[0].label,
            **{name: getattr(kind.trials[0], name) for name in names},
            "seeds": [one.seed for one in kind.trials],
            "to_run": [one.trial_id for one in kind.runs],
            "trial_s": kind.trial_s,
            **kind.found,
            "notes": list(kind.notes),
        }
        for kind in kinds
    ]
