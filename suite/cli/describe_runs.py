"""Descriptions of presets and reproductions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from suite import registry
from suite.brackets import read_list
from suite.choices import TaskChoice
from suite.cli.parser import program_name
from suite.errors import UsageError
from suite.trials.folder.table import COLUMNS
from suite.trials.spec import PAPER_SEEDS

if TYPE_CHECKING:
    from reports.papers.paper import Compared, Part

PRESET_TEXTS = {
    "smoke": "Seconds to a few minutes: shows that everything runs. Its accuracies do not compare methods.",
    "quick": "Minutes per trial: small networks and few epochs, for a CPU; the default on a CPU.",
    "paper": "As published in a paper: full networks and all epochs; the default on CUDA.",
}


def describe_preset(name: str, task: str) -> dict[str, Any]:
    """Return the seeds, models and recipes of a preset, and the parameters of methods whose defaults it changes.

    Args:
        name: Name of the preset.
        task: Name of the task to describe; empty for all tasks, with the parameters for `cifar10`.
    """
    recipes = {}
    names = registry.names("task")
    chosen = [TaskChoice.read(task)] if task else [TaskChoice(one, {}, registry.get("task", one)) for one in names]
    for choice in chosen:
        parameters = choice.parameters(name)
        if parameters.keys() == choice.declared.keys():  # a task may need a parameter that only a user can type
            thing = choice.build(parameters)
            values = {"model": thing.default_model(name), **parameters}
            recipes[str(choice)] = {**values, **thing.recipe(name).fields()}
    for_methods = chosen[0].name if task else "cifar10"
    changed = {
        method: registry.get("method", method).defaults(for_methods, name) for method in registry.names("method")
    }
    return {
        "name": name,
        "kind": "preset",
        "summary": PRESET_TEXTS[name],
        "seeds": PAPER_SEEDS if name == "paper" else 1,
        "recipes": recipes,
        f"methods on {for_methods}": {method: values for method, values in changed.items() if values},
    }


def describe_reproduction(name: str, task: str) -> dict[str, Any]:
    """Return the trials of each part of a reproduction, and the published numbers that they are compared with."""
    thing = registry.get("reproduction", name)().declared
    groups = dict.fromkeys(filter(None, [thing.reference, *thing.also, *thing.compared_with]))
    return {
        "name": name,
        "kind": "reproduction",
        "title": thing.title,
        "summary": thing.summary,
        "published": ", ".join(groups) or "no number",
        "command": f"{program_name()} reproduce {name}",
        "parts": {part.name: _described_part(part) for part in thing.parts},
        "remarks": list(thing.remarks),
    }


def _described_part(part: Part) -> dict[str, Any]:
    """Return the fields of a part, without optional ones that are empty."""
    optional = {
        "model": part.model,
        "small model": part.small_model,
        "overrides": dict(part.overrides),
        "recipe": part.recipe,
        "paper recipe": dict(part.paper_recipe),
        "baseline": part.baseline,
    }
    return {
        "title": part.title,
        "task": part.task,
        **{name: value for name, value in optional.items() if value},
        "presets": ", ".join(part.presets),
        "seeds": dict(part.seeds),
        "quantities": len(part.compared),
        "methods": ", ".join(item.text for item in read_list(part.methods, "--methods")),
        "trials": {preset: _methods_in(part.methods) * seeds for preset, seeds in part.seeds.items()},
        "compared": list(dict.fromkeys(map(_compared_text, part.compared))),
    }


def _compared_text(one: Compared) -> str:
    """Return what a quantity compares, without its method: `Test accuracy, difference to dense`."""
    title, over = (COLUMNS[name].title if name in COLUMNS else name for name in (one.column, one.over))
    against = {"difference": "difference to dense", "ratio": "ratio to dense", "saving": "saved relative to dense"}
    return title + (f" / {over}" if over else "") + (f", {against[one.against]}" if one.against else "")


def _methods_in(text: str) -> int:
    """Return the number of methods in a list, with every alternative of its grids."""
    return sum(math.prod(map(len, item.alternatives.values())) for item in read_list(text, "--methods"))


def plain_name(text: str, kind: str) -> str:
    """Return a name without parameters.

    Raises:
        UsageError: `text` has parameters.
    """
    name, bracket, _ = text.partition("[")
    if bracket:
        raise UsageError(f"describe '{text}': a {kind} takes no parameters; name '{name}'")
    return name
