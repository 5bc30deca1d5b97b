"""The file of the time pass, `time.json`: training times relative to dense, by group of trials and method.

    {"version": 1, "groups": [{"key": {name: text}, "methods": {label: {...}}}]}

`key` has the names and texts of `reports.data.groups.KEY`; `label` is the method with its parameters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt
from pydantic import BaseModel, ConfigDict, Field

from suite import files
from suite.errors import UsageError, validate

NAME = "time.json"
LARGEST = 64 * 2**20  # bytes

Ratio = Annotated[float, Gt(0), Field(allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Interval(_Strict):
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


class GroupTimes(_Strict):
    """Times of one group of comparable trials.

    Attributes:
        key: Text of each part of the group's key.
        methods: Times by method with its parameters.
    """

    key: dict[str, str]
    methods: dict[str, MethodTime]


class TimesFile(_Strict):
    """The whole file."""

    version: Literal[1]
    groups: list[GroupTimes]


def read_times(folder: Path) -> list[GroupTimes]:
    """Return the times in a suite's folder; empty if no time pass was run.

    Raises:
        UsageError: `time.json` is damaged; one line.
    """
    path = folder / NAME
    files.refuse_link(path)
    if not path.exists():
        return []
    try:
        data = json.loads(files.read_bytes(path, "time", LARGEST))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {error}; delete it and run the time pass again") from error
    groups: list[GroupTimes] = validate(TimesFile, data, f"{path} is damaged").groups
    if len({tuple(sorted(group.key.items())) for group in groups}) < len(groups):
        raise UsageError(f"{path} is damaged: a group occurs twice; delete it and run the time pass again")
    return groups
