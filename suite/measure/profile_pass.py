"""The profile pass: measures where the time of a training step goes, separately from all runs whose times count.

A new process profiles each stage: steps of the method with and without clocks, and the same of dense, in turn. This
also measures how much the clocks disturb the steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from suite.measure.candidates import Candidate, find_candidates
from suite.measure.profiles import PART_TITLES, PROFILES, MethodProfile, StageProfile
from suite.measure.running import METHOD_S, Pass, disturbance
from suite.trials.controls import BASELINE, dense_spec
from suite.trials.spec import TrialSpec
from suite.trials.stages import Stage

DEFAULT_ROUNDS = 20


@dataclasses.dataclass
class ProfilePass(Pass[MethodProfile]):
    """Profiles the methods of a suite's folder, dense training included, and adds them to `profile.json`.

    Attributes:
        rounds: Rounds of steps for each stage; by default 20, or at least 6 if steps take long.
        all_stages: Whether to profile every stage of a trial instead of its first and its last stage.
    """

    file = PROFILES
    FUNCTION = "suite.measure.profile_steps:measure"

    rounds: int | None = None
    all_stages: bool = False

    def found(self, number: int) -> list[Candidate]:
        """Return the methods in the order of the folder."""
        return find_candidates(self.folder, "profile", self.methods, with_dense=True)

    def ahead(self, candidates: Sequence[Candidate]) -> list[TrialSpec]:
        """Return the trial of each stage that is profiled."""
        known = [(one.spec, chosen_stages(one.stages, self.all_stages)) for one in candidates if one.spec is not None]
        return [spec for spec, stages in known for _ in stages]

    def entry_of(self, candidate: Candidate, threads: int) -> MethodProfile:
        """Profile the stages of a method."""
        assert candidate.spec is not None
        stages = chosen_stages(candidate.stages, self.all_stages)
        measured: list[dict[str, Any]] = []
        for stage, before in stages:
            arguments = {
                "spec": candidate.spec.to_json(),
                "dense": None if candidate.label == BASELINE else dense_spec(candidate.spec).to_json(),
                "trials": str(candidate.home / "trials"),
                "epoch": stage.epoch,
                "cost": dataclasses.asdict(stage.cost),
                "executed_before": before,
                "rounds": self.rounds or DEFAULT_ROUNDS,
                "limit_s": METHOD_S / len(stages) if self.rounds is None else 1e9,
            }
            what = f"{candidate.label}, stage from epoch {stage.epoch}"
            measured.append(self.measure_here(candidate, arguments, threads, what))
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

    def line(self, label: str, entry: MethodProfile) -> str:
        """Return the line to print for the last stage of a method."""
        stage = entry.stages[-1]
        step = stage.method
        shares = ", ".join(f"{PART_TITLES[part]} {100 * value / sum(step.parts.values()):.1f} %" for part, value in
                           sorted(step.parts.items(), key=lambda item: -item[1]))  # fmt: skip
        last = f"last of {len(entry.stages)} stages: " if len(entry.stages) > 1 else ""
        relative = f", {stage.ratio.ratio:.3f} of dense" if stage.ratio else ""
        apart = "" if step.adds_up else ", which is more than 10 % apart: repeat it on an idle machine"
        return (
            f"{label}: {last}step {1e3 * step.step_s:.1f} ms{relative}: {shares}; the parts add up to "
            f"{step.sum_over_step:.3f} of a step without clocks{apart}; clocks {step.clocks.ratio:.3f} "
            f"[{step.clocks.low:.3f}, {step.clocks.high:.3f}]{disturbance(entry.load, entry.threads)}"
        )


def chosen_stages(stages: Sequence[Stage], all_stages: bool) -> list[tuple[Stage, float]]:
    """Return the stages to profile, each with the FLOPs that a step before it executed."""
    before = [stages[0].cost.flops[0], *(stage.cost.executed for stage in stages)]  # dense, at first
    pairs = list(zip(stages, before, strict=False))
    return pairs if all_stages or len(pairs) == 1 else [pairs[0], pairs[-1]]
