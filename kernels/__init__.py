"""Pruning kernels: n of every m consecutive channels of a gradient.

`prune_nm` runs a compiled kernel on the CPU, built at first use, and plain torch everywhere else. `backend_of` says
which one a tensor gets, `backend_report` why. `kernels.reference` defines the result.
"""

from kernels.dispatch import backend_in_use, backend_of, backend_report, prune_nm, prune_nm_

__all__ = ["backend_in_use", "backend_of", "backend_report", "prune_nm", "prune_nm_"]
