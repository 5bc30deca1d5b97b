"""The time pass: measures the training time of each method of a folder relative to dense, without the machine's drift.

Wall times of trials that run one after another include all changes of the machine in between. Here, steps of a method
and of dense run in turn. The machine slows both alike, so the ratio of each pair of steps does not include its changes.

A pass is one process for each method. Passes differ by more than their steps do: by the seed, by the place of the
weights in memory, and by the order of what runs. A method therefore has several passes, and the error of its time is
that between passes.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from suite.errors import UsageError, validate
from suite.measure.candidates import AGAIN, Candidate, find_candidates
from suite.measure.running import Pass, disturbance
from suite.measure.times import TIMES, MethodTime, PassTime
from suite.recipe import Phase
from suite.trials.building import with_data_here
from suite.trials.controls import dense_spec
from suite.trials.engines.local import LocalEngine
from suite.trials.folder.records import read_record
from suite.trials.folder.store import Store
from suite.trials.progress import TrialProgress
from suite.trials.spec import TrialSpec

DEFAULT_PAIRS = 45
DEFAULT_PASSES = 5


@dataclasses.dataclass
class TimePass(Pass[MethodTime]):
    """Measures each method of a suite's folder in `passes` passes, and adds their times to `time.json`.

    Pass i measures the trial of seed number i, modulo the seeds that can be run again here. Passes thus differ as much
    as the networks of several seeds and several processes do. Without `busy`, disturbed passes are measured again. If
    no trial of a method has its states here, the trial of the lowest seed is trained first (`train_again`).

    Attributes:
        pairs: Pairs of steps of each pass, which the stages of its trial share.
        passes: Number of passes that each method has at the end; by default at least `DEFAULT_PASSES`, and equally many
            of each seed.
    """

    file = TIMES
    FUNCTION = "suite.measure.time_steps:measure"

    pairs: int = DEFAULT_PAIRS
    passes: int = 0

    def __post_init__(self) -> None:
        self._measured: dict[tuple[str, str], Candidate] = {}
        self._said: set[str] = set()
        self.show = partial(self._say_once, self.show)

    def _say_once(self, show: Callable[[str], None], text: str) -> None:
        """Show a line once, because each pass finds again what cannot be measured."""
        if text not in self._said:
            self._said.add(text)
            show(text)

    def run(self) -> bool:
        """Run the passes, show what is missing or disturbed, and return whether every method has all of its passes."""
        numbers = range(max((self._wanted(candidate) for candidate in self.found(0)), default=0))
        measured = [self.run_once(number) for number in numbers]
        complete = all(measured)
        for (_, label), candidate in self._measured.items():
            if missing := self._missing(candidate):
                complete, wanted = False, self._wanted(candidate)
                self.show(
                    f"time: {label} has {wanted - missing} undisturbed of {wanted} passes; the same command measures "
                    "the others"
                )
        if complete:
            self.show("time: every method has its passes; --passes measures more")
        times = [time for group in TIMES.read(self.folder) for time in group.methods.values()]
        if self.busy and (disturbed := sum(one.is_disturbed for time in times for one in time.passes)):
            self.show(
                f"time: {disturbed} of the folder's passes are disturbed and give no verdict; without --busy, the same "
                "command measures them again on a quiet machine"
            )
        return complete

    def ahead(self, candidates: Sequence[Candidate]) -> list[TrialSpec]:
        """Return the trial of each missing pass."""
        return [one.spec for one in candidates if one.spec is not None for _ in range(self._missing(one))]

    def found(self, number: int) -> list[Candidate]:
        """Return the methods, those that only other machines have trained included."""
        found = find_candidates(self.folder, "time", self.methods, timed=self._counted)
        return [dataclasses.replace(candidate, number=number) for candidate in found]

    def ordered(self, candidates: list[Candidate], number: int) -> list[Candidate]:
        """Return the methods in an order that the number draws. Each second order is the reverse of the one before."""
        random.Random(number // 2).shuffle(candidates)
        return candidates[:: -1 if number % 2 else 1]

    def prepare(self, candidates: Sequence[Candidate]) -> bool:
        """Train what candidates with missing passes lack, and return whether any trial was trained."""
        wanted: dict[int, list[Candidate]] = {}
        for candidate in candidates:
            if candidate.lacking and self._missing(candidate):
                threads = self.threads_for(candidate)
                self._refuse_other_threads(self._known(candidate.key), threads)
                wanted.setdefault(threads, []).append(candidate)
        trained = [train_again(self.folder, several, self.plugins, n, self.show) for n, several in wanted.items()]
        return any(trained)

    def entry_of(self, candidate: Candidate, threads: int) -> MethodTime | None:
        """Measure a pass of a method and return the method's entry with it; `None` if the pass is already known."""
        others = self._known(candidate.key)
        entry = others.get(candidate.label)
        done = self._counted(candidate.key, candidate.label)
        is_known = not self._missing(candidate) or candidate.number in {one.number for one in done}
        if is_known and self.threads is None:
            return None
        self._refuse_other_threads(others, threads)
        if is_known:
            return None
        assert candidate.spec is not None
        measured = self._pass_of(dataclasses.replace(candidate, spec=with_data_here(candidate.spec)), threads)
        self._measured[str(candidate.key), candidate.label] = candidate
        kept = [] if entry is None else [one for one in entry.passes if one in done or one.number != measured.number]
        return MethodTime(passes=(*kept, measured))

    def line(self, label: str, entry: MethodTime) -> str:
        """Return the line to print for the newest pass of a method."""
        last = entry.passes[-1]
        stages = "1 stage" if len(last.stages) == 1 else f"{len(last.stages)} stages"
        return (
            f"pass {last.number + 1}, {label}: {last.ratio:.3f} of the training time of dense; dense twice "
            f"{last.dense_twice:.3f}; {stages}, {last.pairs} pairs, {in_words(last.threads)}"
            f"{disturbance(last.load, last.threads)}"
        )

    def threads_for(self, candidate: Candidate) -> int:
        """Return the number of threads of earlier passes, or that of the trials."""
        earlier = next(iter(self._known(candidate.key).values()), None)
        return self.threads or (earlier.threads if earlier else super().threads_for(candidate))

    def _wanted(self, candidate: Candidate) -> int:
        """Return the number of passes that a method has at the end."""
        return self.passes or math.ceil(DEFAULT_PASSES / candidate.seeds) * candidate.seeds

    def _missing(self, candidate: Candidate) -> int:
        """Return the number of passes that a method lacks."""
        return max(0, self._wanted(candidate) - len(self._counted(candidate.key, candidate.label)))

    def _known(self, key: Mapping[str, str]) -> dict[str, MethodTime]:
        """Return the times of a group, by method."""
        return next((dict(group.methods) for group in TIMES.read(self.folder) if group.key == dict(key)), {})

    def _counted(self, key: Mapping[str, str], label: str) -> tuple[PassTime, ...]:
        """Return the passes of a method that count."""
        entry = self._known(key).get(label)
        return () if entry is None else entry.passes if self.busy else entry.sound

    def _refuse_other_threads(self, others: Mapping[str, MethodTime], threads: int) -> None:
        if other := next((one.threads for one in others.values() if one.threads != threads), None):
            raise UsageError(
                f"passes of this folder were measured with {in_words(other)}, and these would have {threads}; "
                f"type --threads {other}, or delete {self.folder / TIMES.name}"
            )

    def _pass_of(self, candidate: Candidate, threads: int) -> PassTime:
        assert candidate.spec is not None
        built_first, steps_first = drawn(candidate.label, candidate.number)
        arguments = {
            "spec": candidate.spec.to_json(),
            "dense": dense_spec(candidate.spec).to_json(),
            "trials": str(candidate.home / "trials"),
            "stages": [dataclasses.asdict(stage) for stage in candidate.stages],
            "pairs": self.pairs,
            "method_built_first": built_first,
            "method_steps_first": steps_first,
            "choose_again": candidate.is_elsewhere or threads != candidate.threads,
        }
        found = self.measure_here(candidate, arguments, threads, f"pass {candidate.number + 1}, {candidate.label}")
        names = {True: "method", False: "dense"}
        stages, reconfigure_s = [], dict(candidate.reconfigure_s)
        for stage, measured in zip(candidate.stages, found["stages"], strict=True):
            steps = {name: value for name, value in measured.items() if name != "reconfigure_s"}
            stages.append({"epoch": stage.epoch, "steps": stage.steps, **steps})
            if measured["reconfigure_s"] is not None:
                reconfigure_s[stage.last] = measured["reconfigure_s"]
        entry = {
            "trial": candidate.trial,
            "stages": stages,
            "dense": [{**Phase(*phase)._asdict(), "steps": count} for phase, count in found["dense"]],
            "reconfigure_s": math.fsum(reconfigure_s.values()),
            "order": {
                "number": candidate.number, "place": candidate.place,
                "built_first": names[built_first], "steps_first": names[steps_first],
            },
            "threads": threads,
            **{name: found[name] for name in ("dense_reconfigure_s", "twice", "load", "provenance")},
        }  # fmt: skip
        found_pass: PassTime = validate(PassTime, entry, candidate.trial)
        return found_pass


def drawn(label: str, number: int) -> tuple[bool, bool]:
    """Return whether the method is built first, and whether it has the first turn, in a pass.

    Each four passes draw both once, for their first pass. The second pass inverts both, the third only the turn, and
    the fourth only the order of building.
    """
    draw = random.Random(f"{number // 4} {label}")
    built_first, steps_first = (draw.random() < 0.5 for _ in range(2))
    return built_first != (number % 4 in (1, 3)), steps_first != (number % 4 in (1, 2))


def in_words(threads: int) -> str:
    """Return a number of threads in words."""
    return f"{threads} {'thread' if threads == 1 else 'threads'}"


def train_again(
    folder: Path, wanted: Sequence[Candidate], plugins: Sequence[str], threads: int, show: Callable[[str], None]
) -> bool:
    """Train trials whose states the candidates lack, and the trials that those depend on.

    Args:
        folder: Folder of the suite.
        wanted: Candidates with `lacking`.
        plugins: Plugin files that the user has typed.
        threads: Number of threads of the training, equal to that of the passes.
        show: Function that prints a line.

    Returns:
        Whether any trial had to be trained. A line shows how each ended that is not done.
    """
    own: dict[str, TrialSpec] = {}
    others: dict[str, TrialSpec] = {}
    for candidate in wanted:
        assert candidate.lacking is not None
        try:
            *before, spec = (
                dataclasses.replace(with_data_here(spec.of_record(plugins)), callbacks=())
                for spec in _with_others(folder, candidate.lacking)
            )
        except UsageError as error:
            show(f"{candidate.label}: not trained: {error}")
            continue
        reason = candidate.reason.partition(";")[0]
        show(f"{candidate.label}: {reason}; {candidate.trial} is trained here first, into {folder / AGAIN}")
        own[spec.trial_id] = spec
        others |= {other.trial_id: other for other in before}
    if not own:
        return False
    store = Store(folder / AGAIN)
    with store.lock():
        # A trial that is done there ran on another machine, or has lost its states.
        done = [spec for spec in own.values() if store.state(spec.trial_id)[0] == "done"]
        store.choose(done, "all")
        chosen = store.choose(list((others | own).values()), "missing")
        with TrialProgress([trial for trial, _ in chosen], Console()) as progress:
            LocalEngine(variables={"OMP_NUM_THREADS": str(threads)}).run(chosen, progress)
        for trial, place in chosen:
            record = read_record(place)
            if record is None or not record.done:
                show(f"{trial.trial_id}: {f'{record.status}: {record.message}' if record else 'not trained'}")
    return True


def _with_others(folder: Path, spec: TrialSpec) -> list[TrialSpec]:
    specs = []
    for trial_id in spec.depends_on.values():
        record = read_record(folder / "trials" / trial_id)
        if record is None:
            raise UsageError(f"it depends on {trial_id}, which is not in the folder")
        specs += _with_others(folder, record.spec)
    return [*specs, spec]
