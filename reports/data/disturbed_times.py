"""Whether the measured times of a group can bear a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from reports.data.records import Trial
from reports.data.trial_files import clean, finite

# Epochs of one shape do equal work. On an idle machine their times differ by a few percent.
_UNSTEADY = 1.5
# Threads wait for each other: one core that another program takes holds up all.
_BUSY = 0.5


# What a time is marked with wherever it is shown, and what that means.
DISTURBED = "disturbed"
DISTURBED_NOTE = (
    "Disturbed: something other than the method had a part in this time (see the remarks). Do not trust it."
)


def is_disturbed(trial: Trial) -> bool:
    """Whether something that was recorded speaks against a trial's times. Nothing recorded is not a proof."""
    return trial.done and (_spread(trial) > _UNSTEADY or _busy_share(trial) >= _BUSY)


def mark_disturbed(text: str, disturbed: bool) -> str:
    """A time as it is shown: `6 min 12 s (disturbed)` where it is not to be trusted."""
    return f"{text} ({DISTURBED})" if disturbed else text


def unsteady_times(trials: Sequence[Trial]) -> list[str]:
    """One line where a step took much longer in one epoch than in another of the same trial, with equal work to do.

    Compared are epochs with equal current shapes and batch size; the first epoch is left out, for it warms up.
    """
    found = {trial.name: spread for trial in trials if trial.done and (spread := _spread(trial)) > _UNSTEADY}
    if not found:
        return []
    worst = max(found, key=lambda name: found[name])
    return [
        f"Times are unsteady: in {len(found)} of {sum(trial.done for trial in trials)} trials a step took more than "
        f"{_UNSTEADY} times as long in one epoch as in another with the same work (at most {found[worst]:.1f} times, "
        f"in {worst}). Something other than the method decides such times, load on the machine for example."
    ]


def competing_programs(trials: Sequence[Trial]) -> list[str]:
    """One line where other programs kept half of the cores busy, or more, as a trial began or went on."""
    done = [trial for trial in trials if trial.done]
    busy = {trial.name: load for trial in done if (load := _busy_share(trial)) >= _BUSY}
    if not busy:
        return []
    worst = max(busy, key=lambda name: busy[name])
    return [
        f"Other programs were at work when {len(busy)} of {len(done)} trials began (at most on {busy[worst]:.1f} times "
        f"the cores that the trial uses, in {worst}): trust no time of theirs."
    ]


def slow_products(trials: Sequence[Trial]) -> list[str]:
    """One line that names the layers of which a reference implementation of oneDNN computed a product."""
    slow: dict[str, list[str]] = {}
    for trial in trials:
        found = trial.provenance.get("onednn_fallbacks")
        if trial.done and isinstance(found, list) and found:
            slow.setdefault(clean("; ".join(map(str, found))), []).append(trial.name)
    if not slow:
        return []
    pieces = "; ".join(f"{products} (in {', '.join(names)})" for products, names in slow.items())
    return [
        "oneDNN, the library that multiplies on the CPU, had no fast implementation for some layers and fell back to "
        f"its reference, which is many times slower: {pieces}. Times of these trials are not those of the method."
    ]


def resumed(trials: Sequence[Trial]) -> list[str]:
    """One line that names the trials whose times are sums over several attempts, and what changed between these."""
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
    return [f"{count} interrupted and went on later, so that measured times add up attempts: {', '.join(pieces)}."]


def _attempts(trial: Trial) -> list[Mapping[str, Any]]:
    """The attempts before the one that ended the trial."""
    attempts = trial.provenance.get("attempts")
    return [attempt for attempt in attempts if isinstance(attempt, Mapping)] if isinstance(attempts, list) else []


def _busy_share(trial: Trial) -> float:
    """Cores that were at work before the trial, or an attempt at it, began, over those that it computes with."""
    hardware = trial.provenance.get("hardware")
    threads = finite(hardware.get("threads")) if isinstance(hardware, Mapping) else None
    loads = [finite(record.get("busy_cores")) for record in (trial.provenance, *_attempts(trial))]
    known = [load for load in loads if load is not None]
    return max(known) / threads if known and threads is not None and threads >= 1 else 0.0


def _spread(trial: Trial) -> float:
    """The longest over the shortest time of a step among epochs of equal work; 1 where none can be compared."""
    epochs: list[tuple[Any, float]] = []
    for before, record in pairwise(trial.epochs):
        times = (before.get("train_time_s"), record.get("train_time_s"), record.get("steps", 1))
        if all(isinstance(value, (int, float)) and value > 0 for value in times):
            began, ended, steps = times
            # Both ends of the epoch, so that one with a reconfiguration is compared with none.
            shapes = tuple((end.get("step_flops") or {}).get("current") for end in (before, record))
            work = (shapes, record.get("batch_size"))
            epochs.append((work, (ended - began) / steps))  # type: ignore[operator]
    spread = 1.0
    for _, equal in groupby(epochs, key=lambda epoch: epoch[0]):
        steps_times = [time for _, time in equal if time > 0]
        if steps_times:
            spread = max(spread, max(steps_times) / min(steps_times))
    return spread
