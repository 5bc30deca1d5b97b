"""A probe: a trial that trains a few steps of each epoch with the learning rate 0, in the process that measures it.

The trial is built by the code of a real one, and its `Trainer.fit` runs, so that the input pipeline, the hooks of the
method, its reconfigurations and the changes of its plans are those of the trial. Only the batches are fewer. With the
learning rate 0 training moves no weight. What training will make small is not known, so that reconfigurations are
planned but not carried out: the network keeps its size, except for changes before the first step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from suite.cost.flops import PRODUCTS
from suite.errors import UsageError
from suite.method import Method, ReconfigPlan
from suite.prediction.batches import ProbeBatches
from suite.recipe import Phase
from suite.runs.building import build_trainer, device_of, load_splits
from suite.runs.spec import TrialSpec
from suite.runs.stages import Cost
from suite.training.product_check import WrongProduct
from suite.training.trainer import Diverged, Trainer

WARM_UPS = 3
"""Steps before the first timed step of a training; two if they take long."""
LONG_STEP_S = 1.0
FEWEST_TIMED = 2
"""Timed steps of an epoch that is measured, even if the time is over."""
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
"""Hooks by which the cost of a step can change from epoch to epoch; a method with none of them is steady."""


class _Enough(Exception):
    """The probe knows enough, or its time is over."""


@dataclasses.dataclass
class _Stage:
    """Epochs whose steps cost the same: the first of them, the seconds of their timed steps, and their cost."""

    epoch: int
    record: Mapping[str, Any]
    images: int
    seconds: list[float]
    total_steps: int


def steady(method: type[Method], train_sizes: tuple[int, ...] = ()) -> bool:
    """Return whether the steps of a method cost the same in every epoch, as far as its hooks can tell."""
    return len(train_sizes) < 2 and all(getattr(method, hook) is getattr(Method, hook) for hook in HOOKS)


def probe(spec: dict[str, Any], trials: str, steps: int, seconds: float, device: str) -> dict[str, Any]:
    """Probe a trial, and return plain data.

    Args:
        spec: Specification of the trial.
        trials: Folder of the trials that it may depend on.
        steps: Timed steps of a stage.
        seconds: Seconds that the steps may take together.
        device: Not used; the specification has it.

    Returns:
        Only `error` if the trial cannot be built or trained. Otherwise `start_s`, seconds from the start of the process
        to the first epoch; `check_s`, `compile_s`, `reconfigure_s` and `save_s` (of one checkpoint, without the disk);
        `epoch_start_s`; `evaluation`, a list of `images` and seconds `per_image` by split; `epochs`, those that were
        run, and `epochs_left`; `steady`; `stages` (`_as_data`); `dense_per_image`, FLOPs of training the dense network
        with an image of each epoch, run or not; `peak_memory_bytes`; `params`; `images` of an epoch; and `threads`.
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
        trial: Specification of the trial.
        trials: Folder of the trials that it may depend on.
        steps: Timed steps of a stage.
        seconds: Seconds that the steps may take together.
    """

    def __init__(self, trial: TrialSpec, trials: Path, steps: int, seconds: float) -> None:
        self.trial, self.steps, self.limit_s = trial, max(steps, FEWEST_TIMED), seconds
        self.device = device_of(trial)
        splits = load_splits(trial)
        self.last_batch_is_whole = trial.make_recipe().drop_last
        self.train = {
            size: ProbeBatches(splits.training(size), self.device, trial.processes)
            for size in (None, *splits.train_by_size)
        }
        self.evaluated = [
            ProbeBatches(split, self.device, repeat=True)
            for split in (splits.test, splits.validation)
            if split is not None
        ]
        evaluated = iter(self.evaluated)
        splits = dataclasses.replace(
            splits,
            train=self.train[None],
            train_by_size={size: batches for size, batches in self.train.items() if size is not None},
            test=None if splits.test is None else next(evaluated),
            validation=None if splits.validation is None else next(evaluated),
        )
        self.trainer: Trainer = build_trainer(
            trial, trials, splits, on_epoch=self._after_epoch, on_checkpoint=self._save_once
        )
        self.trainer.progress.lr_scale = 0.0
        # The first epoch times the evaluation, however seldom the recipe asks for one.
        self.trainer.recipe = dataclasses.replace(self.trainer.recipe, eval_every=1)
        # It may be the last one too, and six views count as several evaluations.
        self.trainer.evaluation.recipe = dataclasses.replace(self.trainer.recipe, six_views=False)
        _keep_network(self.trainer)
        self.steady = steady(type(self.trainer.hooks.method), trial.make_recipe().train_sizes)
        self.start_s = time.time() - psutil.Process().create_time()
        self.began = time.perf_counter()
        self.stages: list[_Stage] = []
        self.phases: list[Phase] = []
        self.evaluation: list[dict[str, float]] = []
        self.epoch_starts: list[float] = []
        self.epochs = self.epochs_left = 0
        self.walks = False
        self.reference: Cost | None = None
        self.save_s = 0.0

    def run(self) -> dict[str, Any]:
        """Train in the compressed form, and return what was measured."""
        for batches in self.evaluated:
            batches.wanted = lambda seconds: len(seconds) < 2 or (len(seconds) < 4 and sum(seconds) < 1.0)
        self._measure_next(WARM_UPS)
        with contextlib.suppress(_Enough):
            self.trainer.fit()
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
            "images": self.train[None].num_samples,
            "threads": torch.get_num_threads(),
        }

    def _measure_next(self, warm_ups: int) -> None:
        """Let the next epoch run whole batches: some that are not timed, then the timed ones."""
        self.warm_ups, self.walks = warm_ups, False
        self.trainer.progress.memory_is_counted = False

        def wanted(seconds: list[float]) -> bool:
            if len(seconds) == 2 and seconds[1] > LONG_STEP_S:
                self.warm_ups = min(self.warm_ups, 1)
            timed = len(seconds) - self.warm_ups
            # The first epoch leaves time for those that follow.
            kept_s = 0.0 if self.epochs or self.steady else self.limit_s / 2
            return timed < FEWEST_TIMED or (timed < self.steps and self._left() > kept_s)

        for batches in self.train.values():
            batches.wanted, batches.images = wanted, None

    def _walk_next(self) -> None:
        """Let the next epoch run one small batch, or a whole one if steps are compiled or captured for its shape."""
        self.walks = True
        images = WALKING_IMAGES if self.trainer.recipe.execution == "eager" else None
        for batches in self.train.values():
            batches.wanted, batches.images = lambda seconds: not seconds, images

    def _left(self) -> float:
        return self.limit_s - (time.perf_counter() - self.began)

    def _after_epoch(self, record: dict[str, Any]) -> None:
        """Keep what the epoch has shown, and decide what the next one runs."""
        self.epochs, self.epochs_left = self.epochs + 1, record["epochs_left"]
        self.phases.append(self.trainer.ledger.phase)
        batches = self.train[self.phases[-1].image_size]
        later = statistics.median(batches.fetching[1:]) if len(batches.fetching) > 1 else 0.0
        if later:
            self.epoch_starts.append(max(0.0, batches.fetching[0] - later))
        if not self.evaluation:
            for split in self.evaluated:
                timed = split.seconds[1:]
                self.evaluation.append(
                    {"images": split.num_samples, "per_image": statistics.median(timed) / split.size}
                )
                split.wanted, split.images = (lambda seconds: not seconds), WALKING_IMAGES
        changed = self._enter(record, batches)
        known = self.steady and len(self.stages[-1].seconds) >= self.steps
        if known or not record["epochs_left"] or self._left() <= 0:
            raise _Enough
        self._choose_next(changed, record["epochs_left"])

    def _enter(self, record: Mapping[str, Any], batches: ProbeBatches) -> bool:
        """Add the epoch to its stage; return whether a walking epoch has shown another cost."""
        cost = _per_image(Cost.of(record), batches.size)
        if self.walks:
            before, self.reference = self.reference, cost
            if before is not None:
                return not cost.equals(before)
            # A step of whole batches has another overhead than a small one, but neither has none.
            stage = self.stages[-1]
            return not _any_overhead(cost).equals(_any_overhead(_per_image(Cost.of(stage.record), stage.images)))
        timed = batches.seconds[self.warm_ups :] or batches.seconds[-1:]
        last = self.stages[-1] if self.stages else None
        if last and _per_image(Cost.of(last.record), last.images).equals(cost):
            last.seconds += timed
        else:
            total = batches.steps_per_epoch(record["batch_size"])
            self.stages.append(_Stage(record["epoch"], record, batches.size, timed, total))
        self.reference = None
        return False

    def _choose_next(self, changed: bool, epochs_left: int) -> None:
        """Run whole batches in every epoch if there is time for it; otherwise only after a change."""
        step = statistics.median(self.stages[-1].seconds)
        affordable = self._left() / max(epochs_left, 1) / step
        if affordable >= 1 + FEWEST_TIMED or changed:
            self._measure_next(1 if affordable >= 1 + FEWEST_TIMED else 2)
            if not changed:
                self._at_most(int(affordable))
        else:
            self._walk_next()

    def _at_most(self, count: int) -> None:
        """Leave time for the epochs that follow."""
        for batches in self.train.values():
            wanted = batches.wanted
            batches.wanted = lambda seconds, wanted=wanted: len(seconds) < count and wanted(seconds)  # type: ignore[misc]

    def _dense_per_image(self) -> list[float]:
        """Return the dense network's FLOPs of training with an image of each epoch: those that were run, then the rest.

        The phases of the rest follow from the recipe; their epochs count from the last restart of the schedule.
        """
        trainer = self.trainer
        rest = trainer.recipe.phases()[self.epochs - trainer.progress.first_epoch :]
        by_phase = {
            phase: float(sum(layer.flops(product) for layer in layers.values() for product in PRODUCTS))
            for phase, layers in trainer.ledger.built.items()
        }
        return [by_phase[phase] for phase in (*self.phases, *rest)]

    def _save_once(self, state: Callable[[], dict[str, Any]]) -> None:
        if not self.save_s:
            began = time.perf_counter()
            torch.save(state(), io.BytesIO())
            self.save_s = time.perf_counter() - began


def _keep_network(trainer: Trainer) -> None:
    """Let the method plan its reconfigurations, and carry out a restart of the schedule only."""
    planned = trainer.hooks.close_epoch

    def close_epoch() -> ReconfigPlan | None:
        plan = planned()
        return ReconfigPlan(restart=True) if plan is not None and plan.restart else None

    trainer.hooks.close_epoch = close_epoch  # type: ignore[method-assign]


def _per_image(cost: Cost, images: int) -> Cost:
    """Return the cost with FLOPs of one image, so that steps of different numbers of images can be compared.

    Effective FLOPs are left out: they follow the densities, on which the time of a step does not depend.
    """
    dense, current, _, executed = (value / images for value in cost.flops)
    return dataclasses.replace(cost, flops=(dense, current, executed))


def _any_overhead(cost: Cost) -> Cost:
    return dataclasses.replace(cost, overhead=float(bool(cost.overhead)))


def _as_data(stage: _Stage, processes: int) -> dict[str, Any]:
    """Return a stage as plain data; its FLOPs are those of a step of the whole batch, over all ranks."""
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
