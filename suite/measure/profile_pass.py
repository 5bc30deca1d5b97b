"""The profile pass: measures where the time of a training step goes, separately from all runs whose times count.

A new process profiles each stage: steps of the method with and without clocks, and the same of dense, in turn. This
also measures how much the clocks disturb the steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from suite.measure.candidates import Candidate
from suite.measure.running import METHOD_S, Measure, disturbance, in_subprocess, measure_here, run_pass
from suite.trials.controls import BASELINE, dense_spec
from suite.trials.folder.profiles import PART_TITLES, PROFILES, MethodProfile, StageProfile, StepProfile
from suite.trials.stages import Stage

DEFAULT_ROUNDS = 20
FUNCTION = "suite.measure.profile_steps:measure"


def run(
    folder: Path,
    methods: str = "",
    rounds: int | None = None,
    threads: int | None = None,
    all_stages: bool = False,
    busy: bool = False,
    measure: Measure | None = None,
    show: Callable[[str], None] = print,
    plugins: Sequence[str] = (),
) -> bool:
    """Profile the methods of a suite's folder, dense training included, and add them to `profile.json`.

    Args:
        folder: Folder of a suite.
        methods: Comma list of methods; empty for all.
        rounds: Rounds of steps for each stage; by default 20, or at least 6 if steps take long.
        threads: Number of threads; by default that of the trials.
        all_stages: Whether to profile every stage of a trial instead of its first and its last stage.
        busy: Whether to measure while other programs use the machine.
        measure: Function that measures one stage with a number of threads; by default in a new process.
        show: Function that prints a line.
        plugins: Plugin files that the user has typed.

    Returns:
        Whether every method could be measured.

    Raises:
        UsageError: The folder is in use or has no results, a method is unknown, or the machine is busy.
    """

    def entry_of(candidate: Candidate, threads: int) -> MethodProfile:
        return _profile_of(candidate, folder, rounds, threads, all_stages, measure or in_subprocess(FUNCTION))

    return run_pass("profile", PROFILES, folder, methods, threads, busy, entry_of, _line, show, True, plugins)


def chosen_stages(stages: Sequence[Stage], all_stages: bool) -> list[tuple[Stage, float]]:
    """Return the stages to profile, each with the FLOPs that a step before it executed."""
    before = [stages[0].cost.flops[0], *(stage.cost.executed for stage in stages)]  # dense, at first
    pairs = list(zip(stages, before, strict=False))
    return pairs if all_stages or len(pairs) == 1 else [pairs[0], pairs[-1]]


def _profile_of(
    candidate: Candidate, folder: Path, rounds: int | None, threads: int, all_stages: bool, measure: Measure
) -> MethodProfile:
    """Profile the stages of a method.

    Raises:
        UsageError: The trial cannot be run again, or ran on another machine.
    """
    assert candidate.spec is not None
    stages = chosen_stages(candidate.stages, all_stages)
    measured: list[dict[str, Any]] = []
    for stage, before in stages:
        arguments = {
            "spec": candidate.spec.to_json(),
            "dense": None if candidate.label == BASELINE else dense_spec(candidate.spec).to_json(),
            "trials": str(candidate.home / "trials"),
            "epoch": stage.epoch,
            "cost": dataclasses.asdict(stage.cost),
            "executed_before": before,
            "rounds": rounds or DEFAULT_ROUNDS,
            "limit_s": METHOD_S / len(stages) if rounds is None else 1e9,
        }
        measured.append(measure_here(measure, candidate, arguments, threads))
    return MethodProfile(
        trial=candidate.trial,
        stages=tuple(
            StageProfile(
                epoch=stage.epoch,
                steps=stage.steps,
                **{name: result[name] for name in ("method", "dense", "ratio")},
            )
            for (stage, _), result in zip(stages, measured, strict=True)
        ),
        stages_of_trial=len(candidate.stages),
        machine=measured[0]["machine"],
        execution=str(candidate.spec.recipe.get("execution", "eager")),
        dtype=candidate.spec.dtype,
        load=max(float(result["provenance"]["busy_cores"]) for result in measured),
        threads=threads,
        provenance=measured[0]["provenance"],
    )


def _line(label: str, profile: MethodProfile) -> str:
    stage = profile.stages[-1]
    step = stage.method
    shares = ", ".join(f"{PART_TITLES[part]} {100 * value / sum(step.parts.values()):.1f} %" for part, value in
                       sorted(step.parts.items(), key=lambda item: -item[1]))  # fmt: skip
    last = f"last of {len(profile.stages)} stages: " if len(profile.stages) > 1 else ""
    relative = f", {stage.ratio.ratio:.3f} of dense" if stage.ratio else ""
    return (
        f"{label}: {last}step {1e3 * step.step_s:.1f} ms{relative}: {shares}; the parts add up to "
        f"{_sum(step)}; clocks {step.clocks.ratio:.3f} [{step.clocks.low:.3f}, {step.clocks.high:.3f}]"
        f"{disturbance(profile.load, profile.threads)}"
    )


def _sum(step: StepProfile) -> str:
    text = f"{step.sum_over_step:.3f} of a step without clocks"
    return text if step.adds_up else f"{text}, which is more than 10 % apart: repeat it on an idle machine"
