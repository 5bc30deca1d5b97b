"""What the verb `tune` does before its first trial: hold out images, draw settings, and plan and rehearse trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from suite.choices import RECIPE, MethodChoice, ModelChoice, TaskChoice
from suite.cli.options import RunOptions
from suite.cli.preparation import default_folder, formats_in, may_measure_format, provenance_of, rehearse_new, resolve
from suite.errors import UsageError
from suite.measure.number_format import faster_formats
from suite.task import DataCopy
from suite.trials.building import task_of
from suite.trials.folder.store import Store
from suite.trials.planning import plan, read_choices
from suite.trials.search import MethodSearch, check_names, settings, space
from suite.trials.spec import SuiteSpec, TrialSpec

NOT_TESTED: Mapping[str, Any] = {"evaluate_test": False}


def prepare(
    options: RunOptions, only: Sequence[str], budget: int, seed: int
) -> tuple[SuiteSpec, list[MethodSearch], Path, dict[str, Any]]:
    """Plan and rehearse all trials; return the suite, the searches, the folder and the provenance.

    Raises:
        UsageError: The user can correct the command. Nothing has been written.
    """
    base = resolve(dataclasses.replace(options, seeds=options.seeds or (0,)))
    for kind, text in ((TaskChoice, base.tasks), (ModelChoice, base.models)):
        option = f"--{kind.kind}"
        if text and len(read_choices(text, kind, option)) > 1:
            raise UsageError(f"{option} '{text}': tune searches on one {kind.kind}; name one")
    choices = read_choices(base.methods, MethodChoice, "tune")
    choices = list({str(choice): choice for choice in [MethodChoice.read("dense"), *choices]}.values())
    check_names(choices, only)

    (first, *_) = plan(dataclasses.replace(base, methods="dense", seeds=base.seeds[:1]))
    copy = DataCopy(**first.data_copy)
    recipe = first.make_recipe()
    if not recipe.validation_images:
        splits = task_of(first).load(copy, recipe, 0, torch.device("cpu"))
        recipe = recipe.changed(validation_images=max(1, splits.train.num_samples // 10))
    held_out = {"validation_images": recipe.validation_images, **NOT_TESTED}
    suite = dataclasses.replace(
        base, methods=",".join(map(str, choices)), models=first.model, overrides={**base.overrides, **held_out}
    )
    (first, *_) = plan(suite)  # raises what is wrong with the whole command or with the sizes of its splits
    copy = DataCopy(**first.data_copy)

    searches = []
    for choice in choices:
        dimensions = space(choice, recipe, first.task_name, base.preset, only, [*base.overrides])
        drawn = settings(choice, dimensions, budget, seed)
        planned: list[list[TrialSpec]] = []
        needed: list[TrialSpec] = []
        for values in drawn:
            setting = choice.with_typed(values)
            trials = plan(dataclasses.replace(suite, methods=str(setting)), {first.task: copy})
            planned.append([trial for trial in trials if trial.label == str(setting)])
            needed += [trial for trial in trials if trial.label != str(setting)]
        labels = [
            str(choice.with_typed({name: value for name, value in values.items() if not name.startswith(RECIPE)}))
            for values in drawn
        ]
        searches.append(MethodSearch(str(choice), dimensions, drawn, labels, planned, needed))
    every = [trial for search in searches for trial in search.in_order]
    folder = options.out or default_folder(every, options.dtype)
    Store(folder).check()
    if options.dtype == "auto":
        formats = formats_in(folder, base.device)
        if not formats and may_measure_format(options, base):
            formats = faster_formats(every[:1], options.jobs)
        if (dtype := formats.get((every[0].task, every[0].model), base.dtype)) != base.dtype:
            return prepare(dataclasses.replace(options, dtype=dtype, out=folder), only, budget, seed)
    rehearse_new(every, folder)
    return suite, searches, folder, provenance_of(suite)
