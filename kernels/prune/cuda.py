"""Launch of the pruning kernels on a CUDA device."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cuda.library import DTYPES, launch_kernel, load
from kernels.prune.cuda_plan import Shape, plan_prune
from kernels.prune.rule import PruneRule

__all__ = ["DTYPES", "load", "prune"]


def prune(grad: Tensor, pruned: Tensor, rule: PruneRule, seed: int, key: Tensor | None = None) -> None:
    """Prune `grad` into `pruned`, both dense in channels-last order on one CUDA device. They may be the same tensor.

    Args:
        grad: (N, K, P, Q) or (rows, K), not empty; fp32, bf16 or fp16.
        pruned: Result, with the same shape, dtype and order.
        rule: Channels to keep, and how to rescale them.
        seed: Seed of random masks, 0 to 2^64 - 1.
        key: Zero-dimensional int64 tensor on the same device, whose 64 bits replace the seed.
    """
    aligned = grad.data_ptr() % 16 == 0 and pruned.data_ptr() % 16 == 0
    properties = torch.cuda.get_device_properties(grad.device)
    most = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]  # some releases' stubs leave it out
    plan = plan_prune(_shape(grad), DTYPES[grad.dtype], rule, aligned, most)
    spaces = {name: grad.new_empty(length, dtype=torch.float32) for name, length in plan.workspaces.items()}
    target = pruned
    if "prune_any" in plan.launches[0].kernel and pruned.data_ptr() == grad.data_ptr():
        target = torch.empty_like(grad)  # these kernels read the gradient again after they have written
    for launch in plan.launches:
        launch_kernel(launch, {"grad": grad, "pruned": target, **spaces}, seed, key)
    if target is not pruned:
        pruned.copy_(target)


def _shape(grad: Tensor) -> Shape:
    if grad.dim() == 2:
        return Shape(grad.shape[0], 1, grad.shape[1], matrix=True)
    return Shape(grad.shape[0], grad.shape[2] * grad.shape[3], grad.shape[1])
