"""Check that each method can train its model and task, before the first trial starts.

Each combination is set up once, on the CPU and without training: the network is built and receives one blank batch, and
the method's `setup` runs. A method refuses a network by an error in its `setup`. The rehearsal also warns of trainings
of few steps, which learn too little to compare methods by.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from suite import registry
from suite.choices import build_method, build_model
from suite.engine.network.forward_pass import copied
from suite.engine.network.model_files import EQUAL_STARTS, starts_alike
from suite.engine.training.method_runner import MethodRunner
from suite.engine.training.optimizer_state import make_optimizer
from suite.engine.training.trainer import check_names
from suite.errors import UsageError
from suite.files import canonical_json
from suite.method import Context
from suite.recipe import Recipe
from suite.task import Batches, DataCopy, Inputs
from suite.trials.building import inputs_of, task_of
from suite.trials.spec import TrialSpec

log = logging.getLogger(__name__)

BLANK_IMAGES = 2
SMOKE = "smoke"  # the preset whose accuracies say nothing in any case
FEWEST_STEPS = 200
"""Trainings of fewer steps get a warning. The shortest `quick` recipe of this project, that of `digits`, has 220."""


class Unfit(UsageError):
    """A method cannot train a network. Its text names the method, the model and the task; `reason` does not."""

    reason = ""


def rehearse(trials: Sequence[TrialSpec], name_short: bool = True, skip_unfit: bool = False) -> dict[str, str]:
    """Set up each combination of method, model and task once, for any seed. The function writes and trains nothing.

    Args:
        trials: Trials that were never started.
        name_short: Whether to warn of trainings of few steps.
        skip_unfit: Whether to return the methods that a network does not fit; otherwise the first one is an error.

    Returns:
        The reason why a method cannot train the network, by the id of each of the method's trials.

    Raises:
        UsageError: A combination cannot be trained; the message names the method, the model and the task.
    """
    distinct: dict[str, TrialSpec] = {}
    seeds: dict[tuple[str, str], set[int]] = defaultdict(set)  # by task and model
    same: dict[str, list[str]] = {}
    unfit: dict[str, str] = {}
    for trial in trials:
        seeds[trial.task, trial.model].add(trial.seed)
        recipe = {name: value for name, value in trial.recipe.items() if name != "learning_rate"}  # no method reads it
        what = (trial.method, trial.parameters, trial.model, trial.task, recipe, trial.preset, trial.dtype)
        key = canonical_json([*what, trial.device])
        same.setdefault(distinct.setdefault(key, trial).trial_id, []).append(trial.trial_id)
    network: tuple[tuple[str, str, Inputs, tuple[int, ...]], nn.Module] | None = None
    images: dict[str, Batches] = {}  # training images by task, recipe and data copy
    longest: dict[str, TrialSpec] = {}  # by the same key: the trial with the most epochs
    for trial in sorted(distinct.values(), key=lambda trial: (trial.task, trial.model)):
        task = task_of(trial)
        inputs, sizes = inputs_of(trial), trial.make_recipe().growing.train_sizes
        if network is None or network[0] != (trial.task, trial.model, inputs, sizes):
            model = build_model(trial.model, *inputs)
            _check_outputs(model, trial, inputs)
            for side in sizes:
                _check_size(model, trial, Inputs((inputs.shape[0], side, side), inputs.classes))
            network = (trial.task, trial.model, inputs, sizes), model
            if len(seeds[trial.task, trial.model]) > 1 and starts_alike(trial.model, inputs):
                log.warning("%s: %s", trial.model, EQUAL_STARTS)
        recipe = {name: value for name, value in trial.recipe.items() if name not in ("epochs", "learning_rate")}
        data = canonical_json([trial.task, recipe, trial.data_copy])
        if data not in images:
            splits = task.load(DataCopy(**trial.data_copy), trial.make_recipe(), trial.seed, torch.device("cpu"))
            images[data] = splits.train
        try:
            _begin(trial, inputs, copied(network[1]), images[data].num_samples)
        except Unfit as error:
            if not skip_unfit:
                raise
            unfit |= dict.fromkeys(same[trial.trial_id], error.reason)
            continue
        longest[data] = max(longest.get(data, trial), trial, key=lambda trial: trial.make_recipe().epochs)
    for data, trial in longest.items():
        if name_short and trial.preset != SMOKE and (note := few_steps(trial, images[data])):
            log.warning("%s", note)
    return unfit


def few_steps(trial: TrialSpec, train: Batches) -> str:
    """Return one line if a training has fewer than `FEWEST_STEPS` steps; otherwise an empty text.

    Args:
        trial: The trial.
        train: Its training split, which has at least one batch.
    """
    recipe = trial.make_recipe()
    each = train.steps_per_epoch(recipe.batch_size)
    steps = math.ceil(each * recipe.epochs)
    if steps >= FEWEST_STEPS:
        return ""
    return (
        f"{trial.task}: {train.num_samples:,} training images in batches of {recipe.batch_size} make {each} "
        f"{'step' if each == 1 else 'steps'} per epoch and {steps} in a trial, which may be too "
        "few to learn; use a smaller --batch-size or more --epochs"
    )


def _check_size(model: nn.Module, trial: TrialSpec, inputs: Inputs) -> None:
    """Check that the network maps images of one of `recipe.train_sizes` to the classes.

    Raises:
        UsageError: It does not, or its function refuses them.
    """
    side = inputs.shape[1]
    try:
        build_model(trial.model, *inputs)
    except UsageError as error:
        sizes = ",".join(map(str, trial.make_recipe().growing.train_sizes))
        sets = " sets" if "train_sizes" in trial.replaced else " has"
        raise UsageError(
            f"{trial.label}{sets} recipe.train_sizes=({sizes}) on task {trial.task}, and {trial.model} cannot take "
            f"{side} pixels: {str(error).removeprefix(f'{trial.model}: ')}"
        ) from error
    hint = f'; for a network of one image size, use --set "recipe.train_sizes=()" instead of {side}'
    if "train_sizes" in trial.replaced:
        hint = f"; {trial.label} sets recipe.train_sizes, and this network takes images of one size"
    _check_outputs(model, trial, inputs, hint)


def _check_outputs(model: nn.Module, trial: TrialSpec, inputs: Inputs, hint: str = "") -> None:
    """Check that the network maps images of the task to its classes.

    Args:
        model: The network.
        trial: A trial that trains it.
        inputs: Shape of an image, and number of classes.
        hint: End of the message of an error, if the forward pass fails.

    Raises:
        UsageError: The forward pass fails, or does not return a tensor (N, classes).
    """
    where = f"{trial.model} on task {trial.task}"
    shape = inputs.shape
    try:
        with torch.no_grad():
            outputs = model.eval()(torch.zeros(BLANK_IMAGES, *shape))
    except UsageError:
        raise
    except Exception as error:  # a network may raise any error for images of a wrong size
        where_raised = registry.fault_in_plugin(error)
        said = f"{type(error).__name__}: {error}" + (f" ({where_raised})" if where_raised else "") + hint
        raise UsageError(f"{where}: the forward pass fails on images of {_sizes(shape)}: {said}") from error
    wanted = (BLANK_IMAGES, inputs.classes)
    if not isinstance(outputs, Tensor) or outputs.shape != wanted:
        got = _sizes(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise UsageError(f"{where}: the model returns {got} for {BLANK_IMAGES} images, not {_sizes(wanted)} logits")
    model.train()


def _begin(trial: TrialSpec, inputs: Inputs, model: nn.Module, train_images: int) -> None:
    recipe = trial.make_recipe()
    _check_frozen(trial, recipe, model)
    try:
        ctx = Context(
            model.to(memory_format=torch.channels_last),  # type: ignore[call-overload]
            inputs.shape,
            num_classes=inputs.classes,
            epochs=recipe.whole_epochs,
            batch_size=recipe.batch_size,
            seed=trial.seed,
            task=trial.task_name,
            network=trial.model.partition("[")[0],
            preset=trial.preset,
            train_images=train_images,
            micro_batches=recipe.micro_batches,
            dtype=getattr(torch, trial.dtype),
            rehearsal=True,
        )
        if trial.device == "cuda":
            ctx.device = torch.device("cuda", trial.device_index or 0)
        method = build_method(trial.method, trial.parameters, trial.label)
        runner = MethodRunner(method, ctx, recipe.growing.size_at(0.0))
        runner.attach(make_optimizer(model, recipe))
    except ValueError as error:
        unfit = Unfit(f"{trial.label} cannot train {trial.model} on task {trial.task}: {error}")
        unfit.reason = str(error)
        raise unfit from error
    except UsageError as error:  # the user can correct it, such as a pattern of `ignore`
        raise UsageError(f"{trial.label} cannot train {trial.model} on task {trial.task}: {error}") from error


def _check_frozen(trial: TrialSpec, recipe: Recipe, model: nn.Module) -> None:
    try:
        check_names(recipe.freeze, model)
    except UsageError as error:
        task = task_of(trial)
        named = task.paper_recipes.items() if task.recipe(trial.preset).freeze == recipe.freeze else ()
        others = [name for name, published in named if published.preset == trial.preset and not published.recipe.freeze]
        hint = f"; for other networks use --recipe {' or '.join(others)}" if others else ""
        raise UsageError(f"{trial.label} cannot train {trial.model} on task {trial.task}: {error}{hint}") from error


def _sizes(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))
