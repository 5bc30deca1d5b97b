"""Time of `kernels.prune_nm` against a copy of the same tensor, and against pruning by `topk` and `scatter`.

Shapes are the pruned gradients of ResNet-9 at a quarter of its width, batch 512. Kernel and copy alternate, so that a
neighbour's load hits both. Each case is checked against the oracle before it is timed.

    python benchmarks/bench_prune_nm.py

It runs with the allocator settings of a trial: without them a large result is fresh memory in every call, and the page
faults cost more than the pruning. On a machine with other load, `--clock cpu` (one thread, its own processor time)
leaves out the time spent waiting.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator

import torch
from pairs import interleaved_ratio, run_as_a_trial_does
from torch import Tensor

import kernels
from kernels import reference

SHAPES = ((512, 64, 16, 16), (512, 128, 16, 16), (512, 128, 8, 8), (512, 64, 6, 6))
DTYPES = (torch.float32, torch.bfloat16)
GROUP_SHAPES = ((2, 4), (4, 8), (8, 16))
MODES = {"magnitude": ("magnitude", "none"), "random": ("random", "none"), "rescaled": ("magnitude", "sample_channel")}
CHECKED_SAMPLES = 8


def prune_by_topk(grad: Tensor, n: int, m: int) -> Tensor:
    """Magnitude pruning as it is emulated in plain torch: the n largest of each group, scattered back."""
    groups = grad.movedim(1, -1).reshape(-1, m)
    kept = groups.abs().topk(n, dim=1).indices
    pruned = torch.zeros_like(groups).scatter_(1, kept, groups.gather(1, kept))
    return pruned.reshape(grad.movedim(1, -1).shape).movedim(-1, 1)


def check(grad: Tensor, n: int, m: int, mode: str, rescale: str) -> None:
    """Compares the first samples with the oracle; a wrong kernel is not worth timing."""
    part = grad[:CHECKED_SAMPLES]
    tolerance = 0.0 if rescale == "none" else {torch.float32: 2e-6, torch.bfloat16: 2**-7}[grad.dtype]
    torch.testing.assert_close(
        kernels.prune_nm(part, n, m, mode, rescale, seed=1),
        reference.prune_nm(part, n, m, mode, rescale, seed=1),
        rtol=tolerance,
        atol=0,
    )


def rows(pairs: int, slow_pairs: int, clock: Callable[[], float]) -> Iterator[str]:
    """Yields one line of the table per case."""
    columns = "kernel/copy: least, median [95 %]    topk/kernel  oracle/kernel"
    yield f"{'shape':17} {'dtype':9} {'mode':10} {'n:m':5} {columns}"
    for shape in SHAPES:
        for dtype in DTYPES:
            grad = torch.randn(shape, dtype=dtype).contiguous(memory_format=torch.channels_last)
            copy = torch.empty_like(grad)
            for name, (mode, rescale) in MODES.items():
                for n, m in GROUP_SHAPES:
                    check(grad, n, m, mode, rescale)

                    def prune() -> Tensor:
                        return kernels.prune_nm(grad, n, m, mode, rescale, seed=1)  # noqa: B023 - called in this turn

                    ratio = interleaved_ratio(prune, lambda: copy.copy_(grad), pairs, clock)  # noqa: B023
                    line = f"{'x'.join(map(str, shape)):17} {str(dtype)[6:]:9} {name:10} {f'{n}:{m}':5} {ratio!s:34}"
                    if name == "magnitude" and slow_pairs:
                        topk = interleaved_ratio(lambda: prune_by_topk(grad, n, m), prune, slow_pairs, clock)  # noqa: B023
                        plain = interleaved_ratio(lambda: reference.prune_nm(grad, n, m), prune, slow_pairs, clock)  # noqa: B023
                        line += f"  {topk.median:11.0f}  {plain.median:13.0f}"
                    yield line


def main() -> None:
    """Reads the command line and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30, help="interleaved pairs of kernel and copy (30)")
    parser.add_argument("--slow-pairs", type=int, default=3, help="pairs with topk and with the oracle (3; 0: none)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="wall time, or one thread's own time")
    chosen = parser.parse_args()
    clock = time.perf_counter
    if chosen.clock == "cpu":
        torch.set_num_threads(1)
        clock = time.thread_time
    print(kernels.backend_report())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {chosen.clock} clock, load {os.getloadavg()}")
    for row in rows(chosen.pairs, chosen.slow_pairs, clock):
        print(row, flush=True)


if __name__ == "__main__":
    run_as_a_trial_does()
    main()
