"""The time pass: measures the training time of each method of a folder relative to dense, without the machine's drift.

Wall times of trials that run one after another contain whatever the machine did meanwhile. Here, steps of a method and
of dense run in turn, so that both are slowed alike, and the ratio of each pair of steps does not contain it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from suite.cost.interleaved import ratio_of
from suite.errors import UsageError
from suite.passes.candidates import Candidate, dense_spec
from suite.passes.running import Measure, disturbance, in_subprocess, measure_stage, run_pass
from suite.runs.folder.times import TIMES, DenseSize, Interval, MethodTime, PassTime, StageTime
from suite.runs.stages import Stage
from suite.timing.estimate import StagePairs, run_ratio

DEFAULT_PAIRS = 30
DEFAULT_PASSES = 3
METHOD_S = 60.0
"""Seconds that the measured steps of one method should take together in a pass."""
FUNCTION = "suite.timing.steps:measure"


def run(
    folder: Path,
    methods: str = "",
    pairs: int | None = None,
    threads: int | None = None,
    busy: bool = False,
    measure: Measure | None = None,
    show: Callable[[str], None] = print,
    plugins: Sequence[str] = (),
    passes: int = DEFAULT_PASSES,
) -> bool:
    """Measure the methods of a suite's folder until each has so many passes, and add their times to `time.json`.

    Pass i measures the trial of seed number i modulo the seeds that are done, so that the passes differ as much as
    the networks of several seeds and several processes do. Without `busy`, disturbed passes are measured again.

    Args:
        folder: Folder of a suite.
        methods: Comma list of methods; all if it is empty.
        pairs: Pairs of steps for each stage; by default 30, or at least 10 if steps take long.
        threads: Threads; by default those of the trials.
        busy: Whether to measure although other programs use the machine.
        measure: Function that measures one stage with a number of threads; by default in a new process.
        show: Function that prints a line.
        plugins: Plugin files that the user has typed.
        passes: Number of passes that each method has at the end.

    Returns:
        Whether every method could be measured.

    Raises:
        UsageError: The folder is in use or has no results, a method is unknown, or the machine is busy.
    """

    shown = []

    def entry_of(candidate: Candidate, count: int) -> MethodTime | None:
        known = next((group.methods for group in TIMES.read(folder) if group.key == dict(candidate.key)), {})
        entry = known.get(candidate.label)
        earlier: tuple[PassTime, ...] = () if entry is None else entry.passes if busy else entry.sound
        if threads is None and len(earlier) > candidate.number:
            return None
        if other := next((one.threads for one in known.values() if one.threads != count), None):
            raise UsageError(
                f"passes of this folder were measured with {other} threads, and these would have {count}; "
                f"type --threads {other}, or delete {folder / TIMES.name}"
            )
        if len(earlier) > candidate.number:
            return None
        found = _time_of(candidate, folder, pairs, count, measure or in_subprocess(FUNCTION))
        return MethodTime(passes=(*earlier, found))

    def line(label: str, time: MethodTime) -> str:
        shown.append(label)
        return _line(label, time)

    complete = True
    for number in range(passes):
        complete &= run_pass(
            "time", TIMES, folder, methods, threads, busy, entry_of, line, show, False, plugins, number
        )
    if complete and not shown:
        show(f"time: every method has {passes} {'pass' if passes == 1 else 'passes'}; --passes measures more")
    return complete


def _time_of(candidate: Candidate, folder: Path, pairs: int | None, threads: int, measure: Measure) -> PassTime:
    """Measure all stages of a method.

    Raises:
        UsageError: The trial cannot be run again, or ran on another machine.
    """
    assert candidate.spec is not None
    found: list[dict[str, Any]] = []
    before = candidate.stages[0].cost.flops[0]  # dense
    for stage in candidate.stages:
        arguments = {
            "spec": candidate.spec.to_json(),
            "dense": dense_spec(candidate.spec).to_json(),
            "trials": str(folder / "trials"),
            "epoch": stage.epoch,
            "cost": dataclasses.asdict(stage.cost),
            "executed_before": before,
            "pairs": pairs or DEFAULT_PAIRS,
            "limit_s": METHOD_S / len(candidate.stages) if pairs is None else 1e9,
            "twice": not found,
        }
        found.append(measure_stage(measure, candidate, arguments, threads))
        before = stage.cost.executed
    return _summary(candidate, found, threads)


def _summary(candidate: Candidate, found: list[dict[str, Any]], threads: int) -> PassTime:
    """Return the pass that consists of the measurements of all stages."""
    measured = [
        StagePairs(np.array(result["times"], dtype=float), stage.steps, result["image_size"])
        for stage, result in zip(candidate.stages, found, strict=True)
    ]
    first = found[0]
    successive: list[tuple[int | None, int]] = first["dense_steps"]
    dense_steps: Counter[int | None] = Counter()
    for size, count in successive:
        dense_steps[size] += count
    total = run_ratio(measured, dense_steps, candidate.reconfigure_s)
    return PassTime(
        **{name: getattr(total, name) for name in ("ratio", "low", "high", "reconfiguration")},
        trial=candidate.trial,
        pairs=sum(len(stage.times) for stage in measured),
        stages=tuple(_stage_time(*one, len(dense_steps) > 1) for one in zip(candidate.stages, measured, strict=True)),
        dense_steps=sum(dense_steps.values()),
        dense_sizes=tuple(
            DenseSize(image_size=size, steps=count, step=total.dense_step[size])
            for size, count in successive
            if size is not None and len(dense_steps) > 1
        ),
        dense_twice=Interval(**_interval(np.array(first["twice"], dtype=float))),
        load=max(float(result["provenance"]["busy_cores"]) for result in found),
        threads=threads,
        provenance=first["provenance"],
    )


def _stage_time(stage: Stage, measured: StagePairs, several: bool) -> StageTime:
    return StageTime(
        epoch=stage.epoch,
        steps=stage.steps,
        pairs=len(measured.times),
        image_size=measured.image_size if several else None,
        **_interval(measured.times),
    )


def _interval(pairs: np.ndarray[Any, Any]) -> dict[str, float]:
    found = ratio_of(pairs[:, 0], pairs[:, 1])
    return {"ratio": found.median, "low": found.low, "high": found.high}


def _line(label: str, time: MethodTime) -> str:
    last = time.passes[-1]
    stages = "1 stage" if len(last.stages) == 1 else f"{len(last.stages)} stages"
    return (
        f"pass {len(time.passes)}, {label}: {_text(last)} of the training time of dense; dense twice "
        f"{_text(last.dense_twice)}; {stages}, {last.pairs} pairs{disturbance(last.load, last.threads)}"
    )


def _text(time: Interval) -> str:
    return f"{time.ratio:.3f} [{time.low:.3f}, {time.high:.3f}]"
