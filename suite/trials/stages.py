"""Stages of a trial: epochs whose training steps cost the same, each with states from which such steps run again.

A trial keeps the checkpoint from which the first epoch of a stage started, as `stages/EPOCH.pt`. The first stage has no
such file, because it starts from the new network. The cost of a step may depend on the weights, so a trial also keeps
the state after the last step of a stage. It is `stages/EPOCH-end.pt`, for the last epoch of the stage, and precedes the
reconfiguration or the end of the training. The `epochs.jsonl` of a trial alone determines its stages.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from suite import files

MOST_STAGES = 12
MOST_BYTES = 2**30
"""Largest size of all ends of a trial's stages together. An end that exceeds it is not kept."""
TOLERANCE = 1e-3
"""Relative difference of FLOPs up to which two steps cost the same, because measured densities vary a little."""
FLOPS = ("dense", "current", "effective", "executed")
"""Ways in which FLOPs are counted."""


@dataclass(frozen=True)
class Cost:
    """What the time of a step depends on, as a record of `epochs.jsonl` has it.

    Attributes:
        batch_size: Images per step.
        flops: FLOPs of a step: dense, current, effective, executed.
        backends: Backend by layer.
        overhead: Operations of the method itself.
        frozen: Whether the parameters of `recipe.freeze` are frozen.
    """

    batch_size: int
    flops: tuple[float, ...]
    backends: Mapping[str, str]
    overhead: float
    frozen: bool = False

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Cost:
        """Return the cost of an epoch's last full step."""
        flops = tuple(float(record["step_flops"][name]) for name in FLOPS)
        backends = dict(record.get("backends") or {})
        return cls(record["batch_size"], flops, backends, float(record["step_overhead"]), "frozen" in record)

    def equals(self, other: Cost) -> bool:
        """Return whether the steps cost the same."""
        pairs = zip((*self.flops, self.overhead), (*other.flops, other.overhead), strict=True)
        equal = (self.batch_size, self.backends, self.frozen) == (other.batch_size, other.backends, other.frozen)
        return equal and all(math.isclose(mine, theirs, rel_tol=TOLERANCE) for mine, theirs in pairs)

    def with_backends_of(self, other: Cost) -> Cost:
        """Return this cost with the backends of another cost, and the FLOPs that those execute."""
        return dataclasses.replace(self, backends=other.backends, flops=(*self.flops[:-1], other.executed))

    @property
    def dense_per_image(self) -> float:
        """FLOPs of the dense network for one image. They depend only on the size of the images."""
        return self.flops[FLOPS.index("dense")] / self.batch_size

    @property
    def executed(self) -> float:
        """FLOPs that the backends execute in a step."""
        return self.flops[FLOPS.index("executed")]


@dataclass(frozen=True)
class Stage:
    """One stage of a trial.

    Attributes:
        epoch, last: Its first and last epoch, counted from 1; its files have these numbers.
        steps: Number of steps that the stage stands for.
        cost: Cost of a step in its first epoch.
    """

    epoch: int
    last: int
    steps: int
    cost: Cost


class StageList:
    """The stages of a training, from the records of its epochs.

    A stage ends when the cost of a step changes. At most `MOST_STAGES` are kept: if there is one more, the stage is
    dropped whose neighbours are nearest to each other in executed FLOPs. The kept stages are thus spread over the cost.
    The first and the newest stage are never dropped. The only stage with images of its size is dropped last. Steps of a
    dropped stage count for the neighbour that executes the nearest number of FLOPs; a neighbour with images of the same
    size has precedence.

    Args:
        records: Records of `epochs.jsonl`, in order.

    Raises:
        ValueError: A record lacks what a stage needs.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self._stages: list[Stage] = []
        self._kept: list[int] = []  # indices in `_stages`
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the record of the next epoch."""
        try:
            cost, epoch, steps = Cost.of(record), record["epoch"], int(record["steps"])
        except (KeyError, TypeError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else f"is damaged ({error})"
            raise ValueError(f"epoch {record.get('epoch')} {what} in epochs.jsonl") from error
        if self._stages and self._stages[-1].cost.equals(cost):
            self._stages[-1] = dataclasses.replace(self._stages[-1], last=epoch, steps=self._stages[-1].steps + steps)
            return
        self._kept.append(len(self._stages))
        self._stages.append(Stage(epoch, epoch, steps, cost))
        if len(self._kept) > MOST_STAGES:
            del self._kept[_least_needed([self._stages[index].cost for index in self._kept])]

    def stages(self) -> list[Stage]:
        """Return the kept stages in order. Together they have the steps of all epochs."""
        steps = {index: self._stages[index].steps for index in self._kept}
        for before, after in pairwise(self._kept):
            for index in range(before + 1, after):
                costs = {near: self._stages[near].cost for near in (before, after)}
                steps[_nearest(self._stages[index].cost, costs)] += self._stages[index].steps
        return [dataclasses.replace(self._stages[index], steps=steps[index]) for index in self._kept]


def _same_images(first: Cost, second: Cost) -> bool:
    return math.isclose(first.dense_per_image, second.dense_per_image, rel_tol=TOLERANCE)


def _nearest(cost: Cost, others: Mapping[int, Cost]) -> int:
    return min(others, key=lambda key: (not _same_images(others[key], cost), abs(others[key].executed - cost.executed)))


def _least_needed(costs: Sequence[Cost]) -> int:
    """Return the index of the stage to drop, which is neither the first nor the last."""

    def needed(index: int) -> tuple[bool, float]:
        alone = sum(_same_images(costs[index], other) for other in costs) == 1
        return alone, abs(costs[index + 1].executed - costs[index - 1].executed)

    return min(range(1, len(costs) - 1), key=needed)


def stage_file(folder: Path, epoch: int) -> Path:
    """Return the file with the state from which a trial started an epoch."""
    return folder / "stages" / f"{epoch}.pt"


def end_file(folder: Path, epoch: int) -> Path:
    """Return the file with the state after the last step of an epoch that ended a stage."""
    return folder / "stages" / f"{epoch}-end.pt"


class StageKeeper:
    """Keeps the files of a trial's stages while it trains.

    Args:
        folder: Folder of the trial.
        records: Records of the epochs before a resumption. Files of later epochs are removed.
    """

    def __init__(self, folder: Path, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self._folder, self._list = folder, StageList(records)
        self._ends_fit = True
        self._remove_others()

    def keep_end(self, epoch: int, save: Callable[[Path], None]) -> None:
        """Keep the state after the last step of an epoch, which ends a stage if the next epoch has another cost.

        If one state did not fit into `MOST_BYTES`, no later state is kept.

        Args:
            epoch: The epoch. Its record is added later.
            save: Writes the state to a file.
        """
        if self._ends_fit:
            (self._folder / "stages").mkdir(parents=True, exist_ok=True)
            save(end_file(self._folder, epoch))

    def add(self, record: Mapping[str, Any]) -> None:
        """Add an epoch. Call this while the epoch's start is still in `checkpoint.pt`.

        Raises:
            OSError: The file of a stage cannot be written.
        """
        self._list.add(record)
        newest = self._remove_others()[-1]
        if newest.epoch == record["epoch"] > 1:
            (self._folder / "stages").mkdir(parents=True, exist_ok=True)
            files.keep_copy(self._folder / "checkpoint.pt", stage_file(self._folder, newest.epoch))
        if sum(path.stat().st_size for path in self._folder.glob("stages/*-end.pt")) > MOST_BYTES:
            self._ends_fit = False
            end_file(self._folder, newest.last).unlink(missing_ok=True)

    def _remove_others(self) -> list[Stage]:
        """Remove the files that belong to none of the stages, and return the stages."""
        stages = self._list.stages()
        wanted = {stage_file(self._folder, stage.epoch) for stage in stages[1:]}
        wanted |= {end_file(self._folder, stage.last) for stage in stages}
        for path in self._folder.glob("stages/[0-9]*.pt"):
            if path not in wanted:
                path.unlink()
        return stages
