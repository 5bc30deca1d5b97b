"""The verbs `list` and `describe`."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite import registry
from suite.choices import MethodChoice, TaskChoice
from suite.cli.describe_runs import describe_preset, describe_reproduction, plain_name
from suite.cli.docstrings import first_line, parameter_texts
from suite.cli.parser import Parser, program_name
from suite.errors import UsageError, nearest
from suite.files import read_path
from suite.parameters import REQUIRED, allowed, search_of, show
from suite.recipe import Tuning
from suite.registry import KINDS
from suite.trials.planning import read_names
from suite.trials.spec import PRESETS

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


def list_all(arguments: Sequence[str]) -> int:
    """Print what is registered with the first line of its docstring, without importing it."""
    parser = Parser(prog=f"{program_name()} list", description="List everything that can be named on the command line.")
    plural = [f"{kind}s" for kind in KINDS]
    parser.add_argument("kind", metavar="KIND", nargs="?", help=f"{', '.join(plural)} (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON: {kind: [{name, summary, origin}]}")
    parser.add_argument(
        "--plugin", metavar="FILE", action="append", default=[], help="also list what this Python file registers"
    )
    namespace = parser.read(arguments)
    for path in namespace.plugin:
        registry.load_plugin(path)
    if namespace.kind and namespace.kind.rstrip("s") not in KINDS:
        raise UsageError(f"list: there is no kind '{namespace.kind}'{nearest(namespace.kind, plural)}")
    kinds = [namespace.kind.rstrip("s")] if namespace.kind else KINDS
    found = {kind: [entry for _, entry in sorted(registry.entries(kind).items())] for kind in kinds}
    if namespace.json:
        plain = {
            f"{kind}s": [{"name": entry.name, "summary": entry.summary, "origin": entry.origin} for entry in entries]
            for kind, entries in found.items()
        }
        print(json.dumps(plain, indent=2))
        return 0
    lines = {kind: [entry for entry in found[kind] if not entry.family] + registry.collections(kind) for kind in kinds}
    width = max((len(entry.typed) for entries in lines.values() for entry in entries), default=0)
    for kind, entries in found.items():
        print(f"{kind}s")
        for entry in lines[kind]:
            print(f"  {entry.typed:{width}}  {entry.summary}")
        # The names of a family follow its summary.
        families: dict[str, list[str]] = {}
        for entry in (one for one in entries if one.family):
            families.setdefault(entry.summary, []).append(entry.name)
        for summary, members in families.items():
            print(f"  {summary}")
            print(textwrap.fill(", ".join(members), 116, initial_indent="    ", subsequent_indent="    "))
    return 0


def describe(arguments: Sequence[str]) -> int:
    """Print the description of a method, task, model, reproduction or preset."""
    parser = Parser(
        prog=f"{program_name()} describe", description="Describe a method, a task, a model, a reproduction or a preset."
    )
    parser.add_argument(
        "name", metavar="NAME", help="name from the list, with parameters in brackets; or smoke, quick, paper"
    )
    parser.add_argument(
        "--task", metavar="TASK", default="", help="task that decides a model's image size, and a method's defaults"
    )
    parser.add_argument(
        "--layers",
        action="store_true",
        help="for a model: FLOPs of each layer's products, and the data gradient's share",
    )
    parser.add_argument(
        "--data-root",
        metavar="DIR",
        help="for a model on a task of your own images: the folder of the images",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plugin", metavar="FILE", action="append", default=[], help="Python file that registers it")
    namespace = parser.read(arguments)
    for path in namespace.plugin:
        registry.load_plugin(path)
    if namespace.task:
        read_names(namespace.task, "task", "--task")
    name = namespace.name.partition("[")[0]
    kinds = [kind for kind in DESCRIBED if registry.find(kind, name)] + ["preset"] * (name in PRESETS)
    if not kinds:
        if "/" in name or registry.find("model", f"{name}/"):
            raise UsageError(f"describe {name}: {registry.unknown('model', name)}")
        hint = nearest(name, [*PRESETS, *(known for kind in DESCRIBED for known in registry.names(kind))])
        raise UsageError(f"nothing is called '{name}'{hint if 'did you mean' in hint else '; list shows all names'}")
    for option, is_typed in (("--layers", namespace.layers), ("--data-root", namespace.data_root is not None)):
        if is_typed and kinds[0] != "model":
            raise UsageError(f"describe {name}: {option} is for models, and '{name}' is a {kinds[0]}")
    if kinds[0] in ("reproduction", "preset"):
        whole = describe_preset if kinds[0] == "preset" else describe_reproduction
        description = whole(plain_name(namespace.name, kinds[0]), namespace.task)
    elif kinds[0] == "model":
        data_root = _data_root(namespace.data_root, namespace.task)
        from suite.cli.describe_models import describe_model  # imports torch

        description = describe_model(namespace.name, namespace.task, data_root)
    else:
        description = (describe_method if kinds[0] == "method" else describe_task)(namespace.name, namespace.task)
    if kinds[0] == "model" and not namespace.layers:
        del description["layers"]
    if len(kinds) > 1:
        description["note"] = f"'{name}' is also the name of a {kinds[1]}; this describes the {kinds[0]}"
    print(json.dumps(description, indent=2) if namespace.json else as_text(description))
    return 0


def _data_root(typed: str | None, task: str) -> Path | None:
    """Return the folder of the user's images that a model is described for.

    Raises:
        UsageError: The folder does not exist, or the task has no images of the user's own.
    """
    if typed is None:
        return None
    root = read_path(typed, "--data-root")
    if not root.is_dir():
        raise UsageError(f"describe: --data-root {typed}: there is no such folder")
    if not task or not TaskChoice.read(task).build().needs_data_root("quick"):
        raise UsageError("describe: --data-root is for a task of your own images, such as --task imagefolder")
    return root


def describe_method(text: str, task: str) -> dict[str, Any]:
    """Return the parameters of a method, with the defaults that each preset of a task sets."""

    choice = MethodChoice.read(text)
    thing = choice.definition
    choice.build()  # refuses the values that `run` would refuse
    task = TaskChoice.read(task or "cifar10").name
    presets = {preset: choice.parameters(task, preset) for preset in PRESETS}
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
        "parameters": _parameters(choice, presets),
        "presets_of_task": task,
    }


def _parameters(choice: MethodChoice | TaskChoice, presets: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a description of each parameter, with its values by preset."""
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


def describe_task(text: str, task: str) -> dict[str, Any]:
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
        "input_shapes": {preset: list(one.inputs(one.recipe(preset)).shape) for preset, one in of_preset.items()},
        "classes": thing.num_classes,
        **({"detected_in_the_data": thing.detected} if thing.detected else {}),
        "source": thing.source,
        **({"parameters": _parameters(choice, presets)} if choice.declared else {}),
        "paper_recipe": thing.paper_recipe,
        "tuning": [dataclasses.asdict(one) for one in thing.tuning],
        "default_models": {preset: thing.default_model(preset) for preset in PRESETS},
        **({"default_models_on_cuda": dict(thing.cuda_models)} if thing.cuda_models else {}),
        "recipes": {preset: thing.recipe(preset).fields() for preset in PRESETS},
        "paper_recipes": {
            name: {
                "source": one.source or "this suite",
                "preset": one.preset,
                "model": one.model or thing.default_model(one.preset),
                **thing.defaults(one.preset, name),
                **one.recipe.fields(),
            }
            for name, one in thing.paper_recipes.items()
        },
    }


def _layers_as_text(layers: Mapping[str, Mapping[str, int]]) -> list[str]:
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


def as_text(found: Mapping[str, Any]) -> str:
    """Return a description as text: a line or paragraph for each fact, and indented ones for nested facts."""
    lines = []
    for key, value in found.items():
        name = WORDS.get(key, key.replace("_", " "))
        if key == "parameters":
            lines.append("parameters:" if value else "parameters: none")
            for item in value:
                lines.append(f"  {_parameter(item)}")
                lines += _wrapped(item["text"], "      ", hanging="")
                if item.get("search"):
                    lines.append(f"      Searched by tune: {item['search']}")
        elif key == "layers":
            lines += _layers_as_text(value)
        elif key == "tuning":
            lines += _fact(name, [Tuning(**item).in_words() for item in value])
        else:
            lines += _fact(name, value)
    return "\n".join(lines)


def _fact(name: str, value: Any, indent: str = "") -> list[str]:
    """Return the lines of a fact. A recipe similar to the one before it shows only the differences."""
    inner = f"{indent}  "
    if isinstance(value, list) and len(value) > 1 and isinstance(value[0], str):
        return [f"{indent}{name}:", *(line for item in value for line in _wrapped(item, inner))]
    if not isinstance(value, dict) or not any(isinstance(item, dict) for item in value.values()):
        return _wrapped(f"{name}: {_text(value)}", indent)
    lines, before = [f"{indent}{name}:"], ""
    for key, item in value.items():
        held: Any = item
        if before and isinstance(item, dict) and item.keys() == value[before].keys():
            differing = {field: one for field, one in item.items() if one != value[before][field]}
            if len(differing) < len(item) / 4:
                held = f"as {before}" + (f", except {_text(differing)}" if differing else "")
        lines += _fact(key, held, inner)
        before = key if isinstance(item, dict) else ""
    return lines


def _wrapped(text: str, indent: str, hanging: str = "    ") -> list[str]:
    return textwrap.wrap(
        text, TEXT_WIDTH, initial_indent=indent, subsequent_indent=indent + hanging, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _parameter(item: Mapping[str, Any]) -> str:
    """Return `interval: an integer of at least 1 = 10 (smoke 1, quick 1)`, with the presets that change the default."""
    value = item["value"] if "value" in item else item["default"]
    other = ", ".join(f"{preset} {show(held)}" for preset, held in item.get("presets", {}).items() if held != value)
    return f"{item['name']}: {item['allowed']} = {show(value)}" + (f" ({other})" if other else "")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return "x".join(map(str, value)) or "none"
    is_large = type(value) in (int, float) and value >= 10_000
    return f"{value:,.0f}" if is_large else show(value)
