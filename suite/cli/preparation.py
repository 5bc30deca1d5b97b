"""What a command does before its first trial: choose the device, plan, rehearse, and collect the provenance.

Everything here needs torch. `run` and `plan` call it in a separate process (`suite.trials.engines.calls`), so that the
process that waits for the trials needs no memory for torch.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels.cpu.build import refusal
from kernels.first_use import compile_kernels
from suite import registry
from suite.cli.options import RunOptions, check_data_root
from suite.cli.rehearsal import rehearse
from suite.engine.cost.hardware import emulated_dtype
from suite.errors import UsageError
from suite.measure.number_format import faster_formats
from suite.trials.building import check_processes, resolve_device, resolve_dtype
from suite.trials.folder.records import read_record
from suite.trials.folder.store import Store
from suite.trials.planning import Formats, plan
from suite.trials.provenance import collect
from suite.trials.ranks.allocation import in_allocation
from suite.trials.spec import PAPER_SEEDS, Prepared, SuiteSpec, TrialSpec, suite_hash

log = logging.getLogger(__name__)


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
        needed = [text for text, trial_id in trial.depends_on.items() if trial_id in reasons]
        if needed:
            reasons.setdefault(trial.trial_id, f"it needs a trial of {needed[0]}, which is left out")
        if reason := reasons.get(trial.trial_id, ""):
            out.setdefault((trial.label, trial.model, trial.task), reason)
        else:
            left.append(trial)
    for (method, model, task), reason in out.items():
        log.warning("left out: %s cannot train %s on task %s: %s", method, model, task, reason)
    if not left:
        raise UsageError("--skip-unfit: no method fits, so that nothing is left to train")
    entries = [
        {"method": method, "model": model, "task": task, "reason": reason}
        for (method, model, task), reason in out.items()
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
    same = all(formats.get((trial.task, trial.model), trial.dtype) == trial.dtype for trial in trials)
    if same:
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
    if needed and (reason := refusal()):
        log.warning("plain torch runs instead of the compiled CPU kernels, many times slower, because %s", reason)
    compile_kernels(needed)
    return unfit


def provenance_of(suite: SuiteSpec) -> dict[str, Any]:
    """Return the provenance of a command, for `suite.json`."""
    return collect(suite.device if suite.device_index is None else f"cuda:{suite.device_index}")


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
    check_processes(options.processes, options.device, device, count=options.engine != "ray")
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
        plugins=tuple(str(path) for path in options.plugins),
        callbacks=options.callbacks,
        controls=options.controls,
        processes=options.processes,
        margin=options.margin,
        targets=options.targets,
    )


def default_folder(trials: Sequence[TrialSpec], dtype: str) -> Path:
    """Return `runs/<task>-<first 8 digits of the suite's hash>`, which is the same for the same command.

    Args:
        trials: The trials.
        dtype: The number format as typed; what `auto` chooses does not change the folder.
    """
    trials = [dataclasses.replace(trial, dtype=dtype) for trial in trials]
    tasks = "-".join(dict.fromkeys(trial.task_name for trial in trials))
    return Path("runs", f"{tasks}-{suite_hash(trials)[:8]}").absolute()
