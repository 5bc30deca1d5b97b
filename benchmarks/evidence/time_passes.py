"""What a time pass is worth: its passes of dense against dense, and its ratios against those of whole trainings.

    python -m benchmarks.evidence.time_passes same DIR
    python -m benchmarks.evidence.time_passes whole FIRST SECOND

`same`: DIR has trials of `dense[repeat=2]`, with ten times three passes. Each three passes are a measurement, with the
interval of the rule. A correct clock has intervals of which 19 in 20 contain 1.

`whole`: FIRST has a trial of dense and then one of a method, SECOND the same trials in the other order, all trained on
a quiet machine, so that a drift of the machine cancels (ABBA); FIRST has the time passes. The ratio of the trainings
should lie in the interval of the passes.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from reports.data.groups import BASELINE, label
from reports.data.records import read
from reports.data.rule import Candidate, Evidence, cost_shares
from suite.runs.folder.times import TIMES, MethodTime, ratio_of

PASSES = 3
"""Of a measurement."""


def same(folder: Path) -> list[str]:
    """Return lines about the passes of dense against itself in a folder."""
    passes = _times(folder)["dense[repeat=2]"].sound
    lines, covered = [], 0
    measurements = [passes[place : place + PASSES] for place in range(0, len(passes) - PASSES + 1, PASSES)]
    for number, some in enumerate(measurements, 1):
        twice = tuple(one.dense_twice for one in some)
        costs, _ = cost_shares(Evidence((), (Candidate("again", (), tuple(one.ratio for one in some)),), twice))
        cost = costs["again"]
        covered += cost.low <= 1 <= cost.high
        ratios = " ".join(f"{one.ratio:.4f}" for one in some)
        lines.append(f"{number:2}  passes {ratios}  {cost.share:.4f} [{cost.low:.4f}, {cost.high:.4f}]")
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


def whole(first: Path, second: Path) -> list[str]:
    """Return lines that compare the ratio of whole trainings with that of time passes."""
    seconds: dict[str, list[float]] = {}
    for folder in (first, second):
        for trial in read(folder).trials:
            seconds.setdefault(label(trial), []).append(trial.numbers["train_time_s"])
    times = _times(first)
    candidates = tuple(Candidate(name, (), tuple(one.ratio for one in time.sound)) for name, time in times.items())
    twice = tuple(one.dense_twice for time in times.values() for one in time.sound)
    costs, error = cost_shares(Evidence((), candidates, twice))
    lines = [f"passes differ by {100 * (error or 0):.2f} % (standard deviation)"]
    for name, own in seconds.items():
        trained = " ".join(f"{one:.1f}" for one in own)
        if name == BASELINE or len(own) < 2 or name not in costs:
            lines.append(f"{name}: trained in {trained} s")
            continue
        ratio = math.fsum(own) / math.fsum(seconds[BASELINE])
        cost = costs[name]
        inside = "inside" if cost.low <= ratio <= cost.high else "outside"
        lines.append(
            f"{name}: trained in {trained} s, {ratio:.4f} of dense; {len(times[name].sound)} passes "
            f"{cost.share:.4f} [{cost.low:.4f}, {cost.high:.4f}]: {inside}"
        )
    return lines


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
    parser.add_argument("what", choices=("same", "whole"))
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    typed = parser.parse_args(arguments)
    if len(typed.folders) != {"same": 1, "whole": 2}[typed.what]:
        parser.error(f"{typed.what} takes {'1 folder' if typed.what == 'same' else '2 folders'}")
    print("\n".join(same(*typed.folders) if typed.what == "same" else whole(*typed.folders)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
