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
from suite.parameters import at_default, convert, declared, resolve
from suite.recipe import FEWEST_BUDGETS, Recipe, control_epochs
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
        hint = nearest(SHORT_NAMES.get(key, key), known)
        if key not in SHORT_NAMES and not difflib.get_close_matches(key, known, cutoff=0.8):
            # Tasks import torch, and a misspelt field needs an answer without torch.
            tasks = [name for name in registry.names("task") if key in declared(registry.get("task", name))]
            hint = f"; it is a parameter of tasks: --task '{tasks[0]}[{key}={value}]'" if tasks else hint
        raise UsageError(f"{option} '{text}': recipe has no field '{key}'{hint}")
    return key, convert(value, known[key].annotation, option if option != "--set" else f"--set recipe.{key}")


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
    models = read_choices(suite.models, ModelChoice, "--model") if suite.models else []
    typed = read_choices(suite.tasks, TaskChoice, "--task")
    choices = {str(choice): choice for choice in (_without_defaults(choice, suite) for choice in typed)}
    settings = [_setting(suite, choice, methods, models) for choice in choices.values()]
    parts = {setting.name: _with_controls(suite, setting) if suite.controls else [setting] for setting in settings}
    if copies is None:
        root = Path(suite.data_root)
        copies = {setting.name: setting.task.prepare(root, suite.preset, setting.recipe) for setting in settings}
        for setting in settings:
            _check_fits(setting, copies[setting.name], suite.processes)
            classes = setting.task.inputs(setting.recipe, copies[setting.name]).classes
            refuse_guesses(suite.targets, classes)
            if classes == 1 and not formats:  # the first plan of a command has no formats
                log.warning("%s has one class: accuracy is always 100 %%, and comparing means nothing", setting.name)

    specs: dict[str, TrialSpec] = {}
    own: dict[str, TrialSpec] = {}  # without trials that only controls need
    for setting in settings:
        for model in setting.models:
            dtype = formats.get((setting.name, str(model.canonical())), suite.dtype)
            for_network = dataclasses.replace(suite, dtype=dtype)
            planned = [
                (_trials(for_network, part, method, model, part.recipe, copies[setting.name]), part.is_control)
                for part in parts[setting.name]
                for method in part.methods
            ]
            for seed in suite.seeds:
                for first_trials, is_control in planned:
                    trials = with_seed(first_trials, seed)
                    if trials[-1].hash in own and not is_control:
                        log.info("%s repeats %s; it is trained once", trials[-1].label, own[trials[-1].hash].label)
                    for digest, trial in [(trial.hash, trial) for trial in trials]:
                        specs.setdefault(digest, trial)
                        if not is_control:
                            own.setdefault(digest, trial)
    if suite.controls:
        log.info("%s", controls.summary([trial for digest, trial in specs.items() if digest not in own]))
        for setting in settings:
            if (lengths := len(control_epochs(setting.recipe.epochs)) + 1) < FEWEST_BUDGETS:
                log.warning(
                    "%s: %g epochs allow %d lengths of dense training, and a verdict at equal cost needs %d: none can "
                    "follow", setting.name, setting.recipe.epochs, lengths, FEWEST_BUDGETS,
                )  # fmt: skip
    return list(specs.values())


@dataclass(frozen=True)
class _Setting:
    """What trials of a task share: the task, its recipe, models, methods, and whether they are controls.

    Attributes:
        name: The task with its parameters, as text.
        definition, parameters, task: Its class, the values of all its parameters, and the task made from them.
        recipe, recipe_source: The command's recipe, and where it is from.
    """

    name: str
    definition: Any
    parameters: Mapping[str, Any]
    task: Any
    recipe: Recipe
    recipe_source: str
    models: list[ModelChoice]
    methods: Sequence[MethodChoice]
    is_control: bool = False


def _without_defaults(choice: TaskChoice, suite: SuiteSpec) -> TaskChoice:
    """Return a task without values that are the defaults of the preset or of the recipe."""
    return choice.canonical(choice.definition.defaults(suite.preset, suite.recipe))


def _setting(
    suite: SuiteSpec, choice: TaskChoice, methods: Sequence[MethodChoice], typed_models: list[ModelChoice]
) -> _Setting:
    parameters = choice.parameters(suite.preset, suite.recipe)
    task = choice.build(parameters)
    try:
        recipe, source = _recipe(task, suite)
    except ValueError as error:
        raise UsageError(f"task {choice.name}: {error}") from error
    default = task.paper_recipes[suite.recipe].model if suite.recipe else ""
    models = typed_models or [ModelChoice.read(default or task.model_on(suite.device, suite.preset))]
    for model in models:
        model.check_size(*task.inputs(recipe))
        model.build(*task.inputs(recipe))
        _check_names(model, {"the recipe": recipe.fields(), f"task {choice.name}": parameters})
    setting = _Setting(str(choice), choice.definition, parameters, task, recipe, source, models, methods)
    return _checked(suite, setting)


def _checked(suite: SuiteSpec, setting: _Setting) -> _Setting:
    """Construct each method of a setting once, so that wrong ones are found before data is fetched."""
    for choice in setting.methods:
        _trials(suite, setting, choice, setting.models[0], setting.recipe, None)
    return setting


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


def _with_controls(suite: SuiteSpec, setting: _Setting) -> list[_Setting]:
    """Return the setting of a task among those of its controls, in the order in which a seed is trained."""
    task = setting.task.registered_name

    def control(methods: Sequence[MethodChoice], epochs: float = setting.recipe.epochs) -> _Setting:
        # The override is that of `--epochs`, so that recipe and source equal those of a command without --controls.
        overrides = {"epochs": epochs, **{key: value for key, value in suite.overrides.items() if key != "epochs"}}
        recipe, source = _recipe(setting.task, dataclasses.replace(suite, overrides=overrides))
        part = dataclasses.replace(setting, recipe=recipe, recipe_source=source, methods=methods, is_control=True)
        return _checked(suite, part)

    lengths = control_epochs(setting.recipe.epochs)
    others = controls.control_methods(setting.methods, task, suite.preset, lengths)
    shorter = [control([controls.dense()], epochs) for epochs in lengths]
    return [control([controls.dense()]), setting, *shorter, control(others)]


def _trials(
    suite: SuiteSpec, setting: _Setting, choice: MethodChoice, model: ModelChoice, recipe: Recipe, copy: Any
) -> list[TrialSpec]:
    """Return the trial of a method on a network for the first seed, preceded by those that it depends on.

    Args:
        recipe: The setting's recipe, or that of a method which depends on this one.
        copy: The prepared data; `None` if it is not known yet.

    Raises:
        UsageError: A parameter is not allowed, a file is missing, or the recipe's execution is impossible.
    """
    recipe = recipe.changed(**choice.recipe_fields)
    if recipe.execution != "eager":
        check_execution(recipe.execution, suite.device, choice.definition, choice.name, suite.processes)
    parameters = choice.parameters(setting.task.registered_name, suite.preset)
    method = choice.build(parameters)
    before: list[TrialSpec] = []
    depends_on = {}
    for text in method.depends_on():
        try:
            before += _trials(suite, setting, MethodChoice.read(text), model, recipe, copy)
        except UsageError as error:
            raise UsageError(f"{choice} depends on '{text}': {str(error).removeprefix(f'{text}: ')}") from None
        depends_on[text] = before[-1].trial_id
    files = {}
    for name, typed in method.files().items():
        path = read_path(typed, f"{choice}: {name} is")
        files[name], parameters[name] = checksum(path, f"{choice}: {name}"), str(path)
    try:
        own = recipe.changed(**method.recipe_fields(recipe, setting.task.inputs(setting.recipe, copy).shape)).fields()
    except ValueError as error:
        raise UsageError(f"{choice}: {error}") from error
    own, shared = resolve(Recipe, own), resolve(Recipe, setting.recipe.fields())
    defaults = [f"method.{name}" for name in at_default(choice.definition, parameters)]
    defaults += at_default(Recipe, own) + at_default(model.definition, model.parameters())
    defaults += at_default(setting.definition, setting.parameters)
    trial = TrialSpec(
        method=choice.name,
        variant=choice.variant,
        parameters=parameters,
        method_version=choice.definition.version,
        task=setting.name,
        task_parameters=setting.parameters,
        model=str(model.canonical()),
        model_parameters=model.parameters(),
        preset=suite.preset,
        recipe=own,
        at_default=tuple(sorted(defaults)),
        replaced={name: shared[name] for name in own if own[name] != shared[name]},
        recipe_source=setting.recipe_source,
        seed=suite.seeds[0],
        device=suite.device,
        device_index=suite.device_index,
        dtype=suite.dtype,
        data_copy=copy.fields() if copy else {"checksum": ""},
        processes=suite.processes,
        control=method.is_control(),
        prunes=choice.definition.prunes,
        plugins=suite.plugins,
        callbacks=suite.callbacks,
        depends_on=depends_on,
        files=files,
        defined_by=defining_files(method=choice.name, task=setting.task.registered_name, model=model.name),
    )
    return [*before, trial]


def with_seed(trials: Sequence[TrialSpec], seed: int) -> list[TrialSpec]:
    """Return trials with another seed. Those that a trial depends on precede it."""
    seeded: dict[str, TrialSpec] = {}
    for trial in trials:
        depends_on = {text: seeded[trial_id].trial_id for text, trial_id in trial.depends_on.items()}
        seeded[trial.trial_id] = dataclasses.replace(trial, seed=seed, depends_on=depends_on)
    return list(seeded.values())


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


def _check_fits(setting: _Setting, copy: Any, processes: int) -> None:
    """Check the models, and that the data has the images that a recipe asks for, by creating its splits once.

    Raises:
        UsageError: A split, a cutout or a batch is too large for the data, or no model can be built for its images and
            classes.
    """
    # These import torch, which reading of names does not need.
    import torch

    from suite.engine.training.data_parallel import check_batches

    try:
        train = setting.task.load(copy, setting.recipe, 0, torch.device("cpu")).train
        train.steps_per_epoch(setting.recipe.batch_size)
        check_batches(train, setting.recipe, processes)
    except UsageError as error:
        raise UsageError(f"task {setting.name}: {error}") from error
    inputs = setting.task.inputs(setting.recipe, copy)
    if inputs != setting.task.inputs(setting.recipe):
        for model in setting.models:
            model.check_size(*inputs)
            model.build(*inputs)


def read_choices(text: str, choice_class: type[Chosen], option: str) -> list[Chosen]:
    """Read a comma list of methods, tasks or models with their parameters. Errors begin with the option."""
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
