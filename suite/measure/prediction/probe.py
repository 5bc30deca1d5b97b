"""A probe: a trial that trains a few steps of each epoch with the learning rate 0, in the process that measures it.

The same code builds it as a real trial, and the same trainer begins its epochs, runs its steps and ends its epochs. The
input pipeline, the hooks of the method and the changes of its plans are therefore those of the trial. Only the batches
are fewer. At learning rate 0 training moves no weight. The probe cannot know which weights training makes small.
Reconfigurations are thus planned but not carried out, and the network keeps its size. Changes before the first step are
an exception.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from suite.engine.cost.clock import synchronize
from suite.engine.cost.flops import PRODUCTS
from suite.engine.training.data_parallel import Batch
from suite.engine.training.product_check import WrongProduct
from suite.engine.training.trainer import Diverged, Trainer
from suite.errors import UsageError
from suite.method import Method, ReconfigPlan
from suite.recipe import Phase
from suite.task import Batches
from suite.trials.building import build_trainer, load_splits
from suite.trials.spec import TrialSpec
from suite.trials.stages import Cost

WARM_UPS = 3
"""Steps before the first timed step of a training; two if steps take long."""
LONG_STEP_S = 1.0
FEWEST_TIMED = 2
"""Fewest timed steps of a measured epoch, even if the time is over."""
WALKING_IMAGES = 4
"""Images of the step in an epoch that only shows whether the cost of a step has changed."""
HOOKS = (
    "transform_batch",
    "regularization",
    "before_optimizer_step",
    "after_optimizer_step",
    "on_epoch_end",
    "reconfigure",
    "on_reconfigured",
)
"""Hooks that can change the cost of a step from epoch to epoch. A method without them is steady."""


@dataclasses.dataclass
class _Stage:
    """Epochs whose steps cost the same.

    Attributes:
        epoch: The first of these epochs, counted from 1.
        total_steps: Steps of an epoch.
        images: Images of a step.
        record: Cost of a step, as in an epoch's record.
        seconds: Seconds of the timed steps.
        fetching: Seconds that each batch of the first epoch took to fetch.
    """

    epoch: int
    total_steps: int
    images: int = 0
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seconds: list[float] = dataclasses.field(default_factory=list)
    fetching: list[float] = dataclasses.field(default_factory=list)

    @property
    def cost_per_image(self) -> Cost:
        """Cost of a step with FLOPs of one image, so that steps of different numbers of images can be compared.

        Effective FLOPs are left out, because they follow the densities, which do not change the time of a step.
        """
        cost = Cost.of(self.record)
        dense, current, _, executed = (value / self.images for value in cost.flops)
        return dataclasses.replace(cost, flops=(dense, current, executed))


def steady(method: type[Method], train_sizes: tuple[int, ...] = ()) -> bool:
    """Return whether all epochs of a method have steps of the same cost, as far as its hooks show."""
    return len(train_sizes) < 2 and all(getattr(method, hook) is getattr(Method, hook) for hook in HOOKS)


def probe(spec: dict[str, Any], trials: str, steps: int, seconds: float, device: str) -> dict[str, Any]:
    """Probe a trial, and return plain data.

    Args:
        trials: Folder of the trials that it may depend on.
        steps: Number of timed steps of a stage.
        seconds: Seconds that the steps may take together.
        device: Not used; the specification has it.

    Returns:
        Only `error` if the trial cannot be built or trained. Otherwise `start_s`, seconds from the start of the process
        to the first epoch; `check_s`, `compile_s`, `reconfigure_s` and `save_s` (of one checkpoint, without the disk);
        `epoch_start_s`; `evaluation`, a list of `images` and seconds `per_image` by split; `epochs`, those that ran,
        and `epochs_left`; `steady`; `stages` (`_as_data`); `dense_per_image`, FLOPs of training the dense network with
        an image of each epoch, run or not; `peak_memory_bytes`; `params`; `images` of an epoch; and `threads`.
    """
    try:
        trial = TrialSpec.from_json(spec)
        trial.check_files()
        return Probe(trial, Path(trials), steps, seconds).run()
    except UsageError as error:
        return {"error": str(error)}
    except (Diverged, WrongProduct) as error:
        return {"error": f"{type(error).__name__}: {error}"}


class Probe:
    """Runs one probe.

    Args:
        trials: Folder of the trials that it may depend on.
        steps: Number of timed steps of a stage.
        seconds: Seconds that the steps may take together.
    """

    def __init__(self, trial: TrialSpec, trials: Path, steps: int, seconds: float) -> None:
        self.trial, self.steps, self.limit_s = trial, max(steps, FEWEST_TIMED), seconds
        self.splits = load_splits(trial)
        self.trainer: Trainer = build_trainer(trial, trials, self.splits)
        self.trainer.progress.lr_scale = 0.0
        self.params = sum(parameter.numel() for parameter in self.trainer.model.parameters())
        self.steady = steady(type(self.trainer.runner.method), trial.make_recipe().train_sizes)
        self.start_s = time.time() - psutil.Process().create_time()
        self.began = time.perf_counter()
        self.stages: list[_Stage] = []
        self.phases: list[Phase] = []
        self.evaluation: list[dict[str, float]] = []
        self.epoch_starts: list[float] = []
        self.epochs = self.epochs_left = 0
        self.walks, self.warm_ups = False, WARM_UPS
        self.most = math.inf  # number of timed steps of the next epoch
        self.reference: Cost | None = None
        self.save_s = 0.0

    def run(self) -> dict[str, Any]:
        """Train in the compressed form, and return the measurements."""
        while self.trainer.epochs_left:
            self._run_epoch()
            known = self.steady and len(self.stages[-1].seconds) >= self.steps
            if known or self._left() <= 0:
                break
        clock, progress = self.trainer.clock.seconds, self.trainer.progress
        return {
            "start_s": self.start_s,
            "check_s": clock["check"],
            "compile_s": clock["compile"],
            "reconfigure_s": clock["reconfigure"],
            "save_s": self.save_s,
            "epoch_start_s": statistics.median(self.epoch_starts or [0.0]),
            "evaluation": self.evaluation,
            "epochs": self.epochs,
            "epochs_left": self.epochs_left,
            "steady": self.steady,
            "stages": [_as_data(stage, self.trial.processes) for stage in self.stages],
            "dense_per_image": self._dense_per_image(),
            "peak_memory_bytes": progress.peak_memory_bytes,
            "params": self.trainer.dense_params,
            "images": self.splits.train.num_samples,
            "threads": torch.get_num_threads(),
        }

    def _run_epoch(self) -> None:
        """Run the first steps of an epoch and the hooks at its end, and decide what the next epoch runs."""
        trainer = self.trainer
        trainer.begin_epoch()
        self.phases.append(trainer.ledger.phase)
        with trainer.clock.span("train"):
            steps = self._run_steps()
        if len(steps.fetching) > 1:
            self.epoch_starts.append(max(0.0, steps.fetching[0] - statistics.median(steps.fetching[1:])))
        plan = trainer.end_epoch()
        if plan is not None and plan.restart:  # restart of the schedule; the network keeps its size
            trainer.apply_plan(ReconfigPlan(restart=True))
        self.epochs, self.epochs_left = self.epochs + 1, trainer.epochs_left
        if self.epochs == 1:
            splits = (self.splits.test, self.splits.validation)
            self.evaluation = [self._time_evaluation(split) for split in splits if split is not None]
            began = time.perf_counter()
            torch.save(trainer.state_dict(), io.BytesIO())
            self.save_s = time.perf_counter() - began
        self._choose_next(changed=self._enter(steps))

    def _run_steps(self) -> _Stage:
        """Run the first batches of an epoch, or one small batch if the epoch walks, and return their stage."""
        trainer, seconds = self.trainer, list[float]()
        stage = _Stage(self.epochs + 1, self.trainer.steps_per_epoch)
        # Compiled and captured steps have one shape.
        limit = WALKING_IMAGES if self.walks and trainer.recipe.execution == "eager" else None
        began = self._now()
        for batch in trainer.batches():
            count = math.ceil(len(batch.images) / self.trial.processes)  # images of the first rank
            count = min(count, limit or count)
            stage.images = stage.images or count
            stage.fetching.append(self._now() - began)
            trainer.train_step(Batch(batch.images[:count], batch.labels[:count], count))
            seconds.append(self._now() - began)
            if count == stage.images:  # excludes a smaller last batch
                stage.record = {**trainer.setting_of_step(), **trainer.ledger.step_cost(), "params": self.params}
            if not self._wants_more(seconds):
                break
            began = self._now()
        stage.seconds = seconds[self.warm_ups :] or seconds[-1:]
        return stage

    def _wants_more(self, seconds: Sequence[float]) -> bool:
        """Return whether the epoch runs another step, after steps that took `seconds`."""
        if self.walks:
            return False
        if len(seconds) == 2 and seconds[1] > LONG_STEP_S:
            self.warm_ups = min(self.warm_ups, 1)
        timed = len(seconds) - self.warm_ups
        # The first epoch leaves time for later epochs.
        kept_s = 0.0 if self.epochs or self.steady else self.limit_s / 2
        return timed < self.most and (timed < FEWEST_TIMED or (timed < self.steps and self._left() > kept_s))

    def _time_evaluation(self, split: Batches) -> dict[str, float]:
        """Return the number of images of a split, and the seconds of evaluating one of them."""
        evaluation, size = self.trainer.evaluation, self.trainer.recipe.eval_batch_size
        self.trainer.model.eval()
        seconds, per_image = 0.0, list[float]()
        batches = itertools.chain.from_iterable(split.epoch(0, size) for _ in itertools.count())
        while len(per_image) < 2 or (len(per_image) < 4 and seconds < 1.0):
            began = self._now()
            images, labels = next(batches)
            count = math.ceil(len(images) / self.trial.processes)
            evaluation.sums(images[:count], labels[:count], evaluation.logits_of())
            took = self._now() - began
            seconds += took
            per_image.append(took / count)
        return {"images": split.num_samples, "per_image": statistics.median(per_image[1:])}

    def _now(self) -> float:
        synchronize(self.trainer.device)
        return time.perf_counter()

    def _left(self) -> float:
        return self.limit_s - (time.perf_counter() - self.began)

    def _enter(self, steps: _Stage) -> bool:
        """Add the steps of an epoch to their stage; return whether a walking epoch has shown another cost."""
        cost = steps.cost_per_image
        last = self.stages[-1] if self.stages else None
        if self.walks:
            assert last is not None
            before, self.reference = self.reference, cost
            if before is not None:
                return not cost.equals(before)
            # The overhead of a whole batch differs from that of a small batch, but both are above zero if one is.
            return not _any_overhead(cost).equals(_any_overhead(last.cost_per_image))
        if last and last.cost_per_image.equals(cost):
            last.seconds += steps.seconds
        else:
            self.stages.append(steps)
        self.reference = None
        return False

    def _choose_next(self, changed: bool) -> None:
        """Run whole batches in every epoch if there is time, otherwise only after a change."""
        step = statistics.median(self.stages[-1].seconds)
        affordable = self._left() / max(self.epochs_left, 1) / step
        enough = affordable >= 1 + FEWEST_TIMED
        self.walks = not (enough or changed)
        if not self.walks:
            self.warm_ups, self.most = (1 if enough else 2), math.inf if changed else int(affordable) - 1
            self.trainer.progress.memory_is_counted = False

    def _dense_per_image(self) -> list[float]:
        """Return the dense network's FLOPs of training with an image of each epoch: epochs run, then the rest.

        The recipe determines the phases of the rest. Their epochs count from the last restart of the schedule.
        """
        trainer = self.trainer
        rest = trainer.recipe.phases()[self.epochs - trainer.progress.first_epoch :]
        by_phase = {
            phase: float(sum(layer.flops(product) for layer in layers.values() for product in PRODUCTS))
            for phase, layers in trainer.ledger.built.items()
        }
        return [by_phase[phase] for phase in (*self.phases, *rest)]


def _any_overhead(cost: Cost) -> Cost:
    return dataclasses.replace(cost, overhead=float(bool(cost.overhead)))


def _as_data(stage: _Stage, processes: int) -> dict[str, Any]:
    """Return a stage as plain data. Its FLOPs are those of a step of the whole batch, over all ranks."""
    batch = stage.record["batch_size"]
    flops = {name: value * batch / stage.images for name, value in stage.record["step_flops"].items()}
    return {
        "epoch": stage.epoch,
        "step_s": statistics.median(stage.seconds),
        "timed_steps": len(stage.seconds),
        "batch_size": batch,
        "images": stage.images,
        "total_steps": stage.total_steps,
        "flops": flops,
        "params": stage.record["params"],
        "processes": processes,
    }
