"""The file of `tune`, `tune.json`: what was searched, what it reached on validation images, and what was chosen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from suite import files
from suite.errors import UsageError, validate
from suite.trials.folder.entries import Strict

NAME = "tune.json"
TOLERANCE = 1.02
"""A setting may cost this many times the default's FLOPs. The verdict takes costs up to 2 % apart for equal."""
COSTS = ("train_flops_effective", "inference_flops_effective")
"""Columns with the cost of a setting."""
RULE = (
    "The setting with the highest validation accuracy, among those that cost at most 1.02 times the effective training "
    "and inference FLOPs of the default setting; the first of equal ones. Without the limit, a method would be tuned "
    "by pruning less."
)
Share = Annotated[float, Ge(0)]


class Setting(Strict):
    """One setting of a method, as a mean over the seeds.

    Attributes:
        values: Values of the searched dimensions; empty for the default setting.
        trial_ids: Its trials, one for each seed.
        val_accuracy: Accuracy on the validation images; `None` unless all trials are done.
        train_flops_effective, inference_flops_effective: Cost of the setting.
        reason: Why it could not be chosen; empty if it could.
    """

    values: dict[str, Any]
    trial_ids: tuple[str, ...]
    val_accuracy: Share | None
    train_flops_effective: Share | None
    inference_flops_effective: Share | None
    reason: str = ""


class TunedMethod(Strict):
    """One method.

    Attributes:
        method: The method as typed.
        space: The dimensions of the space: name, default, and either values or bounds.
        settings: The settings that were tried; as many as the budget.
        chosen: Index of the chosen setting; `None` if no setting could be chosen.
        label: The method with the chosen values, as the final comparison names it; empty if no setting was chosen.
    """

    method: str
    space: tuple[dict[str, Any], ...]
    settings: tuple[Setting, ...]
    chosen: Annotated[int, Ge(0)] | None
    label: str = ""


class Tuned(Strict):
    """The content of `tune.json`.

    Attributes:
        budget: Number of settings of each method.
        search_seed: Seed of the settings.
        seeds: Seeds of the trials of each setting.
        task, model, preset: The trials' task, model and preset.
        validation_images, split_seed: The validation split: this many training images, stratified by class.
        rule: How a setting is chosen.
        command: The command of the final comparison; empty if a method has no chosen setting.
    """

    version: Literal[1] = 1
    budget: Annotated[int, Ge(1)]
    search_seed: Annotated[int, Ge(0)]
    seeds: tuple[int, ...]
    task: str
    model: str
    preset: str
    validation_images: Annotated[int, Ge(1)]
    split_seed: Annotated[int, Ge(0)]
    rule: str = RULE
    methods: tuple[TunedMethod, ...]
    command: str = ""


def choose(settings: Sequence[Setting]) -> tuple[tuple[Setting, ...], int | None]:
    """Return the settings with the reasons why some cannot be chosen, and the index of the chosen one (`RULE`).

    The first setting is the default. If it is not done, the cost has no limit.
    """
    default, judged = settings[0], []
    limits = {name: None if default.val_accuracy is None else getattr(default, name) for name in COSTS}
    for setting in settings:
        reason = "" if setting.val_accuracy is not None else "not all of its trials are done"
        for column, limit in limits.items():
            cost = getattr(setting, column)
            if not (reason or cost is None or limit is None or cost <= TOLERANCE * limit):
                reason = f"its {column} are {cost / limit:.3g} times those of the default setting"
        judged.append(setting.model_copy(update={"reason": reason}))
    free = [index for index, setting in enumerate(judged) if not setting.reason]
    return tuple(judged), max(free, key=lambda index: (judged[index].val_accuracy or 0.0, -index), default=None)


def write_tuned(folder: Path, content: Tuned) -> Path:
    """Write `tune.json` atomically, and return its path."""
    text = json.dumps(content.model_dump(mode="json"), indent=2, allow_nan=False, ensure_ascii=False)
    files.write(folder / NAME, text + "\n")
    return folder / NAME


def read_tuned(folder: Path) -> Tuned | None:
    """Return the content of `tune.json`; `None` if it does not exist.

    Raises:
        UsageError: The file is damaged; one line.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        data = files.read_json(files.read_bytes(path, "tune"))
    except ValueError as error:
        raise UsageError(f"{path} is damaged: {error}; the command that wrote it writes it again") from error
    tuned: Tuned = validate(Tuned, data, f"{path} is damaged")
    for method in tuned.methods:
        if method.chosen is not None and method.chosen >= len(method.settings):
            raise UsageError(f"{path} is damaged: {method.method} has no setting {method.chosen}")
    return tuned
