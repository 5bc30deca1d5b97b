"""Alternatives to `kernels.prune_nm`, and the expansion of the compressed outputs of the other kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels import PruneRule
from kernels.prune import reference

PRUNE = "prune_nm"
TOPK, ORACLE, COMPILED, TILE = "topk and scatter", "plain torch", "torch.compile", "torch's 2:4 tile"
# The algorithm of torch that ranks by magnitude.
TILE_ALGORITHM = "largest_abs_values_greedy"
TILE_ROWS, TILE_COLUMNS = 32, 64

NOTES = {
    PRUNE: "kernels.prune_nm, which returns the pruned gradient with its zeros; compared with kernels.compress_nm.",
    TOPK: "torch.topk in groups and a scatter; random pruning takes topk of random numbers; rescaling adds sums and a "
    "product. Ties and random choices differ from the kernel's.",
    ORACLE: "kernels.prune.reference.prune_nm, which defines the result and is used if no kernel can be compiled.",
    COMPILED: "torch.compile of kernels.prune.reference.prune_nm, for this shape.",
    TILE: "torch._sparse_semi_structured_tile and _apply_dense, as torch prunes weights in training. The "
    "result differs: every 4x4 tile keeps at most two elements per row and per column, sometimes fewer, and the kernel "
    "also writes the compressed tensor, its transpose and masks.",
}


def alternatives(grad: Tensor, rule: PruneRule, *, compiled: bool) -> dict[str, Callable[[], Tensor]]:
    """Return functions by name for the alternatives that apply to a channels-last gradient (N, K, P, Q)."""
    found: dict[str, Callable[[], Tensor]] = {}
    if grad.shape[1] % rule.m == 0 and rule.mode != "unbiased":
        found[TOPK] = lambda: prune_by_topk(grad, rule)
    if rule.mode != "random":
        found[ORACLE] = lambda: reference.prune_nm(grad, rule)
    if compiled and rule.mode == "magnitude":
        torch._dynamo.reset()  # compile each case separately, without dynamic shapes
        function = torch.compile(reference.prune_nm, dynamic=False)
        found[COMPILED] = lambda: function(grad, rule)
    if tile_applies(grad, rule):
        found[TILE] = lambda: prune_by_tiles(grad)
    return found


def prune_by_topk(grad: Tensor, rule: PruneRule) -> Tensor:
    """Prune in plain torch: take the n largest of each group and scatter them back. K must be a multiple of m."""
    channels_last = grad.movedim(1, -1)
    groups = channels_last.reshape(-1, rule.m)
    scores = groups.abs() if rule.mode == "magnitude" else torch.rand(groups.shape, device=grad.device)
    kept = scores.topk(rule.n, dim=1, sorted=False).indices
    pruned = torch.zeros_like(groups).scatter_(1, kept, groups.gather(1, kept))
    if rule.rescale == "group":
        pruned = pruned * _ratio(groups, pruned, (1,)).to(grad.dtype)
    pruned = pruned.reshape(channels_last.shape).movedim(-1, 1)
    if rule.rescale in ("sample_channel", "channel"):
        scope = (2, 3) if rule.rescale == "sample_channel" else (0, 2, 3)
        pruned = pruned * _ratio(grad, pruned, scope).to(grad.dtype)
    return pruned


def _ratio(dense: Tensor, pruned: Tensor, scope: tuple[int, ...]) -> Tensor:
    """Return the sum of magnitudes before pruning over the sum after it; 0 where all elements are zero."""
    before, after = (tensor.abs().sum(scope, keepdim=True, dtype=torch.float32) for tensor in (dense, pruned))
    return torch.where(after == 0, 0.0, before / after)


def tile_applies(grad: Tensor, rule: PruneRule) -> bool:
    """Return whether torch's 2:4 kernel supports this case: 2:4 by magnitude, 16 bits, CUDA, complete tiles."""
    rows = grad.numel() // grad.shape[1]
    return (
        rule == PruneRule(2, 4, "magnitude", "none")
        and grad.device.type == "cuda"
        and grad.dtype in (torch.bfloat16, torch.float16)
        and rows % TILE_ROWS == 0
        and grad.shape[1] % TILE_COLUMNS == 0
    )


def prune_by_tiles(grad: Tensor) -> Tensor:
    """Prune with the kernel that torch uses for 2:4 sparse weights; `NOTES` describes the differences."""
    channels_last = grad.movedim(1, -1)
    matrix = channels_last.reshape(-1, grad.shape[1])
    masks = torch._sparse_semi_structured_tile(matrix, algorithm=TILE_ALGORITHM)[-1]
    return torch._sparse_semi_structured_apply_dense(matrix, masks).reshape(channels_last.shape).movedim(-1, 1)


def expand(values: Tensor, channels: Tensor, grad: Tensor) -> Tensor:
    """Return the dense gradient, with the shape and dtype of `grad`, for the output of `kernels.compress_nm`."""
    dense = torch.zeros_like(grad.movedim(1, -1))
    return dense.scatter_(-1, channels.to(torch.int64), values.to(grad.dtype)).movedim(-1, 1)
