"""Trials into groups that may be compared, and into rows of one method each, in the order they are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reports.data.records import Trial

# What trials that are ranked together have in common. Their times must be comparable, hence hardware, threads and the
# minor version of torch. The last three are part of the recipe, and known where only the table is left.
KEY = (
    *("task", "data_copy", "model", "hardware_id", "threads", "torch", "dtype", "preset", "recipe"),
    *("epochs", "batch_size", "execution"),
)
# The one name a report must know: what everything is compared with, when it has no parameters of its own.
BASELINE = "dense"


@dataclass(frozen=True)
class TrialGroup:
    """Trials of one key; `key` maps each name of `KEY` to its text."""

    key: Mapping[str, str]
    trials: tuple[Trial, ...]


def label(trial: Trial) -> str:
    """`sdgp[n=2,m=4]`: the method as typed."""
    variant = trial.text("variant")
    return f"{trial.text('method')}[{variant}]" if variant else trial.text("method")


def recipe(trial: Trial) -> str:
    """The trial's recipe as one comparable text; empty where its `trial.json` has none."""
    return json.dumps(trial.spec["recipe"], sort_keys=True, default=str) if trial.spec.get("recipe") else ""


def group_trials(trials: Iterable[Trial]) -> tuple[list[TrialGroup], list[Trial]]:
    """Trials by key, in the order of the table.

    A trial may not know its whole key: it failed before it knew its hardware, or only its row in the table is left,
    which has no recipe. What is unknown contradicts nothing: such a trial joins the one group that it does not
    contradict. Where several would do, or none, a trial that is done makes its own group; a failed one is returned
    apart in the first case.

    Returns:
        The groups, and the failed trials that belong to no one group.
    """
    trials = list(trials)
    apart = [trial for trial in trials if not trial.text("method")]  # a damaged record does not even know its method
    named = [(_key(trial), trial) for trial in trials if trial.text("method")]
    # Those that know most come first, so that the others find the groups that there are.
    order = sorted(named, key=lambda pair: (not pair[1].done, sum(not part for part in pair[0])))
    found: dict[tuple[str, ...], list[Trial]] = {}
    for own, trial in order:
        fits = [own] if own in found else [key for key in found if not _contradict(own, key)]
        if len(fits) > 1 and not trial.done:
            apart.append(trial)
        else:
            found.setdefault(fits[0] if len(fits) == 1 else own, []).append(trial)
    places = {id(trial): place for place, trial in enumerate(trials)}
    groups = [
        TrialGroup(dict(zip(KEY, key, strict=True)), tuple(sorted(members, key=lambda trial: places[id(trial)])))
        for key, members in found.items()
    ]
    # In the order of the first trial that is done, or else of the first.
    groups.sort(key=lambda group: min((not trial.done, places[id(trial)]) for trial in group.trials))
    return groups, sorted(apart, key=lambda trial: places[id(trial)])


def _contradict(one: Sequence[str], other: Sequence[str]) -> bool:
    return any(mine and theirs and mine != theirs for mine, theirs in zip(one, other, strict=True))


def _key(trial: Trial) -> tuple[str, ...]:
    return tuple(recipe(trial) if name == "recipe" else column_text(trial, name) for name in KEY)


def column_text(trial: Trial, name: str) -> str:
    """A column as text, whether it holds a text or a number."""
    value = trial.number(name)
    return trial.text(name) if value is None else f"{value:g}"


def seed_of(trial: Trial) -> int:
    """The trial's seed; -1 where the table has none."""
    return int(trial.numbers.get("seed", -1))
