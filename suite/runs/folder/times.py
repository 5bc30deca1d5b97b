"""The entries of the file of the time pass, `time.json`: training times relative to dense."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Ge, Gt
from pydantic import Field

from suite.runs.folder.entries import Content, EntryFile, GroupEntries, Strict

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
    """

    epoch: Annotated[int, Ge(1)]
    steps: Annotated[int, Ge(1)]
    pairs: Annotated[int, Ge(2)]


class MethodTime(Interval):
    """Training time of one method relative to dense, as the time pass measured it.

    Attributes:
        trial: Id of the trial whose stages were measured: the lowest seed that is done.
        pairs: Pairs of steps that were measured, in all stages.
        stages: The stages, in order.
        dense_steps: Steps of dense training with this recipe.
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
    reconfiguration: Annotated[float, Ge(0), Field(allow_inf_nan=False)]
    dense_twice: Interval
    load: Annotated[float, Ge(0), Field(allow_inf_nan=False)]
    threads: Annotated[int, Ge(1)]
    provenance: dict[str, Any]


GroupTimes = GroupEntries[MethodTime]
TIMES = EntryFile("time.json", "time pass", Content[MethodTime])
