"""Modelled cost of data-parallel training: the ring all-reduce of the gradients, as pure functions.

A ring all-reduce of B bytes among p processes has 2(p - 1) exchanges: p - 1 that add up the parts (reduce-scatter) and
p - 1 that distribute the sums (all-gather). In each, every process sends B/p bytes to the next process of the ring and
receives as many. No algorithm lets a process send fewer bytes (Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", Journal of Parallel and Distributed Computing 69, 2009). PruneTrain models its
communication in Section 5 and Figure 11 with this ring ("We model the communication cost using ring allreduce"; cost
per epoch relative to dense training). Its code does not contain the model.

Each step reduces the gradients of all parameters of the present network. Masked weights count, because a plain
all-reduce sends their zeros.
"""

from __future__ import annotations

from collections.abc import Iterable


def gradient_bytes(elements: int, element_bytes: int = 4) -> int:
    """Return the bytes of the gradients that a process hands to the all-reduce in a step: elements x element_bytes.

    Args:
        elements: Number of trained weights and biases of the present network: `params` in `epochs.jsonl`, which follows
            reconfigurations, or the sum of `LayerCost.params` of the ledger, which leaves out normalisation.
        element_bytes: Bytes of an element. Gradients are float32 even under autocast.
    """
    return elements * element_bytes


def sent_bytes(payload: float, processes: int) -> float:
    """Return the bytes that each process sends in a ring all-reduce: 2(p - 1)/p x payload. It receives as many.

    Args:
        payload: Bytes that each process hands to the all-reduce.
        processes: Number p of processes.

    Raises:
        ValueError: There is no process.
    """
    if processes < 1:
        raise ValueError(f"a ring needs at least one process, not {processes}")
    return 2 * (processes - 1) / processes * payload


def relative_traffic(parts: Iterable[tuple[float, float]], dense_payload: float, dense_steps: float) -> float:
    """Return the bytes that a training sends relative to dense training: sum(payload x steps) / (dense, likewise).

    The factor 2(p - 1)/p cancels, so the ratio does not depend on the number of processes. A smaller network (smaller
    payload) and a larger batch (fewer steps) both lower it, as in PruneTrain's Figure 11.

    Args:
        parts: Payload in bytes and number of steps of each part of the training with a constant payload. One epoch
            gives the value of an epoch.
        dense_payload, dense_steps: The same of dense training over the same epochs.

    Raises:
        ValueError: Dense training sends nothing.
    """
    dense = dense_payload * dense_steps
    if dense <= 0:
        raise ValueError("dense training sends no bytes, so that there is nothing to compare with")
    return sum(payload * steps for payload, steps in parts) / dense
