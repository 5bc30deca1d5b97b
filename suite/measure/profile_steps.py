"""Profiles steps of a stage and of dense training, in a new process (`suite.measure.profile_pass`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suite.engine.cost.clock import PARTS, Key, StepClock, stamps_of
from suite.engine.cost.flops import PRODUCTS
from suite.engine.cost.interleaved import interleaved_times, ratio_of
from suite.engine.cost.roofline import Machine, measure_machine, moved_bytes
from suite.engine.network.layers import backend_name
from suite.engine.network.planned_layer import PlannedLayer
from suite.errors import UsageError
from suite.measure.steps import Steps, at_phase, dense_phase, other_cost, splits_of_dense, trainer_of_stage, warm_up
from suite.trials.building import build_trainer, device_of, load_splits
from suite.trials.provenance import collect
from suite.trials.spec import TrialSpec
from suite.trials.stages import Cost, stage_file

FEWEST_ROUNDS = 6
WARM_UPS = 2  # steps with clocks


class ProfiledSteps:
    """Steps of one trainer, with or without clocks.

    Args:
        steps: The steps. Their trainer runs eagerly, because parts of a compiled step cannot be timed.

    Attributes:
        parts: Seconds of the parts of each step with clocks.
        flops: FLOPs of the last step with clocks, by layer, product and column of the ledger.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps, self.trainer = steps, steps.trainer
        self._clock = StepClock(self.trainer.device)
        self.parts: list[dict[Key, float]] = []
        self.flops: dict[str, dict[str, dict[str, float]]] = {}

    def clocked(self) -> None:
        """Run a step with clocks."""
        flops = deepcopy(self.trainer.ledger.state_dict()["interval"])
        with self.trainer.runner.timed_by(self._clock):
            self._clock.begin()
            with self._clock.span("input"):
                batch = self.steps.next_batch()
            self.trainer.train_step(batch)
            self.parts.append(self._clock.end())
        self.flops = _difference(self.trainer.ledger.state_dict()["interval"], flops)


@dataclasses.dataclass(frozen=True)
class Samples:
    """Measured steps of one trainer.

    Attributes:
        plain, clocked: Seconds of each step without and with clocks.
        parts: Seconds of the parts of each step with clocks.
    """

    steps: ProfiledSteps
    plain: NDArray[np.float64]
    clocked: NDArray[np.float64]
    parts: Sequence[Mapping[Key, float]]


def measure(
    spec: Mapping[str, Any],
    dense: Mapping[str, Any] | None,
    trials: str,
    epoch: int,
    cost: Mapping[str, Any],
    executed_before: float,
    rounds: int,
    limit_s: float,
) -> dict[str, Any]:
    """Profile steps of one stage of a trial, in turn with dense steps.

    Args:
        dense: Specification of dense training; `None` if that is the trial.
        trials: Folder of the trials.
        epoch: First epoch of the stage.
        cost: Fields of the `Cost` of the stage.
        executed_before: FLOPs that a step before the stage executed.
        rounds: Number of rounds. Each has a step with clocks and one without, of the trial and of dense.
        limit_s: Seconds that the rounds may take. Fewer rounds are measured if they take longer, but at least 6.

    Returns:
        `method`, `dense` and `ratio`, as in `suite.measure.profiles.StageProfile`, `machine` and `provenance`. If
        the stage cannot be measured, only `error`, the reason.
    """
    try:
        own = TrialSpec.from_json(spec)
        own.check_files()
        place = device_of(own)
        provenance = collect(place)
        splits = load_splits(own)
        start = stage_file(Path(trials) / own.trial_id, epoch) if epoch > 1 else None
        steps = [ProfiledSteps(Steps(trainer_of_stage(own, Path(trials), splits, start, eager=True)))]
        if dense is not None:
            of_dense = TrialSpec.from_json(dense)
            baseline = build_trainer(of_dense, Path(trials), splits_of_dense(of_dense, own, splits), eager=True)
            phase = dense_phase(steps[0].trainer, baseline.recipe)
            steps.append(ProfiledSteps(Steps(at_phase(baseline, phase))))
    except UsageError as error:
        return {"error": str(error)}
    for one in steps:
        warm_up(one.steps)
    expected = Cost(**{**cost, "flops": tuple(cost["flops"])})
    if reason := other_cost(steps[0].steps, expected, executed_before):
        return {"error": reason}
    machine = measure_machine(place, steps[0].trainer.dtype)
    warm = run_rounds(steps, WARM_UPS)
    seconds = sum(one.plain.sum() + one.clocked.sum() for one in warm) / WARM_UPS
    samples = run_rounds(steps, max(FEWEST_ROUNDS, min(rounds, int(limit_s / max(seconds, 1e-9)))))
    machine = machine.better(measure_machine(place, steps[0].trainer.dtype))
    profiles = [summary(one, machine) for one in samples]
    return {
        "method": profiles[0],
        "dense": profiles[1] if dense is not None else None,
        "ratio": interval(samples[0].plain, samples[1].plain) if dense is not None else None,
        "machine": {
            "macs_per_s": machine.macs_per_s,
            "copies": [{"bytes": size, "bytes_per_s": rate} for size, rate in machine.copies],
        },
        "provenance": provenance,
    }


def run_rounds(steps: Sequence[ProfiledSteps], rounds: int) -> list[Samples]:
    """Measure steps of several trainers in turn, each without and with clocks."""
    calls = [call for trainer in steps for call in (trainer.steps, trainer.clocked)]
    times = interleaved_times(calls, rounds, stamps_of(steps[0].trainer.device))
    columns = zip(times[:, ::2].T, times[:, 1::2].T, strict=True)
    return [Samples(trainer, *both, trainer.parts[-rounds:]) for trainer, both in zip(steps, columns, strict=True)]


def summary(samples: Samples, machine: Machine) -> dict[str, Any]:
    """Return the fields of `suite.measure.profiles.StepProfile`."""
    chosen = faster_half(samples.clocked)
    keys = dict.fromkeys(key for index in chosen for key in samples.parts[index])
    seconds = {key: sum(samples.parts[index].get(key, 0.0) for index in chosen) / len(chosen) for key in keys}
    plain = faster_half(samples.plain)
    return {
        "batch_size": samples.steps.trainer.ctx.batch_size,
        "rounds": len(samples.clocked),
        "step_s": float(samples.plain[plain].mean()),
        "clocked_s": float(samples.clocked[chosen].mean()),
        "clocks": interval(samples.clocked, samples.plain),
        "parts": {part: sum(value for (name, _), value in seconds.items() if name == part) for part in PARTS},
        "layers": [_layer(name, samples.steps, seconds, machine) for name in samples.steps.trainer.ledger.dense],
    }


def faster_half(seconds: ArrayLike) -> list[int]:
    """Return the indices of the faster half of measured times, which other programs disturbed least."""
    order: list[int] = np.argsort(seconds, kind="stable").tolist()
    return order[: (len(order) + 1) // 2]


def interval(first: ArrayLike, second: ArrayLike) -> dict[str, float]:
    """Return the median ratio of times that were measured next to each other, with its interval."""
    ratio = ratio_of(first, second)
    return {"ratio": ratio.median, "low": ratio.low, "high": ratio.high}


def _layer(name: str, steps: ProfiledSteps, seconds: Mapping[Key, float], machine: Machine) -> dict[str, Any]:
    """Return the fields of `suite.measure.profiles.LayerProfile`."""
    trainer = steps.trainer
    built = trainer.ledger.dense[name]
    cost, layer = trainer.ledger.current.get(name), trainer.ctx.layers.get(name)
    products: dict[str, Any] = {}
    for product in PRODUCTS:
        if not built.flops(product):
            continue
        flops = steps.flops[name][product]
        timed = isinstance(layer, PlannedLayer) and cost is not None
        bound = None
        if timed and flops["current"]:
            moved = _moved_bytes(steps, name, product, flops["executed"] / flops["current"])
            bound = {"bytes": moved, **dataclasses.asdict(machine.bound(flops["executed"] / 2, moved))}
        products[product] = {
            **flops,
            "seconds": seconds.get((product, name), 0.0) if timed else None,
            "bound": bound,
        }
    return {
        "name": name,
        "kind": built.kind,
        "in_channels": cost.in_channels if cost else 0,
        "out_channels": cost.out_channels if cost else 0,
        "kernel": built.kernel,
        "input": built.input,
        "output": built.output,
        "backend": backend_name(layer) if layer is not None else "torch",
        "products": products,
        "pruning_s": seconds.get(("pruning", name), 0.0),
    }


def _moved_bytes(steps: ProfiledSteps, name: str, product: str, executed: float) -> float:
    """Return the bytes that a product of a planned layer must move in a step."""
    trainer = steps.trainer
    cost, weight = trainer.ledger.current[name], trainer.ctx.layers[name].weight
    images = trainer.ctx.batch_size
    multiplied = cost.macs / max(weight[0].numel(), 1)  # elements of O for each weight that multiplies
    # A convolution with a stride may leave out elements of A.
    read = min(cost.input_elements, multiplied / cost.out_channels * cost.in_channels * cost.kernel[0] * cost.kernel[1])
    activation, output, weights = images * read, images * multiplied, float(weight.numel())
    operands = {
        "forward": (weights, activation, output),
        "dgrad": (output, weights, float(images * cost.input_elements)),
        "wgrad": (output, activation, weights),
    }
    return moved_bytes(*operands[product], executed, trainer.dtype.itemsize)


def _difference(after: Any, before: Any) -> Any:
    """Return the difference of numbers in equal nested dictionaries."""
    if isinstance(after, dict):
        return {name: _difference(value, before[name]) for name, value in after.items()}
    return after - before
