"""Training steps of a stage of a finished trial, one per call, in the process that measures them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from suite.errors import UsageError
from suite.network import model_files
from suite.runs.building import build_trainer
from suite.runs.spec import TrialSpec
from suite.runs.stages import Cost, stage_file
from suite.training.trainer import Trainer

WARM_UPS = 3
"""Unmeasured steps of each trainer; one if a step takes long."""
LONG_STEP_S = 1.0
MOST_WARM_UPS = 10
"""Steps after which the method's cost must be that of the stage: some methods decide in their first steps."""


class Steps:
    """Training steps of one trainer, one per call, on real batches; timed by the trainer's own clock.

    Each call is an epoch of `Trainer.train_epoch` with a single batch. All calls stay in the trainer's present epoch,
    whose batches are repeated; a smaller last batch is left out.
    """

    def __init__(self, trainer: Trainer) -> None:
        trainer.set_image_size()
        size = trainer.ledger.image_size
        self.trainer, self._batches = trainer, trainer.splits.training(size)
        self._left = 0
        self._running: Iterator[tuple[Tensor, Tensor]] = iter(())
        self.num_samples = self._batches.num_samples
        self.cost: Mapping[str, Any] = {}
        own = {"train": self} if size is None else {"train_by_size": {size: self}}
        trainer.splits = dataclasses.replace(trainer.splits, **own)

    @property
    def image_size(self) -> int | None:
        """Side of the training images; `None` for that of an evaluation."""
        return self.trainer.ledger.image_size

    @property
    def seconds(self) -> float:
        """Seconds of training so far, as a trial's clock counts them."""
        return self.trainer.clock.seconds["train"]

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of batches of a whole epoch."""
        return self._batches.steps_per_epoch(batch_size)

    def epoch(self, epoch: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the next batch only."""
        yield self.next_batch()

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return the next batch of the epoch that is repeated."""
        return next(self._running)

    def __call__(self) -> None:
        """Run a step."""
        ctx, recipe = self.trainer.ctx, self.trainer.recipe
        if not self._left:
            self._left = self.steps_per_epoch(ctx.batch_size)
            if not recipe.drop_last and self.num_samples % ctx.batch_size and self._left > 1:
                self._left -= 1
            self._running = self._batches.epoch(ctx.epochs_done, ctx.batch_size)
            ctx.batch_index = 0
        self._left -= 1
        with self.trainer.clock.span("train"):
            self.cost = self.trainer.train_epoch()


def dense_trainer(spec: TrialSpec, trials: Path, splits: Any, image_size: int | None) -> Trainer:
    """Return a trainer of a new dense network whose next epoch has training images of a size.

    Args:
        spec: Specification of dense training.
        trials: Folder of the trials.
        splits: The images.
        image_size: One of the recipe's `train_sizes`; `None` if it has none.

    Raises:
        UsageError: Dense training has no epoch with this size.
    """
    trainer = build_trainer(spec, trials, splits)
    sizes = trainer.recipe.train_sizes_by_epoch()
    if image_size not in sizes:
        raise UsageError(f"dense training has no epoch with training images of {image_size} pixels")
    trainer.ctx.epochs_done = sizes.index(image_size)
    return trainer


def trainer_of_stage(spec: TrialSpec, trials: Path, splits: Any, epoch: int) -> Trainer:
    """Return a trainer that continues with an epoch of a trial.

    Raises:
        UsageError: The file of the stage is damaged or belongs to another trial.
    """
    import kernels

    trainer = build_trainer(spec, trials, splits)
    if epoch > 1:
        path = stage_file(trials / spec.trial_id, epoch)
        state = model_files.load(path, trainer.device)
        if state.get("trial") != spec.hash:
            raise UsageError(f"{path} belongs to another trial")
        kernels.replay_backends(state["provenance"].get("pruning", {}))
        trainer.load_state_dict(state["trainer"])
    return trainer


def warm_up(steps: Steps) -> None:
    """Run steps whose times do not count."""
    for _ in range(WARM_UPS):
        before = steps.seconds
        steps()
        if steps.seconds - before > LONG_STEP_S:
            break


def other_cost(steps: Steps, expected: Cost, executed_before: float) -> str:
    """Run steps until they cost what the trial's did; return why they do not, or an empty text.

    A method that changes the cost within an epoch executes a number of FLOPs between those before and in the stage.
    """
    for _ in range(MOST_WARM_UPS):
        found = Cost.of({**steps.cost, "epoch": "of the stage"})
        if found.equals(expected):
            return ""
        steps()
    low, high = sorted((executed_before, expected.executed))
    if found.batch_size == expected.batch_size and low * (1 - 1e-6) <= found.executed <= high * (1 + 1e-6):
        return ""
    if found.backends != expected.backends:
        other = sorted(name for name, backend in found.backends.items() if expected.backends.get(name) != backend)
        return (
            f"layers have other backends than in the trial ({', '.join(other[:3])}); measure on the machine, and with "
            "the number of threads, of the trial"
        )
    return f"a step executes {found.executed:.4g} FLOPs, and {expected.executed:.4g} in the trial"
