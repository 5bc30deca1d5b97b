"""Values of finished trials for reproductions: by label and by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from reports.papers.comparison import Comparison
from reports.papers.contract import Part, Reproduction, ReproductionData
from reports.papers.published import Published
from suite.trials.engines.subprocess_call import SubprocessResult
from suite.trials.estimates import Estimate, Missing, Quantity, estimate
from suite.trials.folder.reader import Trial
from suite.trials.groups import seed_of

BUSY = 0.5  # cores; if other programs keep more busy, times are unreliable


def done(data: ReproductionData, part: str, label: str) -> list[Trial]:
    """Return the finished trials of one method in a part, by seed."""
    return sorted((trial for trial in data.trials.get(part, {}).get(label, ()) if trial.done), key=seed_of)


def over_seeds(
    trials: list[Trial], value: Callable[[Trial], float | None], reason: str = "no trial is done", scale: float = 1.0
) -> Quantity:
    """Return the mean of a value over trials, with its interval."""
    numbers = [number for trial in trials if (number := value(trial)) is not None]
    quantity = estimate(numbers, reason)
    return quantity if isinstance(quantity, Missing) else quantity.scaled(scale)


def with_own_trials(reproduction: Reproduction, data: ReproductionData) -> list[tuple[Part, dict[str, list[Trial]]]]:
    """Return each part with its finished trials by label, without parts that repeat the trials of an earlier part.

    With `--model`, parts that differ only in their network have the same trials.
    """
    parts: list[tuple[Part, dict[str, list[Trial]]]] = []
    seen: list[set[str]] = []
    for part in reproduction.parts:
        trials = {label: done(data, part.name, label) for label in data.trials.get(part.name, {})}
        names = {trial.name for several in trials.values() for trial in several}
        if not names or names not in seen:
            parts.append((part, trials))
            seen.append(names)
    return parts


def trained_model(part: Part, trials: list[Trial]) -> str:
    """Return the name of the trained network, which the command may have changed."""
    return trials[0].text("model") if trials else part.model


def model_file(data: ReproductionData, trial: Trial) -> Path:
    """Return the path of a trial's final network."""
    return data.folder / "trials" / trial.name / "model.pt"


def share_of_dense(column: str) -> Callable[[Trial], float | None]:
    """Return a function that divides a trial's cost by that of the dense network.

    Args:
        column: `inference_flops` or `train_flops_current`.
    """
    whole = f"{column.removesuffix('_current')}_dense"

    def share(trial: Trial) -> float | None:
        cost, dense = trial.number(column), trial.number(whole)
        return cost / dense if cost is not None and dense else None

    return share


def line(
    quantity: str,
    part: str,
    ours: Quantity,
    kind: str,
    *,
    unit: str = "%",
    published: str = "",
    among: Published | None = None,
    note: str = "",
) -> Comparison:
    """Return a line whose number was computed from files of trials.

    Args:
        published: `GROUP/KEY` of the published number; empty if there is none.
        among: Published numbers in which to look it up.
    """
    if not published or among is None:
        return Comparison(quantity, unit, part, ours, kind, note=note)
    group, value = among.find(published)
    rounding = group.rounding(published.partition("/")[2])
    return Comparison(quantity, unit, part, ours, kind, value, group.kind, group.citation, rounding, note=note)


def number(quantity: Quantity) -> float | None:
    """Return the mean, or `None` if there is none."""
    return quantity.mean if isinstance(quantity, Estimate) else None


def point(
    trials: list[Trial], cost: Callable[[Trial], float | None], scale: float = 100.0
) -> tuple[float, Estimate] | None:
    """Return the mean of a cost times `scale` and the accuracy in percent, or `None` if one of them is missing."""
    x = number(over_seeds(trials, cost, scale=scale))
    y = over_seeds(trials, lambda trial: trial.number("test_accuracy"), scale=100)
    return None if x is None or isinstance(y, Missing) else (x, y)


def slower_than_dense(lines: Iterable[Comparison]) -> list[str]:
    """Return one line that names the methods whose training took at least as long as that of dense."""
    ending = ": training time, of dense's"
    slow = [
        f"{one.quantity.removesuffix(ending)} ({share:.0f} %)"
        for one in lines
        if one.quantity.endswith(ending) and (share := number(one.ours)) is not None and share >= 100
    ]
    return [f"No time was saved here by these methods, in percent of dense: {'; '.join(slow)}."] if slow else []


def doubts(timed: list[SubprocessResult]) -> list[str]:
    """Return one line if other programs kept at least half a core busy during a measurement."""
    busy = max((result.busy_cores for result in timed), default=0.0)
    if busy < BUSY:
        return []
    return [f"Other programs kept {busy:.1f} cores busy while these times were measured, so the times are unreliable."]


def timed_on(timed: list[SubprocessResult]) -> tuple[str, ...]:
    """Return lines on the hardware of the measurements, for the provenance of the page."""
    return tuple(dict.fromkeys(f"Timed on {result.where}" for result in timed))
