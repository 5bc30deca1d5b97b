"""What a command does before its first trial: choose the device, plan, rehearse, and collect the provenance.

A rehearsal sets up each combination of method, model and task once, on the CPU and without training: the network is
built and receives one blank batch, and the method's `setup` runs. A method refuses a network by an error in its
`setup`.

Everything here needs torch. `run` and `plan` call it in a separate process (`suite.trials.process`), so that the
process that waits for the trials needs no memory for torch.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernels.cpu.build import refusal
from kernels.first_use import compile_kernels
from suite import registry
from suite.choices import TaskChoice, build_method, build_model
from suite.cli.options import RunOptions
from suite.engine.cost.hardware import emulated_dtype
from suite.engine.network.forward_pass import copied
from suite.engine.network.model_files import EQUAL_STARTS, starts_alike
from suite.engine.training.method_runner import MethodRunner
from suite.engine.training.optimizer_state import make_optimizer
from suite.engine.training.trainer import check_names
from suite.errors import UsageError
from suite.files import canonical_json
from suite.measure.number_format import faster_formats
from suite.method import Context
from suite.recipe import Recipe
from suite.task import Batches, DataCopy, Inputs
from suite.trials.building import check_processes, inputs_of, resolve_device, resolve_dtype, task_of
from suite.trials.folder.records import read_record
from suite.trials.folder.store import Store
from suite.trials.planning import Formats, plan, read_choices
from suite.trials.provenance import collect
from suite.trials.ranks import in_allocation
from suite.trials.spec import PAPER_SEEDS, Prepared, SuiteSpec, TrialSpec, suite_hash

log = logging.getLogger(__name__)

BLANK_IMAGES = 2
FEWEST_STEPS = 200
"""Trainings of fewer steps get a warning. The shortest `quick` recipe of this project, that of `digits`, has 220."""


class Unfit(UsageError):
    """A method cannot train a network. Its text names the method, the model and the task; its cause does not."""


def prepare(options: RunOptions, suite: SuiteSpec | None = None) -> Prepared:
    """Plan and rehearse a command.

    Args:
        options: Options of the command.
        suite: What it trains, if another verb than `run` decides that.

    Raises:
        UsageError: The user can correct the command, a file or a plugin. Nothing has been written.
    """
    suite, trials, folder = planned(options, suite)
    if unfit := rehearse_new(trials, folder, options.skip_unfit):
        suite, trials = without(unfit, suite, trials)
    if may_measure_format(options, suite):
        formats = formats_in(folder, suite.device)
        new = [trial for trial in trials if (trial.task, trial.model) not in formats]
        trials = _in_formats(suite, trials, {**formats, **faster_formats(new, options.jobs)})
    return Prepared(suite, trials, folder, provenance_of(suite))


def without(
    unfit: Mapping[str, str], suite: SuiteSpec, trials: Sequence[TrialSpec]
) -> tuple[SuiteSpec, list[TrialSpec]]:
    """Return a command without trials that cannot be trained and without trials that need the results of these.

    Args:
        unfit: Reason by the id of each trial that cannot be trained.
        suite: The command, which records what was left out.
        trials: Its trials, each after those that it depends on.

    Raises:
        UsageError: No trial is left.
    """
    reasons, left = dict(unfit), []
    out: dict[tuple[str, str, str], str] = {}
    for trial in trials:
        for text, trial_id in trial.depends_on.items():
            if trial_id in reasons:
                reasons.setdefault(trial.trial_id, f"it needs a trial of {text}, which is left out")
        if trial.trial_id in reasons:
            out.setdefault((trial.label, trial.model, trial.task), reasons[trial.trial_id])
        else:
            left.append(trial)
    if not left:
        raise UsageError("--skip-unfit: no method fits, so that nothing is left to train")
    for names, reason in out.items():
        log.warning("left out: %s cannot train %s on task %s: %s", *names, reason)
    entries = [
        dict(zip(("method", "model", "task", "reason"), (*item, reason), strict=True)) for item, reason in out.items()
    ]
    return dataclasses.replace(suite, left_out=tuple(entries)), left


def planned(options: RunOptions, suite: SuiteSpec | None = None) -> tuple[SuiteSpec, list[TrialSpec], Path]:
    """Return the suite, the trials and the output folder of a command, as `prepare` does, without a rehearsal."""
    suite = suite or resolve(options)
    trials = plan(suite)
    if options.data_root_typed and all(trial.data_copy["kind"] == "generated" for trial in trials):
        raise UsageError(
            f"--data-root {options.data_root}: is not read, since preset {suite.preset} uses generated images for "
            f"{suite.tasks}; for a short training on the images of this folder use --preset quick --epochs 1"
        )
    folder = options.out or default_folder(trials, options.dtype)
    if options.dtype == "auto":
        trials = _in_formats(suite, trials, formats_in(folder, suite.device))
    return suite, trials, folder


def formats_in(folder: Path, device: str) -> Formats:
    """Return the number format of the first trial of each network in a folder, on a device."""
    specs = [record.spec for path in Store(folder).trial_folders() if (record := read_record(path))]
    return {(spec.task, spec.model): spec.dtype for spec in reversed(specs) if spec.device == device}


def _in_formats(suite: SuiteSpec, trials: list[TrialSpec], formats: Formats) -> list[TrialSpec]:
    if all(formats.get((trial.task, trial.model), trial.dtype) == trial.dtype for trial in trials):
        return trials
    left_out = {(entry["method"], entry["model"], entry["task"]) for entry in suite.left_out}
    again = plan(suite, formats=formats)
    return [trial for trial in again if (trial.label, trial.model, trial.task) not in left_out]


def may_measure_format(options: RunOptions, suite: SuiteSpec) -> bool:
    """Return whether a measurement decides `--dtype auto`. It would take longer than the preset `smoke`."""
    here = options.engine == "local" and not in_allocation()
    return here and options.dtype == "auto" and suite.dtype == "bfloat16" and suite.preset != "smoke"


def rehearse_new(trials: Sequence[TrialSpec], folder: Path, skip_unfit: bool = False) -> dict[str, str]:
    """Check the output folder, rehearse trials that were never started in it, and compile the kernels of all trials.

    Raises:
        UsageError: The folder cannot be used, or a method cannot train a model on a task.
    """
    store = Store(folder)
    store.check()
    new = [trial for trial in trials if not (store.trial_folder(trial.trial_id) / "trial.json").exists()]
    unfit = rehearse(new, not any(store.trial_folders()), skip_unfit) if new else {}
    on_cpu = {trial.method for trial in trials if trial.device == "cpu"}
    needed = {name for method in on_cpu for name in registry.get("method", method).cpu_kernels}
    if needed:
        if reason := refusal():
            log.warning("plain torch runs instead of the compiled CPU kernels, many times slower, because %s", reason)
        compile_kernels(needed)
    return unfit


def provenance_of(suite: SuiteSpec) -> dict[str, Any]:
    """Return the provenance of a command, for `suite.json`."""
    return collect(suite.device if suite.device_index is None else f"cuda:{suite.device_index}")


def rehearse(trials: Sequence[TrialSpec], name_short: bool = True, skip_unfit: bool = False) -> dict[str, str]:
    """Set up each combination of method, model and task once, for any seed. The function writes and trains nothing.

    Args:
        trials: Trials that were never started.
        name_short: Whether to warn of trainings of few steps, which learn too little to compare methods by.
        skip_unfit: Whether to return the methods that a network does not fit; otherwise the first one is an error.

    Returns:
        The reason why a method cannot train the network, by the id of each of the method's trials.

    Raises:
        UsageError: A combination cannot be trained; the message names the method, the model and the task.
    """
    combinations: dict[str, list[TrialSpec]] = {}
    of_data: dict[str, list[TrialSpec]] = {}
    for trial in trials:
        what = (trial.method, trial.parameters, trial.model, trial.task, trial.preset, trial.dtype, trial.device)
        combinations.setdefault(canonical_json([*what, _without(trial, "learning_rate")]), []).append(trial)
        of_data.setdefault(_data_of(trial), []).append(trial)
    unfit: dict[str, str] = {}
    images: dict[str, Batches] = {}  # training images by `_data_of`
    built: tuple[Any, nn.Module] = (), nn.Identity()  # network, and its model
    for trial, *more in sorted(combinations.values(), key=lambda several: (several[0].task, several[0].model)):
        inputs, sizes = inputs_of(trial), trial.make_recipe().growing.train_sizes
        if built[0] != (network := (trial.task, trial.model, inputs, sizes)):
            built = network, _checked_model(trial, inputs, sizes)
            seeds = {other.seed for other in trials if (other.task, other.model) == (trial.task, trial.model)}
            if len(seeds) > 1 and starts_alike(trial.model, inputs):
                log.warning("%s: %s", trial.model, EQUAL_STARTS)
        if (data := _data_of(trial)) not in images:
            copy, recipe = DataCopy(**trial.data_copy), trial.make_recipe()
            images[data] = task_of(trial).load(copy, recipe, trial.seed, torch.device("cpu")).train
            longest = max(of_data[data], key=lambda trial: trial.make_recipe().epochs)
            if name_short and trial.preset != "smoke" and (note := few_steps(longest, images[data])):
                log.warning("%s", note)
        try:
            _begin(trial, inputs, copied(built[1]), images[data].num_samples)
        except Unfit as error:
            if not skip_unfit:
                raise
            unfit |= dict.fromkeys([same.trial_id for same in (trial, *more)], str(error.__cause__))
    return unfit


def _without(trial: TrialSpec, *names: str) -> dict[str, Any]:
    """Return the recipe without some fields: no method reads the learning rate before it trains."""
    return {name: value for name, value in trial.recipe.items() if name not in names}


def _data_of(trial: TrialSpec) -> str:
    return canonical_json([trial.task, _without(trial, "epochs", "learning_rate"), trial.data_copy])


def few_steps(trial: TrialSpec, train: Batches) -> str:
    """Return one line if a training has fewer than `FEWEST_STEPS` steps; otherwise an empty text.

    Args:
        trial: The trial.
        train: Its training split, which has at least one batch.
    """
    recipe = trial.make_recipe()
    steps = math.ceil(train.steps_per_epoch(recipe.batch_size) * recipe.epochs)
    if steps >= FEWEST_STEPS:
        return ""
    return (
        f"{trial.task}: {train.num_samples:,} training images in batches of {recipe.batch_size} make {steps} steps in "
        "a trial, which may be too few to learn; use a smaller --batch-size or more --epochs"
    )


def _checked_model(trial: TrialSpec, inputs: Inputs, sizes: Iterable[int]) -> nn.Module:
    """Return the network, which maps images of the task and of each of the recipe's `train_sizes` to the classes.

    Raises:
        UsageError: It does not, or its function refuses them.
    """
    model = build_model(trial.model, *inputs)
    _check_outputs(model, trial, inputs)
    for side in sizes:
        smaller = Inputs((inputs.shape[0], side, side), inputs.classes)
        try:
            build_model(trial.model, *smaller)
            _check_outputs(model, trial, smaller)
        except UsageError as error:
            owner = f"{trial.label} sets" if "train_sizes" in trial.replaced else '--set "recipe.train_sizes=()" drops'
            raise UsageError(f"{error}; {owner} the training size {side}") from error
    return model


def _check_outputs(model: nn.Module, trial: TrialSpec, inputs: Inputs) -> None:
    """Check that the network maps images of the task to its classes.

    Raises:
        UsageError: The forward pass fails, or does not return a tensor (N, classes).
    """
    where, shape = f"{trial.model} on task {trial.task}", inputs.shape
    try:
        with torch.no_grad():
            outputs = model.eval()(torch.zeros(BLANK_IMAGES, *shape))
    except UsageError:
        raise
    except Exception as error:  # a network may raise any error for images of a wrong size
        where_raised = registry.fault_in_plugin(error)
        said = f"{type(error).__name__}: {error}" + (f" ({where_raised})" if where_raised else "")
        raise UsageError(f"{where}: the forward pass fails on images of {_sizes(shape)}: {said}") from error
    wanted = (BLANK_IMAGES, inputs.classes)
    if not isinstance(outputs, Tensor) or outputs.shape != wanted:
        got = _sizes(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise UsageError(f"{where}: the model returns {got} for {BLANK_IMAGES} images, not {_sizes(wanted)} logits")
    model.train()


def _begin(trial: TrialSpec, inputs: Inputs, model: nn.Module, train_images: int) -> None:
    recipe = trial.make_recipe()
    try:
        _check_frozen(trial, recipe, model)
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
    except (ValueError, UsageError) as error:
        kind = Unfit if isinstance(error, ValueError) else UsageError  # the user can correct what was typed
        raise kind(f"{trial.label} cannot train {trial.model} on task {trial.task}: {error}") from error


def _check_frozen(trial: TrialSpec, recipe: Recipe, model: nn.Module) -> None:
    try:
        check_names(recipe.freeze, model)
    except UsageError as error:
        task = task_of(trial)
        named = task.paper_recipes.items() if task.recipe(trial.preset).freeze == recipe.freeze else ()
        others = [name for name, published in named if published.preset == trial.preset and not published.recipe.freeze]
        hint = f"; for other networks use --recipe {' or '.join(others)}" if others else ""
        raise UsageError(f"{error}{hint}") from error


def _sizes(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def resolve(options: RunOptions) -> SuiteSpec:
    """Choose what was not typed: device, number format, preset and seeds.

    Args:
        options: Options of the command.

    Raises:
        UsageError: The device cannot be used, there are too few GPUs, or the folder of a task's data was not typed.
    """
    device, index = resolve_device(options.device)
    dtype = resolve_dtype(options.dtype, device, index)
    if options.engine == "local" and device == "cpu" and (warning := emulated_dtype(device, dtype)):
        log.warning("%s", warning)
    # With the engine `ray`, the machines of the cluster have to have a device for each process, which it checks.
    check_processes(options.nproc_per_trial, options.device, device, count=options.engine != "ray")
    preset = options.preset or ("paper" if device == "cuda" else "quick")
    check_data_root(options, preset)
    return SuiteSpec(
        methods=options.methods,
        tasks=options.task,
        models=options.model,
        preset=preset,
        recipe=options.recipe,
        seeds=options.seeds or tuple(range(PAPER_SEEDS if preset == "paper" else 1)),
        overrides=options.overrides,
        device=device,
        device_index=index,
        dtype=dtype,
        data_root=str(options.data_root),
        plugins=tuple(map(str, options.plugin)),
        callbacks=options.log,
        controls=options.controls,
        processes=options.nproc_per_trial,
        margin=options.margin / 100,
        targets=options.target,
        exploratory=options.exploratory,
    )


def check_data_root(options: RunOptions, preset: str) -> None:
    """Check that the folder of a task whose data is the user's own was named, or is in the default data root.

    Args:
        options: Options of the command.
        preset: Preset of the command.

    Raises:
        UsageError: The task would take the default data root, which holds data sets of other tasks.
    """
    if options.data_root_typed or os.environ.get("PDT_DATA"):
        return
    for choice in read_choices(options.task, TaskChoice, "--task"):
        name, task = choice.name, choice.build(choice.parameters(preset, options.recipe))
        if task.needs_data_root(preset) and not (options.data_root / name).is_dir():
            raise UsageError(f"task {name} needs --data-root DIR, your folder of data; --preset smoke needs no data")


def default_folder(trials: Sequence[TrialSpec], dtype: str) -> Path:
    """Return `runs/<task>-<first 8 digits of the suite's hash>`, which is the same for the same command.

    Args:
        trials: The trials.
        dtype: The number format as typed; what `auto` chooses does not change the folder.
    """
    trials = [dataclasses.replace(trial, dtype=dtype) for trial in trials]
    tasks = "-".join(dict.fromkeys(trial.task_name for trial in trials))
    return Path("runs", f"{tasks}-{suite_hash(trials)[:8]}").absolute()
