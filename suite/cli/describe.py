"""The verbs `list` and `describe`."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docstring_parser import DocstringStyle, parse

from suite import registry
from suite.choices import Choice, MethodChoice, ModelChoice, TaskChoice, read_list
from suite.cli.options import Parser, program_name, read_data_root
from suite.errors import UsageError, nearest
from suite.parameters import REQUIRED, allowed, search_of, show
from suite.recipe import Tuning
from suite.registry import KINDS
from suite.trials.spec import PAPER_SEEDS, PRESETS

if TYPE_CHECKING:
    from reports.papers.paper import Part

TEXT_WIDTH = 100
WORDS = {
    "layers": "FLOPs of one image's training, by layer and product",
    "params": "weights and biases",
    "macs": "multiply-adds of an inference",
    "conventions": "counted by the conventions of papers",
    "data_gradient_share": "share of the data gradient in training FLOPs",
    "channels": "channels, of which those that can be followed can be removed",
    "frozen": "why other channels stay",
    "random_twin": "selects at random with",
    "tuning": "defaults chosen",
    "presets_of_task": "values in parentheses are those of presets of task",
}
"""Facts of a description whose name is an abbreviation, in words."""
PRESET_TEXTS = {
    "smoke": "Seconds to a few minutes: shows that everything runs. Its accuracies do not compare methods.",
    "quick": "Minutes per trial: small networks and few epochs, for a CPU; the default on a CPU.",
    "paper": "As published in a paper: full networks and all epochs; the default on CUDA.",
}


def list_all(arguments: Sequence[str]) -> int:
    """Print what is registered with the first line of its docstring, without importing it."""
    parser = Parser("list", description="List everything that can be named on the command line.")
    plural = {f"{kind}s": kind for kind in KINDS}
    about = f"{', '.join(plural)} (default: all)"
    parser.add_argument("kind", metavar="KIND", nargs="?", choices=(*plural, *KINDS), help=about)
    parser.add_argument("--json", action="store_true", help="print JSON: {kind: [{name, summary, origin}]}")
    parser.add_plugins("also list what this Python file registers")
    namespace = parser.read(arguments)
    listed = {
        title: [entry for _, entry in sorted(registry.entries(kind).items())]
        for title, kind in plural.items()
        if namespace.kind in (None, title, kind)
    }
    if namespace.json:
        shown = ("name", "summary", "origin")
        print(json.dumps({title: [{fact: getattr(entry, fact) for fact in shown} for entry in entries]
                          for title, entries in listed.items()}, indent=2))  # fmt: skip
        return 0
    for title, entries in listed.items():
        alone = [entry for entry in entries if not entry.family] + registry.collections(plural[title])
        width = max((len(entry.typed) for entry in alone), default=0)
        print(title, *(f"  {entry.typed:{width}}  {entry.summary}" for entry in alone), sep="\n")
        # The names of a family follow its summary.
        for summary in dict.fromkeys(entry.summary for entry in entries if entry.family):
            members = ", ".join(entry.name for entry in entries if entry.family and entry.summary == summary)
            print(f"  {summary}", *_wrapped(members, "    ", hanging=""), sep="\n")
    return 0


def describe(arguments: Sequence[str]) -> int:
    """Print the description of a method, task, model, reproduction or preset."""
    parser = Parser("describe", description="Describe a method, a task, a model, a reproduction or a preset.")
    parser.add_argument("name", metavar="NAME", help="name, with parameters in brackets; or smoke, quick, paper")
    parser.add_argument("--task", metavar="TASK", default="", help="task that decides image size and defaults")
    parser.add_argument("--layers", action="store_true", help="for a model: FLOPs of each layer's products")
    about = "for a model on a task of your own images: their folder"
    parser.add_argument("--data-root", metavar="DIR", type=read_data_root, help=about)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_plugins()
    namespace = parser.read(arguments)
    name, bracket, _ = namespace.name.partition("[")
    registered = [kind for kind in KINDS if kind in _DESCRIBE]
    kind = next((kind for kind in registered if registry.find(kind, name)), "preset" if name in PRESETS else "")
    if not kind:
        if "/" in name or registry.find("model", f"{name}/"):
            raise UsageError(registry.unknown("model", name))
        hint = nearest(name, [*PRESETS, *(known for kind in registered for known in registry.names(kind))])
        raise UsageError(f"nothing is called '{name}'{hint if 'did you mean' in hint else '; list shows all names'}")
    if kind != "model" and (namespace.layers or namespace.data_root):
        raise UsageError(f"describe {name}: --layers and --data-root are for models, and '{name}' is a {kind}")
    if bracket and kind in ("reproduction", "preset"):
        raise UsageError(f"describe '{namespace.name}': a {kind} takes no parameters; name '{name}'")
    description = _DESCRIBE[kind](namespace)
    print(json.dumps(description, indent=2) if namespace.json else as_text(description))
    return 0


def first_line(thing: Any) -> str:
    """Return the first line of a docstring."""
    return (thing.__doc__ or "").strip().partition("\n")[0]


def parameter_texts(definition: Any) -> dict[str, str]:
    """Return the description of each parameter of a class or function, in one line, from a docstring in Google style.

    The descriptions are in the sections `Attributes:` and `Args:`. An entry `n, m: ...` describes both parameters. A
    class that does not describe an inherited parameter takes its parent's text.
    """
    texts: dict[str, str] = {}
    for thing in reversed(inspect.getmro(definition)) if inspect.isclass(definition) else (definition,):
        for entry in parse(thing.__doc__ or "", style=DocstringStyle.GOOGLE).params:
            text = " ".join((entry.description or "").split())
            texts |= dict.fromkeys(entry.arg_name.split(", "), text)
    return texts


def describe_parameters(choice: Choice, presets: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what each parameter allows, its default, its values by preset, and its text."""
    texts = parameter_texts(choice.definition)
    return [
        {
            "name": name,
            "allowed": allowed(parameter.annotation),
            "default": None if parameter.default is REQUIRED else parameter.default,
            "presets": {preset: values.get(name) for preset, values in presets.items()},
            "search": search.in_words() if (search := search_of(parameter.annotation)) else "",
            "text": texts.get(name, ""),
        }
        for name, parameter in choice.declared.items()
    ]


def _common(choice: Choice) -> dict[str, Any]:
    """Return the facts that all kinds of choices have."""
    return {"name": str(choice), "kind": choice.kind, "summary": first_line(choice.definition)}


def _describe_method(text: str, task: str) -> dict[str, Any]:
    """Return the parameters of a method, with the defaults that each preset of a task sets."""
    choice = MethodChoice.read(text)
    thing = choice.definition
    choice.build()  # refuses the values that `run` would refuse
    task = TaskChoice.read(task or "cifar10").name
    return {
        **_common(choice),
        **{fact: getattr(thing, fact) for fact in ("source", "version", "prunes", "shrinks_network")},
        "random_twin": dict(thing.random_twin),
        "tuning": [dataclasses.asdict(tuning) for tuning in thing.tuning],
        "parameters": describe_parameters(choice, {preset: choice.parameters(task, preset) for preset in PRESETS}),
        "presets_of_task": task,
    }


def _describe_task(text: str) -> dict[str, Any]:
    """Return the data, parameters, default models and recipes of a task."""
    choice = TaskChoice.read(text)
    presets = {preset: choice.parameters(preset) for preset in PRESETS}
    of_preset = {preset: choice.build(values) for preset, values in presets.items()}
    thing = choice.build()
    return {
        **_common(choice),
        "title": thing.title,
        "input_shapes": {preset: list(built.inputs(built.recipe(preset)).shape) for preset, built in of_preset.items()},
        "classes": thing.num_classes,
        "detected_in_the_data": thing.detected or None,
        "source": thing.source,
        "parameters": describe_parameters(choice, presets),
        "paper_recipe": thing.paper_recipe,
        "tuning": [dataclasses.asdict(tuning) for tuning in thing.tuning],
        "default_models": {preset: thing.default_model(preset) for preset in PRESETS},
        "default_models_on_cuda": dict(thing.cuda_models),
        "recipes": {preset: thing.recipe(preset).fields() for preset in PRESETS},
        "paper_recipes": {
            name: {
                "source": published.source or "this suite",
                "preset": published.preset,
                "model": published.model or thing.default_model(published.preset),
                **thing.defaults(published.preset, name),
                **published.recipe.fields(),
            }
            for name, published in thing.paper_recipes.items()
        },
    }


def describe_model(text: str, task: str, data_root: Path | None = None, layers: bool = True) -> dict[str, Any]:
    """Return size and cost of a network, which are counted in the network itself.

    Args:
        text: The model, written as on the command line.
        task: Task whose images and classes the network is built for; empty for the network's own default.
        data_root: Folder of the user's images, for a task that reads them; `None` without one.
        layers: Whether to list the FLOPs of each layer's products.
    """
    if data_root and not (task and TaskChoice.read(task).build().needs_data_root("quick")):
        raise UsageError("describe: --data-root is for a task of your own images, such as --task imagefolder")

    # These import torch, which describing other things does not need.
    from suite.engine.cost.flops import PRODUCTS, count, count_model
    from suite.engine.cost.paper_conventions import CONVENTIONS
    from suite.engine.network.channels.spaces import find_index_spaces
    from suite.engine.network.channels.trial_cut import counted_reasons
    from suite.engine.network.layers import plannable

    choice = ModelChoice.read(text)
    parameters = inspect.signature(choice.definition).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in parameters if parameter.default is not REQUIRED}
    shape, classes = defaults.get("input_shape", (3, 32, 32)), defaults.get("num_classes", 10)
    copy = None
    if task:
        chosen = TaskChoice.read(task)
        built = chosen.build(chosen.parameters("quick"))
        recipe = built.recipe("quick")
        if data_root:
            copy = built.prepare(data_root, "quick", recipe)
        shape, classes = built.inputs(recipe, copy)
    choice.check_size(shape, classes)
    model = choice.build(shape, classes)
    counts = count(model, shape)
    costs = counts.layers.values()
    flops = {cost.name: {product: cost.flops(product) for product in PRODUCTS} for cost in costs}
    everything = sum(sum(products.values()) for products in flops.values())
    spaces = find_index_spaces(model, shape)
    kept = {space.name: space for space in spaces.values() if space.name != spaces.model_input}.values()
    return {
        **_common(choice),
        **count_model(model, shape),
        "training_flops": everything,
        "data_gradient_share": sum(products["dgrad"] for products in flops.values()) / max(everything, 1),
        **({"layers": flops} if layers else {}),
        "not_counted": list(counts.not_counted),
        # The trial cut before a training may find more channels that have to stay.
        "channels": {
            "followed": sum(space.size for space in kept if not space.frozen),
            "all": sum(space.size for space in kept),
        },
        "frozen": counted_reasons(space.frozen_because for space in kept if space.frozen),
        "not_planned": plannable(model)[1],
        "input_shape": list(shape),
        "classes": classes,
        "conventions": {name: convention(costs) for name, convention in CONVENTIONS.items()},
        "parameters": describe_parameters(choice, {"this model": choice.parameters()}),
    }


def _describe_preset(name: str, task: str) -> dict[str, Any]:
    """Return the seeds, models and recipes of a preset, and the parameters of methods whose defaults it changes.

    Args:
        name: Name of the preset.
        task: Name of the task to describe; empty for all tasks, with the parameters for `cifar10`.
    """
    recipes = {}
    names = registry.names("task")
    every = [TaskChoice(own, definition=registry.get("task", own)) for own in names]
    for choice in [TaskChoice.read(task)] if task else every:
        parameters = choice.parameters(name)
        if parameters.keys() == choice.declared.keys():  # a task may need a parameter that only a user can type
            thing = choice.build(parameters)
            values = {"model": thing.default_model(name), **parameters}
            recipes[str(choice)] = {**values, **thing.recipe(name).fields()}
    of_task = TaskChoice.read(task or "cifar10").name
    changed = {method: registry.get("method", method).defaults(of_task, name) for method in registry.names("method")}
    return {
        "name": name,
        "kind": "preset",
        "summary": PRESET_TEXTS[name],
        "seeds": PAPER_SEEDS if name == "paper" else 1,
        "recipes": recipes,
        f"methods on {of_task}": {method: values for method, values in changed.items() if values},
    }


def _describe_reproduction(name: str) -> dict[str, Any]:
    """Return the trials of each part of a reproduction, and the published numbers that they are compared with."""
    declared = registry.get("reproduction", name)().declared
    groups = dict.fromkeys(filter(None, [declared.reference, *declared.also, *declared.compared_with]))
    return {
        "name": name,
        "kind": "reproduction",
        "title": declared.title,
        "summary": declared.summary,
        "published": ", ".join(groups) or "no number",
        "command": f"{program_name()} reproduce {name}",
        "parts": {part.name: _describe_part(part) for part in declared.parts},
        "remarks": list(declared.remarks),
    }


def _describe_part(part: Part) -> dict[str, Any]:
    """Return what a part declares, and how many trials it has."""
    methods = read_list(part.methods, "--methods")
    count = sum(math.prod(map(len, item.alternatives.values())) for item in methods)  # of methods, with their grids
    declared = part.model_dump(exclude={"name", "compared"}, exclude_defaults=True) | {
        "methods": ", ".join(item.text for item in methods),
        "presets": ", ".join(part.presets),
        "seeds": part.seeds,
        "trials": {preset: count * seeds for preset, seeds in part.seeds.items()},
        "quantities": len(part.compared),
        "compared": list(dict.fromkeys(item.column for item in part.compared)),
    }
    return {name: value for name, value in declared.items() if value}


_DESCRIBE: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "method": lambda typed: _describe_method(typed.name, typed.task),
    "task": lambda typed: _describe_task(typed.name),
    "model": lambda typed: describe_model(typed.name, typed.task, typed.data_root, typed.layers),
    "reproduction": lambda typed: _describe_reproduction(typed.name),
    "preset": lambda typed: _describe_preset(typed.name, typed.task),
}


def as_text(description: Mapping[str, Any]) -> str:
    """Return a description as text: a line or paragraph for each fact, and indented ones for nested facts."""
    lines = []
    for key, value in description.items():
        name = WORDS.get(key, key.replace("_", " "))
        if key == "parameters":
            lines.append("parameters:" if value else "parameters: none")
            lines += [line for parameter in value for line in _parameter(parameter)]
        elif key == "tuning":
            lines += _fact(name, [Tuning(**item).in_words() for item in value])
        else:
            lines += _fact(name, value)
    return "\n".join(lines)


def _parameter(item: Mapping[str, Any]) -> list[str]:
    """Return `interval: an integer of at least 1 = 10 (smoke 1, quick 1)`, with the presets that change the default."""
    changed = ", ".join(
        f"{preset} {show(value)}" for preset, value in item["presets"].items() if value != item["default"]
    )
    lines = [f"  {item['name']}: {item['allowed']} = {show(item['default'])}" + (f" ({changed})" if changed else "")]
    lines += _wrapped(item["text"], "      ", hanging="")
    return lines + ([f"      Searched by tune: {item['search']}"] if item["search"] else [])


def _fact(name: str, value: Any, indent: str = "") -> list[str]:
    """Return the lines of a fact. A recipe similar to the one before it shows only the differences."""
    inner = f"{indent}  "
    if isinstance(value, list) and len(value) > 1 and isinstance(value[0], str):
        return [f"{indent}{name}:", *(line for item in value for line in _wrapped(item, inner))]
    if not isinstance(value, dict) or not any(isinstance(item, dict) for item in value.values()):
        return _wrapped(f"{name}: {_text(value)}", indent)
    lines, before = [f"{indent}{name}:"], ""
    for key, item in value.items():
        shown: Any = item
        if before and isinstance(item, dict) and item.keys() == value[before].keys():
            changed = {field: new for field, new in item.items() if new != value[before][field]}
            if len(changed) < len(item) // 4:
                shown = f"as {before}" + (f", except {_text(changed)}" if changed else "")
        lines += _fact(key, shown, inner)
        before = key if isinstance(item, dict) else ""
    return lines


def _wrapped(text: str, indent: str, hanging: str = "    ") -> list[str]:
    return textwrap.wrap(
        text, TEXT_WIDTH, initial_indent=indent, subsequent_indent=indent + hanging, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return "x".join(map(str, value)) or "none"
    is_large = type(value) in (int, float) and value >= 10_000
    return f"{value:,.0f}" if is_large else show(value)
