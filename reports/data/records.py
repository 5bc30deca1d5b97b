"""A suite's folder as pages read it: its records, the groups of its trials, how methods are drawn, disturbed times.

`run` uses this module without pandas.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from suite.errors import UsageError
from suite.files import clean
from suite.measure.profiles import PROFILES, GroupProfiles
from suite.measure.times import BUSY, TIMES, GroupTimes, MethodTime
from suite.trials.folder.reader import read_trials
from suite.trials.folder.records import TrialRecord
from suite.trials.folder.store import read_suite
from suite.trials.groups import BASELINE, TrialGroup, group_trials, label, tested_trials
from suite.trials.search import NAME as TUNED
from suite.trials.search import Tuned, read_tuned

if TYPE_CHECKING:
    from reports.data.estimates import Estimate  # imports SciPy, which takes half a second

Machine = tuple[str, ...]  # text for each name in `MACHINE`
Content = TypeVar("Content")

SUITE = "suite.json"
COLOURS = 7  # of methods other than dense
CONTROL = -1  # number of the colour of controls, and of ways without pruning
NO_PRUNING = "(no pruning)"
"""Words after the name of a way to train without pruning, wherever a report gives its numbers."""
# A colour follows from a hash. With this prefix, the methods of this repository get different colours.
_COLOUR_PREFIX = "8869:"


# Epochs with equal shapes do equal work. On an idle machine their times differ by a few percent.
UNSTEADY = 1.5

DISTURBED = "disturbed"
DISTURBED_RATIO = "one of the times was disturbed, so that their ratio says nothing"
DISTURBED_NOTE = "Disturbed: something other than the method affected this time (see the remarks). Do not rely on it."


class NotTestedError(UsageError):
    """No trial of a folder was evaluated on test images, as in the trials of `tune`, so there is nothing to report."""


@dataclass(frozen=True)
class Records:
    """Records of a suite's folder.

    Attributes:
        folder: Path of the folder.
        trials: Its trials by name, with their epochs and layers.
        suite: Content of `suite.json`; empty if that file is missing or damaged.
        damaged: Reason why a record cannot be read, by the name of the trial's folder.
        damage: One line for each damaged file outside the trials' folders.
        times: Content of `time.json`, which the time pass writes; empty if that file is missing or damaged.
        profiles: Content of `profile.json`, which the profile pass writes; empty if it is missing or damaged.
        tuned: Content of `tune.json`, which `tune` writes; `None` if that file is missing or damaged.
        untested: Number of finished trials evaluated on validation images only, as in `tune`. `trials` leaves them out,
            because a report compares accuracies on the test set.
    """

    folder: Path
    trials: tuple[TrialRecord, ...]
    suite: Mapping[str, Any] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    damage: tuple[str, ...] = ()
    times: tuple[GroupTimes, ...] = ()
    profiles: tuple[GroupProfiles, ...] = ()
    tuned: Tuned | None = None
    untested: int = 0

    def all_damage(self) -> tuple[str, ...]:
        """Return one line for each file that cannot be read and each value that is not valid."""
        ours = [f"{trial.name}: {line}" for trial in self.trials for line in trial.damage]
        return (*self.damage, *(f"{name}: {reason}" for name, reason in self.damaged.items()), *ours)


def read(folder: Path, none_runs: bool = False) -> Records:
    """Read a suite's folder.

    Args:
        folder: Path of the folder.
        none_runs: As for `read_trials`.

    Raises:
        NotTestedError: No trial was evaluated on test images.
        UsageError: The folder has no trials.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} does not exist, or is not a folder")
    trials, damaged = read_trials(folder, none_runs)
    if not trials and not damaged:
        raise UsageError(f"{folder} has no results to report: no trials/*/trial.json exists")
    tested = tested_trials(trials)
    if trials and not tested:
        raise NotTestedError(
            f"{folder} has no results to report: its trials, as those of tune, were not evaluated on test images"
        )
    damage: list[str] = []

    def intact(read_file: Callable[[Path], Content], name: str) -> Content | None:
        """Return the content of a file; `None` if it is damaged, or if it is one that not every folder has."""
        try:
            return read_file(folder) if name == SUITE or (folder / name).exists() else None
        except UsageError as error:
            damage.append(clean(str(error)))
            return None

    return Records(
        folder,
        tuple(tested),
        intact(lambda place: read_suite(place / SUITE), SUITE) or {},
        damaged,
        times=tuple(intact(TIMES.read, TIMES.name) or ()),
        profiles=tuple(intact(PROFILES.read, PROFILES.name) or ()),
        tuned=intact(read_tuned, TUNED),
        untested=len(trials) - len(tested),
        damage=tuple(damage),
    )


@dataclass(frozen=True)
class PageGroup(TrialGroup):
    """Trials with the same key, with what a page compares them with.

    Attributes:
        budgets: Dense trainings for fewer epochs that the trials are compared with (`fold_budgets`), one group for each
            number of epochs, ascending.
        times: Training times from the time pass, by label.
        elsewhere: Trials of the same task and model on other machines, and whether they count here.
        pool: Machines whose accuracies count here.
        trained: Machine whose trials have costs here; mostly that of the key.
    """

    budgets: tuple[PageGroup, ...] = ()
    times: Mapping[str, MethodTime] = field(default_factory=dict)
    elsewhere: tuple[Elsewhere, ...] = ()
    pool: frozenset[Machine] = frozenset()
    trained: Machine = ()


@dataclass(frozen=True)
class Elsewhere:
    """Trials on another machine.

    Attributes:
        done: Finished trials.
        differences: Accuracy there minus here, as a fraction, for each method that has three seeds on both machines.
        refused: Why the trials do not count here; empty if they do.
    """

    machine: Machine
    done: int
    differences: Mapping[str, Estimate]
    refused: str = ""


def page_groups(trials: Iterable[TrialRecord]) -> tuple[list[PageGroup], list[TrialRecord]]:
    """Return the groups of a page before machines are pooled, and the trials without a group (`group_trials`)."""
    groups, unassigned = group_trials(trials)
    return [PageGroup(group.key, group.trials) for group in groups], unassigned


def is_without_pruning(trial: TrialRecord) -> bool:
    """Return whether a trial is a way to save training time without pruning; dense itself and controls are none."""
    spec = trial.spec
    known = spec.prunes is False and label(trial) != BASELINE
    return (known or (spec.method == BASELINE and spec.variant != "")) and not spec.control


def epochs(group: PageGroup) -> float:
    """Return the number of epochs of a group; 0 if it is not known."""
    return float(group.key["epochs"] or 0)


def share_of_steps(budget: PageGroup, group: PageGroup) -> float:
    """Return the steps of a dense training for fewer epochs relative to the whole one."""
    if epochs(budget) % 1 or epochs(group) % 1:  # an epoch is partial: the last epoch has fewer steps
        steps = [_steps(item) for item in (budget, group)]
        if all(steps):
            return steps[0] / steps[1]
    return epochs(budget) / epochs(group)


def _steps(group: PageGroup) -> float:
    dense = next((trial for trial in group.trials if trial.done and label(trial) == BASELINE), None)
    steps = [record.get("steps") or 0.0 for record in dense.epochs] if dense else []
    return math.fsum(steps) if all(steps) else 0.0


def without_epochs(group: PageGroup) -> dict[str, Any]:
    """Return the recipe without its epochs."""
    return {name: value for name, value in json.loads(group.key["recipe"]).items() if name != "epochs"}


@dataclass(frozen=True)
class Look:
    """How a method is drawn.

    Attributes:
        colour: Number of the colour: 0 for dense, `CONTROL` for what is not a method. Other colours follow from the
            method's name alone. Only the shade depends on the report: it distinguishes methods and variants of one
            colour.
        marker: Number of the marker, different for all variants of a report.
        dash: Number of the dashes, different for all variants of a report that have the same colour.
        mark: Words after the name: `NO_PRUNING`, or nothing.
    """

    colour: int = 0
    marker: int = 0
    dash: int = 0
    mark: str = ""

    def named(self, name: str) -> str:
        """Return a name with the words after it."""
        return f"{name} {self.mark}" if self.mark else name


def looks(
    labels: Iterable[str], controls: Collection[str] = (), without_pruning: Collection[str] = ()
) -> dict[str, Look]:
    """Return how each method is drawn. A method has the same colour in every report.

    Args:
        labels: Methods with their parameters, in the order of the table.
        controls: Those that are controls of others.
        without_pruning: Those that are ways to train without pruning.
    """
    found: dict[str, Look] = {}
    drawn: Counter[int] = Counter()
    for name in dict.fromkeys([BASELINE, *labels]):
        colour = CONTROL if name in controls or name in without_pruning else colour_of(name)
        shade = drawn[colour] if colour > 0 else 0
        mark = NO_PRUNING if name in without_pruning else ""
        found[name] = Look(colour + shade * COLOURS, len(found), drawn[colour], mark)
        drawn[colour] += 1
    return found


def looks_of(trials: Sequence[TrialRecord]) -> dict[str, Look]:
    """Return how each method of a folder's trials is drawn."""
    controls = {label(trial) for trial in trials if trial.spec.control}
    return looks(map(label, trials), controls, {label(trial) for trial in trials if is_without_pruning(trial)})


def colour_of(name: str) -> int:
    """Return the number of a method's colour, which follows from its name without parameters."""
    method = name.partition("[")[0]
    if method == BASELINE:
        return 0
    return 1 + hashlib.blake2s(f"{_COLOUR_PREFIX}{method}".encode()).digest()[0] % COLOURS


def is_disturbed(trial: TrialRecord) -> bool:
    """Return whether the records show that a trial's times were disturbed. Records cannot prove the opposite."""
    return trial.done and (spread(trial) > UNSTEADY or busy_share(trial) >= BUSY or shared_with(trial) > 0)


def mark_disturbed(text: str, disturbed: bool) -> str:
    """Return the text of a time, marked if it is disturbed: `6 min 12 s (disturbed)`."""
    return f"{text} ({DISTURBED})" if disturbed else text


def attempts(trial: TrialRecord) -> list[Mapping[str, Any]]:
    """Return the attempts before the one that finished the trial."""
    known: list[Mapping[str, Any]] = trial.provenance.get("attempts", [])
    return known


def busy_share(trial: TrialRecord) -> float:
    """Return the largest number of busy cores before an attempt, divided by the number of cores of the trial."""
    threads = trial.provenance.get("hardware", {}).get("threads")
    loads = [record.get("busy_cores") or 0.0 for record in (trial.provenance, *attempts(trial))]
    return max(loads) / threads if threads else 0.0


def shared_with(trial: TrialRecord) -> float:
    """Return the largest number of other trials on the device during an attempt; 0 if the record names none."""
    places = [record.get("place") or {} for record in (trial.provenance, *attempts(trial))]
    return max(place.get("shared_with") or 0.0 for place in places)


@cache  # tables and figures of a report ask for the same trials many times
def spread(trial: TrialRecord) -> float:
    """Return the longest over the shortest time per step among epochs of equal work; 1 if no two can be compared."""
    epochs: list[tuple[Any, float]] = []
    for before, record in pairwise(trial.epochs):
        began, ended, steps = before.get("train_time_s"), record.get("train_time_s"), record.get("steps")
        if began and ended and steps:
            # The shapes before and after an epoch tell one with a reconfiguration from one without.
            shapes = tuple(end.get("step_flops", {}).get("current") for end in (before, record))
            epochs.append(((shapes, record.get("batch_size")), (ended - began) / steps))
    largest = 1.0
    for _, equal in groupby(epochs, key=lambda epoch: epoch[0]):
        steps_times = [time for _, time in equal if time > 0]
        if steps_times:
            largest = max(largest, max(steps_times) / min(steps_times))
    return largest
