"""Check every way of pruning against the reference on small gradients, fast enough for compute-sanitizer.

    compute-sanitizer --tool memcheck python -m benchmarks.kernels.check_kernels --device cuda --few

The reference runs on the CPU, so that little other than the kernels runs on the GPU. The exit status is 1 if a result
is wrong or was not computed by the compiled kernels of the device.
"""

from __future__ import annotations

import argparse
import itertools
import sys

import torch

import kernels
from benchmarks.kernels.cases import MODES
from kernels import PruneRule
from kernels.prune import reference
from suite.errors import UsageError
from suite.trials.devices import resolve_device

# Complete and partial groups, complete vectors and tails, one block of threads and several, channels-last and rows.
SHAPES = ((3, 64, 5, 7), (2, 20, 3, 3), (1, 3, 1, 1), (70, 96), (2, 256, 9, 11))
GROUPS = ((1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (2, 8), (3, 7))
FEW_SHAPES, FEW_GROUPS = SHAPES[:4], ((2, 4), (8, 16), (3, 7))
# Relative tolerances: sums in another order, and at most one rounding of a 16-bit result.
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def main() -> int:
    """Run the checks and print wrong results and the number of checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    parser.add_argument("--few", action="store_true", help="check fewer shapes and n:m, for slow tools (default: off)")
    chosen = parser.parse_args()
    try:
        device = torch.device(*resolve_device(chosen.device))
    except UsageError as error:
        print(f"check_kernels: error: {error}", file=sys.stderr)
        return 2
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new tensors with NaN
    torch.manual_seed(0)
    checked, wrong, backends = 0, [], set()
    shapes, groups = (FEW_SHAPES, FEW_GROUPS) if chosen.few else (SHAPES, GROUPS)
    cases = itertools.product(shapes, TOLERANCES, groups, MODES.items())
    for shape, dtype, (n, m), (name, selection) in cases:
        rule = PruneRule(n, m, *selection)
        grad = torch.randn(shape).to(dtype)
        if grad.dim() == 4:
            grad = grad.contiguous(memory_format=torch.channels_last)
        expected = reference.prune_nm(grad, rule, seed=5)
        moved = grad.to(device)
        backends.add(kernels.backend_of(moved))
        result = kernels.prune_nm(moved, rule, seed=5)
        checked += 1
        tolerance = 0.0 if rule.rescale == "none" else TOLERANCES[dtype]
        if not torch.allclose(result.cpu(), expected, rtol=tolerance, atol=2**-24 if tolerance else 0):
            wrong.append(f"{shape} {dtype} {n}:{m} {name}")
    print("\n".join(f"WRONG  {line}" for line in wrong) or "all results equal the reference")
    print(f"{checked} results on {device} by {', '.join(sorted(backends))}; {len(wrong)} wrong")
    if backends != {device.type}:
        print(f"NOT COMPUTED BY THE KERNELS  {kernels.backend_report(device)}")
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
