"""Autotuning: measure which of several implementations is the fastest, once per machine, and store the choice.

A method with several implementations of the same arithmetic calls `choose`. The first implementation is the baseline,
which another one has to beat by a margin. The choice is stored in a file that is named after the question and the
machine, so that trials which differ only in their seed compute alike whenever they run. The question must therefore
contain nothing that differs between seeds: ask about shapes and densities, not about the mask of one trial.

The files are in `$PDT_CHOICES`, or else in `choices` in the folder of compiled kernels. To measure again, remove them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from kernels.cache import choices_folder, make_folder
from suite import files
from suite.errors import UsageError
from suite.files import canonical_json

log = logging.getLogger("pdt.autotune")

FORMAT = 1  # in the names of the files; increase it when the measurement changes
MARGIN = 0.05
"""Share of the baseline's time by which a candidate has to be faster, over the whole interval of the ratio."""
FEWEST_ROUNDS, MOST_ROUNDS = 15, 61
LONGEST_S = 30.0  # applies after the fewest rounds
SHORTEST_SAMPLE_S = 2e-3  # faster candidates run several times in a sample
OUTSIDE = 0.005  # probability that the median is below the interval, and that it is above it

Step = Callable[[], None]


@dataclass(frozen=True)
class Timing:
    """Time of one candidate, from samples that alternate with those of the baseline.

    Attributes:
        ratio: Median over rounds of the candidate's time over the baseline's in the same round.
        low: Lower end of the 99 % interval of that median.
        high: Upper end of the interval.
    """

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Fastest:
    """The candidate to use, and the measurement behind the choice.

    Attributes:
        name: Name of the candidate.
        timings: Timing by candidate, the baseline first.
        rounds: Number of samples of each candidate.
    """

    name: str
    timings: Mapping[str, Timing]
    rounds: int

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data, for a method's record."""
        return {
            "chosen": self.name,
            "ratios": {name: [one.ratio, one.low, one.high] for name, one in self.timings.items()},
            "rounds": self.rounds,
        }


def choose(
    question: Mapping[str, Any],
    candidates: Sequence[str],
    prepare: Callable[[], Mapping[str, Step]],
    device: torch.device,
    hardware_id: str,
) -> Fastest:
    """Choose the fastest candidate for this machine; a stored choice is used if it exists.

    Processes that measure on one machine wait for each other. The global random generators of torch and Python are not
    used.

    Args:
        question: Plain data that determines the times on one machine: what is computed, shapes, number type, density,
            version of the kernels. Trials with different seeds have to ask the same question.
        candidates: Names of the candidates; the first is the baseline.
        prepare: Returns a function for each candidate that runs it once; called only if something has to be measured.
        device: Device on which the candidates run.
        hardware_id: Short name of the hardware (`Context.hardware_id`).

    Raises:
        UsageError: if the folder of choices cannot be written.
    """
    asked = {"format": FORMAT, "question": question, "candidates": [*candidates], "machine": machine(hardware_id)}
    path = choices_folder() / f"{hashlib.sha256(canonical_json(asked).encode()).hexdigest()[:24]}.json"
    if (found := _read(path, candidates)) is not None:
        return found
    try:
        make_folder(path.parent)  # kernels are not loaded from a folder above it that others may write
        with _locked(path.parent):
            if (found := _read(path, candidates)) is not None:  # another process may have measured it in the meantime
                return found
            files.remove_abandoned(path.parent)
            choice = measure(prepare(), candidates, device)
            _write(path, choice)
            return choice
    except OSError as error:
        raise UsageError(
            f"measured choices cannot be stored in {path.parent} ({error.strerror or error}), and trials that measure "
            "separately may choose differently; set PDT_CHOICES to a folder that can be written"
        ) from error


def machine(hardware_id: str) -> dict[str, Any]:
    """Return what decides times besides the question: hardware, threads, version and settings of torch."""
    return {
        "hardware": hardware_id,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def measure(steps: Mapping[str, Step], candidates: Sequence[str], device: torch.device) -> Fastest:
    """Time the candidates in turn, in a new order in each round, until the intervals decide or the time is up.

    Args:
        steps: For each candidate, a function that runs it once.
        candidates: Names of the candidates; the first is the baseline.
        device: Device on which they run.
    """
    # Warm up, and find out how many runs make a sample long enough.
    baseline, *others = candidates
    repeats = {}
    for name in candidates:
        steps[name]()  # builds indices, and lets libraries choose algorithms
        once = _seconds(steps[name], 1, device)
        repeats[name] = max(1, math.ceil(SHORTEST_SAMPLE_S / max(once, 1e-9)))
    # Take samples in rounds.
    order, times = random.Random(0), {name: list[float]() for name in candidates}
    began = time.monotonic()
    for rounds in range(1, MOST_ROUNDS + 1):
        for name in order.sample([*candidates], len(candidates)):
            times[name].append(_seconds(steps[name], repeats[name], device))
        if rounds < FEWEST_ROUNDS:
            continue
        timings = {name: _timing(times[name], times[baseline]) for name in candidates}
        decided = all(_is_faster(timings[name]) or timings[name].low > 1 - MARGIN for name in others)
        if decided or time.monotonic() - began > LONGEST_S:
            break
    return Fastest(_decide(timings, candidates), timings, rounds)


def _decide(timings: Mapping[str, Timing], candidates: Sequence[str]) -> str:
    """Return the fastest candidate that beats the baseline by the margin, or the baseline."""
    faster = [name for name in candidates[1:] if _is_faster(timings[name])]
    return min(faster, key=lambda name: timings[name].ratio, default=candidates[0])


def _is_faster(timing: Timing) -> bool:
    return timing.high <= 1 - MARGIN


def _timing(times: Sequence[float], baseline: Sequence[float]) -> Timing:
    """Return medians, and the order statistics that enclose the median ratio with probability 1 - 2 * OUTSIDE."""
    ratios = sorted(one / other for one, other in zip(times, baseline, strict=True))
    count, below, cut = len(ratios), 0.0, 0
    while (below := below + math.comb(count, cut) / 2**count) <= OUTSIDE:
        cut += 1
    low, high = ratios[max(cut - 1, 0)], ratios[min(count - cut, count - 1)]
    return Timing(statistics.median(ratios), low, high)


def _seconds(step: Step, repeats: int, device: torch.device) -> float:
    """Return the mean seconds of one run over `repeats` runs."""
    _wait(device)
    began = time.perf_counter()
    for _ in range(repeats):
        step()
    _wait(device)
    return (time.perf_counter() - began) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _locked(folder: Path) -> FileIO:
    """Lock the folder until the result is closed; wait while another process holds the lock."""
    try:
        return files.lock(folder / ".lock", 0)
    except TimeoutError:
        log.info("another process is measuring; this one waits, so that the two do not disturb each other")
        return files.lock(folder / ".lock")


def _write(path: Path, choice: Fastest) -> None:
    timings = {name: vars(timing) for name, timing in choice.timings.items()}
    files.write(path, json.dumps({"rounds": choice.rounds, "chosen": choice.name, "timings": timings}, indent=1) + "\n")


def _read(path: Path, candidates: Sequence[str]) -> Fastest | None:
    """Return the stored choice; `None` if it does not exist, or is damaged and has to be measured again."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        timings = {name: Timing(**content["timings"][name]) for name in candidates}
        return Fastest(content["chosen"], timings, content["rounds"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        log.warning("%s is not used (%s); the choice is measured again", path, reason.splitlines()[0])
        return None
