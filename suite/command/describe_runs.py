"""Descriptions of what a command runs as a whole: presets and reproductions."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from suite import registry
from suite.command.options import program_name
from suite.errors import UsageError

if TYPE_CHECKING:
    from reproductions.contract import Part

PRESET_TEXTS = {
    "smoke": "Seconds to a few minutes: shows that everything runs; its accuracies say nothing about methods.",
    "quick": "Minutes a trial: small networks and few epochs, for a CPU; the default there.",
    "paper": "As a paper published it: full networks and all epochs; the default on CUDA.",
}


def describe_preset(name: str, task: str) -> dict[str, Any]:
    """Seeds, models and recipes of a preset, and the parameters to which it gives methods other values.

    Args:
        name: of the preset.
        task: the one to describe; empty: all, and `cifar10` for the methods.
    """
    from suite.command.run import PAPER_SEEDS

    recipes = {}
    for known in [task] if task else registry.names("task"):
        thing = registry.get("task", known)()
        recipes[known] = {"model": thing.default_model(name), **dataclasses.asdict(thing.recipe(name))}
    for_methods = task or "cifar10"
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
    """What a reproduction runs, part by part, and which published numbers are set beside it."""
    thing = registry.get("reproduction", name)()
    return {
        "name": name,
        "kind": "reproduction",
        "title": thing.title,
        "summary": (type(thing).__doc__ or "").strip().partition("\n")[0],
        "published": ", ".join(dict.fromkeys([thing.reference, *thing.also, *thing.beside])),
        "command": f"{program_name()} reproduce {name}",
        "parts": {part.name: _described_part(part) for part in thing.parts},
        "remarks": {str(number): text for number, text in enumerate(thing.remarks, 1)},
    }


def _described_part(part: Part) -> dict[str, Any]:
    """What of a part says more than its defaults."""
    optional = {
        "model": part.model,
        "small model": part.small_model,
        "overrides": dict(part.overrides),
        "paper recipe": dict(part.paper_recipe),
    }
    return {
        "title": part.title,
        "task": part.task,
        **{name: value for name, value in optional.items() if value},
        "presets": list(part.presets),
        "seeds": dict(part.seeds),
        "quantities": len(part.compared),
        "methods": part.methods,
    }


def plain_name(text: str, kind: str) -> str:
    """A name without parameters.

    Raises:
        UsageError: if parameters were typed.
    """
    name, bracket, _ = text.partition("[")
    if bracket:
        raise UsageError(f"describe '{text}': a {kind} takes no parameters; name '{name}'")
    return name
