"""What a command does before its first trial: choose the device, plan, rehearse, and collect the provenance.

Everything here needs torch. `run` and `plan` call it in a process of its own (`suite.trials.engines.forked`): the
process that waits for the trials then does without torch's memory, and torch is imported once.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels.cpu.build import refusal
from suite.cli.options import RunOptions, check_data_root
from suite.cli.rehearsal import rehearse
from suite.engine.cost.hardware import emulated_dtype
from suite.errors import UsageError
from suite.trials.devices import check_processes, resolve_device, resolve_dtype
from suite.trials.folder.store import Store
from suite.trials.planning import plan
from suite.trials.provenance import collect
from suite.trials.spec import PAPER_SEEDS, SuiteSpec, TrialSpec, suite_hash

log = logging.getLogger(__name__)


def prepare(options: RunOptions, trained_here: bool = True) -> tuple[SuiteSpec, list[TrialSpec], Path, dict[str, Any]]:
    """Plan and rehearse a command; return its suite, trials, output folder and provenance.

    Args:
        options: Options of the command.
        trained_here: Whether this machine, and no other, has to have a device for each process of a trial.

    Raises:
        UsageError: The user can correct the command, a file or a plugin. Nothing has been written.
    """
    suite, trials, folder = planned(options, trained_here)
    if unfit := rehearse_new(trials, folder, options.skip_unfit):
        suite, trials = without(unfit, suite, trials)
    return suite, trials, folder, provenance_of(suite)


def without(
    unfit: Mapping[str, str], suite: SuiteSpec, trials: Sequence[TrialSpec]
) -> tuple[SuiteSpec, list[TrialSpec]]:
    """Return a command without trials that cannot be trained and without those that need their results.

    Args:
        unfit: The reason by the id of the trial.
        suite: The command, which records what was left out.
        trials: Its trials, each behind those that it depends on.

    Raises:
        UsageError: No trial is left.
    """
    reasons, left = dict(unfit), []
    out: dict[tuple[str, str, str], str] = {}
    for trial in trials:
        needed = [text for text, other in trial.depends_on.items() if other in reasons]
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
    found = [
        {"method": method, "model": model, "task": task, "reason": reason}
        for (method, model, task), reason in out.items()
    ]
    return dataclasses.replace(suite, left_out=tuple(found)), left


def planned(options: RunOptions, trained_here: bool = True) -> tuple[SuiteSpec, list[TrialSpec], Path]:
    """Return the suite, the trials and the output folder of a command, as `prepare` does, without a rehearsal."""
    suite = resolve(options, trained_here)
    trials = plan(suite)
    if options.data_root_typed and all(trial.data_copy["kind"] == "generated" for trial in trials):
        raise UsageError(
            f"--data-root {options.data_root}: is not read, since preset {suite.preset} uses generated images for "
            f"{suite.tasks}; for a short training on the images of this folder use --preset quick --epochs 1"
        )
    return suite, trials, options.out or default_folder(trials)


def rehearse_new(trials: Sequence[TrialSpec], folder: Path, skip_unfit: bool = False) -> dict[str, str]:
    """Check the output folder, and rehearse the trials that were never started in it; see `rehearse`.

    Raises:
        UsageError: The folder cannot be used, or a method cannot train a model on a task.
    """
    store = Store(folder)
    store.check()
    new = [trial for trial in trials if not (store.trial_folder(trial.trial_id) / "trial.json").exists()]
    return rehearse(new, not any(store.trial_folders()), skip_unfit) if new else {}


def provenance_of(suite: SuiteSpec) -> dict[str, Any]:
    """Return the provenance of a command, for `suite.json`."""
    return collect(suite.device if suite.device_index is None else f"cuda:{suite.device_index}")


def resolve(options: RunOptions, trained_here: bool = True) -> SuiteSpec:
    """Choose what was not typed: device, number format, preset and seeds.

    Args:
        options: Options of the command.
        trained_here: Whether this machine has to have a device for each process of a trial. With the engine `ray`, the
            machines of the cluster have to, and the engine checks them.

    Raises:
        UsageError: The device cannot be used, there are too few GPUs, or the folder of a task's data was not typed.
    """
    device, index = resolve_device(options.device)
    dtype = resolve_dtype(options.dtype, device, index)
    if options.engine == "local" and device == "cpu":
        if warning := emulated_dtype(device, dtype):
            log.warning("%s", warning)
        if reason := refusal():
            log.warning("plain torch runs instead of the compiled CPU kernels, many times slower, because %s", reason)
    check_processes(options.processes, options.device, device, count=trained_here and options.engine != "ray")
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


def default_folder(trials: Sequence[TrialSpec]) -> Path:
    """Return `runs/<task>-<first 8 of the suite's hash>`, which is the same for the same command."""
    tasks = "-".join(dict.fromkeys(trial.task_name for trial in trials))
    return Path("runs", f"{tasks}-{suite_hash(trials)[:8]}").absolute()
