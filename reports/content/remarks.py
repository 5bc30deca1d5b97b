"""Remarks of a report: backends other than PyTorch's dense ones, and what missing files leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from reports.data.disturbed_times import mark_disturbed
from reports.data.groups import MACHINE, Machine, TrialGroup, seed_of
from reports.data.method_rows import MethodRow
from reports.data.records import Records, Trial
from reports.formatting import interval, si
from suite.files import clean
from suite.runs.folder.times import PassTime

_DENSE = "torch"
_MAX_NAMES = 6
# For each file of a trial, what the report does not show without it.
_CONSEQUENCES = {
    "trial.json": (
        "their recipe, hardware, versions, settings and full hash are unknown, and so is whether other programs were "
        "running, whether the trials were interrupted, and what is noted about their copy of the data (accuracies on "
        "JPEG copies are lower than on the published images)"
    ),
    "epochs.jsonl": (
        "curves over epochs and over time, FLOPs per step, shapes by layer, backends of the layers and the check for "
        "unsteady times do not include them"
    ),
    "layers.csv": "their shapes by layer start at the end of the first epoch",
}


def backend_remarks(rows: Sequence[MethodRow]) -> list[str]:
    """Return one line for each method of which some layer used another backend than `torch` in the last epoch."""
    lines = []
    for row in rows:
        # The first seed with another backend represents the method; other seeds are compared with it.
        own = [trial for trial in row.done if not trial.elsewhere]
        by_seed = [(trial, _last_backends(trial)) for trial in sorted(own, key=seed_of)]
        trial, first = next(((trial, found) for trial, found in by_seed if set(found.values()) - {_DENSE}), (None, {}))
        if trial is None:
            continue
        sparse = _sparse_layers(trial)
        parts = [
            f"{backend} in {_layers(layers, len(first), None if backend != _DENSE else sparse)}"
            for backend, layers in _by_backend(first)
        ]
        others = "" if all(found == first for _, found in by_seed) else "; other seeds differ"
        lines.append(
            clean(
                f"Backend used per layer in the last epoch of {row.label} (seed {seed_of(trial)}): "
                f"{'; '.join(parts)}{others}."
            )
        )
    return lines


def machine_remarks(group: TrialGroup) -> list[str]:
    """Return one line for each other machine with trials of the same task and model."""
    lines = []
    key = tuple(group.key[name] for name in MACHINE)
    if group.trained not in ((), key):
        lines.append(
            f"Times relative to dense were measured on {_named(key)}; times of trials, memory and executed FLOPs are "
            f"those of {_named(group.trained)}."
        )
    for one in group.elsewhere:
        machine = f"{one.done} {'trial' if one.done == 1 else 'trials'} of {_named(one.machine)}"
        differences = "; ".join(
            f"{clean(name)}: {interval(there.scaled(100), 2, sign=True, reference=0.0)} points"
            for name, there in one.differences.items()
        )
        compared = f" Accuracy there minus here: {differences} (intervals that hold together at 95 %)."
        if not one.differences:
            compared = "" if one.refused else " Their accuracies were not compared: nothing has three seeds on both."
        if one.refused:
            lines.append(f"{machine} do not count here: {clean(one.refused)}.{compared}")
        else:
            lines.append(f"The accuracies of {machine} count here; their times and executed FLOPs do not.{compared}")
    return lines


def _named(machine: Machine) -> str:
    hardware, threads, torch = (clean(text) or "not recorded" for text in machine)
    return f"hardware {hardware} (threads {threads}, torch {torch})"


def _last_backends(trial: Trial) -> dict[str, str]:
    """Return the backend of each layer in the last epoch; empty if the records do not name them."""
    backends = trial.epochs[-1].get("backends") if trial.epochs else None
    return {str(layer): str(name) for layer, name in backends.items()} if isinstance(backends, Mapping) else {}


def _by_backend(chosen: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return each backend with its layers, `torch` last."""
    backends = sorted(set(chosen.values()), key=lambda name: (name == _DENSE, name))
    return [(backend, [layer for layer in chosen if chosen[layer] == backend]) for backend in backends]


def _layers(layers: Sequence[str], total: int, sparse: set[str] | None) -> str:
    """Name all layers of a sparse backend; of the dense backend only those in `sparse`."""
    count = f"{len(layers)} of {total} layers"
    if sparse is None:
        return f"{count} ({_names(layers)})"
    with_zeros = [layer for layer in layers if layer in sparse]
    return f"{count}, multiplying zeros in {len(with_zeros)} ({_names(with_zeros)})" if with_zeros else count


def _names(layers: Sequence[str]) -> str:
    return ", ".join(layers[:_MAX_NAMES]) + (", ..." if len(layers) > _MAX_NAMES else "")


def _sparse_layers(trial: Trial) -> set[str]:
    """Return the layers of which a product could skip multiply-adds in the last epoch, whatever the backend."""
    layers = trial.epochs[-1].get("layers") if trial.epochs else None
    found = layers.items() if isinstance(layers, Mapping) else ()
    return {str(name) for name, record in found if min(record.get("density", ()), default=1.0) < 1}


def communication_remarks(rows: Sequence[MethodRow]) -> list[str]:
    """Return a line with the gradients that data-parallel trials communicated; none if each trial had one process."""
    found = [(row, gradients) for row in rows if (gradients := [*filter(None, map(_gradients, row.done))])]
    if not found:
        return []
    means = [(row, fmean(measured for measured, _ in several)) for row, several in found]
    dense = next((mean for row, mean in means if row.is_baseline), 0.0)
    pieces = [
        f"{row.label} {si(mean, 'B')}" + (f" ({mean / dense:.3f} × dense)" if dense and not row.is_baseline else "")
        for row, mean in means
    ]
    other = [row.label for row, several in found if any(measured != counted for measured, counted in several)]
    counted = f"They differ from the counted bytes in {', '.join(other)}." if other else "They equal the counted bytes."
    return [
        clean(
            "Gradients that each process handed to all-reduce operations in the whole training (measured, mean over "
            f"seeds): {', '.join(pieces)}. {counted}"
        )
    ]


def _gradients(trial: Trial) -> tuple[int, int] | None:
    """Return the measured and the counted bytes of the gradients; `None` if one process trained the model."""
    record = trial.epochs[-1] if trial.epochs else {}
    sums = [record.get(key) for key in ("communication", "train_communication")]
    measured, counted = (one.get("gradients") if isinstance(one, Mapping) else None for one in sums)
    if not (isinstance(measured, int) and isinstance(counted, int)):
        return None
    return measured, counted


def missing_file_notes(records: Records) -> tuple[str, ...]:
    """Return one line for each kind of file that finished trials lack, and one if `suite.json` is missing."""
    done = [trial for trial in records.trials if trial.done]
    lines = []
    for file, consequence in _CONSEQUENCES.items():
        without = [trial for trial in done if file in trial.missing_files]
        if without:
            lines.append(f"{_subject(without, done)} no {file}: {consequence}.")
    if not records.suite and not records.damage:
        lines.append("The folder has no suite.json: the commands that produced these results are unknown.")
    return tuple(lines)


def _subject(without: Sequence[Trial], done: Sequence[Trial]) -> str:
    if len(without) == len(done):
        return "The finished trial has" if len(done) == 1 else f"All {len(done)} finished trials have"
    names = ", ".join(trial.name for trial in without[:3]) + (", ..." if len(without) > 3 else "")
    return f"{len(without)} of the {len(done)} finished trials ({names}) {'has' if len(without) == 1 else 'have'}"


def retained_figure_notes(figures: Sequence[str]) -> tuple[str, ...]:
    """Return a line that names figures of an earlier report that cannot be drawn again, if any.

    Args:
        figures: File names without the prefix of the group.
    """
    if not figures:
        return ()
    count = "One figure" if len(figures) == 1 else f"{len(figures)} figures"
    return (
        f"{count} of an earlier report cannot be drawn again from these files and "
        f"{'is' if len(figures) == 1 else 'are'} kept unchanged in figures/: {', '.join(figures)}.",
    )


def time_pass_remarks(rows: Sequence[MethodRow]) -> list[str]:
    """Return a line with the training times of the time passes, next to dense timed against itself."""
    timed = [(row.label, row.timed) for row in rows if row.timed is not None]
    if not timed:
        return []
    threads = f"{timed[0][1].threads} thread" + ("" if timed[0][1].threads == 1 else "s")
    pieces = [
        f"{name} {', '.join(_ratio(one) for one in time.passes)} (a second dense network in its place: "
        f"{', '.join(f'{one.dense_twice:.3f}' for one in time.passes)})"
        for name, time in timed
    ]
    passes = [one for _, time in timed for one in time.passes]
    trials = "; ".join(dict.fromkeys(one.trial for one in passes))
    commits = " and ".join(dict.fromkeys(_commit(one.provenance) for one in passes))
    disturbed = {name: [one.load for one in time.passes if one.is_disturbed] for name, time in timed}
    marked = [name for name, loads in disturbed.items() if loads]
    remarks = [
        f"Time passes: training time × dense, from alternating steps on {threads}: {', '.join(pieces)}. Timed were the "
        f"networks of {trials}, by {commits}."
    ]
    starts = [name for name, time in timed if any(stage.end is None for one in time.passes for stage in one.stages)]
    if starts:
        remarks.append(
            f"Stages of {', '.join(starts)} were timed only in the state in which they began, since the folder has not "
            "kept that in which they ended: a cost that depends on the weights may be missing."
        )
    if marked:
        load = max(load for loads in disturbed.values() for load in loads)
        remarks.append(
            f"Some time passes were disturbed: other programs used up to {load:.1f} cores while "
            f"{', '.join(marked)} was measured. These passes do not count."
        )
    return remarks


def _commit(provenance: Mapping[str, Any]) -> str:
    """Return the commit that measured, and whether its files were changed."""
    git = provenance.get("git")
    commit = git.get("commit") if isinstance(git, Mapping) else None
    if not commit:
        return "an unknown commit"
    assert isinstance(git, Mapping)
    return f"commit {str(commit)[:10]}{' with changes' if git.get('dirty') else ''}"


def _ratio(one: PassTime) -> str:
    return mark_disturbed(f"{one.ratio:.3f}", one.is_disturbed)
