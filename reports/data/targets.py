"""Time, FLOPs and energy until the test accuracy reaches a target, as medians over seeds.

The rules:

1. A seed reaches a target with the first epoch whose test accuracy is at least the target. Its cost is the cost until
   the end of that epoch.
2. A seed that does not reach the target within its epochs is censored: its cost is greater than all others. The median
   covers all seeds, so that it exists only if more than half of them reached the target. A mean over only those seeds
   would be too small.
3. A trial that diverged did not reach the target. Trials that failed for another reason are left out.
4. The default target is the mean final accuracy of dense minus the margin, rounded down to a tenth of a percent. A
   report has no default target if dense training cannot be told from a guess.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from reports.data.estimates import Estimate
from reports.data.method_rows import MethodRow
from reports.data.records import Look, PageGroup, is_disturbed, share_of_steps
from reports.data.records import epochs as epochs_of
from suite.measure.times import MethodTime
from suite.trials.folder.records import TrialRecord
from suite.trials.folder.targets import COSTS, cost_until, declared_targets, first_reached
from suite.trials.groups import BASELINE, seed_of

NOT_REACHED = math.inf
_Share = Callable[[TrialRecord, int], float | None]


@dataclass(frozen=True)
class TargetRow:
    """One method, or dense training for fewer epochs, and one target.

    Attributes:
        label: Method with its parameters.
        epochs: Epochs of the recipe if they are fewer than the group's, otherwise 0.
        look: How the method is drawn and named.
        budget: Epochs within which the target could be reached, those of the row's own recipe; 0 if they are not known.
        seeds: Seeds that count: those whose trial is done or diverged.
        reached: Seeds that reached the target.
        fell: Seeds that reached the target, and ended below it.
        unknown: Seeds without a curve.
        epoch: Median epoch, `NOT_REACHED` if no more than half of the seeds reached the target, `None` if not known.
        costs: Medians of `COSTS`, in the form of `epoch`.
        share: Median time in units of dense's whole training, from the time pass, in the form of `epoch`.
        time_is_disturbed: Whether the time of a trial is disturbed.
    """

    label: str
    epochs: float
    look: Look
    budget: float
    seeds: int
    reached: int
    fell: int
    unknown: int
    epoch: float | None
    costs: Mapping[str, float | None]
    share: float | None
    time_is_disturbed: bool

    @property
    def name(self) -> str:
        """The label, with the epochs of a shorter training."""
        return f"{self.label}, {self.epochs:g} epochs" if self.epochs else self.label


@dataclass(frozen=True)
class _Seed:
    """What one seed took to reach the target; `NOT_REACHED` if it did not reach it, `None` if a cost is not known."""

    epoch: float
    costs: Mapping[str, float | None]
    share: float | None
    fell: bool = False
    elsewhere: bool = False


class Targets(NamedTuple):
    """Target accuracies as fractions, and where they come from, in words. Both are empty without a target."""

    accuracies: tuple[float, ...] = ()
    origin: str = ""


def targets_of(suite: Mapping[str, Any], asked: Sequence[float]) -> Targets:
    """Return the targets that commands gave.

    Args:
        suite: Content of `suite.json`, which has declared targets.
        asked: Targets of the verb `report`, as fractions; they take precedence.
    """
    if asked:
        return Targets(tuple(asked), "given to the command report, when results existed")
    if declared := declared_targets(suite):
        changed = "" if len(declared) == 1 else f"; the first command with targets declared {_list(declared[0])}"
        return Targets(declared[-1], f"declared by the command that trained{changed}")
    return Targets()


def default_target(rows: Sequence[MethodRow], margin: float) -> Targets:
    """Return the target of a group for which no command gave one.

    Args:
        rows: Rows of the group.
        margin: The declared margin, as a fraction.
    """
    dense = [row.accuracy for row in rows if row.is_baseline]
    if len(rows) < 2 or not dense or not isinstance(dense[0], Estimate):
        return Targets()
    target = math.floor(1000 * (dense[0].mean - margin) + 1e-6) / 1000
    rule = (
        f"the mean accuracy of dense minus the margin of {100 * margin:g} points, rounded down to a tenth of a percent"
    )
    return Targets((target,), rule) if target > 0 else Targets()


def _list(several: Sequence[float]) -> str:
    return " and ".join(f"{100 * target:g} %" for target in several)


def target_rows(group: PageGroup, rows: Sequence[MethodRow], target: float) -> list[TargetRow]:
    """Return a row for each method, in the order of `rows`, and one for each dense training for fewer epochs.

    Args:
        group: Trials that may be compared.
        rows: Their methods.
        target: Accuracy as a fraction.
    """
    whole, found = epochs_of(group), []
    any_timed = dense_timed(rows)
    for row in rows:
        timed = any_timed if row.is_baseline else row.sound_time
        found.append(_row(row.label, 0, row.look, row.epochs or whole, row.trials, target, timed, 1.0))
    dense = next((index for index, row in enumerate(rows) if row.is_baseline), None)
    if dense is not None:
        look, shorter = rows[dense].look, []
        for budget in group.budgets:
            epochs = epochs_of(budget)
            part = share_of_steps(budget, group)
            shorter.append(_row(BASELINE, epochs, look, epochs, budget.trials, target, any_timed, part))
        found[dense + 1 : dense + 1] = reversed(shorter)
    return [row for row in found if row.seeds > row.unknown]


def _row(
    name: str,
    epochs: float,
    look: Look,
    budget: float,
    trials: Sequence[TrialRecord],
    target: float,
    timed: MethodTime | None,
    part: float,
) -> TargetRow:
    counting = [trial for trial in trials if trial.done or trial.text("status") == "diverged"]
    by_seed: dict[int, list[_Seed | None]] = {}
    share_at = share_until(name, timed, part)
    for trial in counting:
        by_seed.setdefault(seed_of(trial), []).append(_seed(trial, target, share_at))
    # A seed that was run twice counts once: with the trial of this machine, and among several with the longest.
    known = [
        max(found, key=lambda one: (not one.elsewhere, one.epoch))
        for several in by_seed.values()
        if (found := [one for one in several if one is not None])
    ]
    return TargetRow(
        label=name,
        epochs=epochs,
        look=look,
        budget=budget,
        seeds=len(by_seed),
        reached=sum(one.epoch < NOT_REACHED for one in known),
        fell=sum(one.fell for one in known),
        unknown=len(by_seed) - len(known),
        epoch=median([one.epoch for one in known]),
        costs={column: median([one.costs[column] for one in known if not one.elsewhere]) for column in COSTS},
        share=median([one.share for one in known]),
        time_is_disturbed=any(is_disturbed(trial) for trial in counting if trial.done),
    )


def _seed(trial: TrialRecord, target: float, share_at: _Share | None) -> _Seed | None:
    """Return what a trial took; `None` if it has no curve.

    Args:
        trial: A trial that is done or diverged.
        target: Accuracy as a fraction.
        share_at: Returns its time until the end of an epoch in units of dense's whole training; `None` if that is not
            known.
    """
    none = _Seed(NOT_REACHED, dict.fromkeys(COSTS, NOT_REACHED), NOT_REACHED, elsewhere=trial.elsewhere)
    if not trial.done:
        return none
    if not any("test_accuracy" in record for record in trial.epochs):
        return None
    record = first_reached(trial.epochs, target)
    if record is None:
        return none
    epoch = record["epoch"]
    share = share_at(trial, epoch) if share_at is not None else None
    costs = {column: cost_until(record, column) for column in COSTS}
    fell = first_reached(trial.epochs[-1:], target) is None
    return _Seed(epoch, costs, share, fell, trial.elsewhere)


def dense_timed(rows: Sequence[MethodRow]) -> MethodTime | None:
    """Return the undisturbed time passes of any method, which all have the times of dense steps."""
    return next((row.sound_time for row in rows if row.sound_time), None)


def share_until(name: str, timed: MethodTime | None, part: float = 1.0) -> _Share | None:
    """Return what gives a trial's time until the end of an epoch in units of dense's whole training.

    Args:
        name: Label of the method.
        timed: Its time passes; of dense, those of any method (`dense_timed`).
        part: The steps over those of the whole dense training, for dense.
    """
    if name == BASELINE:
        return partial(dense_share, part=part, timed=timed)
    return None if timed is None else partial(time_share, timed=timed)


def dense_share(trial: TrialRecord, epoch: int, part: float, timed: MethodTime | None) -> float | None:
    """Return the time until the end of an epoch of dense training in units of dense's whole training.

    Args:
        trial: The trial, which may have fewer epochs than the whole training.
        epoch: Number of the epoch, from 1.
        part: The trial's steps over those of the whole training.
        timed: Times of any method, which include those of dense steps by the size of their images.

    Returns:
        The share; `None` if there are several phases, whose steps were not timed.
    """
    recipe = trial.spec.recipe
    if timed is None and (len(recipe.get("train_sizes") or ()) > 1 or recipe.get("freeze")):
        return None
    steps = [record["steps"] for record in trial.epochs]
    progress = math.fsum(steps[:epoch]) / math.fsum(steps)
    return part * (timed.passes[0].dense_share(progress) if timed else progress)


def time_share(trial: TrialRecord, epoch: int, timed: MethodTime) -> float:
    """Return the time until the end of an epoch in units of dense's whole training, from the time pass.

    The steps of each stage count with the ratio of the stage. Reconfigurations count with the share of their recorded
    time that has passed. The stages are those of a pass that measured the trial, or else of the first pass.

    Args:
        trial: The trial.
        epoch: Number of the epoch, from 1.
        timed: Times of its method.

    """
    measured = timed.pass_of(trial.name)
    ends = [after.epoch for _, after in pairwise(measured.stages)]
    total = 0.0
    for record in trial.epochs:
        if record["epoch"] <= epoch:
            stage = measured.stages[bisect_right(ends, record["epoch"])]
            total += record["steps"] * stage.ratio * measured.share_of_step(stage.phase)
    records = {record["epoch"]: record for record in trial.epochs}
    until, whole = (one.get("reconfigure_time_s") for one in (records[epoch], trial.epochs[-1]))
    if measured.reconfiguration and until and whole:
        total += measured.reconfiguration * until / whole
    return total


def median(values: Sequence[float | None]) -> float | None:
    """Return the median of values, of which some may be `NOT_REACHED`; `None` without values or if one is not known.

    With an even number of values, the median is the mean of the two in the middle, and `NOT_REACHED` if one of them is.
    """
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def of_dense(row: TargetRow, rows: Sequence[TargetRow], column: str) -> float | None:
    """Return the ratio of a row's median to that of dense; `None` if one is not known, not reached or disturbed.

    Args:
        row: The row.
        rows: All rows of the target.
        column: One of `COSTS`, or `share`.
    """

    def value(one: TargetRow) -> float | None:
        return one.share if column == "share" else one.costs[column]

    whole = next((one for one in rows if one.label == BASELINE and not one.epochs), None)
    is_time = column == "time_to_target_s" and row is not whole
    if whole is None or (is_time and (row.time_is_disturbed or whole.time_is_disturbed)):
        return None
    ours, dense = value(row), value(whole)
    if ours is None or dense is None or math.inf in (ours, dense) or dense <= 0:
        return None
    return ours / dense
