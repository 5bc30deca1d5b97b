"""The verbs `list` and `describe`."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from docstring_parser import DocstringStyle, parse

from suite import registry
from suite.choices import Choice, MethodChoice, ModelChoice, TaskChoice, read_list
from suite.cli.options import Parser, program_name, read_data_root
from suite.errors import UsageError, nearest
from suite.parameters import REQUIRED, allowed, search_of, show
from suite.recipe import Tuning
from suite.registry import KINDS
from suite.trials.planning import read_names
from suite.trials.spec import PAPER_SEEDS, PRESETS

if TYPE_CHECKING:
    from reports.papers.paper import Part

TEXT_WIDTH = 100
WORDS = {
    "params": "weights and biases",
    "macs": "multiply-adds of an inference",
    "inference_flops": "FLOPs of an inference",
    "training_flops": "FLOPs of one image's training",
    "input_shape": "images",
    "conventions": "counted by the conventions of papers",
    "data_gradient_share": "share of the data gradient in training FLOPs",
    "channels": "channels, of which those that can be followed can be removed",
    "frozen": "why other channels stay",
    "not_planned": "layers that no method plans",
    "random_twin": "selects at random with",
    "tuning": "defaults chosen",
    "presets_of_task": "values in parentheses are those of presets of task",
}
"""Facts of a description whose name is an abbreviation, in words."""
DESCRIBED = ("method", "task", "model", "reproduction")
PRESET_TEXTS = {
    "smoke": "Seconds to a few minutes: shows that everything runs. Its accuracies do not compare methods.",
    "quick": "Minutes per trial: small networks and few epochs, for a CPU; the default on a CPU.",
    "paper": "As published in a paper: full networks and all epochs; the default on CUDA.",
}


def list_all(arguments: Sequence[str]) -> int:
    """Print what is registered with the first line of its docstring, without importing it."""
    parser = Parser("list", description="List everything that can be named on the command line.")
    plural = {f"{kind}s": kind for kind in KINDS}
    parser.add_argument("kind", metavar="KIND", nargs="?", help=f"{', '.join(plural)} (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON: {kind: [{name, summary, origin}]}")
    parser.add_plugins("also list what this Python file registers")
    namespace = parser.read(arguments)
    for path in namespace.plugin:
        registry.load_plugin(path)
    if namespace.kind and namespace.kind not in (*plural, *KINDS):
        raise UsageError(f"list: there is no kind '{namespace.kind}'{nearest(namespace.kind, plural)}")
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
    alone = {
        title: [entry for entry in entries if not entry.family] + registry.collections(plural[title])
        for title, entries in listed.items()
    }
    width = max((len(entry.typed) for entries in alone.values() for entry in entries), default=0)
    for title, entries in listed.items():
        print(title, *(f"  {entry.typed:{width}}  {entry.summary}" for entry in alone[title]), sep="\n")
        # The names of a family follow its summary.
        for summary in dict.fromkeys(entry.summary for entry in entries if entry.family):
            members = ", ".join(entry.name for entry in entries if entry.family and entry.summary == summary)
            print(f"  {summary}", textwrap.indent(textwrap.fill(members, 112), "    "), sep="\n")
    return 0


def describe(arguments: Sequence[str]) -> int:
    """Print the description of a method, task, model, reproduction or preset."""
    parser = Parser("describe", description="Describe a method, a task, a model, a reproduction or a preset.")
    parser.add_argument("name", metavar="NAME", help="name, with parameters in brackets; or smoke, quick, paper")
    parser.add_argument("--task", metavar="TASK", default="", help="task that decides image size and defaults")
    parser.add_argument("--layers", action="store_true", help="for a model: FLOPs of each layer's products")
    parser.add_argument(
        "--data-root", metavar="DIR", type=read_data_root, help="for a model on a task of your own images: their folder"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_plugins()
    namespace = parser.read(arguments)
    for path in namespace.plugin:
        registry.load_plugin(path)
    if namespace.task:
        read_names(namespace.task, "task", "--task")
    name, bracket, _ = namespace.name.partition("[")
    kinds = [kind for kind in DESCRIBED if registry.find(kind, name)] + ["preset"] * (name in PRESETS)
    if not kinds:
        if "/" in name or registry.find("model", f"{name}/"):
            raise UsageError(f"describe {name}: {registry.unknown('model', name)}")
        hint = nearest(name, [*PRESETS, *(known for kind in DESCRIBED for known in registry.names(kind))])
        raise UsageError(f"nothing is called '{name}'{hint if 'did you mean' in hint else '; list shows all names'}")
    kind = kinds[0]
    for option, is_typed in (("--layers", namespace.layers), ("--data-root", namespace.data_root is not None)):
        if is_typed and kind != "model":
            raise UsageError(f"describe {name}: {option} is for models, and '{name}' is a {kind}")
    if bracket and kind in ("reproduction", "preset"):
        raise UsageError(f"describe '{namespace.name}': a {kind} takes no parameters; name '{name}'")
    if kind == "model":
        task = TaskChoice.read(namespace.task).build() if namespace.task else None
        if namespace.data_root and not (task and task.needs_data_root("quick")):
            raise UsageError("describe: --data-root is for a task of your own images, such as --task imagefolder")
        from suite.cli.describe_models import describe_model  # imports torch

        choice = ModelChoice.read(namespace.name)
        description = {
            "name": str(choice.canonical()),
            "kind": kind,
            "summary": first_line(choice.definition),
            **describe_model(namespace.name, namespace.task, namespace.data_root),
            "parameters": describe_parameters(choice, {"this model": choice.parameters()}),
        }
        if not namespace.layers:
            del description["layers"]
    else:
        description = _DESCRIBE[kind](namespace.name, namespace.task)
    if len(kinds) > 1:
        description["note"] = f"'{name}' is also the name of a {kinds[1]}; this describes the {kind}"
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


def _describe_method(text: str, task: str) -> dict[str, Any]:
    """Return the parameters of a method, with the defaults that each preset of a task sets."""
    choice = MethodChoice.read(text)
    thing = choice.definition
    choice.build()  # refuses the values that `run` would refuse
    task = TaskChoice.read(task or "cifar10").name
    return {
        "name": str(choice),
        "kind": "method",
        "summary": first_line(thing),
        "source": thing.source,
        "version": thing.version,
        "prunes": thing.prunes,
        "shrinks_network": thing.shrinks_network,
        "random_twin": dict(thing.random_twin),
        "tuning": [dataclasses.asdict(tuning) for tuning in thing.tuning],
        "parameters": describe_parameters(choice, {preset: choice.parameters(task, preset) for preset in PRESETS}),
        "presets_of_task": task,
    }


def _describe_task(text: str, task: str) -> dict[str, Any]:
    """Return the data, parameters, default models and recipes of a task."""
    choice = TaskChoice.read(text)
    presets = {preset: choice.parameters(preset) for preset in PRESETS}
    of_preset = {preset: choice.build(values) for preset, values in presets.items()}
    thing = choice.build()
    return {
        "name": str(choice),
        "kind": "task",
        "title": thing.title,
        "summary": first_line(type(thing)),
        "input_shapes": {preset: list(built.inputs(built.recipe(preset)).shape) for preset, built in of_preset.items()},
        "classes": thing.num_classes,
        **({"detected_in_the_data": thing.detected} if thing.detected else {}),
        "source": thing.source,
        **({"parameters": describe_parameters(choice, presets)} if choice.declared else {}),
        "paper_recipe": thing.paper_recipe,
        "tuning": [dataclasses.asdict(tuning) for tuning in thing.tuning],
        "default_models": {preset: thing.default_model(preset) for preset in PRESETS},
        **({"default_models_on_cuda": dict(thing.cuda_models)} if thing.cuda_models else {}),
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


def _describe_reproduction(name: str, task: str) -> dict[str, Any]:
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
    compared = [
        " ".join(filter(None, (one.column, one.over and f"/ {one.over}", one.against))) for one in part.compared
    ]
    declared = part.model_dump(exclude={"name"}) | {
        "methods": ", ".join(item.text for item in methods),
        "presets": ", ".join(part.presets),
        "trials": {preset: count * seeds for preset, seeds in part.seeds.items()},
        "quantities": len(compared),
        "compared": list(dict.fromkeys(compared)),
    }
    return {name: value for name, value in declared.items() if value}


_DESCRIBE = {
    "method": _describe_method,
    "task": _describe_task,
    "reproduction": _describe_reproduction,
    "preset": _describe_preset,
}


def as_text(description: Mapping[str, Any]) -> str:
    """Return a description as text: a line or paragraph for each fact, and indented ones for nested facts."""
    lines = []
    for key, value in description.items():
        name = WORDS.get(key, key.replace("_", " "))
        if key == "parameters":
            lines.append("parameters:" if value else "parameters: none")
            lines += [line for parameter in value for line in _parameter(parameter)]
        elif key == "layers":
            lines += _layers(value)
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


def _layers(layers: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a line per layer: FLOPs of its products, and the data gradient's share of the layer and of all layers."""
    everything = sum(sum(flops.values()) for flops in layers.values())
    width = max(map(len, layers), default=0)
    heads = ("forward", "dgrad", "wgrad", "dgrad of layer", "dgrad of all")
    lines = [
        "layers (MFLOPs of one image's training):",
        f"  {'':{width}}  {'  '.join(f'{head:>14}' for head in heads)}",
    ]
    for name, flops in layers.items():
        shares = (flops["dgrad"] / max(sum(flops.values()), 1), flops["dgrad"] / everything)
        cells = [f"{value / 1e6:14,.2f}" for value in flops.values()] + [f"{100 * share:12.2f} %" for share in shares]
        lines.append(f"  {name:{width}}  {'  '.join(cells)}")
    return lines


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
            if len(changed) < len(item) / 4:
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
