"""Descriptions of presets and reproductions."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from suite import registry
from suite.brackets import read_list
from suite.choices import TaskChoice
from suite.cli.parser import program_name
from suite.errors import UsageError
from suite.trials.folder.columns import COLUMNS
from suite.trials.spec import PAPER_SEEDS

if TYPE_CHECKING:
    from reports.papers.paper import Compared, Part

PRESET_TEXTS = {
    "smoke": "Seconds to a few minutes: shows that everything runs. Its accuracies do not compare methods.",
    "quick": "Minutes per trial: small networks and few epochs, for a CPU; the default on a CPU.",
    "paper": "As published in a paper: full networks and all epochs; the default on CUDA.",
}
TEXT_WIDTH = 100


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
            recipes[str(choice)] = {**values, **dataclasses.asdict(thing.recipe(name))}
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
        "remarks": {str(number): text for number, text in enumerate(thing.remarks, 1)},
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
        "presets": list(part.presets),
        "seeds": dict(part.seeds),
        "quantities": len(part.compared),
        "methods": part.methods,
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


def parts_as_text(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the parts of a reproduction as indented lines."""
    lines = []
    for name, part in parts.items():
        lines.append(f"  {name}: {part['title']}")
        model = part.get("model", "the task's model")
        if "small model" in part:
            model += f" (smoke and quick: {part['small model']})"
        counts = {
            preset: f"{preset} {count} ({part['seeds'][preset]} seed{'s' if part['seeds'][preset] > 1 else ''})"
            for preset, count in part["trials"].items()
        }
        skipped = [preset for preset in counts if preset not in part["presets"]]
        entries = {
            "task": part["task"],
            "model": model,
            "methods": ", ".join(item.text for item in read_list(part["methods"], "--methods")),
            "trials": ", ".join(counts.values()),
            "only with --parts": ", ".join(skipped),
            "dense trials": f"those of {part['baseline']}" if "baseline" in part else "",
            "recipe in preset paper": part.get("recipe", ""),
            **{
                kind: ", ".join(f"{key}={value}" for key, value in part.get(kind, {}).items())
                for kind in ("overrides", "paper recipe")
            },
            f"compared ({part['quantities']} numbers)": "; ".join(part["compared"]),
        }
        for title, text in entries.items():
            if text:
                lines += textwrap.wrap(
                    f"{title}: {text}",
                    TEXT_WIDTH,
                    initial_indent="      ",
                    subsequent_indent="        ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
    return lines


def plain_name(text: str, kind: str) -> str:
    """Return a name without parameters.

    Raises:
        UsageError: `text` has parameters.
    """
    name, bracket, _ = text.partition("[")
    if bracket:
        raise UsageError(f"describe '{text}': a {kind} takes no parameters; name '{name}'")
    return name
