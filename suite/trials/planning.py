"""The step from a `SuiteSpec` to its `TrialSpec`s. It finds wrong options before anything is written."""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from suite import registry
from suite.choices import Choice, MethodChoice, ModelChoice, Request, TaskChoice, read_list
from suite.engine.training.execution import check_execution
from suite.errors import UsageError, nearest
from suite.files import read_path
from suite.parameters import at_default, convert, declared, normal
from suite.recipe import FEWEST_BUDGETS, FLUSH, Recipe, control_epochs
from suite.trials import controls
from suite.trials.folder.targets import refuse_guesses
from suite.trials.plugin_files import defining_files
from suite.trials.spec import SuiteSpec, TrialSpec, checksum

log = logging.getLogger(__name__)

SHORT_NAMES = {"lr": "learning_rate", "bs": "batch_size", "wd": "weight_decay"}
"""Common short names of the recipe's fields, for suggestions."""

Chosen = TypeVar("Chosen", bound=Choice)
Formats = Mapping[tuple[str, str], str]
"""Number formats by task and model, as texts of a `TrialSpec`."""


def read_names(text: str, kind: str, option: str) -> list[Request]:
    """Read a comma list and check each name against the registry, without importing methods, tasks or models.

    `read_choices` checks a member of a collection (`torchvision/vgg11`), because it imports the collection.
    """
    requests = read_list(text, option)
    for request in requests:
        if registry.find(kind, request.name) is None:
            raise UsageError(f"{option} '{request.text}': {registry.unknown(kind, request.name)}")
    return requests


def read_override(text: str, option: str = "--set") -> tuple[str, Any]:
    """Return the field of `Recipe` and the value that `recipe.key=value` sets."""
    path, equals, value = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not equals or not dot:
        raise UsageError(f"{option} '{text}': expected recipe.key=value")
    if section != "recipe":
        raise UsageError(f"{option} '{text}': '{section}' cannot be set; did you mean 'recipe.{key}'?")
    if "=" in value:
        raise UsageError(f"{option} '{text}': repeat {option} for each field")
    known = declared(Recipe)
    if key not in known:
        hint = f"; did you mean '{SHORT_NAMES[key]}'?" if key in SHORT_NAMES else nearest(key, known)
        # Tasks import torch. A wrong field needs an answer without torch.
        close = key in SHORT_NAMES or difflib.get_close_matches(key, known, cutoff=0.8)
        if not close and (
            tasks := [name for name in registry.names("task") if key in declared(registry.get("task", name))]
        ):
            hint = f"; it is a parameter of tasks: --task '{tasks[0]}[{key}={value}]'"
        raise UsageError(f"{option} '{text}': recipe has no field '{key}'{hint}")
    annotation = known[key].annotation
    return key, normal(convert(value, annotation, option if option != "--set" else f"--set recipe.{key}"), annotation)


def plan(
    suite: SuiteSpec, copies: Mapping[str, Any] | None = None, formats: Formats = MappingProxyType({})
) -> list[TrialSpec]:
    """Return every trial of a suite, each once, ordered by task, model, seed and method, with dense first.

    An interrupted folder therefore holds whole comparisons: all methods of the first seed, then all of the next. The
    control trials of a seed follow its methods. The second dense trial comes last, as far from the first as possible.
    Each method and network is constructed once to check its parameters. Data is prepared last, because that may take
    time and space.

    Args:
        copies: The prepared data (`suite.task.DataCopy`) of each task, if an earlier plan with a recipe for the same
            images has prepared it.
        formats: Number formats of networks that differ from the suite's.

    Raises:
        UsageError: The command, a file or a plugin is wrong, and the user can correct it.
    """
    methods = read_choices(suite.methods, MethodChoice, "--methods")
    methods.sort(key=lambda choice: str(choice) != "dense")
    typed = [_without_defaults(choice, suite) for choice in read_choices(suite.tasks, TaskChoice, "--task")]
    chosen = {str(choice): choice for choice in typed}
    tasks = {text: choice.build(choice.parameters(suite.preset, suite.recipe)) for text, choice in chosen.items()}
    typed_models = read_choices(suite.models, ModelChoice, "--model") if suite.models else []

    settings = [_setting(suite, chosen[text], task, methods, typed_models) for text, task in tasks.items()]
    parts = {one.task: _with_controls(suite, one, tasks[one.task]) if suite.controls else [one] for one in settings}
    if copies is None:
        copies = {
            one.task: tasks[one.task].prepare(Path(suite.data_root), suite.preset, one.recipe) for one in settings
        }
        for setting in settings:
            _check_fits(tasks[setting.task], copies[setting.task], setting, suite.processes)
            classes = tasks[setting.task].inputs(setting.recipe, copies[setting.task]).classes
            refuse_guesses(suite.targets, classes)
            if classes == 1 and not formats:  # the first plan of a command has no formats
                log.warning("%s has one class: accuracy is always 100 %%, and comparing means nothing", setting.task)

    specs: dict[str, TrialSpec] = {}
    own: dict[str, TrialSpec] = {}  # without trials that only controls need
    for setting in settings:
        data_copy = copies[setting.task].fields()
        shape = tasks[setting.task].inputs(setting.recipe, copies[setting.task]).shape
        for model in setting.models:
            dtype = formats.get((setting.task, str(model.canonical())), suite.dtype)
            for_network = dataclasses.replace(suite, dtype=dtype)
            templates = [
                (_template(for_network, part, method, model, data_copy, shape), part.is_control)
                for part in parts[setting.task]
                for method in part.methods
            ]
            for seed in suite.seeds:
                for template, is_control in templates:
                    trials = template.trials(seed)
                    if trials[-1].hash in own and not is_control:
                        log.info("%s repeats %s; it is trained once", trials[-1].label, own[trials[-1].hash].label)
                    for digest, trial in [(trial.hash, trial) for trial in trials]:
                        specs.setdefault(digest, trial)
                        if not is_control:
                            own.setdefault(digest, trial)
    if suite.controls:
        added = [trial for digest, trial in specs.items() if digest not in own]
        log.info("%s", controls.summary(added, {setting.task: setting.recipe.epochs for setting in settings}))
        for setting in settings:
            if len(shorter := control_epochs(setting.recipe.epochs)) + 1 < FEWEST_BUDGETS:
                log.warning(
                    "%s: %g epochs allow %d lengths of dense training, and a verdict at equal cost needs %d: none can "
                    "follow", setting.task, setting.recipe.epochs, len(shorter) + 1, FEWEST_BUDGETS,
                )  # fmt: skip
    return list(specs.values())


@dataclass(frozen=True)
class _Method:
    """A method on one task.

    Attributes:
        choice: The method with its typed parameters.
        parameters: Values of all parameters, with paths of files made absolute.
        files: SHA-256 of the files that parameters name, by parameter.
        before: The methods that it depends on, by the text with which it names them.
        recipe: The recipe, with the fields that were typed for this method.
        built: The method.
    """

    choice: MethodChoice
    parameters: Mapping[str, Any]
    files: Mapping[str, str]
    before: Mapping[str, _Method]
    recipe: Recipe
    built: Any


@dataclass(frozen=True)
class _Setting:
    """What trials of a task share: recipe, source of the recipe, models, methods, and whether they are controls.

    Attributes:
        task: The task as text.
        definition: Its class.
        task_parameters: Values of all its parameters.
    """

    task: str
    definition: Any
    task_parameters: Mapping[str, Any]
    recipe: Recipe
    recipe_source: str
    models: list[ModelChoice]
    methods: list[_Method]
    is_control: bool = False


@dataclass(frozen=True)
class _Template:
    """The trials of one method on one network, which differ in their seed alone.

    Attributes:
        trial: The trial of the first seed, without dependencies.
        before: Templates of the trials that it depends on, by the text with which the method names them.
    """

    trial: TrialSpec
    before: Mapping[str, _Template]

    def trials(self, seed: int) -> list[TrialSpec]:
        """Return the trial of a seed, preceded by those that it depends on."""
        before: list[TrialSpec] = []
        depends_on = {}
        for text, template in self.before.items():
            before += template.trials(seed)
            depends_on[text] = before[-1].trial_id
        return [*before, dataclasses.replace(self.trial, seed=seed, depends_on=depends_on)]


def _without_defaults(choice: TaskChoice, suite: SuiteSpec) -> TaskChoice:
    """Return a task without values that are the defaults of the preset or of the recipe."""
    return choice.canonical(choice.definition.defaults(suite.preset, suite.recipe))


def _setting(
    suite: SuiteSpec, choice: TaskChoice, task: Any, methods: Sequence[MethodChoice], typed_models: list[ModelChoice]
) -> _Setting:
    try:
        recipe, source = _recipe(task, suite)
    except ValueError as error:
        raise UsageError(f"task {choice.name}: {error}") from error
    default = task.paper_recipes[suite.recipe].model if suite.recipe else ""
    models = typed_models or [ModelChoice.read(default or task.model_on(suite.device, suite.preset))]
    parameters = choice.parameters(suite.preset, suite.recipe)
    for model in models:
        model.check_size(*task.inputs(recipe))
        model.build(*task.inputs(recipe))
        _check_names(model, {"the recipe": recipe.fields(), f"task {choice.name}": parameters})
    own = [_method(suite, method, choice.name, recipe) for method in methods]
    return _Setting(str(choice), choice.definition, parameters, recipe, source, models, own)


def _check_names(model: ModelChoice, others: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that no two of model, task and recipe share the name of a value, since ids tell values by name alone.

    Raises:
        UsageError: A name occurs twice.
    """
    named: dict[str, str] = {}
    for where, values in {**others, f"model {model.name}": model.parameters()}.items():
        for name in values:
            if name in named:
                raise UsageError(f"{where}: its parameter '{name}' is a name of {named[name]} too; give it another one")
            named[name] = where


def _with_controls(suite: SuiteSpec, setting: _Setting, task: Any) -> list[_Setting]:
    """Return the setting of a task among those of its controls, in the order in which a seed is trained."""

    name = task.registered_name

    def control(choices: Sequence[MethodChoice], epochs: float = setting.recipe.epochs) -> _Setting:
        # The override is that of `--epochs`, so that recipe and source equal those of a command without --controls.
        overrides = {"epochs": epochs, **{key: value for key, value in suite.overrides.items() if key != "epochs"}}
        recipe, source = _recipe(task, dataclasses.replace(suite, overrides=overrides))
        methods = [_method(suite, choice, name, recipe) for choice in choices]
        return dataclasses.replace(setting, recipe=recipe, recipe_source=source, methods=methods, is_control=True)

    lengths = control_epochs(setting.recipe.epochs)
    others = controls.control_methods([method.choice for method in setting.methods], name, suite.preset, lengths)
    shorter = [control([controls.dense()], epochs) for epochs in lengths]
    return [control([controls.dense()]), setting, *shorter, control(others)]


def _method(suite: SuiteSpec, choice: MethodChoice, task: str, recipe: Recipe) -> _Method:
    """Construct a method and the methods that it depends on, with the same recipe, and check that their files exist.

    Raises:
        UsageError: A parameter is not allowed, a file is missing, or the recipe's execution is impossible.
    """
    recipe = recipe.changed(**choice.recipe_fields)
    check_execution(recipe.execution, suite.device, choice.definition, choice.name, suite.processes)
    parameters = choice.parameters(task, suite.preset)
    method = choice.build(parameters)
    before = {}
    for text in method.depends_on():
        read_names(text, "method", f"{choice} depends on")
        try:
            before[text] = _method(suite, MethodChoice.read(text), task, recipe)
        except UsageError as error:
            raise UsageError(f"{choice} depends on '{text}': {str(error).removeprefix(f'{text}: ')}") from None
    paths = {name: read_path(path, f"{choice}: {name} is") for name, path in method.files().items()}
    for name, path in paths.items():
        if not path.is_file():
            raise UsageError(f"{choice}: {name} is '{path}': no such file")
    files = {name: checksum(path, f"{choice}: {name}") for name, path in paths.items()}
    return _Method(
        choice,
        {**parameters, **{name: str(path) for name, path in paths.items()}},
        files,
        before,
        recipe,
        method,
    )


def _template(
    suite: SuiteSpec,
    setting: _Setting,
    method: _Method,
    model: ModelChoice,
    data_copy: dict[str, Any],
    shape: tuple[int, int, int],
) -> _Template:
    fields, shared = declared(Recipe), setting.recipe.fields()
    try:
        recipe = method.recipe.changed(**method.built.recipe_fields(method.recipe, shape))
    except ValueError as error:
        raise UsageError(f"{method.choice}: {error}") from error
    own = {name: normal(value, fields[name].annotation) for name, value in recipe.fields().items()}
    defaults = [f"method.{name}" for name in at_default(method.choice.definition, method.parameters)]
    defaults += at_default(Recipe, own) + at_default(model.definition, model.parameters())
    defaults += at_default(setting.definition, setting.task_parameters)
    trial = TrialSpec(
        method=method.choice.name,
        variant=method.choice.variant,
        parameters=method.parameters,
        method_version=method.choice.definition.version,
        task=setting.task,
        task_parameters=setting.task_parameters,
        model=str(model.canonical()),
        model_parameters=model.parameters(),
        preset=suite.preset,
        recipe=own,
        at_default=tuple(sorted(defaults)),
        replaced={name: normal(shared[name], fields[name].annotation) for name in own if own[name] != shared[name]},
        recipe_source=setting.recipe_source,
        seed=suite.seeds[0],
        device=suite.device,
        device_index=suite.device_index,
        dtype=suite.dtype,
        data_copy=data_copy,
        processes=suite.processes,
        control=method.built.is_control(),
        prunes=method.choice.definition.prunes,
        arithmetic=FLUSH,
        plugins=suite.plugins,
        callbacks=suite.callbacks,
        files=method.files,
        defined_by=defining_files(method=method.choice.name, task=setting.task.partition("[")[0], model=model.name),
    )
    before = {
        text: _template(suite, setting, needed, model, data_copy, shape) for text, needed in method.before.items()
    }
    return _Template(trial, before)


def _recipe(task: Any, suite: SuiteSpec) -> tuple[Recipe, str]:
    """Return the recipe with its overrides, and its source, which is empty for the suite's own recipes.

    Raises:
        UsageError: The task has no recipe of that name, or the preset does not allow the choice.
        ValueError: The recipe does not allow the overrides.
    """
    if suite.recipe:
        if suite.recipe not in task.paper_recipes:
            hint = nearest(suite.recipe, task.paper_recipes) or "; it has none"
            raise UsageError(f"--recipe '{suite.recipe}': task {task.registered_name} has no such recipe{hint}")
        source, recipe, preset, _ = task.paper_recipes[suite.recipe]
        if suite.preset != preset:
            raise UsageError(
                f"--recipe {suite.recipe}: belongs to preset {preset}, not {suite.preset}; use --preset {preset}"
            )
    else:
        recipe = task.recipe(suite.preset)
        source = next((item.source for item in task.paper_recipes.values() if item[1:3] == (recipe, suite.preset)), "")
    changed = ", ".join(f"{name}={value}" for name, value in suite.overrides.items() if recipe.fields()[name] != value)
    source = f"{source}; changed: {changed}" if source and changed else source
    return recipe.changed(**suite.overrides), source


def _check_fits(task: Any, copy: Any, setting: _Setting, processes: int) -> None:
    """Check the models, and that the data has the images that a recipe asks for, by creating its splits once.

    Raises:
        UsageError: A split, a cutout or a batch is too large for the data, or no model can be built for its images and
            classes.
    """
    from suite.trials.building import check_splits  # it imports torch, which reading of names does not need

    recipe = setting.recipe
    try:
        check_splits(task, copy, recipe, processes)
    except UsageError as error:
        raise UsageError(f"task {setting.task}: {error}") from error
    if (inputs := task.inputs(recipe, copy)) != task.inputs(recipe):
        for model in setting.models:
            model.check_size(*inputs)
            model.build(*inputs)


def read_choices(text: str, choice_class: type[Chosen], option: str) -> list[Chosen]:
    """Read a comma list of methods or models with their parameters. Errors begin with the option."""
    requests = read_names(text, choice_class.kind, option)
    for request in requests:
        try:
            registry.get(choice_class.kind, request.name)
        except UsageError as error:
            raise UsageError(f"{option} '{request.text}': {error}") from None
    try:
        return [choice for request in requests for choice in choice_class.expand(request)]
    except UsageError as error:
        raise UsageError(f"{option} {error}") from None
