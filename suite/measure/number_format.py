"""Which number format is faster for a network: dense steps in float32 and in bfloat16, in turn, once per machine.

Even a processor with bfloat16 arithmetic is not faster with it in every network. Depthwise convolutions, for example,
can take longer. `$PDT_CHOICES`, or `choices` in the folder of compiled kernels, stores the answer. Remove it there to
measure again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.cache import choices_folder, make_folder
from suite import files
from suite.engine.cost.hardware import competition, hardware_id
from suite.engine.cost.interleaved import interleaved_times, ratio_of
from suite.engine.cost.torch_hardware import hardware_facts
from suite.engine.training.records import Diverged
from suite.errors import UsageError
from suite.files import canonical_json
from suite.measure.calls import call_in_subprocess
from suite.measure.steps import Steps, warm_up
from suite.task import Splits
from suite.trials.building import build_trainer, device_of, inputs_of
from suite.trials.plugin_files import digests
from suite.trials.process import environment
from suite.trials.spec import TrialSpec

log = logging.getLogger(__name__)

MARGIN = 0.1
"""Share of bfloat16's time by which float32 must be faster, over the whole interval of the ratio."""
FEWEST_PAIRS, MOST_PAIRS = 5, 15
LONGEST_S = 30.0  # longest time of the pairs, if the fewest pairs take less
FORMAT = 1  # format of the stored answers; increase it when the measurement changes


def faster_formats(trials: Sequence[TrialSpec], jobs: int) -> dict[tuple[str, str], str]:
    """Return for each task and model `float32` if its steps are at least 10 % faster than in `bfloat16`.

    Args:
        trials: Trials of this machine in `bfloat16`; the first of each task and model is measured.
        jobs: Number of trials that run at the same time.

    Raises:
        UsageError: A measurement failed.
    """
    threads = int(environment(jobs)["OMP_NUM_THREADS"].partition(",")[0])
    formats: dict[tuple[str, str], str] = {}
    for trial in trials:
        if (trial.task, trial.model) not in formats:
            ratio = _ratio(trial, threads)
            is_slow = "failed" in ratio or ratio["high"] <= 1 - MARGIN
            formats[trial.task, trial.model] = chosen = "float32" if is_slow else "bfloat16"
            why = "; a step in float32 takes {median:.2f} ({low:.2f} to {high:.2f}) of the time of one in bfloat16"
            if "failed" in ratio:
                why = ", since bfloat16 fails: {failed}"
            elif not is_slow and ratio["median"] < 1:
                why += f", and would have to take at most {1 - MARGIN:.2f} in the whole interval"
            log.info("%s, %s: trained in %s%s", trial.task, trial.model, chosen, why.format(**ratio))
    return formats


def _ratio(trial: TrialSpec, threads: int) -> dict[str, Any]:
    """Return the stored result of `measure`, or run `measure` in a new process and store its result."""
    question = _question(trial, threads)
    path = _path(question)
    with contextlib.suppress(OSError, ValueError, KeyError):  # there is none yet, or it was damaged
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["ratio"]
        return stored
    log.info("%s, %s: measuring whether float32 or bfloat16 is faster", trial.task, trial.model)
    try:
        called = call_in_subprocess(
            f"{__name__}:measure", {"spec": trial.to_json()}, trial.device, trial.plugins, threads, trial.arithmetic
        )
    except RuntimeError as error:
        raise UsageError(f"--dtype auto: {error}; type --dtype float32 or bfloat16") from error
    ratio: dict[str, Any] = called.value
    if "failed" not in ratio and not competition(called.busy_cores, threads):  # other programs may decide the ratio
        try:
            make_folder(path.parent)
            files.write(path, json.dumps({"question": question, "ratio": ratio}, indent=1) + "\n")
        except OSError as error:
            reason = error.strerror or error
            log.warning("%s cannot be written (%s); the next command measures again", path, reason)
    return ratio


def measure(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ratio of the times of a dense step in float32 and in bfloat16, with its interval.

    If a step in bfloat16 fails, the result has only `failed`, the reason.

    Images and labels are random, the learning rate is 0, and the steps are eager. The ratio therefore contains neither
    the time of reading images nor the work of a method.
    """
    trial = TrialSpec.from_json(spec)
    device = device_of(trial)
    recipe = {**trial.recipe, "train_sizes": (), "size_milestones": (), "lookahead_steps": 0, "ema": 0.0}
    shape, classes = inputs_of(trial)
    generator = torch.Generator().manual_seed(0)
    size = trial.recipe["batch_size"] // trial.processes
    images = torch.randn(size, *shape, generator=generator).to(device, memory_format=torch.channels_last)
    batch = _OneBatch(images, torch.randint(classes, (size,), generator=generator).to(device))
    steps, seconds = [], 0.0
    for dtype in ("float32", "bfloat16"):
        dense = dataclasses.replace(
            trial, method="dense", variant="", parameters={}, depends_on={}, files={}, dtype=dtype,
            recipe={**recipe, "batch_size": size},
        )  # fmt: skip
        trainer = build_trainer(dense, Path(), Splits(train=batch, test=batch), eager=True)
        trainer.progress.lr_scale = 0.0
        steps.append(Steps(trainer))
        try:
            seconds += warm_up(steps[-1])
        except (RuntimeError, Diverged) as error:
            if dtype == "float32":
                raise
            return {"failed": str(error).partition("\n")[0]}
    pairs = min(MOST_PAIRS, max(FEWEST_PAIRS, int(LONGEST_S / seconds)))
    ratio = ratio_of(*interleaved_times([one.timed for one in steps], pairs).T)
    return {"median": ratio.median, "low": ratio.low, "high": ratio.high}


class _OneBatch:
    """A data set of one batch, which every epoch repeats."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images, self._labels = images, labels
        self.num_samples = len(labels)

    def steps_per_epoch(self, batch_size: int) -> int:
        return 1

    def epoch(self, epoch: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield self._images, self._labels


def _question(trial: TrialSpec, threads: int) -> dict[str, Any]:
    """Return what decides the ratio: the geometry of the network's step, and the machine."""
    defined_by = {kind: one for kind, one in trial.defined_by.items() if kind == "model"}
    read = ("batch_size", "micro_batches", "optimizer", "clip_norm", "mixup", "cutmix")
    return {
        "format": FORMAT,
        "model": [trial.model.partition("[")[0], trial.model_parameters, digests(defined_by)],
        "inputs": inputs_of(trial),
        "recipe": {name: trial.recipe[name] for name in read},
        "processes": trial.processes,
        "hardware": hardware_id(hardware_facts(torch.device(trial.device))),
        "threads": threads,
        "torch": torch.__version__,
        "arithmetic": trial.arithmetic,
    }


def _path(question: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(canonical_json(question).encode()).hexdigest()
    return choices_folder() / f"dtype-{digest[:24]}.json"
