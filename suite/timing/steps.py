"""Training steps of a stage and of dense in turn, in a process of their own (`suite.timing.time_pass`)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from suite.cost.interleaved import interleaved_times
from suite.errors import UsageError
from suite.passes.stage_steps import Steps, dense_trainer, other_cost, trainer_of_stage, warm_up
from suite.recipe import Recipe
from suite.runs.building import device_of, load_splits
from suite.runs.provenance import collect
from suite.runs.spec import TrialSpec
from suite.runs.stages import Cost
from suite.task import Splits

FEWEST_PAIRS = 10


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
        `times` and `twice`: seconds of the method or the second dense trainer, and of dense, by pair; `image_size`:
        side of the training images of this stage; `dense_steps`: steps of dense training, as pairs of such a size and
        a number of successive steps, in order; `provenance`; or only `error`: why the stage cannot be measured.
    """
    try:
        own, other = TrialSpec.from_json(spec), TrialSpec.from_json(dense)
        own.check_files()
        provenance = collect(device_of(own))
        splits = load_splits(own)
        method = Steps(trainer_of_stage(own, Path(trials), splits, epoch))
        baseline = Steps(dense_trainer(other, Path(trials), splits, method.image_size))
        again = Steps(dense_trainer(other, Path(trials), splits, method.image_size)) if twice else None
    except UsageError as error:
        return {"error": str(error)}
    for steps in filter(None, (method, baseline, again)):
        warm_up(steps)
    expected = Cost(**{**cost, "flops": tuple(cost["flops"])})
    if reason := other_cost(method, expected, executed_before):
        return {"error": reason}
    seconds = method.seconds + baseline.seconds
    method()
    baseline()
    seconds = method.seconds + baseline.seconds - seconds
    count = max(FEWEST_PAIRS, min(pairs, int(limit_s / max(seconds, 1e-9))))
    return {
        "times": _times(method, baseline, count),
        "twice": _times(again, baseline, count) if again else [],
        "image_size": method.image_size,
        "dense_steps": _dense_steps(own.make_recipe(), splits),
        "provenance": provenance,
    }


def _dense_steps(recipe: Recipe, splits: Splits) -> list[tuple[int | None, int]]:
    """Return the successive steps of dense training with each size of training images, in order."""
    return [
        (size, len(list(epochs)) * splits.training(size).steps_per_epoch(recipe.batch_size))
        for size, epochs in groupby(recipe.train_sizes_by_epoch())
    ]


def _times(first: Steps, second: Steps, pairs: int) -> list[list[float]]:
    times = interleaved_times(first, second, pairs, now=lambda: first.seconds + second.seconds)
    return [list(map(float, pair)) for pair in times]
