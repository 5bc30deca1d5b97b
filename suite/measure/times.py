"""Files in a suite's folder from a pass over finished trials, and the content of that of the time pass, `time.json`.

    {"version": 1, "groups": [{"key": {name: text}, "methods": {label: {...}}}]}

`key` has the names and texts of `suite.trials.groups.KEY`; `label` is the method with its parameters. The entry of a
method in `time.json` has its training times relative to dense.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from suite import files
from suite.errors import UsageError, validate
from suite.recipe import Phase
from suite.trials.folder.records import Strict

BUSY = 0.5
"""A measurement is disturbed if other programs use this many cores for each of its threads, or more."""
FEWEST_PAIRS = 3
"""Fewest pairs of steps in one state of a trial."""
LARGEST = 64 * 2**20  # bytes of a file


Entry = TypeVar("Entry", bound=Strict)


class GroupEntries(Strict, Generic[Entry]):
    """Entries of one group of comparable trials.

    Attributes:
        key: Text of each part of the group's key.
        methods: Entries by method with its parameters.
    """

    key: dict[str, str]
    methods: dict[str, Entry]


class Content(Strict, Generic[Entry]):
    """The whole file."""

    version: Literal[1]
    groups: list[GroupEntries[Entry]]


@dataclass(frozen=True)
class EntryFile(Generic[Entry]):
    """One such file.

    Attributes:
        name: Name of the file in the folder of a suite.
        verb: The verb that writes it.
        content: The file's schema.
    """

    name: str
    verb: str
    content: type[Content[Entry]]

    def read(self, folder: Path) -> list[GroupEntries[Entry]]:
        """Return the entries in a suite's folder; empty if there is no such file.

        Raises:
            UsageError: The file is damaged; one line.
        """
        path = folder / self.name
        if not path.exists():
            return []
        try:
            data = files.read_json(files.read_bytes(path, self.verb, LARGEST))
            groups: list[GroupEntries[Entry]] = validate(self.content, data, "").groups
        except (UsageError, ValueError) as error:
            raise UsageError(
                f"{path} is damaged: {error}; delete it, and measure again: python run_suite.py {self.verb} {folder}"
            ) from error
        return groups

    def add(self, folder: Path, key: Mapping[str, str], label: str, entry: Entry) -> None:
        """Write the entry of a method of one group, atomically; all other entries stay.

        Raises:
            UsageError: The existing file is damaged.
            OSError: The file cannot be written.
        """
        groups = self.read(folder)
        group = next((group for group in groups if group.key == key), None)
        if group is None:
            groups.append(group := GroupEntries(key=dict(key), methods={}))
        group.methods[label] = entry
        self.write(folder, groups)

    def write(self, folder: Path, groups: Sequence[GroupEntries[Entry]]) -> None:
        """Replace the file by these groups, atomically.

        Raises:
            OSError: The file cannot be written.
        """
        content = {"version": 1, "groups": [group.model_dump(mode="json") for group in groups]}
        files.write(folder / self.name, json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def _from_text(value: Any) -> Any:
    """Return the pairs of a text in microseconds; any other value as it is."""
    if not isinstance(value, str):
        return value
    seconds = [int(word) / 1e6 for word in value.split()]
    return list(zip(seconds[::2], seconds[1::2], strict=True))


def _to_text(pairs: Pairs) -> str:
    return " ".join(f"{round(1e6 * seconds)}" for pair in pairs for seconds in pair)


Count = Annotated[int, Ge(1)]
NotNegative = Annotated[float, Ge(0), Field(allow_inf_nan=False)]
_Steps = Annotated[int, Ge(1), Le(10**12)]
_Seconds = Annotated[float, Ge(0), Le(10**12)]
_OfStep = Annotated[float, Gt(5e-7), Lt(10**9), AfterValidator(lambda seconds: round(seconds, 6))]
Pairs = Annotated[
    tuple[tuple[_OfStep, _OfStep], ...], MinLen(FEWEST_PAIRS), BeforeValidator(_from_text), PlainSerializer(_to_text)
]
"""Seconds of a step of the method and of a dense step, which ran one after the other, in whole microseconds. The file
has them as one text, which is as short as compressed numbers."""


def ratio_of(pairs: Pairs) -> float:
    """Return the median ratio of pairs."""
    return statistics.median(method / dense for method, dense in pairs)


class _OfPhase(Strict):
    """Steps of a phase of the training.

    Attributes:
        image_size: Side of the training images in pixels; `None` for the side that an evaluation uses.
        frozen: Whether the parameters of `recipe.freeze` are frozen.
    """

    image_size: Count | None = None
    frozen: bool = False

    @property
    def phase(self) -> Phase:
        """The phase."""
        return Phase(self.image_size, self.frozen)


class StageTime(_OfPhase):
    """Steps of one stage of a trial and of dense.

    Attributes:
        epoch: First epoch of the stage, counted from 1.
        steps: Steps of the trial that the stage stands for.
        start: Pairs in the state in which the stage began.
        end: Pairs in the state in which the stage ended; empty if the trial has not kept that state.
    """

    epoch: Count
    steps: _Steps
    start: Pairs
    end: Pairs | None = None

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """All pairs."""
        return (*self.start, *(self.end or ()))

    @cached_property
    def ratio(self) -> float:
        """Time of a step relative to a dense step: the mean of both states."""
        states = [ratio_of(self.start), *([ratio_of(self.end)] if self.end else [])]
        return math.fsum(states) / len(states)


class DenseSteps(_OfPhase):
    """Successive steps of dense training in one phase.

    Attributes:
        steps: Number of steps.
    """

    steps: _Steps


class Order(Strict):
    """The random choices of a pass.

    Attributes:
        number: Number of the pass, from 0. It decides the seed and the choices.
        place: Number of the method among those of its pass, from 1.
        built_first: The trainer that was built first in the first state; it alternates from state to state.
        steps_first: The trainer that ran the first step of the first pair; it alternates from pair to pair.
    """

    number: Annotated[int, Ge(0)]
    place: Count
    built_first: Literal["method", "dense"]
    steps_first: Literal["method", "dense"]


class PassTime(Strict):
    """Training time of one method relative to dense, as one time pass measured it in one process.

    Attributes:
        trial: Id of the trial whose stages were measured.
        stages: The stages, in order.
        dense: Steps of dense training with this recipe, in order.
        reconfigure_s: Seconds of the trial's reconfigurations and of its `precise_bn`.
        dense_reconfigure_s: Seconds of `precise_bn` of dense, if the group's recipe has it.
        twice: Pairs of steps of a second dense trainer and of the first one.
        order: The random choices of this pass.
        load: Largest number of cores that other programs used before, between or after the states.
        threads: Threads that torch computed with.
        provenance: Machine, versions, commit and time of the measurement (`suite.trials.provenance`).
    """

    trial: str
    stages: Annotated[tuple[StageTime, ...], MinLen(1)]
    dense: Annotated[tuple[DenseSteps, ...], MinLen(1)]
    reconfigure_s: _Seconds
    dense_reconfigure_s: _Seconds = 0.0
    twice: Pairs
    order: Order
    load: NotNegative
    threads: Count
    provenance: dict[str, Any]

    @model_validator(mode="after")
    def _have_equal_phases(self) -> PassTime:
        own, of_dense = ({item.phase for item in several} for several in (self.stages, self.dense))
        if missing := of_dense - own:
            raise ValueError(f"no stage of its trial has {missing.pop().in_words()}, as dense has")
        if missing := own - of_dense:
            raise ValueError(f"a stage has {missing.pop().in_words()}, and dense has none")
        return self

    @property
    def number(self) -> int:
        """Number of the pass, from 0."""
        return self.order.number

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs ran before, between or after the states."""
        return self.load >= BUSY * self.threads

    @property
    def pairs(self) -> int:
        """Number of pairs of steps in all stages together."""
        return sum(len(stage.pairs) for stage in self.stages)

    @property
    def dense_twice(self) -> float:
        """Time of a step of a second dense trainer relative to a dense step."""
        return ratio_of(self.twice)

    @property
    def dense_steps(self) -> int:
        """Steps of dense training."""
        return sum(part.steps for part in self.dense)

    @cached_property
    def seconds(self) -> Mapping[Phase, float]:
        """Seconds of a dense step in each phase: the median over all stages of the phase.

        Steps of different phases did not run next to each other. A drift of the machine therefore changes the shares of
        the phases in dense training a little, but not the ratios.
        """
        return {
            phase: statistics.median(dense for stage in self.stages if stage.phase == phase for _, dense in stage.pairs)
            for phase in {stage.phase for stage in self.stages}
        }

    @cached_property
    def _dense_steps_s(self) -> float:
        """Seconds of all steps of dense training."""
        return math.fsum(part.steps * self.seconds[part.phase] for part in self.dense)

    @property
    def dense_s(self) -> float:
        """Seconds of dense training."""
        return self._dense_steps_s + self.dense_reconfigure_s

    @property
    def fixed(self) -> float:
        """Time of dense training that does not depend on its length, that of `precise_bn`, relative to its steps."""
        return self.dense_reconfigure_s / self._dense_steps_s

    @property
    def reconfiguration(self) -> float:
        """Time of the reconfigurations relative to dense training; part of `ratio`."""
        return self.reconfigure_s / self.dense_s

    @cached_property
    def ratio(self) -> float:
        """Time of all steps of the trial, and of its reconfigurations, relative to dense training."""
        parts = [stage.steps * stage.ratio * self.share_of_step(stage.phase) for stage in self.stages]
        return math.fsum([*parts, self.reconfiguration])

    def share_of_step(self, phase: Phase) -> float:
        """Return the share of dense training's time that one dense step in a phase takes."""
        return self.seconds[phase] / self.dense_s

    def relative_step(self, phase: Phase) -> float:
        """Return the time of a dense step in a phase relative to the mean step; 1 for a phase without steps."""
        return self.seconds[phase] * self.dense_steps / self._dense_steps_s if phase in self.seconds else 1.0

    def dense_share(self, progress: float) -> float:
        """Return the share of dense training's time that has passed after a share of its steps."""
        done, share = progress * self.dense_steps, 0.0
        for part in self.dense:
            steps = min(done, part.steps)
            share, done = share + steps * self.share_of_step(part.phase), done - steps
        return share


class MethodTime(Strict):
    """Training time of one method relative to dense, in one or more passes.

    Attributes:
        passes: The passes, in the order in which they were measured.
    """

    passes: Annotated[tuple[PassTime, ...], MinLen(1)]

    @model_validator(mode="after")
    def _have_one_number_of_threads(self) -> MethodTime:
        if len({item.threads for item in self.passes}) > 1:
            raise ValueError("its passes have different numbers of threads")
        return self

    @property
    def sound(self) -> tuple[PassTime, ...]:
        """The passes that are not disturbed by other programs."""
        return tuple(item for item in self.passes if not item.is_disturbed)

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs disturbed every pass."""
        return not self.sound

    @property
    def ratio(self) -> float:
        """Geometric mean of the ratios of the undisturbed passes; of all passes if none is undisturbed."""
        counted = self.sound or self.passes
        return math.exp(math.fsum(math.log(item.ratio) for item in counted) / len(counted))

    @property
    def threads(self) -> int:
        """Threads that torch computed with."""
        return self.passes[0].threads

    def pass_of(self, trial: str) -> PassTime:
        """Return a pass that measured the stages of a trial, or the first one if none did; undisturbed if one is."""
        counted = self.sound or self.passes
        return next((item for item in counted if item.trial == trial), counted[0])


GroupTimes = GroupEntries[MethodTime]
TIMES = EntryFile("time.json", "time", Content[MethodTime])
