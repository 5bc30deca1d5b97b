"""What a trial will take, from some of its steps with the learning rate 0, in the process that measures them.

The trial is built, and its epochs begin and end, as in a training; only the batches are fewer. The hooks of the method
and the changes of its plans are therefore those of the trial. But no weight moves, and nothing shows which weights
training would make small. Reconfigurations are planned and not carried out, so that the network keeps its size.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException, start_processes

from suite import files, registry
from suite.engine.cost.clock import images_per_second, seconds_of, stamps_of
from suite.engine.cost.interleaved import interleaved_times
from suite.engine.cost.torch_hardware import use_arithmetic, use_threads_of_environment
from suite.engine.training.data_parallel import Batch
from suite.engine.training.product_check import WrongProduct
from suite.engine.training.trainer import Diverged, Trainer
from suite.errors import UsageError
from suite.measure.steps import Steps, warm_up
from suite.method import ReconfigPlan
from suite.task import Batches
from suite.trials.building import build_trainer, load_splits
from suite.trials.process import LOCAL_RANK, RANK, RENDEZVOUS
from suite.trials.ranks.connection import join_ranks, leave_ranks
from suite.trials.spec import TrialSpec
from suite.trials.stages import Cost

STEPS = 20
"""Timed steps of a stage; fewer, but at least `FEWEST_STEPS`, if they take longer than `STAGE_S`."""
FEWEST_STEPS = 3
STAGE_S = 30.0
WALK_S = 60.0
"""Seconds after which epochs are no longer visited, except the first of a phase of the recipe."""
WALKING_STEPS, WALKING_IMAGES = 2, 4
"""Steps of an epoch that show whether the cost of a step has changed, and images of such a step. Some methods change it
in the first step of an epoch.
"""
EVALUATED = 3
"""Batches of an evaluation that are timed."""
HOOKS = (
    *("transform_batch", "regularization", "before_optimizer_step", "after_optimizer_step"),
    *("on_epoch_end", "reconfigure", "freeze", "on_reconfigured"),
)
"""Hooks that can change the cost of a step from epoch to epoch. A method without them is steady."""


def probe(spec: Mapping[str, Any], trials: str) -> dict[str, Any]:
    """Measure a trial in as many processes as it has, and return plain data (`Probe.run`).

    Args:
        trials: Folder of the trials that it may depend on.

    Returns:
        Only `error`, the reason, if the trial cannot be built or trained.
    """
    trial = TrialSpec.from_json(spec)
    try:
        trial.check_files()
        if trial.processes == 1:
            return Probe(trial, Path(trials)).run()
        with files.temporary_folder("pdt-ranks-") as meeting:
            start_processes(_rank, (spec, trials, str(meeting)), trial.processes, start_method="spawn")
            result: dict[str, Any] = json.loads((meeting / "result.json").read_text())
            return result
    except UsageError as error:
        return {"error": str(error)}
    except (Diverged, WrongProduct, ProcessRaisedException, ProcessExitedException) as error:
        return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"}


def _rank(rank: int, spec: Mapping[str, Any], trials: str, meeting: str) -> None:
    """Measure a trial in one of its processes. The first one writes the result."""
    os.environ |= {RANK: str(rank), LOCAL_RANK: str(rank), RENDEZVOUS: f"file://{meeting}/store"}
    trial = TrialSpec.from_json(spec)
    use_arithmetic(trial.arithmetic)
    for plugin in trial.plugins:
        registry.load_plugin(plugin)
    use_threads_of_environment()
    join_ranks(trial)
    result = Probe(trial, Path(trials)).run()
    if rank == 0:
        Path(meeting, "result.json").write_text(json.dumps(result))
    leave_ranks()


@dataclass
class Stage:
    """Epochs whose steps cost the same.

    Attributes:
        epoch: The first of these epochs, counted from 1.
        timed: Number of timed steps.
        step_s: Median of their seconds.
        fetch_s: Seconds until an epoch has its first batch.
        flops: FLOPs of a step over all ranks, by column of the ledger.
        epochs: Number of epochs.
        steps: Steps of these epochs. A smaller last batch counts as its share.
    """

    epoch: int
    timed: int
    step_s: float
    fetch_s: float
    flops: Mapping[str, float]
    epochs: int = 0
    steps: float = 0.0


class Probe:
    """Measures one trial.

    Args:
        trials: Folder of the trials that it may depend on.
    """

    def __init__(self, trial: TrialSpec, trials: Path) -> None:
        self.trainer: Trainer = build_trainer(trial, trials, load_splits(trial))
        self.trainer.progress.lr_scale = 0.0
        self.ranks = self.trainer.parallel.ranks
        self.start_s = time.time() - psutil.Process().create_time()
        self.stages: list[Stage] = []
        self.visited = 0
        self._walked: Cost | None = None  # cost of the last walking step

    def run(self) -> dict[str, Any]:
        """Visit the epochs of the trial, and return the measurements.

        Returns:
            `epochs` and `visited`, the number of epochs, and of those that began and ended here; `steps`; `stages`
            (`Stage`); `train_s`, `eval_s` and `other_s`, seconds of training, of evaluations, and of everything else in
            the process; `flops_dense` and `flops_executed` of the training; `memory_bytes`; `shrinks`, whether the
            method may shrink the network; `leaves_out`, whether its steps may leave out branches; `late`, whether later
            epochs were not visited for lack of time; `threads`.
        """
        trainer, recipe = self.trainer, self.trainer.recipe
        is_steady = not trainer.runner.method.defines(*HOOKS)
        began, phase, late, steps = time.perf_counter(), None, False, 0
        while trainer.epochs_left:
            epoch, before = trainer.schedule_epoch, phase
            phase = recipe.phase_of(epoch)
            late = late or self.ranks.from_first(time.perf_counter() - began > WALK_S)
            if phase != before or not (is_steady or late):
                self._visit(is_new=phase != before)
            else:
                trainer.ctx.epochs_done += 1
            of_epoch, images = recipe.steps_in(epoch, trainer.steps_per_epoch), trainer.split.num_samples
            steps += of_epoch
            self.stages[-1].epochs += 1
            self.stages[-1].steps += min(of_epoch, images / min(images, trainer.ctx.batch_size))
        epochs, spent = trainer.ctx.epochs_done, dict(trainer.clock.seconds)
        train_s = sum(stage.steps * stage.step_s + stage.epochs * stage.fetch_s for stage in self.stages)
        pass_s = sum(self._evaluation_s(one) for one in (trainer.splits.test, trainer.splits.validation) if one)
        other_s = self.start_s + spent["check"] + seconds_of(lambda: images_per_second(trainer), trainer.device)
        if recipe.execution != "eager":  # otherwise, measured choices of kernels, which are stored
            other_s += spent["compile"]
        trainer.parallel.unwrap()
        return {
            "epochs": epochs,
            "visited": self.visited,
            "steps": steps,
            "stages": [vars(stage) for stage in self.stages],
            "train_s": train_s + spent["reconfigure"] * epochs / self.visited,
            "eval_s": recipe.evaluation.count(epochs) * pass_s,
            "other_s": other_s,
            "flops_dense": sum(stage.steps * stage.flops["dense"] for stage in self.stages),
            "flops_executed": sum(stage.steps * stage.flops["executed"] for stage in self.stages),
            "memory_bytes": trainer.progress.peak_memory_bytes,
            "shrinks": bool(trainer.runner.method.shrinks_network),
            "leaves_out": trainer.runner.method.defines("branch_factors"),
            "late": late and not is_steady,
            "threads": torch.get_num_threads(),
        }

    def _visit(self, is_new: bool) -> None:
        """Run steps of the next epoch and the hooks at its end. Time steps if they are new or have another cost."""
        steps = Steps(self.trainer)
        if is_new:
            self._measure(steps)
        walked = self._walk(steps)
        if not is_new and not self.ranks.from_first(self._walked is not None and walked.equals(self._walked)):
            self._measure(steps)
        self._walked = walked
        self.visited += 1
        plan = self.trainer.end_epoch()
        if plan is not None and (plan.restart or plan.frozen):  # the network keeps its size
            self.trainer.apply_plan(ReconfigPlan(restart=plan.restart, frozen=plan.frozen))

    def _walk(self, steps: Steps) -> Cost:
        """Run steps of few images, and return the cost of the last one without effective FLOPs, which take no time."""
        for _ in range(WALKING_STEPS):
            images, labels, size = steps.next_batch()
            if self.trainer.recipe.execution == "eager":  # other steps have one shape
                images, labels = images[:WALKING_IMAGES], labels[:WALKING_IMAGES]
                size = min(size, WALKING_IMAGES * self.ranks.size)
            self.trainer.train_step(Batch(images, labels, size))
        dense, current, _, executed = steps.cost.flops
        return replace(steps.cost, flops=(dense, current, executed))

    def _measure(self, steps: Steps) -> None:
        """Time steps of a new stage."""
        trainer, ledger = self.trainer, self.trainer.ledger
        trainer.progress.memory_is_counted = False
        last_s = warm_up(steps)
        count: int = self.ranks.from_first(max(FEWEST_STEPS, min(STEPS, int(STAGE_S / last_s))))
        seconds = interleaved_times([steps], count, stamps_of(trainer.device), warm_ups=0)
        cost = trainer.parallel.add_counts(ledger, ledger.counts(), ledger.step_cost())
        fetch_s = seconds_of(lambda: next(trainer.batches()), trainer.device)
        epoch = trainer.ctx.epochs_done + 1
        self.stages.append(Stage(epoch, count, statistics.median(seconds[:, 0]), fetch_s, cost["step_flops"]))

    def _evaluation_s(self, split: Batches) -> float:
        """Return the seconds of evaluating a split, from its first batches."""
        trainer, size = self.trainer, self.trainer.recipe.evaluation.eval_batch_size
        trainer.model.eval()

        def evaluate() -> None:
            for images, labels, _ in islice(trainer.parallel.epoch(split, 0, size), EVALUATED):
                if len(images):
                    trainer.evaluation.sums(images, labels, trainer.evaluation.logits_of())

        evaluate()  # warms up
        return seconds_of(evaluate, trainer.device) * max(1.0, split.num_samples / (size * EVALUATED))
