"""Training steps of a stage and of dense in turn, in a process of their own (`suite.timing.time_pass`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from suite.cost.interleaved import interleaved_times
from suite.errors import UsageError
from suite.network import model_files
from suite.runs.building import build_trainer, device_of, load_splits
from suite.runs.provenance import collect
from suite.runs.spec import TrialSpec
from suite.runs.stages import Cost, stage_file
from suite.training.trainer import Trainer

WARM_UPS = 3
"""Unmeasured steps of each trainer, in addition to the one of `interleaved_times`; one if a step takes long."""
LONG_STEP_S = 1.0
MOST_WARM_UPS = 10
"""Steps after which the method's cost must be that of the stage: some methods decide in their first steps."""
FEWEST_PAIRS = 10


class Steps:
    """Training steps of one trainer, one per call, on real batches; timed by the trainer's own clock.

    Each call is an epoch of `Trainer.train_epoch` with a single batch. All calls stay in the trainer's present epoch,
    whose batches are repeated; a smaller last batch is left out.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._batches = trainer, trainer.splits.train
        self._left = 0
        self._running: Iterator[tuple[Tensor, Tensor]] = iter(())
        self.num_samples = self._batches.num_samples
        self.cost: Mapping[str, Any] = {}
        trainer.splits = dataclasses.replace(trainer.splits, train=self)

    @property
    def seconds(self) -> float:
        """Seconds of training so far, as a trial's clock counts them."""
        return self._trainer.clock.seconds["train"]

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of batches of a whole epoch."""
        return self._batches.steps_per_epoch(batch_size)

    def epoch(self, epoch: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the next batch only."""
        yield next(self._running)

    def __call__(self) -> None:
        """Run a step."""
        ctx, recipe = self._trainer.ctx, self._trainer.recipe
        if not self._left:
            self._left = self.steps_per_epoch(ctx.batch_size)
            if not recipe.drop_last and self.num_samples % ctx.batch_size and self._left > 1:
                self._left -= 1
            self._running = self._batches.epoch(ctx.epochs_done, ctx.batch_size)
            ctx.batch_index = 0
        self._left -= 1
        with self._trainer.clock.span("train"):
            self.cost = self._trainer.train_epoch()


def measure(
    spec: Mapping[str, Any],
    dense: Mapping[str, Any],
    trials: str,
    epoch: int,
    cost: Mapping[str, Any],
    executed_before: float,
    pairs: int,
    limit_s: float,
    twice: bool,
    device: str,
) -> dict[str, Any]:
    """Measure steps of one stage of a trial in turn with dense steps.

    Args:
        spec, dense: Specifications of the trial and of dense training.
        trials: Folder of the trials.
        epoch: First epoch of the stage.
        cost: Fields of the `Cost` of the stage.
        executed_before: FLOPs that a step before the stage executed.
        pairs: Number of pairs of steps.
        limit_s: Seconds that the pairs may take; fewer are measured if they take longer, but never fewer than 10.
        twice: Whether a second dense trainer is measured, too.
        device: Not used; the specification has it.

    Returns:
        `times` and `twice`: seconds of the method or the second dense trainer, and of dense, by pair; `dense_steps`:
        steps of dense training; `provenance`; or only `error`: why the stage cannot be measured.
    """
    try:
        own, other = TrialSpec.from_json(spec), TrialSpec.from_json(dense)
        own.check_files()
        provenance = collect(device_of(own))
        splits = load_splits(own)
        method = Steps(_trainer_of_stage(own, Path(trials), splits, epoch))
        baseline = Steps(build_trainer(other, Path(trials), splits))
        again = Steps(build_trainer(other, Path(trials), splits)) if twice else None
    except UsageError as error:
        return {"error": str(error)}
    for steps in filter(None, (method, baseline, again)):
        _warm_up(steps)
    expected = Cost(**{**cost, "flops": tuple(cost["flops"])})
    if reason := _other_cost(method, expected, executed_before):
        return {"error": reason}
    seconds = method.seconds + baseline.seconds
    method()
    baseline()
    seconds = method.seconds + baseline.seconds - seconds
    count = max(FEWEST_PAIRS, min(pairs, int(limit_s / max(seconds, 1e-9))))
    recipe = own.make_recipe()
    return {
        "times": _times(method, baseline, count),
        "twice": _times(again, baseline, count) if again else [],
        "dense_steps": recipe.epochs * splits.train.steps_per_epoch(recipe.batch_size),
        "provenance": provenance,
    }


def _trainer_of_stage(spec: TrialSpec, trials: Path, splits: Any, epoch: int) -> Trainer:
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


def _warm_up(steps: Steps) -> None:
    for _ in range(WARM_UPS):
        before = steps.seconds
        steps()
        if steps.seconds - before > LONG_STEP_S:
            break


def _other_cost(steps: Steps, expected: Cost, executed_before: float) -> str:
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


def _times(first: Steps, second: Steps, pairs: int) -> list[list[float]]:
    times = interleaved_times(first, second, pairs, now=lambda: first.seconds + second.seconds)
    return [list(map(float, pair)) for pair in times]
