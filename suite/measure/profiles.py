"""The content of the file of the profile pass, `profile.json`: where the time of a training step goes."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, MinLen
from pydantic import Field

from suite.measure.times import Content, Count, EntryFile, GroupEntries, NotNegative
from suite.trials.folder.records import Strict

Positive = Annotated[float, Gt(0), Field(allow_inf_nan=False)]
Product = Literal["forward", "dgrad", "wgrad"]
Part = Literal["forward", "dgrad", "wgrad", "normalization", "pruning", "optimizer", "input", "network", "rest"]
PART_TITLES: dict[Part, str] = {
    "forward": "forward",
    "dgrad": "data gradient",
    "wgrad": "weight gradient",
    "normalization": "normalisation and activation",
    "network": "other operations of the network",
    "pruning": "pruning",
    "optimizer": "optimizer",
    "input": "input",
    "rest": "rest",
}
ADDS_UP = 0.1
"""Relative difference up to which the parts add up to a step without clocks."""


class Interval(Strict):
    """A ratio of times with its 95 % interval (percentile bootstrap over pairs of steps)."""

    ratio: Positive
    low: Positive
    high: Positive


class LowerBound(Strict):
    """The least time of a product on this machine.

    Attributes:
        bytes: Bytes that the product must read and write.
        seconds: The larger of multiply-adds over the peak and bytes over the rate of a copy.
        by: The larger of the two, by name.
    """

    bytes: NotNegative
    seconds: NotNegative
    by: Literal["multiply-adds", "bytes"]


class ProductProfile(Strict):
    """One product of one layer in a step.

    Attributes:
        dense, current, effective, executed: FLOPs of the step, as in `layers.csv`.
        seconds: Measured time; `None` if the layer is not planned, because its products are then not timed.
        bound: Lower bound of the time; `None` if the product is not timed.
    """

    dense: NotNegative
    current: NotNegative
    effective: NotNegative
    executed: NotNegative
    seconds: NotNegative | None
    bound: LowerBound | None


class LayerProfile(Strict):
    """One layer in a step.

    Attributes:
        name: Name of the layer. Other matrix products have the name of a module, a colon and the kind of product (for
            example `:attention`), as in `layers.csv`.
        kind: `conv`, `linear` or `attention`.
        in_channels, out_channels, kernel, input, output: C, K, (R, S), (H, W), (P, Q) in this stage. A removed layer
            has no channels.
        backend: Name of the backend that computed the products.
        products: The products that the layer has; the first layer of a network has no data gradient.
        pruning_s: Seconds of the plan's transforms.
    """

    name: str
    kind: str
    in_channels: Annotated[int, Ge(0)]
    out_channels: Annotated[int, Ge(0)]
    kernel: tuple[int, int]
    input: tuple[int, int]
    output: tuple[int, int]
    backend: str
    products: dict[Product, ProductProfile]
    pruning_s: NotNegative


class StepProfile(Strict):
    """A training step.

    Attributes:
        batch_size: Images of the step.
        rounds: Number of steps measured with clocks. As many were measured without.
        step_s: Seconds of a step without clocks: mean over the faster half of the steps.
        clocked_s: Seconds of a step with clocks, in the same way.
        clocks: Time of a step with clocks relative to the step without clocks that ran next to it.
        parts: Seconds of each part (`suite.engine.cost.clock.PARTS`), over the same steps as `clocked_s`.
        layers: The layers, in the order in which they run.
    """

    batch_size: Count
    rounds: Annotated[int, Ge(2)]
    step_s: Positive
    clocked_s: Positive
    clocks: Interval
    parts: dict[Part, NotNegative]
    layers: tuple[LayerProfile, ...]

    @property
    def sum_over_step(self) -> float:
        """Sum of the parts relative to the step without clocks that ran next to the measured step."""
        return math.fsum(self.parts.values()) / self.clocked_s * self.clocks.ratio

    @property
    def adds_up(self) -> bool:
        """Whether the parts add up to a step without clocks."""
        return abs(self.sum_over_step - 1) <= ADDS_UP


class StageProfile(Strict):
    """Steps of one stage of a trial.

    Attributes:
        epoch: First epoch of the stage, counted from 1.
        steps: Steps of the trial that the stage stands for.
        method: A step of the method.
        dense: A dense step, measured in turn with those of the method; `None` if the method is dense.
        ratio: Time of a step relative to a dense step, both without clocks; `None` if the method is dense.
    """

    epoch: Count
    steps: Count
    method: StepProfile
    dense: StepProfile | None
    ratio: Interval | None


class CopyRate(Strict):
    """Rate of a copy that reads and writes a number of bytes together."""

    bytes: Count
    bytes_per_s: Positive


class MachineRates(Strict):
    """What the machine can do at most, measured in the same process as the steps.

    Attributes:
        macs_per_s: Multiply-adds per second of a large matrix product in the type of the products.
        copies: Rates of copies, ascending in bytes.
    """

    macs_per_s: Positive
    copies: Annotated[tuple[CopyRate, ...], MinLen(1)]


class MethodProfile(Strict):
    """Where the time of the steps of one method goes.

    Attributes:
        trial: Id of the trial whose stages were measured: the lowest seed that is done.
        stages: The stages that were measured, in order.
        stages_of_trial: Number of stages of the trial.
        machine: Peak and rates of copies.
        execution: The recipe's execution; the profiled steps run eagerly.
        dtype: Type of the products.
        load: Largest number of cores that other programs used when a measurement began.
        threads: Threads that torch computed with.
        provenance: Machine, versions, commit and time of the first measurement (`suite.trials.provenance`).
    """

    trial: str
    stages: Annotated[tuple[StageProfile, ...], MinLen(1)]
    stages_of_trial: Count
    machine: MachineRates
    execution: str
    dtype: str
    load: NotNegative
    threads: Count
    provenance: dict[str, Any]


GroupProfiles = GroupEntries[MethodProfile]
PROFILES = EntryFile("profile.json", "profile", Content[MethodProfile])
