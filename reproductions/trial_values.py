"""Finished trials, as the reproductions of figures read them: by label, by seed, with their final networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reports.data.estimates import Estimate, Missing, Quantity, estimate
from reports.data.groups import seed_of
from reports.data.records import Trial
from reproductions.comparison import Comparison
from reproductions.contract import Part, Reproduction, ReproductionData
from reproductions.published import Published
from suite.runs.engines.subprocess_call import SubprocessResult

if TYPE_CHECKING:
    from torch import nn

BUSY = 0.5  # cores that other programs keep busy, from which on a time is not to be trusted

BARELY_LEARNED = 1.5  # times what chance gives


def done(data: ReproductionData, part: str, label: str) -> list[Trial]:
    """The trials of one method in a part that are done, by seed."""
    return sorted((trial for trial in data.trials.get(part, {}).get(label, ()) if trial.done), key=seed_of)


def over_seeds(
    trials: list[Trial], value: Callable[[Trial], float | None], reason: str = "no trial is done", scale: float = 1.0
) -> Quantity:
    """The mean of a value of each trial, with its interval."""
    found = [number for trial in trials if (number := value(trial)) is not None]
    quantity = estimate(found, reason)
    return quantity if isinstance(quantity, Missing) else quantity.scaled(scale)


def with_own_trials(reproduction: Reproduction, data: ReproductionData) -> list[tuple[Part, dict[str, list[Trial]]]]:
    """Each part with its trials that are done, by label. A part whose trials an earlier one has too is left out.

    With `--model`, parts that differ by their network alone are the same.
    """
    found: list[tuple[Part, dict[str, list[Trial]]]] = []
    seen: list[set[str]] = []
    for part in reproduction.parts:
        trials = {label: done(data, part.name, label) for label in data.trials.get(part.name, {})}
        names = {trial.name for several in trials.values() for trial in several}
        if not names or names not in seen:
            found.append((part, trials))
            seen.append(names)
    return found


def trained_model(part: Part, trials: list[Trial]) -> str:
    """The network's name: the command may have asked for another than the part's."""
    return trials[0].text("model") if trials else part.model


def model_file(data: ReproductionData, trial: Trial) -> Path:
    """Where a trial's final network lies."""
    return data.folder / "trials" / trial.name / "model.pt"


def final_model(data: ReproductionData, trial: Trial) -> nn.Module:
    """What a trial ended with, on the CPU, in evaluation mode."""
    from suite.checkpoint import load_model

    return load_model(model_file(data, trial))


def image_shape(data: ReproductionData, trial: Trial) -> tuple[int, int, int]:
    """(C, H, W) of the images that a trial was trained on."""
    from suite import registry

    shape: tuple[int, int, int] = registry.get("task", data.specs[trial.name].task).input_shape
    return shape


def classes(data: ReproductionData, trial: Trial) -> int:
    """Of the trial's task."""
    from suite import registry

    count: int = registry.get("task", data.specs[trial.name].task).num_classes
    return count


def share_of_dense(column: str) -> Callable[[Trial], float | None]:
    """A cost over that of the network as it was built: of `inference_flops`, or of `train_flops_current`."""
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
    """A line of a reproduction whose number was computed from files of trials.

    Args:
        published: `GROUP/KEY` of the number beside it, which is `among` the published ones; empty where none is.
    """
    if not published or among is None:
        return Comparison(quantity, unit, part, ours, kind, note=note)
    group, value = among.find(published)
    rounding = group.rounding(published.partition("/")[2])
    return Comparison(quantity, unit, part, ours, kind, value, group.kind, group.citation, rounding, note=note)


def number(quantity: Quantity) -> float | None:
    """The mean; `None` where there is none."""
    return quantity.mean if isinstance(quantity, Estimate) else None


def point(
    trials: list[Trial], cost: Callable[[Trial], float | None], scale: float = 100.0
) -> tuple[float, Estimate] | None:
    """The mean of a cost, times `scale`, and the accuracy in percent; `None` where one of them is missing."""
    x = number(over_seeds(trials, cost, scale=scale))
    y = over_seeds(trials, lambda trial: trial.number("test_accuracy"), scale=100)
    return None if x is None or isinstance(y, Missing) else (x, y)


def learned_nothing(data: ReproductionData, trials: Sequence[Trial]) -> list[str]:
    """One line where dense networks among these trials are no better than chance: then nothing can be lost."""
    found = [accuracy for trial in trials if (accuracy := trial.number("test_accuracy")) is not None]
    if not found or min(found) * (number_of_classes := classes(data, trials[0])) > BARELY_LEARNED:
        return []
    return [
        f"A dense network learned next to nothing in so short a training: {100 * min(found):.0f} % of the test images "
        f"are right, and {100 / number_of_classes:.0f} % is chance. What it would lose by pruning, and where its "
        "weights would go, cannot be seen."
    ]


def slower_than_dense(lines: Iterable[Comparison]) -> list[str]:
    """One line that names whose whole training took as long as dense's or longer; none where nothing did."""
    ending = ": training time, of dense's"
    slow = [
        f"{one.quantity.removesuffix(ending)} ({share:.0f} %)"
        for one in lines
        if one.quantity.endswith(ending) and (share := number(one.ours)) is not None and share >= 100
    ]
    return [f"No time was saved here, as long a training as dense's or longer: {'; '.join(slow)}."] if slow else []


def doubts(timed: list[SubprocessResult]) -> list[str]:
    """One line where other programs kept half a core busy, or more, as something was timed."""
    busy = max((found.busy_cores for found in timed), default=0.0)
    if busy < BUSY:
        return []
    return [f"Other programs kept {busy:.1f} cores busy as these times were measured: trust none of them."]


def timed_on(timed: list[SubprocessResult]) -> tuple[str, ...]:
    """Where that was, for the page's provenance."""
    return tuple(dict.fromkeys(f"Timed on {found.where}" for found in timed))
