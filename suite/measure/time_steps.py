"""Steps of all stages of a trial and of dense in turn, in a new process (`suite.measure.time_pass`)."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle, groupby
from pathlib import Path
from typing import Any

from suite.engine.cost.clock import stamps_of
from suite.engine.cost.hardware import busy_cores
from suite.engine.cost.interleaved import interleaved_times
from suite.engine.training.trainer import Trainer
from suite.errors import UsageError
from suite.measure.steps import Steps, at_phase, dense_phase, other_cost, splits_of_dense, trainer_of_stage, warm_up
from suite.measure.times import FEWEST_PAIRS
from suite.recipe import Phase, Recipe
from suite.task import Splits
from suite.trials.building import build_trainer, device_of, load_splits
from suite.trials.provenance import collect
from suite.trials.spec import TrialSpec
from suite.trials.stages import Cost, end_file, stage_file

TURN_S = 0.05
"""Least seconds of a trainer's turn, so that the caches are its own and not the other trainer's."""
MOST_STEPS = 20
"""Most steps of a turn."""

Pairs = list[list[float]]


def measure(
    spec: Mapping[str, Any],
    dense: Mapping[str, Any],
    trials: str,
    stages: Sequence[Mapping[str, Any]],
    pairs: int,
    method_built_first: bool,
    method_steps_first: bool,
    choose_again: bool,
) -> dict[str, Any]:
    """Measure steps of all stages of a trial in turn with dense steps, and dense steps with those of a second trainer.

    A stage is measured in the state in which it began, and in the state in which it ended if the trial kept that one.
    Both trainers are built anew for each state. Which trainer is built first alternates, because the second of two
    dense trainers was 0.4 % faster in the mean of 20 passes that always built it second.

    Args:
        spec, dense: Specifications of the trial and of dense training.
        trials: Folder of the trials.
        stages: Fields of each `Stage`.
        pairs: Pairs of turns. The states share them by their steps, with at least `FEWEST_PAIRS` each.
        method_built_first: Whether the trainer of the method is built first in the first state.
        method_steps_first: Whether the method has the first turn of each state.
        choose_again: Whether the method repeats the measurements that it chooses by.

    Returns:
        `stages`: for each stage `image_size` and `frozen`, the phase of its dense steps, `start` and `end`, pairs of
        seconds of a step of the method and of dense, and `reconfigure_s`, seconds of what follows its last step
        (`Trainer.finish_epoch`); the last two are `None` for an end that was not kept; `twice`: pairs of the second
        dense trainer and the first; `dense`: steps of dense training, as successive pairs of a phase and a number;
        `dense_reconfigure_s`: seconds of dense's `precise_bn`; `load`: cores that other programs used; `provenance`. If
        the trial cannot be measured, only `error`, the reason.
    """
    own, dense_spec, folder = TrialSpec.from_json(spec), TrialSpec.from_json(dense), Path(trials)
    loads: list[float] = []
    built_first = cycle((method_built_first, not method_built_first))

    def of_trial(path: Path | None) -> Callable[[], Trainer]:
        return lambda: trainer_of_stage(own, folder, splits, path, choose_again)

    def of_dense() -> Trainer:
        return build_trainer(dense_spec, folder, dense_splits)

    try:
        own.check_files()
        provenance = collect(device_of(own))
        splits = load_splits(own)
        dense_splits = splits_of_dense(dense_spec, own, splits)
        of_stages: list[dict[str, Any]] = []
        before = stages[0]["cost"]["flops"][0]  # the step before the first stage is dense
        for stage, states in _states(folder / own.trial_id, stages, pairs):
            cost = Cost(**{**stage["cost"], "flops": tuple(stage["cost"]["flops"])})
            refuse = partial(other_cost, expected=cost, executed_before=before, chosen_again=choose_again)
            of_stages.append({"start": None, "end": None, "reconfigure_s": None})
            phase = None
            for name, (path, count) in states.items():
                both = (of_trial(path), of_dense)
                times, (trainer, other) = in_turn(both, count, next(built_first), method_steps_first, refuse, phase)
                phase = other.ledger.phase
                of_stages[-1] |= {name: times, **phase._asdict()}
                if name == "end":
                    of_stages[-1]["reconfigure_s"] = _reconfigure_s(trainer, trainer.finish_epoch)
                loads.append(busy_cores())
            before = cost.executed
        twice: Pairs = []
        first = Phase(of_stages[0]["image_size"], of_stages[0]["frozen"])
        both = (lambda: at_phase(of_dense(), first), of_dense)
        for first_is_built_first in (method_built_first, not method_built_first):
            count = max(FEWEST_PAIRS, pairs // 2)
            times, (_, trainer) = in_turn(both, count, first_is_built_first, method_steps_first)
            twice += times
            loads.append(busy_cores())
        last = Steps(at_phase(trainer, trainer.recipe.phases()[-1])).trainer  # which begins its epoch
        statistics = last.estimate_statistics if last.recipe.precise_bn else lambda: None
    except UsageError as error:
        return {"error": str(error)}
    return {
        "stages": of_stages,
        "twice": twice,
        "dense": _dense_steps(dense_spec.make_recipe(), dense_splits),
        "dense_reconfigure_s": _reconfigure_s(last, statistics),
        "load": max(float(provenance["busy_cores"]), *loads),
        "provenance": provenance,
    }


def in_turn(
    trainers: tuple[Callable[[], Trainer], Callable[[], Trainer]],
    count: int,
    first_is_built_first: bool,
    first_begins: bool,
    refuse: Callable[[Steps], str] = lambda steps: "",
    phase: Phase | None = None,
) -> tuple[Pairs, tuple[Trainer, Trainer]]:
    """Build two trainers, and return seconds of a step of each in pairs of turns, and the trainers after these steps.

    Args:
        trainers: Functions that build them. The second trainer is dense.
        count: Number of pairs.
        first_is_built_first: Whether the first trainer is built and warmed up first.
        first_begins: Whether the first trainer has the first turn.
        refuse: Returns why the steps of the first trainer cannot be measured; empty if they can.
        phase: Phase of the second trainer; by default, that in which the first one's epoch has its place.

    Raises:
        UsageError: The steps cannot be measured.
    """
    gc.collect()  # frees earlier trainers, so that their memory does not decide where these trainers are
    order = (0, 1) if first_is_built_first else (1, 0)
    built = {number: trainers[number]() for number in order}
    first = Steps(built[0])
    both = (first, Steps(at_phase(built[1], phase or dense_phase(built[0], built[1].recipe))))
    seconds = {number: warm_up(both[number]) for number in order}
    if reason := refuse(first):
        raise UsageError(reason)
    lengths = [min(MOST_STEPS, math.ceil(TURN_S / max(seconds[number], 1e-9))) for number in (0, 1)]

    def turn(number: int) -> None:
        for _ in range(lengths[number]):
            both[number]()

    stamps = stamps_of(first.trainer.device)
    times = interleaved_times((partial(turn, 0), partial(turn, 1)), count, stamps, last_begins=not first_begins)
    return [list(map(float, pair)) for pair in times / lengths], (both[0].trainer, both[1].trainer)


def _reconfigure_s(trainer: Trainer, call: Callable[[], object]) -> float:
    """Return the seconds of a call that a trial's clock counts as reconfiguration."""
    before = trainer.clock.seconds["reconfigure"]
    call()
    return trainer.clock.seconds["reconfigure"] - before


def _states(
    folder: Path, stages: Sequence[Mapping[str, Any]], pairs: int
) -> Iterator[tuple[Mapping[str, Any], dict[str, tuple[Path | None, int]]]]:
    """Yield each stage with its states: the file of the state, `None` for the new network, and its number of pairs."""
    steps = sum(stage["steps"] for stage in stages)
    for stage in stages:
        start = stage_file(folder, stage["epoch"]) if stage["epoch"] > 1 else None
        end = end_file(folder, stage["last"])
        files = {"start": start, **({"end": end} if end.is_file() else {})}
        count = max(FEWEST_PAIRS, round(pairs * stage["steps"] / steps / len(files)))
        yield stage, {name: (path, count) for name, path in files.items()}


def _dense_steps(recipe: Recipe, splits: Splits) -> list[tuple[Phase, int]]:
    """Return the successive steps of dense training in each phase, in order."""

    def steps_in(epoch: int, phase: Phase) -> int:
        return recipe.steps_in(epoch, splits.training(phase.image_size).steps_per_epoch(recipe.batch_size))

    return [
        (phase, sum(steps_in(epoch, phase) for epoch, _ in several))
        for phase, several in groupby(enumerate(recipe.phases()), key=lambda one: one[1])
    ]
