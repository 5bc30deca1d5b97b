"""What the clocks of products cost in ordinary training, where no step is profiled.

    python -m benchmarks.steps.bench_clocks [--model NAME] [--method METHOD] [--pairs 20]

Each product and transform of a layer with a plan enters a context, which does nothing unless the step is profiled. The
cost is too small for a comparison of two steps; therefore every context is entered EXTRA more times in every second
step. The cost of a context is the difference of the two steps of a pair, divided by EXTRA. Layers without a plan enter
no context. Steps are those of preset `quick` on CIFAR-10, with random images of the same shape.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.steps.training_steps import Setting, new_trainer, quick_recipe, random_splits, steps_of
from benchmarks.trial_environment import enter_trial_environment
from suite.choices import MethodChoice
from suite.engine.cost.clock import seconds_of
from suite.engine.cost.interleaved import interleaved_times, ratio_of
from suite.engine.network import products

EXTRA = 100
LARGEST_SHARE = 0.01
STEPS = 2


@contextmanager
def entered_more_often(extra: int) -> Iterator[list[int]]:
    """Enter every context `extra` more times; the list that is yielded has the number of contexts in total."""
    once, count = products._Call.timed, [0]

    def timed(call: Any, part: str) -> Any:
        count[0] += 1
        for _ in range(extra):
            with once(call, part):
                pass
        return once(call, part)

    products._Call.timed = timed  # type: ignore[method-assign]
    try:
        yield count
    finally:
        products._Call.timed = once  # type: ignore[method-assign]


def cost_of_contexts(run: Callable[[], None], pairs: int) -> tuple[float, float, float, float]:
    """Return the share of a step's time that the contexts take, with its 95 % interval, and the contexts per run."""
    with entered_more_often(0) as count:
        run()

    def more() -> None:
        with entered_more_often(EXTRA):
            run()

    times = interleaved_times((more, run), pairs)
    ratio = ratio_of(times[:, 0], times[:, 1])
    share, low, high = ((value - 1) / EXTRA for value in (ratio.median, ratio.low, ratio.high))
    return share, low, high, count[0]


def main() -> None:
    """Measure and print; the exit status is 1 if the clocks cost 1 % of a step or more."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps.bench_clocks", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", default="", help="model (default: that of --preset quick --recipe resnet9)")
    parser.add_argument("--method", default="sdgp[backend=masked]", help="method (sdgp[backend=masked])")
    parser.add_argument("--pairs", type=int, default=20, help="interleaved pairs (20)")
    chosen = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    device = torch.device("cpu")
    default, recipe = quick_recipe()
    model = chosen.model or default
    splits = random_splits(recipe, STEPS, device)
    setting = Setting(model, recipe, "quick", device, torch.float32, STEPS, splits)
    run = steps_of(new_trainer(setting, method=MethodChoice.read(chosen.method).build()))
    share, low, high, count = cost_of_contexts(run, chosen.pairs)
    seconds = min(seconds_of(run, device) for _ in range(3)) / STEPS
    print(
        f"{chosen.method}, {model}, batch {recipe.batch_size}, {torch.get_num_threads()} threads: "
        f"{count / STEPS:.0f} contexts per step of {1e3 * seconds:.1f} ms, load {os.getloadavg()[0]:.2f}"
    )
    print(
        f"cost: {100 * share:.4f} % [{100 * low:.4f}, {100 * high:.4f}] of a step, "
        f"from {chosen.pairs} pairs with {EXTRA} times as many more"
    )
    if high >= LARGEST_SHARE:
        raise SystemExit(f"the clocks cost {100 * high:.2f} % of a step or less, which is not below 1 %")


if __name__ == "__main__":
    enter_trial_environment()
    main()
