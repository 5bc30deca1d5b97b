"""n:m pruning in plain torch: the definition that tests compare every compiled backend with.

It is short rather than fast, and runs on any device, dtype, layout and stride.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.prune import unbiased
from kernels.prune.rule import PruneRule

# The fewest rounds with which Philox4x32 passes BigCrush (Salmon et al., table 2). Ten rounds are common as a margin,
# but random pruning would then be slower than the memory.
PHILOX_ROUNDS = 7
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF


def prune_nm(grad: Tensor, rule: PruneRule, seed: int = 0) -> Tensor:
    """Prune a gradient to n of every m consecutive channels, as `kernels.prune_nm`."""
    if rule.mode == "unbiased":
        return _sample_unbiased(grad, rule, seed)[1]
    kept = keep_mask(grad, rule, seed)
    pruned = torch.where(kept, grad, torch.zeros_like(grad))
    if rule.rescale == "none":
        return pruned

    # fp16 and bf16 sums would overflow or lose the small terms. fp64 stays fp64.
    wide = torch.promote_types(grad.dtype, torch.float32)
    dense_sum = _scope_sum(grad.to(wide).abs(), rule)
    kept_sum = _scope_sum(pruned.to(wide).abs(), rule)
    ratio = torch.where(kept_sum == 0, torch.zeros_like(kept_sum), dense_sum / kept_sum)
    rescaled = (pruned.to(wide) * ratio).to(grad.dtype)
    # A pruned channel stays exactly zero, even if the ratio is NaN or infinite.
    return torch.where(pruned == 0, pruned, rescaled)


def compress_nm(grad: Tensor, rule: PruneRule, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Prune a gradient and return the kept values and their channels, as `kernels.compress_nm`."""
    return kept_values(prune_nm(grad, rule, seed), keep_mask(grad, rule, seed), rule)


def kept_values(pruned: Tensor, kept: Tensor, rule: PruneRule) -> tuple[Tensor, Tensor]:
    """Return the elements of a pruned gradient that its mask keeps, and their channels, as `kernels.compress_nm`.

    If a mask keeps fewer channels of a group, the lowest other channels fill the group.
    """
    count, missing = rule.kept(kept.shape[1]), -kept.shape[1] % rule.m
    rank = torch.nn.functional.pad(kept.movedim(1, -1).to(torch.uint8) + 1, (0, missing)).unflatten(-1, (-1, rule.m))
    # A stable sort puts the kept channels of a group first, then the lowest other channels, then the missing ones.
    place = rank.sort(dim=-1, descending=True, stable=True).indices[..., : rule.n].sort(dim=-1).values
    first = torch.arange(0, kept.shape[1] + missing, rule.m, device=kept.device)
    channels = (place + first[:, None]).flatten(-2)[..., :count].contiguous()
    values = pruned.movedim(1, -1).gather(-1, channels).to(torch.float32)
    return values, channels.to(torch.int16)


def keep_mask(grad: Tensor, rule: PruneRule, seed: int = 0) -> Tensor:
    """Return which elements are kept, as bool in the shape of `grad`.

    Args:
        grad: (N, K, P, Q) or (rows, K).
        rule: Rule of selection; its rescaling is ignored.
        seed: Seed of random masks, 0 to 2^64 - 1.
    """
    if rule.mode == "unbiased":
        return _sample_unbiased(grad, rule, seed)[0]
    channels_last = grad.movedim(1, -1)
    channels = channels_last.shape[-1]
    n, m = rule.n, rule.m
    groups = -(-channels // m)
    if rule.mode == "random":
        kept = _keep_random(channels_last.shape[:-1].numel() * groups, channels, groups, n, m, seed, grad.device)
    else:
        # Channels missing from a short group get -1 and come last. The sort is stable and puts NaN first.
        magnitude = channels_last.abs()
        magnitude = torch.nn.functional.pad(magnitude, (0, groups * m - channels), value=-1.0)
        order = magnitude.reshape(-1, m).sort(dim=1, descending=True, stable=True).indices
        kept = torch.zeros_like(order, dtype=torch.bool).scatter_(1, order[:, :n], True)
    kept = kept.reshape(*channels_last.shape[:-1], groups * m)[..., :channels]
    return kept.movedim(-1, 1)


def _keep_random(count: int, channels: int, groups: int, n: int, m: int, seed: int, device: torch.device) -> Tensor:
    """Return the mask of a uniformly random n-subset of each of `count` groups: bool, (count, m).

    Selection sampling (Knuth, TAOCP vol. 2, 3.4.2, algorithm S) keeps channel i with probability (still needed) /
    (still to visit). It compares a 16-bit random number h with that fraction, as h * to_visit < needed * 2^16. A
    subset's probability is therefore off by at most 2^-16 per step. Channel i of group g uses number g * m + i of the
    stream.
    """
    number = torch.arange(count * m, device=device, dtype=torch.int64).reshape(count, m)
    half = random_halves(number, seed)
    position = torch.arange(count, device=device) % max(groups, 1)
    size = torch.clamp(channels - position * m, max=m)
    needed = torch.clamp(size, max=n)
    kept = torch.zeros((count, m), dtype=torch.bool, device=device)
    for channel in range(m):
        keep = half[:, channel] * (size - channel) < needed * 65536
        kept[:, channel] = keep
        needed = needed - keep.to(needed.dtype)
    return kept


def _sample_unbiased(grad: Tensor, rule: PruneRule, seed: int) -> tuple[Tensor, Tensor]:
    """Return the mask and the result of unbiased pruning, both with the shape of `grad`.

    Group g uses word g of the stream of 32-bit random numbers: word g mod 4 of the Philox4x32-7 block with counter (g
    div 4, as 64 bits; 0; 0). Its uppermost 23 bits w give the uniform number (2 w + 1) / 2^24.
    """
    channels_last = grad.movedim(1, -1)
    channels, m = channels_last.shape[-1], rule.m
    groups = -(-channels // m)
    wide = torch.promote_types(grad.dtype, torch.float32)
    padded = torch.nn.functional.pad(channels_last.to(wide), (0, groups * m - channels)).reshape(-1, m).T
    blocks = torch.arange(-(-padded.shape[1] // 4), device=grad.device)
    words = torch.stack(philox4x32(blocks, seed), dim=1).reshape(-1)[: padded.shape[1]]
    kept, value = unbiased.sample(padded.abs(), rule.n, ((words >> 9) * 2 + 1).to(wide) * 2**-24)

    def with_shape_of_grad(by_channel: Tensor) -> Tensor:
        by_group = by_channel.T.reshape(*channels_last.shape[:-1], groups * m)
        return by_group[..., :channels].movedim(-1, 1)

    largest = keep_mask(grad, PruneRule(rule.n, m))
    finite = with_shape_of_grad(unbiased.group_sums(padded.abs()).isfinite().expand_as(padded))
    kept = torch.where(finite, with_shape_of_grad(kept), largest)
    # Conversion rounds to nearest, which keeps the expectation up to that rounding. An unchanged value keeps its bits.
    sampled = with_shape_of_grad(value).to(grad.dtype).copysign(grad)
    result = torch.where(finite, sampled, grad)
    return kept, torch.where(kept, result, torch.zeros_like(grad))


def random_halves(number: Tensor, seed: int) -> Tensor:
    """Return 16-bit random numbers at the given positions (int64) of the stream of `seed`, as int64.

    Number j is half j mod 8 of the Philox4x32-7 block with counter (j div 8, as 64 bits; 0; 0), and the low half of
    each word comes first. Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011.
    """
    block = number // 8
    first = int(block.min()) if block.numel() else 0
    last = int(block.max()) if block.numel() else -1
    words = torch.stack(philox4x32(torch.arange(first, last + 1, device=number.device), seed), dim=1)
    place = number % 8
    word = words.reshape(-1)[(block - first) * 4 + place // 2]
    return (word >> (16 * (place % 2))) & 0xFFFF


def philox4x32(counter: Tensor, seed: int) -> list[Tensor]:
    """Return Philox4x32-7 of the counters (int64, >= 0): four 32-bit words as int64, each with the counters' shape."""
    words = [counter & WORD, counter >> 32, torch.zeros_like(counter), torch.zeros_like(counter)]
    key = [seed & WORD, seed >> 32]
    for _ in range(PHILOX_ROUNDS):
        # The product of two 32-bit numbers overflows int64, but all 64 bits are correct.
        product = [words[0] * PHILOX_MULTIPLIERS[0], words[2] * PHILOX_MULTIPLIERS[1]]
        high = [(p >> 32) & WORD for p in product]
        low = [p & WORD for p in product]
        words = [high[1] ^ words[1] ^ key[0], low[1], high[0] ^ words[3] ^ key[1], low[0]]
        key = [(k + step) & WORD for k, step in zip(key, PHILOX_KEY_STEPS, strict=True)]
    return words


def _scope_sum(magnitude: Tensor, rule: PruneRule) -> Tensor:
    """Sum over the scope of the rescaling. The result broadcasts against `magnitude`."""
    if rule.rescale == "channel":
        return magnitude.sum(dim=[d for d in range(magnitude.dim()) if d != 1], keepdim=True)
    if rule.rescale == "sample_channel":
        return magnitude.sum(dim=(2, 3) if magnitude.dim() == 4 else 1, keepdim=True)
    channels = magnitude.shape[1]
    m = rule.m
    groups = -(-channels // m)
    channels_last = torch.nn.functional.pad(magnitude.movedim(1, -1), (0, groups * m - channels))
    per_group = channels_last.reshape(*channels_last.shape[:-1], groups, m).sum(-1)
    return per_group.repeat_interleave(m, dim=-1)[..., :channels].movedim(-1, 1)
