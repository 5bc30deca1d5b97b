"""What one dead channel costs, whose weights are subnormal: a convolution with and without flushing them to zero.

    python -m benchmarks.steps.bench_subnormals [--pairs 20]

The layer is PruneTrain's `residual1.branch.block2.conv` with 47 input channels: 47 to 64, 3x3, 16x16, batch 128,
float32, channels last, on one thread, since a thread keeps the arithmetic that it was started with. Forward and both
gradients are timed in turn with those of ordinary weights. The exit status is 1 if a product takes more than 1.1 times
as long with flushing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.engine.cost.hardware import read_cpu
from suite.engine.cost.interleaved import interleaved_ratio
from suite.subnormals import FLUSH, IEEE, use_arithmetic

CHANNELS, SIDE, BATCH = (47, 64), 16, 128
DEAD = 7
LARGEST = 1.1


def products(weight: Tensor, images: Tensor, gradient: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Return the three products of the layer."""
    return {
        "forward": lambda: F.conv2d(images, weight, padding=1),
        "data gradient": lambda: torch.nn.grad.conv2d_input(images.shape, weight, gradient, padding=1),
        "weight gradient": lambda: torch.nn.grad.conv2d_weight(images, weight.shape, gradient, padding=1),
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps.bench_subnormals", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--pairs", type=int, default=20, help="interleaved pairs (20)")
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs, outputs = CHANNELS
    last = {"memory_format": torch.channels_last}
    images = torch.randn(BATCH, inputs, SIDE, SIDE).to(**last)
    gradient = torch.randn(BATCH, outputs, SIDE, SIDE).to(**last)
    ordinary = (0.05 * torch.randn(outputs, inputs, 3, 3)).to(**last)
    dead = ordinary.clone(memory_format=torch.preserve_format)
    dead[DEAD] *= 1e-39 / 0.05
    cpu = read_cpu()
    print(f"{cpu.name} ({cpu.vendor} family {cpu.family} model {cpu.model}), torch {torch.__version__}, 1 thread")
    print(f"convolution {inputs} to {outputs}, 3x3, {SIDE}x{SIDE}, batch {BATCH}; one output channel is subnormal")
    print(f"{'product':16s} {'arithmetic':10s} {'ordinary':>9s}  {'subnormal / ordinary':>20s}")
    slowest = 0.0
    for name in products(ordinary, images, gradient):
        for arithmetic in (IEEE, FLUSH):
            use_arithmetic(arithmetic)
            found = interleaved_ratio(
                products(dead, images, gradient)[name], products(ordinary, images, gradient)[name], pairs
            )
            interval = f"{found.median:6.3f} [{found.low:.3f}, {found.high:.3f}]"
            print(f"{name:16s} {arithmetic:10s} {1e3 * found.second_s:6.1f} ms  {interval:>20s}")
            slowest = max(slowest, found.median) if arithmetic == FLUSH else slowest
    return int(slowest > LARGEST)


if __name__ == "__main__":
    raise SystemExit(main())
