"""Groups of trials that may be compared with each other, and the labels of their methods."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from suite.files import canonical_json
from suite.parameters import at_default
from suite.recipe import Recipe
from suite.trials.controls import BASELINE as BASELINE
from suite.trials.folder.reader import finite
from suite.trials.folder.records import TrialRecord

# Trials of one machine agree in these. Accuracies of several machines may be compared (`reports.data.pooling`).
KEY = (
    *("task", "data_copy", "model", "hardware_id", "threads", "torch", "dtype", "arithmetic", "preset", "recipe"),
    *("epochs", "batch_size", "execution"),
)
MACHINE = ("hardware_id", "threads", "torch")  # what makes times comparable


@dataclass(frozen=True)
class TrialGroup:
    """Trials with the same key.

    Attributes:
        key: Text of each name of `KEY`.
        trials: The trials, in the order of the table.
    """

    key: Mapping[str, str]
    trials: tuple[TrialRecord, ...]


def label(trial: TrialRecord) -> str:
    """Return the method with its parameters as a user writes it: `sdgp[n=2,m=4]`."""
    variant = trial.text("variant")
    return f"{trial.text('method')}[{variant}]" if variant else trial.text("method")


def tested_trials(trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that were evaluated on test images, with different labels for different versions of a file.

    A folder holds trials of both versions after a plugin was edited, and these are different methods. A short checksum
    is then added to the method's parameters, or to the name of the task or model.
    """
    tested = [trial for trial in trials if trial.spec.recipe.get("evaluate_test", True)]
    for kind, column in (("method", "variant"), ("task", "task"), ("model", "model")):
        names = [(trial.text(kind), trial.text(column)) for trial in tested]
        versions = [_file_version(trial, kind) for trial in tested]
        counts = Counter(name for name, _ in set(zip(names, versions, strict=True)))
        tested = [
            trial.with_spec(**{column: f"{name[1]} file {version or 'unknown'}".strip()}) if counts[name] > 1 else trial
            for trial, name, version in zip(tested, names, versions, strict=True)
        ]
    return tested


def _file_version(trial: TrialRecord, kind: str) -> str:
    """Return a short checksum of the files that define the method, task or model; empty for the project's own."""
    file = trial.spec.defined_by.get(kind)
    known = file and {"sha256": file.get("sha256"), "imports": file.get("imports")}
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:8] if known else ""


def recipe(trial: TrialRecord) -> str:
    """Return what differs from the recipe's declared defaults as one text.

    A value that a method alone has is part of its label. This text then has the value of the other methods.
    """
    shared = {**trial.spec.recipe, **trial.spec.replaced}
    defaults = at_default(Recipe, shared)
    return canonical_json({name: value for name, value in shared.items() if name not in defaults})


def group_trials(trials: Iterable[TrialRecord]) -> tuple[list[TrialGroup], list[TrialRecord]]:
    """Group trials by key, in the order of the table.

    Parts of a key may be unknown: the trial failed before its hardware was recorded. It joins the only group whose
    known parts match. If there is no group to join, or more than one, a finished trial forms a new group. A failed
    trial forms a new group if none matches.

    Returns:
        The groups, and the trials that were not assigned: failed ones that match several groups.
    """
    position = {trial: number for number, trial in enumerate(trials)}
    unassigned: list[TrialRecord] = []
    # Trials with the most complete keys come first, so that later trials find their groups.
    order = sorted(((_key(trial), trial) for trial in position), key=lambda pair: (not pair[1].done, pair[0].count("")))
    trials_by_key: dict[tuple[str, ...], list[TrialRecord]] = {}
    for own, trial in order:
        fits = [own] if own in trials_by_key else [key for key in trials_by_key if not _contradict(own, key)]
        if len(fits) > 1 and not trial.done:
            unassigned.append(trial)
        else:
            trials_by_key.setdefault(fits[0] if len(fits) == 1 else own, []).append(trial)
    groups = [
        TrialGroup(dict(zip(KEY, key, strict=True)), tuple(sorted(members, key=position.__getitem__)))
        for key, members in trials_by_key.items()
    ]
    # Groups are in the order of their first finished trial, or of their first trial if none has finished.
    groups.sort(key=lambda group: min((not trial.done, position[trial]) for trial in group.trials))
    return groups, sorted(unassigned, key=position.__getitem__)


def _contradict(first: Sequence[str], second: Sequence[str]) -> bool:
    return any(mine and theirs and mine != theirs for mine, theirs in zip(first, second, strict=True))


def _key(trial: TrialRecord) -> tuple[str, ...]:
    texts = {name: column_text(trial, name) for name in KEY if name != "recipe"} | {"recipe": recipe(trial)}
    if (shared := finite(trial.spec.replaced.get("epochs"))) is not None:
        texts["epochs"] = f"{shared:g}"  # as in `recipe`, its own number of epochs does not part it from others
    return tuple(texts[name] for name in KEY)


def column_text(trial: TrialRecord, name: str) -> str:
    """Return a text or numeric column as text."""
    value = trial.value(name)
    return f"{value:g}" if isinstance(value, (int, float)) else value or ""


def seed_of(trial: TrialRecord) -> int:
    """Return the seed of a trial."""
    return trial.spec.seed
