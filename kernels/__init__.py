"""Pruning kernels: keep n of every m consecutive channels of a gradient.

`prune_nm` returns the pruned gradient, `compress_nm` only the kept values and their channels. `prune_nm` runs compiled
kernels on the CPU (built at first use) and on CUDA devices (through CuPy), and plain torch if there are none.
`compress_nm` has a compiled kernel on the CPU only. `backend_of` returns the backend of a tensor, and `backend_report`
the reason for it. `kernels.prune.reference` defines the results.
"""

from kernels.prune.compress import compress_nm
from kernels.prune.dispatch import (
    backend_of,
    backend_report,
    backends_in_use,
    prepare,
    prune_nm,
    replay_backends,
)
from kernels.prune.rule import PruneRule

__all__ = [
    "PruneRule",
    "backend_of",
    "backend_report",
    "backends_in_use",
    "compress_nm",
    "prepare",
    "prune_nm",
    "replay_backends",
]
