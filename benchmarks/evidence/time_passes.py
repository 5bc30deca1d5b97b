"""What a time pass is worth: its passes of dense against dense, and its ratios against those of whole trainings.

    python -m benchmarks.evidence.time_passes same DIR
    python -m benchmarks.evidence.time_passes whole FIRST SECOND ...
    python -m benchmarks.evidence.time_passes together DIR --times N
    python -m benchmarks.evidence.time_passes ieee COPY

`same`: DIR has trials of `dense[repeat=2]`, with ten times three passes. Each three passes are a measurement, with the
interval of the rule. A correct clock has intervals of which 19 in 20 contain 1.

`whole`: FIRST has a trial of dense and then one of a method, SECOND the same trials in the other order, all trained on
a quiet machine, so that a drift of the machine cancels (ABBA); more folders repeat both. FIRST has the time passes. The
ratio of the trainings should lie in the interval of the passes.

`together`: trains each method of DIR, which has time passes, whole in turns with dense, so that both are slowed alike;
this N times. Each is a process of its own. A turn ends with the step that reaches `TURN_S`, and the next one belongs to
the training of which less is done, so that both end together. The ratios of these trainings have an interval like those
of passes, and so does the difference of both.

`ieee`: measures three passes of each method with subnormal numbers, which `time` does not do. COPY has the trials of a
folder and no times.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.trial_environment import enter_trial_environment
from reports.data.groups import BASELINE, label
from reports.data.records import read
from reports.data.rule import Candidate, CostShare, Evidence, cost_shares
from suite.measure import time_pass
from suite.measure.candidates import dense_spec, find_candidates
from suite.measure.running import in_subprocess
from suite.measure.time_steps import measure
from suite.runs.building import build_trainer, load_splits
from suite.runs.folder.times import TIMES, MethodTime, ratio_of
from suite.runs.spec import TrialSpec
from suite.subnormals import FLUSH, IEEE, use_arithmetic

PASSES = 3
"""Of a measurement."""
CONTEXT = get_context("spawn")
TURN_S = 0.3
"""Seconds of a turn."""
_turns: Turns


def same(folder: Path) -> list[str]:
    """Return lines about the passes of dense against itself in a folder."""
    passes = _times(folder)["dense[repeat=2]"].sound
    lines, covered = [], 0
    measurements = [passes[place : place + PASSES] for place in range(0, len(passes) - PASSES + 1, PASSES)]
    for number, some in enumerate(measurements, 1):
        twice = [one.dense_twice for one in some]
        cost = _shares({"again": [one.ratio for one in some]}, twice)[0]["again"]
        covered += cost.low <= 1 <= cost.high
        each = " ".join(f"{one.ratio:.4f}" for one in some)
        lines.append(f"{number:2}  passes {each}  {_interval(cost)}")
    lines.append(f"{covered} of {len(measurements)} intervals contain 1")
    for name, ratios in (
        ("passes", [one.ratio for one in passes]),
        ("dense twice", [one.dense_twice for one in passes]),
    ):
        lines.append(f"{len(ratios)} {name}: {_spread(ratios)}")
    by_order: dict[str, list[float]] = {}
    for one in passes:
        turned = {"method": "dense", "dense": "method"}[one.order.built_first]
        for pairs, built_first in ((one.stages[0].start, one.order.built_first), (one.stages[0].end, turned)):
            by_order.setdefault(f"states in which {built_first} was built first", []).append(ratio_of(pairs or ()))
        by_order.setdefault(f"passes in which {one.order.steps_first} had the first turn", []).append(one.ratio)
    return [*lines, *(f"{name}: {_spread(ratios)}" for name, ratios in sorted(by_order.items()))]


def whole(folders: Sequence[Path]) -> list[str]:
    """Return lines that compare the ratio of whole trainings with that of the time passes of the first folder."""
    seconds: dict[str, list[float]] = {}
    for folder in folders:
        for trial in read(folder).trials:
            seconds.setdefault(label(trial), []).append(trial.numbers["train_time_s"])
    costs, _ = _costs(_times(folders[0]))
    dense, lines = seconds[BASELINE], []
    for name, own in seconds.items():
        lines.append(f"{name}: trained in {' '.join(f'{one:.1f}' for one in own)} s")
        if name in costs and len(own) == len(dense) > 1:
            ratio, low, high = math.fsum(own) / math.fsum(dense), costs[name].low, costs[name].high
            each = " ".join(f"{one / other:.4f}" for one, other in zip(own, dense, strict=True))
            place = "inside" if low <= ratio <= high else "outside"
            lines.append(f"  of dense: {each}, together {ratio:.4f}: {place} [{low:.4f}, {high:.4f}]")
    return [*lines, *passes(folders[0])]


def together(folder: Path, times: int = PASSES) -> Iterator[str]:
    """Train each method whole, in turns with dense, and yield lines that compare their times with the passes."""
    executed = {trial.name: trial.numbers["train_flops_executed"] for trial in read(folder).trials}
    ratios: dict[str, list[float]] = {}
    for number in range(times):
        for candidate in find_candidates(folder, "together"):
            assert candidate.spec is not None
            specs = (candidate.spec, dense_spec(candidate.spec))
            turns = Turns(len(specs))
            with ProcessPoolExecutor(len(specs), CONTEXT, _take, (turns,)) as pool:
                own, dense = pool.map(_train, specs, [folder / "trials"] * len(specs), range(len(specs)))
            ratio, flops = own.seconds / dense.seconds, own.flops / executed[candidate.trial]
            ratios.setdefault(candidate.label, []).append(ratio)
            yield (
                f"{number + 1}. {candidate.label}: trained in {own.seconds:.1f} s, dense in {dense.seconds:.1f} s: "
                f"{ratio:.4f} of dense; executed {flops:.4f} of the FLOPs of its trial"
            )
    of_trainings, error = _shares(ratios)
    of_passes, _ = _costs(_times(folder))
    if error is not None:
        yield f"trainings differ by {100 * error:.2f} % (standard deviation)"
    for name, cost in of_trainings.items():
        yield f"{name}: {_interval(cost)}"
        if found := of_passes.get(name):
            # Both errors are independent; their half widths add up like standard errors, nearly.
            bound = math.hypot(cost.half_width, found.half_width)
            difference = (f"{100 * (math.exp(cost.log - found.log + sign * bound) - 1):+.1f}" for sign in (0, -1, 1))
            yield "  passes {}: trainings differ from them by {} [{}, {}] %".format(_interval(found), *difference)


class Training(NamedTuple):
    """Seconds of a whole training, and the FLOPs that it executed."""

    seconds: float
    flops: float


class Turns:
    """Lets trainings in several processes run in turn, beginning with the first, so that they stay equally far.

    Args:
        count: Number of trainings.
        seconds: Seconds of a turn, which ends with the step that reaches them.

    Attributes:
        waited: Seconds that the training of this process has waited between its steps.
    """

    def __init__(self, count: int, seconds: float = TURN_S) -> None:
        self.waited, self._began, self._seconds = 0.0, 0.0, seconds
        self._turns = [CONTEXT.Semaphore(int(place == 0)) for place in range(count)]
        self._done = CONTEXT.Array("d", count)

    def run(self, place: int, fit: Callable[[], None]) -> None:
        """Run a training, whose steps call `step`."""
        self._turns[place].acquire()
        self._began = time.perf_counter()
        try:
            fit()
        finally:
            self._done[place] = math.inf
            self._turns[self._least_done(place)].release()

    def step(self, place: int, done: float) -> None:
        """Let the training continue, or give the turn away and wait for the next one.

        Args:
            place: Number of the training.
            done: Part of it that is done, in [0, 1].
        """
        self._done[place], ended = done, time.perf_counter()
        if ended - self._began < self._seconds:
            return
        if (other := self._least_done(place)) != place:
            self._turns[other].release()
            self._turns[place].acquire()
        self._began = time.perf_counter()
        self.waited += self._began - ended

    def _least_done(self, place: int) -> int:
        """Return which training has the next turn; equally far, the present one, so that the order is ABBA."""
        done = self._done[:]
        return min(range(len(done)), key=lambda other: (done[other], other != place))


def _take(turns: Turns) -> None:
    """Receive the turns, which a process gets only when it starts."""
    global _turns
    _turns = turns
    use_arithmetic(FLUSH)


def _train(spec: TrialSpec, trials: Path, place: int) -> Training:
    """Train a trial in turns."""
    trainer = build_trainer(spec, trials, load_splits(spec), on_step=lambda done: _turns.step(place, done))
    _turns.run(place, trainer.fit)
    return Training(trainer.clock.training - _turns.waited, trainer.ledger.train_flops["executed"])


def passes(folder: Path) -> list[str]:
    """Return lines about the time passes of a folder, stage by stage where a method has several."""
    times = _times(folder)
    costs, error = _costs(times)
    lines = [f"passes differ by {100 * (error or 0):.2f} % (standard deviation)"]
    for name, cost in costs.items():
        found = times[name].sound
        each = " ".join(f"{one.ratio:.4f}" for one in found)
        lines.append(f"{name}: passes {each}  {_interval(cost)}")
        one_trial = len({one.trial for one in found}) == 1 and len(found[0].stages) > 1
        for stage in zip(*(one.stages for one in found), strict=True) if one_trial else ():
            states = zip(*([ratio_of(pairs) for pairs in (one.start, one.end) if pairs] for one in stage), strict=True)
            means = (f"{math.exp(statistics.fmean(map(math.log, state))):.3f}" for state in states)
            lines.append(f"  from epoch {stage[0].epoch}: {', '.join(means)} at its start and end")
    return lines


def _costs(times: Mapping[str, MethodTime]) -> tuple[dict[str, CostShare], float | None]:
    ratios = {name: [one.ratio for one in time.sound] for name, time in times.items()}
    return _shares(ratios, [one.dense_twice for time in times.values() for one in time.sound])


def _shares(
    ratios: Mapping[str, Sequence[float]], twice: Sequence[float] = ()
) -> tuple[dict[str, CostShare], float | None]:
    candidates = tuple(Candidate(name, (), tuple(found)) for name, found in ratios.items())
    return cost_shares(Evidence((), candidates, tuple(twice)))


def _interval(cost: CostShare) -> str:
    return f"{cost.share:.4f} [{cost.low:.4f}, {cost.high:.4f}]"


def ieee(folder: Path) -> list[str]:
    """Measure passes in which subnormal numbers are not flushed, and return lines about them."""
    time_pass.run(folder, measure=in_subprocess("benchmarks.evidence.time_passes:without_flushing"))
    return passes(folder)


def without_flushing(**arguments: Any) -> dict[str, Any]:
    """Measure a pass with subnormal numbers."""
    use_arithmetic(IEEE)
    return measure(**arguments)


def _times(folder: Path) -> dict[str, MethodTime]:
    return {name: time for group in TIMES.read(folder) for name, time in group.methods.items()}


def _spread(ratios: Iterable[float]) -> str:
    logs = [100 * math.log(ratio) for ratio in ratios]
    if len(logs) < 2:
        return f"{len(logs)} pass"
    return f"mean {statistics.fmean(logs):+.2f} %, standard deviation {statistics.stdev(logs):.2f} %"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("same", "whole", "together", "ieee"))
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument(
        "--times", type=int, default=PASSES, metavar="N", help="together: trainings of each method; an interval needs 3"
    )
    typed = parser.parse_args(arguments)
    if (typed.what == "whole") != (len(typed.folders) > 1):
        parser.error(f"{typed.what} takes {'folders' if typed.what == 'whole' else '1 folder'}")
    if typed.what == "together":
        enter_trial_environment()
    of_one: dict[str, Callable[[Path], Iterable[str]]] = {
        "same": same, "together": partial(together, times=typed.times), "ieee": ieee,
    }  # fmt: skip
    lines = whole(typed.folders) if typed.what == "whole" else of_one[typed.what](*typed.folders)
    for line in lines:
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
