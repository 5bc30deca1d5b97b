"""Dense training steps in float32, compared with bfloat16, on this device: what `--dtype auto` should choose.

    python -m benchmarks.steps.bench_dtypes [--pairs 8] [--networks NAME ...] [--json FILE]

Steps of both types alternate: those of the suite's trainer with the recipe of preset `quick` of CIFAR-10, on random
images. The last network, MobileNet, has convolutions of a single channel, for which the other answer can be right on a
CPU.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.steps.training_steps import Setting, quick_recipe, random_splits, trainer_steps
from benchmarks.trial_environment import enter_trial_environment
from suite.engine.cost.clock import stamps_of
from suite.engine.cost.interleaved import interleaved_ratio
from suite.trials.devices import resolve_device
from suite.trials.provenance import collect

STEPS = 2  # of one measurement


class Case(NamedTuple):
    """A network with the size of its images and its batch."""

    model: str
    side: int
    batch: int


CASES = (
    Case("resnet9[width=0.25]", 32, 64),
    Case("resnet9", 32, 128),
    Case("resnet32", 32, 128),
    Case("vgg11", 32, 128),
    Case("resnet18", 96, 64),
    Case("vit_tiny[patch=4]", 32, 64),
    Case("torchvision/mobilenet_v3_small", 96, 64),
)


def main() -> None:
    """Measure all networks and print the ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps.bench_dtypes", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--networks", nargs="+", default=[case.model for case in CASES], metavar="NAME")
    parser.add_argument("--pairs", type=int, default=8, help="interleaved pairs (8)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (auto)")
    parser.add_argument("--json", type=Path, help="file for the results and the provenance")
    chosen = parser.parse_args()
    if unknown := set(chosen.networks).difference(case.model for case in CASES):
        parser.error(f"--networks '{min(unknown)}': choose from {', '.join(case.model for case in CASES)}")
    kind, index = resolve_device(chosen.device)
    device = torch.device(kind, index)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.2f}")
    print(f"{chosen.pairs} pairs; float32 / bfloat16: from minimum times, median [95 %]; median milliseconds of a step")
    found = {}
    for case in CASES:
        if case.model in chosen.networks:
            float32, bfloat16 = (steps_of_case(case, dtype, device) for dtype in (torch.float32, torch.bfloat16))
            ratio = interleaved_ratio(float32, bfloat16, chosen.pairs, stamps_of(device))
            found[case.model] = {**case._asdict(), "steps": STEPS, **vars(ratio)}
            times = f"{1e3 * ratio.first_s / STEPS:8.1f} / {1e3 * ratio.second_s / STEPS:8.1f} ms"
            print(f"{case.model:31} {case.side:3} px, batch {case.batch:3}  {ratio}   {times}", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps({"results": found, "provenance": collect(device)}, indent=1) + "\n")


def steps_of_case(case: Case, dtype: torch.dtype, device: torch.device) -> Callable[[], None]:
    """Return a function that takes the steps of one measurement in a trainer of dense training."""
    _, recipe = quick_recipe(batch_size=case.batch)
    shape = (3, case.side, case.side)
    splits = random_splits(recipe, STEPS, device, shape)
    return trainer_steps(Setting(case.model, recipe, "quick", device, dtype, STEPS, splits, shape))


if __name__ == "__main__":
    enter_trial_environment()
    main()
