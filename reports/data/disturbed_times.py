"""Signs in the records that the measured times of a trial cannot be relied on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any
from weakref import WeakKeyDictionary

from reports.data.records import Trial
from reports.data.trial_files import finite
from suite.files import clean
from suite.runs.folder.times import BUSY
from suite.subnormals import FLUSH

# Epochs with equal shapes do equal work. On an idle machine their times differ by a few percent.
_UNSTEADY = 1.5

# The tables and figures of a report ask for the same trials again and again.
_SPREADS: WeakKeyDictionary[Trial, float] = WeakKeyDictionary()

DISTURBED = "disturbed"
DISTURBED_NOTE = "Disturbed: something other than the method affected this time (see the remarks). Do not rely on it."


def is_disturbed(trial: Trial) -> bool:
    """Return whether the records show that a trial's times were disturbed. They cannot prove the opposite."""
    return trial.done and (_spread(trial) > _UNSTEADY or _busy_share(trial) >= BUSY or _shared_with(trial) > 0)


def mark_disturbed(text: str, disturbed: bool) -> str:
    """Return the text of a time, marked if it is disturbed: `6 min 12 s (disturbed)`."""
    return f"{text} ({DISTURBED})" if disturbed else text


def unsteady_times(trials: Sequence[Trial]) -> list[str]:
    """Return a warning if steps with equal work took much longer in one epoch of a trial than in another.

    Epochs are compared if they have equal current shapes and batch size. The first epoch warms up and is left out.
    """
    found = {trial.name: spread for trial in trials if trial.done and (spread := _spread(trial)) > _UNSTEADY}
    if not found:
        return []
    worst = max(found, key=lambda name: found[name])
    return [
        f"Times are unsteady: in {len(found)} of {sum(trial.done for trial in trials)} trials, a step took more than "
        f"{_UNSTEADY} times as long in one epoch as in another with the same work (at most {found[worst]:.1f} times, "
        f"in {worst}). Something other than the method, for example load on the machine, determined these times."
    ]


def competing_programs(trials: Sequence[Trial]) -> list[str]:
    """Return a warning if other programs used at least half as many cores as a trial, when it started or resumed."""
    done = [trial for trial in trials if trial.done]
    busy = {trial.name: load for trial in done if (load := _busy_share(trial)) >= BUSY}
    if not busy:
        return []
    worst = max(busy, key=lambda name: busy[name])
    return [
        f"Other programs were running when {len(busy)} of {len(done)} trials started (at most on {busy[worst]:.1f} "
        f"times as many cores as the trial uses, in {worst}): do not rely on the times of these trials."
    ]


def shared_devices(trials: Sequence[Trial]) -> list[str]:
    """Return a warning if trials ran on one device at the same time, so that each of them slowed down the others."""
    done = [trial for trial in trials if trial.done]
    shared = {trial.name: number for trial in done if (number := _shared_with(trial)) > 0}
    if not shared:
        return []
    most = max(shared, key=lambda name: shared[name])
    return [
        f"{len(shared)} of {len(done)} trials shared their device with other trials of the command (at most with "
        f"{shared[most]:.0f} at a time, in {most}), which slow each other down: their times are marked and not ranked."
    ]


def slow_products(trials: Sequence[Trial]) -> list[str]:
    """Return a warning that names the layers of which oneDNN computed a product with a reference implementation."""
    slow: dict[str, list[str]] = {}
    for trial in trials:
        found = trial.provenance.get("onednn_fallbacks")
        if trial.done and isinstance(found, list) and found:
            slow.setdefault(clean("; ".join(map(str, found))), []).append(trial.name)
    if not slow:
        return []
    pieces = "; ".join(f"{products} (in {', '.join(names)})" for products, names in slow.items())
    return [
        "oneDNN, PyTorch's library for products on the CPU, has no fast implementation for some layers and used its "
        f"reference implementation, which is many times slower: {pieces}. The times of these trials do not represent "
        "the method."
    ]


def emulated_dtypes(trials: Sequence[Trial]) -> list[str]:
    """Return a warning if trials computed with numbers that their processor has no arithmetic for."""
    done = [trial for trial in trials if trial.done]
    found = [clean(str(trial.provenance["emulated_dtype"])) for trial in done if trial.provenance.get("emulated_dtype")]
    if not found:
        return []
    return [
        f"{len(found)} of {len(done)} trials used {found[0]}, for which their processor has no arithmetic: float32 is "
        "many times faster there, and these times do not represent the method."
    ]


def unflushed(trials: Sequence[Trial]) -> list[str]:
    """Return a warning if trials computed with subnormal numbers on a CPU."""
    done = [trial for trial in trials if trial.done and trial.text("device") == "cpu"]
    count = sum(trial.text("arithmetic") != FLUSH for trial in done)
    if not count:
        return []
    return [
        f"{count} of {len(done)} trials computed with subnormal numbers (arithmetic ieee), as all did before the suite "
        "flushed them to zero. On Intel's processors a channel that dies then makes some steps many times longer: do "
        "not rely on the times of these trials."
    ]


def resumed(trials: Sequence[Trial]) -> list[str]:
    """Return a remark that names trials whose times are sums over several attempts, and what changed in between."""
    pieces = []
    for trial in trials:
        ends = [str(attempt.get("until_epoch")) for attempt in _attempts(trial)]
        if trial.done and ends:
            notes = trial.provenance.get("resumed_elsewhere")
            changed = f"; {'; '.join(map(str, notes))}" if isinstance(notes, list) else ""
            pieces.append(clean(f"{trial.name} after epoch {' and '.join(ends)}{changed}"))
    if not pieces:
        return []
    count = "One trial was" if len(pieces) == 1 else f"{len(pieces)} trials were"
    return [f"{count} interrupted and resumed later; measured times are sums over the attempts: {', '.join(pieces)}."]


def _attempts(trial: Trial) -> list[Mapping[str, Any]]:
    """Return the attempts before the one that finished the trial."""
    attempts = trial.provenance.get("attempts")
    return [attempt for attempt in attempts if isinstance(attempt, Mapping)] if isinstance(attempts, list) else []


def _busy_share(trial: Trial) -> float:
    """Return the largest number of busy cores before an attempt, divided by the number of cores of the trial."""
    hardware = trial.provenance.get("hardware")
    threads = finite(hardware.get("threads")) if isinstance(hardware, Mapping) else None
    loads = [finite(record.get("busy_cores")) for record in (trial.provenance, *_attempts(trial))]
    known = [load for load in loads if load is not None]
    return max(known) / threads if known and threads is not None and threads >= 1 else 0.0


def _shared_with(trial: Trial) -> float:
    """Return the largest number of other trials on the device during an attempt; 0 if the record names none."""
    places = [record.get("place") for record in (trial.provenance, *_attempts(trial))]
    return max((finite(place.get("shared_with")) or 0.0 for place in places if isinstance(place, Mapping)), default=0.0)


def _spread(trial: Trial) -> float:
    """Return the longest over the shortest time per step among epochs of equal work; 1 if none can be compared."""
    if trial not in _SPREADS:
        _SPREADS[trial] = _spread_of(trial.epochs)
    return _SPREADS[trial]


def _spread_of(records: Sequence[Mapping[str, Any]]) -> float:
    epochs: list[tuple[Any, float]] = []
    for before, record in pairwise(records):
        times = (before.get("train_time_s"), record.get("train_time_s"), record.get("steps", 1))
        if all(isinstance(value, (int, float)) and value > 0 for value in times):
            began, ended, steps = times
            # Shapes before and after the epoch, so that an epoch with a reconfiguration equals none without.
            shapes = tuple((end.get("step_flops") or {}).get("current") for end in (before, record))
            work = (shapes, record.get("batch_size"))
            epochs.append((work, (ended - began) / steps))  # type: ignore[operator]
    spread = 1.0
    for _, equal in groupby(epochs, key=lambda epoch: epoch[0]):
        steps_times = [time for _, time in equal if time > 0]
        if steps_times:
            spread = max(spread, max(steps_times) / min(steps_times))
    return spread
