"""The entries of the file of the time pass, `time.json`: training times relative to dense."""

from __future__ import annotations

import math
from typing import Annotated, Any

from annotated_types import Ge, Gt
from pydantic import Field, model_validator

from suite.runs.folder.entries import Content, EntryFile, GroupEntries, Strict

BUSY = 0.5
"""Cores that other programs use, as a share of a measurement's threads, from which it is disturbed."""
Ratio = Annotated[float, Gt(0), Field(allow_inf_nan=False)]


class Interval(Strict):
    """A ratio of times with its 95 % interval (percentile bootstrap over pairs of steps)."""

    ratio: Ratio
    low: Ratio
    high: Ratio


class StageTime(Interval):
    """Time of a step of one stage, relative to a dense step.

    Attributes:
        epoch: First epoch of the stage, counted from 1.
        steps: Steps of the trial that the stage stands for.
        pairs: Pairs of steps that were measured.
        image_size: Side of the training images in pixels, if they have several sizes; otherwise `None`.
    """

    epoch: Annotated[int, Ge(1)]
    steps: Annotated[int, Ge(1)]
    pairs: Annotated[int, Ge(2)]
    image_size: Annotated[int, Ge(1)] | None = None


class DenseSize(Strict):
    """Successive dense steps with training images of one of several sizes.

    Attributes:
        image_size: Side of the images in pixels.
        steps: Number of these steps.
        step: Time of one of them, relative to the mean of all dense steps.
    """

    image_size: Annotated[int, Ge(1)]
    steps: Annotated[int, Ge(1)]
    step: Ratio


class PassTime(Interval):
    """Training time of one method relative to dense, as one time pass measured it. The interval covers its steps.

    Attributes:
        trial: Id of the trial whose stages were measured.
        pairs: Pairs of steps that were measured, in all stages.
        stages: The stages, in order.
        dense_steps: Steps of dense training with this recipe.
        dense_sizes: The same steps in order, successive ones with images of one size together; empty if all images
            have one size.
        reconfiguration: Part of `ratio` that is the recorded time of reconfigurations.
        dense_twice: Steps of a second dense trainer relative to dense steps.
        load: Largest number of cores that other programs used when a measurement began.
        threads: Threads that torch computed with.
        provenance: Machine, versions, commit and time of the first measurement (`suite.runs.provenance`).
    """

    trial: str
    pairs: Annotated[int, Ge(2)]
    stages: Annotated[tuple[StageTime, ...], Field(min_length=1)]
    dense_steps: Annotated[int, Ge(1)]
    dense_sizes: tuple[DenseSize, ...] = ()
    reconfiguration: Annotated[float, Ge(0), Field(allow_inf_nan=False)]
    dense_twice: Interval
    load: Annotated[float, Ge(0), Field(allow_inf_nan=False)]
    threads: Annotated[int, Ge(1)]
    provenance: dict[str, Any]

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs ran when a measurement began."""
        return self.load >= BUSY * self.threads

    def share_of_step(self, stage: StageTime) -> float:
        """Return the part of dense's training time that a dense step with the images of a stage takes."""
        relative = {one.image_size: one.step for one in self.dense_sizes}
        return relative.get(stage.image_size or 0, 1.0) / self.dense_steps

    def dense_share(self, progress: float) -> float:
        """Return the part of dense's training time after a part of its steps."""
        done = progress * self.dense_steps
        if not self.dense_sizes:
            return progress
        time = 0.0
        for one in self.dense_sizes:
            steps = min(done, one.steps)
            time, done = time + steps * one.step, done - steps
        return time / self.dense_steps


class MethodTime(Strict):
    """Training time of one method relative to dense, in one or more passes.

    Attributes:
        passes: The passes, in the order in which they were measured; an entry without them is one pass.
    """

    passes: Annotated[tuple[PassTime, ...], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _of_one_pass(cls, entry: Any) -> Any:
        return {"passes": [entry]} if isinstance(entry, dict) and "passes" not in entry else entry

    @model_validator(mode="after")
    def _have_one_number_of_threads(self) -> MethodTime:
        if len({one.threads for one in self.passes}) > 1:
            raise ValueError("its passes have different numbers of threads")
        return self

    @property
    def sound(self) -> tuple[PassTime, ...]:
        """The passes that other programs did not disturb."""
        return tuple(one for one in self.passes if not one.is_disturbed)

    @property
    def is_disturbed(self) -> bool:
        """Whether no pass is undisturbed."""
        return not self.sound

    @property
    def ratio(self) -> float:
        """Geometric mean of the ratios of the undisturbed passes, or of all if there are none."""
        counted = self.sound or self.passes
        return math.exp(math.fsum(math.log(one.ratio) for one in counted) / len(counted))

    @property
    def threads(self) -> int:
        """Threads that torch computed with."""
        return self.passes[0].threads

    def pass_of(self, trial: str) -> PassTime:
        """Return a pass that measured the stages of a trial, or the first one if none did."""
        return next((one for one in self.passes if one.trial == trial), self.passes[0])


GroupTimes = GroupEntries[MethodTime]
TIMES = EntryFile("time.json", "time pass", Content[MethodTime])
