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
from suite.cli.describe_runs import describe_preset, describe_reproduction, parts_as_text, plain_name
from suite.cli.docstrings import first_line, parameter_texts
from suite.cli.parser import Parser, program_name
from suite.errors import UsageError, nearest
from suite.files import read_path
from suite.parameters import REQUIRED, allowed, search_of, show, type_name
from suite.recipe import Tuning
from suite.registry import KINDS
from suite.trials.planning import read_names
from suite.trials.spec import PRESETS

TEXT_WIDTH = 96
WORDS = {
    "params": "weights and biases",
    "macs": "multiply-adds of an inference",
    "inference_flops": "FLOPs of an inference",
    "training_flops": "FLOPs of one image's training",
    "input_shape": "images",
    "conventions": "counted by the conventions of papers",
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
        for kind in KINDS:
            if registry.find(kind, name):
                raise UsageError(f"describe {name}: the {kind} '{name}' has no parameters; see 'list {kind}s'")
        if "/" in name or registry.find("model", f"{name}/"):
            raise UsageError(f"describe {name}: {registry.unknown('model', name)}")
        every = [*PRESETS, *(known for kind in DESCRIBED for known in registry.names(kind))]
        hint = nearest(name, every)
        raise UsageError(f"nothing is called '{name}'{hint if 'did you mean' in hint else '; list shows all names'}")
    if namespace.layers and kinds[0] != "model":
        raise UsageError(f"describe {name}: --layers is for models, and '{name}' is a {kinds[0]}")
    if namespace.data_root is not None and kinds[0] != "model":
        raise UsageError(f"describe {name}: --data-root is for models, and '{name}' is a {kinds[0]}")
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
            "type": type_name(parameter.annotation),
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
        "recipes": {preset: dataclasses.asdict(thing.recipe(preset)) for preset in PRESETS},
        "paper_recipes": {
            name: {
                "source": one.source or "this suite",
                "preset": one.preset,
                "model": one.model or thing.default_model(one.preset),
                **thing.defaults(one.preset, name),
                **dataclasses.asdict(one.recipe),
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


def as_text(found: dict[str, Any]) -> str:
    """Return a description as text: one line per fact, one or two per parameter, a block per recipe."""

    lines = []
    for key, value in found.items():
        if key == "parameters":
            lines.append("parameters:" if value else "parameters: none")
            for item in value:
                lines.append(f"  {_parameter(item)}")
                lines += [f"      {line}" for line in textwrap.wrap(item["text"], TEXT_WIDTH)]
                if item.get("search"):
                    lines.append(f"      Searched by tune: {item['search']}")
        elif key == "presets_of_task":
            if any("(" in _parameter(item) for item in found["parameters"]):
                lines.append(
                    f"in parentheses: values that presets of task {value} change (--task selects another task)"
                )
        elif key == "data_gradient_share":
            lines.append(f"share of the data gradient: {100 * value:.2f} % of training FLOPs")
        elif key == "layers":
            lines += _layers_as_text(value)
        elif key == "not_counted":
            lines += [f"not counted: {item}" for item in value]
        elif key == "channels":
            lines.append(f"channels that can be followed, and so removed: {value['followed']:,} of {value['all']:,}")
        elif key == "frozen":
            lines += [f"  others stay: {item}" for item in value]
        elif key == "not_planned":
            lines += [f"  no method plans '{name}': {reason}" for name, reason in value.items()]
        elif key == "parts":
            lines += ["parts:", *parts_as_text(value)]
        elif key == "shrinks_network":
            lines.append(f"shrinks the network: {'yes' if value else 'no'}")
        elif key == "random_twin":
            values = ", ".join(f"{name}={show(held)}" for name, held in value.items())
            lines.append(f"selects at random with: {values or 'no parameter'}")
        elif key == "tuning":
            lines.append("defaults chosen:" if value else "defaults chosen: not declared")
            for item in value:
                text = textwrap.wrap(Tuning(**item).in_words(), TEXT_WIDTH)
                lines += [f"  {line}" for line in text[:1]] + [f"      {line}" for line in text[1:]]
        elif isinstance(value, dict):
            words = WORDS.get(key, key.replace("_", " "))
            lines.append(f"{words}:" if value else f"{words}: none")
            lines += _block(value)
        else:
            lines.append(f"{WORDS.get(key, key.replace('_', ' '))}: {_line(value)}")
    return "\n".join(lines)


def _block(named: dict[str, Any]) -> list[str]:
    """Return one paragraph per item. A recipe similar to the one before it shows only the differences."""
    lines: list[str] = []
    before = ""
    for name, value in named.items():
        text = _line(value)
        if before and isinstance(value, dict) and value.keys() == named[before].keys():
            differing = {key: item for key, item in value.items() if item != named[before][key]}
            if len(differing) < len(value) / 4:
                text = f"as {before}" + (f", except {_line(differing)}" if differing else "")
        wrapped = textwrap.wrap(text, TEXT_WIDTH) or [""]
        lines += [f"  {name:7}  {wrapped[0]}", *(f"           {line}" for line in wrapped[1:])]
        before = name
    return lines


def _parameter(item: dict[str, Any]) -> str:
    """Return `interval: int = 10 (smoke 1, quick 1)`, with the presets that change the default."""

    value = item["value"] if "value" in item else item["default"]
    other = ", ".join(f"{preset} {show(held)}" for preset, held in item.get("presets", {}).items() if held != value)
    return f"{item['name']}: {item['type']} = {show(value)}" + (f" ({other})" if other else "")


def _line(value: Any) -> str:

    if isinstance(value, dict):
        return ", ".join(
            f"{key} ({_line(item)})" if isinstance(item, dict) else f"{key} {show(item)}" for key, item in value.items()
        )
    if isinstance(value, list):
        return "x".join(str(item) for item in value)
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)
