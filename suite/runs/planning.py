"""From a `SuiteSpec` to its `TrialSpec`s: everything that can be wrong is found here, before anything is written."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite import registry
from suite.brackets import Request, read_list
from suite.errors import UsageError, nearest
from suite.files import read_path
from suite.parameters import (
    Choice,
    build_method,
    build_model,
    canonical,
    check_model_size,
    choices,
    convert,
    declared,
    normal,
    read_one,
    resolve,
)
from suite.recipe import Recipe
from suite.runs.devices import check_execution
from suite.runs.plugin_files import defining_files
from suite.runs.spec import SuiteSpec, TrialSpec, checksum

log = logging.getLogger(__name__)


def read_names(text: str, kind: str, option: str) -> list[Request]:
    """Read a comma list and check each name against the registry; imports no method, task or model."""
    requests = read_list(text, option)
    known = registry.names(kind)
    for request in requests:
        if request.name not in known:
            raise UsageError(
                f"{option} '{request.text}': no {kind} is called '{request.name}'{nearest(request.name, known)}"
            )
        if kind == "task" and request.alternatives:
            raise UsageError(f"{option} '{request.text}': a task takes no parameters; recipes: --set recipe.KEY=VALUE")
    return requests


def read_override(text: str, option: str = "--set") -> tuple[str, Any]:
    """`recipe.key=value` as a field of `Recipe` and its value, of the field's type."""
    path, equals, value = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not equals or not dot:
        raise UsageError(f"{option} '{text}': expected recipe.key=value")
    if section != "recipe":
        raise UsageError(f"{option} '{text}': '{section}' cannot be set; did you mean 'recipe.{key}'?")
    known = declared(Recipe)
    if key not in known:
        raise UsageError(f"{option} '{text}': recipe has no '{key}'{nearest(key, known)}")
    annotation = known[key].annotation
    return key, normal(convert(value, annotation, f"{option} recipe.{key}"), annotation)


def plan(suite: SuiteSpec) -> list[TrialSpec]:
    """Every trial of a suite, each once: by task, model, seed, then method, dense first.

    A folder that was interrupted thus holds whole comparisons: all methods of the first seed, then all of the next.
    Methods and networks are constructed once to see that their parameters are allowed; data is made ready last, since
    that alone may take time or space.

    Raises:
        UsageError: for anything that the user can mend.
    """
    methods = _expand(suite.methods, "method", "--methods")
    methods.sort(key=lambda choice: str(choice) != "dense")
    tasks = [
        (request.name, registry.get("task", request.name)()) for request in read_names(suite.tasks, "task", "--task")
    ]
    typed_models = _expand(suite.models, "model", "--model") if suite.models else []

    settings = []
    for name, task in tasks:
        try:
            base, source = _recipe(task, suite)
            recipe = dataclasses.replace(base, **suite.overrides)
        except ValueError as error:
            raise UsageError(f"task {name}: {error}") from error
        models = typed_models or [read_one(task.default_model(suite.preset), "model")]
        for model in models:
            check_model_size(str(model), task.input_shape, task.num_classes)
            build_model(str(model), task.input_shape, task.num_classes)
        for choice in methods:
            for one in [choice, *_before(choice, name, suite.preset)]:
                check_execution(recipe.execution, suite.device, registry.get("method", one.name), one.name)
                _check_files(one, name, suite.preset)
        settings.append((name, recipe, source, models))

    copies = {name: task.prepare(Path(suite.data_root), suite.preset) for name, task in tasks}
    for (name, recipe, *_), (_, task) in zip(settings, tasks, strict=True):
        _check_fits(name, task, copies[name], recipe)
    found: dict[str, TrialSpec] = {}
    for name, recipe, source, models in settings:
        for model in models:
            kinds = [_kind(suite, choice, name, model, recipe, dataclasses.asdict(copies[name])) for choice in methods]
            for seed in suite.seeds:
                for kind in kinds:
                    trials = [dataclasses.replace(trial, recipe_source=source) for trial in _trials(kind, seed)]
                    if trials[-1].hash in found:
                        log.info("%s is %s again; it runs once", trials[-1].label, found[trials[-1].hash].label)
                    for trial in trials:
                        found.setdefault(trial.hash, trial)
    return list(found.values())


def _recipe(task: Any, suite: SuiteSpec) -> tuple[Recipe, str]:
    """The recipe before overrides, and whose it is with them; no source for the suite's own recipes.

    Raises:
        UsageError: if the task has no recipe of the name that was typed, or the preset has one of its own.
    """
    if suite.recipe:
        if suite.recipe not in task.paper_recipes:
            known = ", ".join(task.paper_recipes) or "none"
            hint = nearest(suite.recipe, task.paper_recipes)
            raise UsageError(
                f"--recipe '{suite.recipe}': task {task.registered_name} has no such recipe{hint}; known: {known}"
            )
        if suite.preset != "paper":
            raise UsageError(
                f"--recipe {suite.recipe}: preset {suite.preset} has a recipe of its own; add --preset paper"
            )
        source, recipe = task.paper_recipes[suite.recipe]
    elif suite.preset == "paper":
        recipe = task.recipe(suite.preset)
        source = next((one.source for one in task.paper_recipes.values() if one.recipe == recipe), "")
    else:
        source, recipe = "", task.recipe(suite.preset)
    changed = ", ".join(f"{name}={value}" for name, value in suite.overrides.items() if getattr(recipe, name) != value)
    return recipe, f"{source}; changed: {changed}" if source and changed else source


def _before(choice: Choice, task: str, preset: str) -> list[Choice]:
    """The methods that a method depends on, and those that these depend on; each constructed once, as it is itself.

    Raises:
        UsageError: if one is not allowed, or is more than one.
    """
    found: list[Choice] = []
    for text in build_method(choice.name, _parameters(choice, task, preset), str(choice)).depends_on():
        try:
            other = _named(text)
            found += [*_before(other, task, preset), other]
        except UsageError as error:
            raise UsageError(f"{choice} depends on '{text}': {error}") from None
    return found


def _check_files(choice: Choice, task: str, preset: str) -> None:
    """See that the files that a method's parameters name are there, before anything is downloaded.

    Raises:
        UsageError: for the first that is not.
    """
    method = build_method(choice.name, _parameters(choice, task, preset), str(choice))
    for name, path in method.files().items():
        if not (place := read_path(path, f"{choice}: {name} is")).is_file():
            raise UsageError(f"{choice}: {name} is '{place}': no such file")


def _named(text: str) -> Choice:
    """The one method that a method names."""
    read_names(text, "method", "a method")
    return read_one(text, "method")


def _check_fits(name: str, task: Any, copy: Any, recipe: Recipe) -> None:
    """Check that the data has the images that a recipe asks for, by making its splits once.

    Raises:
        UsageError: if a split, a cutout or a batch is larger than what there is.
    """
    import torch

    try:
        task.load(copy, recipe, 0, torch.device("cpu")).train.steps_per_epoch(recipe.batch_size)
    except UsageError as error:
        raise UsageError(f"task {name}: {error}") from error


def _expand(text: str, kind: str, option: str) -> list[Choice]:
    requests = read_names(text, kind, option)
    try:
        return [choice for request in requests for choice in choices(request, registry.get(kind, request.name))]
    except UsageError as error:
        raise UsageError(f"{option} {error}") from None


def _parameters(choice: Choice, task: str, preset: str) -> dict[str, Any]:
    """What is typed wins over what the method gives for the task and preset, and that over the declared defaults."""
    thing = registry.get("method", choice.name)
    return resolve(thing, thing.defaults(task, preset), choice.typed)


@dataclass(frozen=True)
class _Kind:
    """The trials of a method on a network: what they share, however many seeds there are.

    Attributes:
        trial: the trial of the first seed, which depends on nothing yet.
        before: the kinds that it depends on, by the texts with which the method names them.
    """

    trial: TrialSpec
    before: Mapping[str, _Kind]


def _trials(kind: _Kind, seed: int) -> list[TrialSpec]:
    """A method's trial of a seed, behind those that it depends on."""
    before: list[TrialSpec] = []
    depends_on = {}
    for text, other in kind.before.items():
        before += _trials(other, seed)
        depends_on[text] = before[-1].trial_id
    return [*before, dataclasses.replace(kind.trial, seed=seed, depends_on=depends_on)]


def _kind(
    suite: SuiteSpec, choice: Choice, task: str, model: Choice, recipe: Recipe, data_copy: dict[str, str]
) -> _Kind:
    network = registry.get("model", model.name)
    parameters = _parameters(choice, task, suite.preset)
    method = build_method(choice.name, parameters, str(choice))
    paths = {name: read_path(path, f"{choice}: {name} is") for name, path in method.files().items()}
    files = {name: checksum(path, f"{choice}: {name}") for name, path in paths.items()}
    fields = declared(Recipe)
    trial = TrialSpec(
        method=choice.name,
        variant=choice.variant,
        parameters={**parameters, **{name: str(path) for name, path in paths.items()}},
        method_version=registry.get("method", choice.name).version,
        task=task,
        model=str(canonical(model, network)),
        model_parameters=resolve(network, model.typed),
        preset=suite.preset,
        recipe={name: normal(value, fields[name].annotation) for name, value in recipe.fields().items()},
        seed=suite.seeds[0],
        device=suite.device,
        device_index=suite.device_index,
        dtype=suite.dtype,
        data_copy=data_copy,
        plugins=suite.plugins,
        files=files,
        defined_by=defining_files(method=choice.name, task=task, model=model.name),
    )
    before = {text: _kind(suite, _named(text), task, model, recipe, data_copy) for text in method.depends_on()}
    return _Kind(trial, before)
