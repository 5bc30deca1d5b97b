"""Training steps of a stage of a finished trial, one per call, in the process that measures them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kernels
from suite.engine.network import model_files
from suite.engine.training.data_parallel import Batch
from suite.engine.training.trainer import Trainer
from suite.errors import UsageError
from suite.recipe import FOR_ONE_METHOD, Phase, Recipe
from suite.task import Splits
from suite.trials.building import build_trainer, load_splits
from suite.trials.spec import TrialSpec
from suite.trials.stages import Cost

WARM_UPS = 3
"""Unmeasured steps of each trainer; one if a step takes long."""
LONG_STEP_S = 1.0
MOST_WARM_UPS = 10
"""Steps after which the method's cost must be that of the stage, because some methods decide in their first steps."""


class Steps:
    """Training steps of one trainer, one per call, on real batches.

    All steps are of the trainer's present epoch, whose batches are repeated. A smaller last batch is left out.
    """

    def __init__(self, trainer: Trainer) -> None:
        trainer.begin_epoch()
        self.trainer = trainer
        self._batches: Iterator[Batch] = iter(())

    @property
    def cost(self) -> Cost:
        """Cost of the last step."""
        return Cost.of({"epoch": "of the stage", **self.trainer.setting_of_step(), **self.trainer.ledger.step_cost()})

    def next_batch(self) -> Batch:
        """Return the next batch of the repeated epoch."""
        batch = next(self._batches, None)
        if batch is None or batch.size < self.trainer.ctx.batch_size:
            self._batches = self.trainer.batches()
            self.trainer.ctx.batch_index = 0
            batch = next(self._batches)
        return batch

    def __call__(self) -> None:
        """Run a step."""
        self.trainer.train_step(self.next_batch())

    def timed(self) -> float:
        """Run a step, and return its seconds as a trial's clock counts them."""
        clock = self.trainer.clock
        before = clock.seconds["train"]
        with clock.span("train"):
            self()
        return clock.seconds["train"] - before


def dense_phase(trainer: Trainer, dense: Recipe) -> Phase:
    """Return the phase of dense training in which a trainer's present epoch has its place.

    A method may have other sizes of images, or another number of epochs. Its epoch then has the place of the same share
    of dense training, and its own frozen parameters of the recipe.
    """
    epoch = int(trainer.schedule_epoch * dense.epochs / trainer.recipe.epochs + 1e-9)
    return Phase(dense.phase_of(epoch).image_size, trainer.ledger.phase.frozen)


def splits_of_dense(dense: TrialSpec, own: TrialSpec, splits: Splits) -> Splits:
    """Return the data of dense training: the `splits` of a trial, or others if the trial's images have other sizes."""
    shared = all(own.recipe[name] == value for name, value in dense.recipe.items() if name not in FOR_ONE_METHOD)
    return splits if shared else load_splits(dense)


def at_phase(trainer: Trainer, phase: Phase) -> Trainer:
    """Move a new dense trainer to the first epoch of a phase, and return the trainer.

    Raises:
        UsageError: Dense training has no epoch of this phase.
    """
    phases = trainer.recipe.phases()
    if phase not in phases:
        raise UsageError(f"dense training has no epoch with {phase.in_words()}")
    trainer.ctx.epochs_done = phases.index(phase)
    return trainer


def trainer_of_stage(
    spec: TrialSpec, trials: Path, splits: Any, path: Path | None, choose_again: bool = False, eager: bool = False
) -> Trainer:
    """Return a trainer that continues a trial from a state of one of its stages.

    Args:
        trials: Folder of the trials.
        path: File of the state; `None` for the new network.
        choose_again: Whether the method repeats the measurements that it chooses by (`Method.choose_again`).
        eager: Whether steps run eagerly, whatever the recipe's execution is.

    Raises:
        UsageError: The file is damaged or belongs to another trial.
    """
    trainer = build_trainer(spec, trials, splits, eager=eager)
    if path is not None:
        state = model_files.load(path, trainer.device)
        if state.get("trial") != spec.hash:
            raise UsageError(f"{path} belongs to another trial")
        kernels.replay_backends(state["provenance"].get("pruning", {}))
        trainer.load_state_dict(state["trainer"])
        if choose_again:
            trainer.runner.choose_again()
    return trainer


def warm_up(steps: Steps) -> float:
    """Run steps whose times do not count, and return the seconds of the last step."""
    for _ in range(WARM_UPS):
        seconds = steps.timed()
        if steps.trainer.parallel.ranks.from_first(seconds > LONG_STEP_S):
            break
    return seconds


def other_cost(steps: Steps, expected: Cost, executed_before: float, chosen_again: bool = False) -> str:
    """Run steps until they cost what the trial's steps did; return why they do not, empty if they do.

    If a method changes the cost within an epoch, a step may execute any number of FLOPs between that before and that in
    the stage.

    Args:
        expected: Cost of a step in the trial.
        executed_before: FLOPs that a step before the stage executed.
        chosen_again: Whether layers may have other backends than in the trial, and so execute other FLOPs.
    """
    for _ in range(MOST_WARM_UPS):
        found = steps.cost
        if found.equals(expected.with_backends_of(found) if chosen_again else expected):
            return ""
        steps()
    low, high = sorted((executed_before, expected.executed))
    if found.batch_size == expected.batch_size and low * (1 - 1e-6) <= found.executed <= high * (1 + 1e-6):
        return ""
    if found.backends != expected.backends and not chosen_again:
        other = sorted(name for name, backend in found.backends.items() if expected.backends.get(name) != backend)
        return (
            f"layers have other backends than in the trial ({', '.join(other[:3])}); measure on the machine, and with "
            "the number of threads, of the trial"
        )
    return f"a step executes {found.executed:.4g} FLOPs, and {expected.executed:.4g} in the trial"
