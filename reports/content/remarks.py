"""Remarks of a group: unreliable times, machines, seeds, backends, and what a method starts from.

Their sentences are in `reports/sentences/remarks.j2`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from reports.data.method_rows import MethodRow
from reports.data.records import UNSTEADY, Machine, PageGroup, attempts, busy_share, shared_with, spread
from reports.sentences import say
from suite.files import clean
from suite.measure.times import BUSY
from suite.trials.folder.records import TrialRecord
from suite.trials.groups import BASELINE, MACHINE, label, seed_of

_DENSE = "torch"


def time_remarks(trials: Sequence[TrialRecord]) -> list[str]:
    """Return a line for each reason why times of trials cannot be relied on."""
    done = [trial for trial in trials if trial.done]
    return [
        *_worst("shared_devices", done, shared_with, lambda number: number > 0),
        *_worst("competing_programs", done, busy_share, lambda load: load >= BUSY),
        *_worst("unsteady", done, spread, lambda ratio: ratio > UNSTEADY, limit=UNSTEADY),
        *_slow_products(done),
        *_emulated(done),
        *_resumed(done),
    ]


def _worst(
    name: str,
    done: Sequence[TrialRecord],
    of: Callable[[TrialRecord], float],
    is_bad: Callable[[float], bool],
    **more: float,
) -> list[str]:
    """Return a line with the number of trials that a measure finds bad, and the worst of them."""
    bad = {trial.name: value for trial in done if is_bad(value := of(trial))}
    if not bad:
        return []
    worst = max(bad, key=lambda trial: bad[trial])
    return [say(f"remarks.{name}", trials=len(bad), done=len(done), most=bad[worst], worst=worst, **more)]


def _slow_products(done: Sequence[TrialRecord]) -> list[str]:
    """Name the layers with a product that oneDNN computed by a reference implementation."""
    slow: dict[str, list[str]] = {}
    for trial in done:
        found = trial.provenance.get("onednn_fallbacks")
        if isinstance(found, list) and found:  # otherwise the text that says why they are not known
            slow.setdefault(clean("; ".join(found)), []).append(trial.name)
    return [say("remarks.slow_products", products=slow)] if slow else []


def _emulated(done: Sequence[TrialRecord]) -> list[str]:
    """Name a data type for which the processor has no arithmetic."""
    found = [dtype for trial in done if (dtype := trial.provenance.get("emulated_dtype"))]
    return [clean(say("remarks.emulated", trials=len(found), done=len(done), dtype=found[0]))] if found else []


def _resumed(done: Sequence[TrialRecord]) -> list[str]:
    """Count trials whose times are sums over several attempts, and name those where something changed in between."""
    resumed = [trial for trial in done if attempts(trial)]
    changed = {trial.name: found for trial in resumed if (found := trial.provenance.get("resumed_elsewhere"))}
    return [clean(say("remarks.resumed", count=len(resumed), changed=changed))] if resumed else []


class _Backend(NamedTuple):
    """Layers that a backend computed. `sparse` are those of the dense backend whose sparsity it did not use."""

    backend: str
    layers: list[str]
    is_dense: bool
    sparse: list[str]


def backend_remarks(rows: Sequence[MethodRow]) -> list[str]:
    """Return one line for each method with a layer that used another backend than `torch` in the last epoch."""
    lines = []
    for row in rows:
        # The line is about the first seed with another backend, and says whether other seeds differ from it.
        trials = [trial for trial in row.done if not trial.elsewhere]
        by_seed = [(trial, _last_backends(trial)) for trial in sorted(trials, key=seed_of)]
        trial, first = next(((trial, found) for trial, found in by_seed if set(found.values()) - {_DENSE}), (None, {}))
        if trial is None:
            continue
        sparse = _sparse_layers(trial)
        used = []
        for name in sorted(set(first.values()), key=lambda name: (name == _DENSE, name)):
            layers = [layer for layer in first if first[layer] == name]
            used.append(_Backend(name, layers, name == _DENSE, [layer for layer in layers if layer in sparse]))
        differ = any(found != first for _, found in by_seed)
        line = say(
            "remarks.backends", name=row.name, seed=seed_of(trial), used=used, layers=len(first), others_differ=differ
        )
        lines.append(clean(line))
    return lines


def _last_backends(trial: TrialRecord) -> dict[str, str]:
    """Return the backend of each layer in the last epoch; empty if the records do not name them."""
    backends: dict[str, str] = trial.epochs[-1].get("backends", {}) if trial.epochs else {}
    return backends


def _sparse_layers(trial: TrialRecord) -> set[str]:
    """Return the layers with a product that could skip multiply-adds in the last epoch, whatever the backend."""
    layers = trial.epochs[-1].get("layers", {}) if trial.epochs else {}
    return {name for name, record in layers.items() if min(record.get("density", ()), default=1.0) < 1}


def machine_remarks(group: PageGroup) -> list[str]:
    """Return one line for each other machine with trials of the same task and model."""
    lines = []
    key = tuple(group.key[name] for name in MACHINE)
    if group.trained not in ((), key):
        lines.append(say("remarks.two_machines", timed=_parts_of(key), trained=_parts_of(group.trained)))
    for elsewhere in group.elsewhere:
        differences = {clean(name): there.scaled(100) for name, there in elsewhere.differences.items()}
        of, refused = _parts_of(elsewhere.machine), clean(elsewhere.refused)
        lines.append(say("remarks.elsewhere", done=elsewhere.done, of=of, refused=refused, differences=differences))
    return lines


def _parts_of(machine: Machine) -> list[str]:
    return [clean(text) or "not recorded" for text in machine]


def repeated_seeds(group: PageGroup) -> list[str]:
    """Return one line for each seed of a method that was run several times."""
    runs = Counter((label(trial), seed_of(trial)) for trial in group.trials if trial.done)
    return [
        say("remarks.repeated_seed", name=name, times=times, seed=seed)
        for (name, seed), times in sorted(runs.items())
        if times > 1
    ]


def equal_starts(rows: Sequence[MethodRow]) -> list[str]:
    """Return a line that names the methods with seeds that began with the same weights."""
    names = []
    for row in rows:
        starts = {(seed_of(trial), start) for trial in row.done if (start := trial.provenance.get("initial_weights"))}
        if len({start for _, start in starts}) < len({seed for seed, _ in starts}):
            names.append(clean(row.label))
    return [say("remarks.equal_starts", names=names)] if names else []


def prerequisites(rows: Sequence[MethodRow]) -> list[str]:
    """Return a line for each method that starts from trainings or files, whose cost is not part of its own."""
    lines = []
    for row in rows:
        spec = row.done[0].spec if row.done else None
        if spec and (names := [*map(str, spec.depends_on), *(f"the file {name}" for name in spec.files)]):
            lines.append(clean(say("remarks.starts_from", name=row.name, names=names)))
    return lines


def communication_remarks(rows: Sequence[MethodRow]) -> list[str]:
    """Return a line with the gradients that data-parallel trials communicated; nothing without such trials."""
    communicated = [(row, gradients) for row in rows if (gradients := [*filter(None, map(_gradients, row.done))])]
    if not communicated:
        return []
    means = {row.label: fmean(measured for measured, _ in several) for row, several in communicated}
    other = [row.label for row, several in communicated if any(measured != counted for measured, counted in several)]
    return [clean(say("remarks.communication", gradients=means, dense=means.get(BASELINE, 0.0), other=other))]


def _gradients(trial: TrialRecord) -> tuple[int, int] | None:
    """Return the measured and the counted bytes of the gradients; `None` if one process trained the model."""
    record = trial.epochs[-1] if trial.epochs else {}
    if not (record.get("communication") and record.get("train_communication")):
        return None
    return record["communication"]["gradients"], record["train_communication"]["gradients"]


def time_pass_remarks(rows: Sequence[MethodRow]) -> list[str]:
    """Return a line with the training times of the time passes, and lines about passes that lack something."""
    timed = [(row.name, row.timed) for row in rows if row.timed is not None]
    if not timed:
        return []
    passes = [one for _, time in timed for one in time.passes]
    remarks = [
        say(
            "remarks.time_passes",
            methods=[(name, time.passes) for name, time in timed],
            threads=timed[0][1].threads,
            commits=[*dict.fromkeys(_commit(one.provenance) for one in passes)],
        )
    ]
    starts = [name for name, time in timed if any(stage.end is None for one in time.passes for stage in one.stages)]
    if starts:
        remarks.append(say("remarks.only_starts", methods=starts))
    disturbed = [(name, one.load) for name, time in timed for one in time.passes if one.is_disturbed]
    if disturbed:
        names = [*dict.fromkeys(name for name, _ in disturbed)]
        remarks.append(say("remarks.disturbed_passes", methods=names, load=max(load for _, load in disturbed)))
    return remarks


def _commit(provenance: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the commit that measured (empty if it is not known), and whether its files were changed."""
    git = provenance.get("git") or {}
    return (git.get("commit") or "")[:10], bool(git.get("dirty"))
