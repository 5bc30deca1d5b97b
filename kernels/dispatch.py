"""Chooses the backend for a gradient and brings the gradient into the layout that the backend wants."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import reference
from kernels.arguments import check
from kernels.cpu import library as cpu


def prune_nm(grad: Tensor, n: int, m: int, mode: str = "magnitude", rescale: str = "none", seed: int = 0) -> Tensor:
    """Prunes a gradient to n of every m consecutive channels of each pixel.

    The last group of a pixel is short when m does not divide K; it keeps min(n, its size). No value raises. The result
    carries no autograd graph. A rescaled value beyond the dtype's range becomes an infinity, as in any conversion.

    Args:
        grad: (N, K, P, Q) in any layout, or (rows, K); fp32, bf16, fp16 or fp64. The compiled CPU kernel takes the
            first three; channels-last (or contiguous rows) spares it a conversion.
        n: channels kept of each group, 1..m.
        m: channels of a group, 2..32.
        mode: `magnitude` keeps the largest |g|; ties keep the lower channel, NaN ranks above infinity. `random` keeps a
            uniformly random subset, the same for equal seeds on every backend and in every layout.
        rescale: multiplies the survivors by sum |G| / sum |G^| over a scope, summed in fp32, and by 0 where nothing
            survived: `none`; `group`; `sample_channel`, over P and Q (of a matrix: over each row); `channel`, over
            N, P and Q (of a matrix: over the rows).
        seed: of `random`, 0..2^64-1.

    Returns:
        A new tensor of the shape and dtype of `grad`; NCHW-contiguous if `grad` is, else channels-last (4-D) or
        contiguous (2-D).

    Raises:
        ValueError: n, m, seed, mode, rescale or the number of dimensions is out of range.
        TypeError: n, m or seed is not an integer, or the dtype is not supported.

    Source: McDanel et al., Sparse Data Gradient Pruning (SDGP), Sec. III-B; the scope `sample_channel` is that of its
    published code, `channel` that of its text.
    """
    check(grad, n, m, mode, rescale, seed)
    grad = grad.detach()
    pruned = _empty_result(grad)
    if grad.numel() == 0:
        return pruned
    if backend_of(grad) == "reference":
        return pruned.copy_(reference.prune_nm(grad, n, m, mode, rescale, seed))
    if _is_channels_last(grad) and _is_channels_last(pruned):
        cpu.prune(grad, pruned, n, m, mode, rescale, seed)
        return pruned
    # One conversion in, pruned in place, one conversion back where the caller's layout is NCHW.
    converted = pruned.copy_(grad) if _is_channels_last(pruned) else _to_channels_last(grad)
    cpu.prune(converted, converted, n, m, mode, rescale, seed)
    return pruned if converted is pruned else pruned.copy_(converted)


def prune_nm_(grad: Tensor, n: int, m: int, mode: str = "magnitude", rescale: str = "none", seed: int = 0) -> Tensor:
    """Prunes a gradient in its own memory and returns it; arguments and errors as in `prune_nm`.

    Raises:
        ValueError: also when elements of `grad` share memory (an expanded tensor).
    """
    check(grad, n, m, mode, rescale, seed)
    target = grad.detach()
    if any(stride == 0 and size > 1 for stride, size in zip(target.stride(), target.shape, strict=True)):
        raise ValueError(f"prune_nm_: elements of grad share memory (strides {target.stride()}); use prune_nm")
    if target.numel() and backend_of(target) == "cpu" and _is_channels_last(target):
        cpu.prune(target, target, n, m, mode, rescale, seed)
        # The kernel wrote behind autograd's back: without this, a saved tensor would not be found to have changed.
        torch.autograd.graph.increment_version(grad)
    else:
        grad.detach().copy_(prune_nm(target, n, m, mode, rescale, seed))
    return grad


def backend_of(tensor: Tensor) -> str:
    """Says which backend would prune this tensor: `cpu` (the compiled kernel) or `reference` (plain torch).

    The first call for a CPU tensor compiles the kernel if the cache does not have it (about 15 s).
    """
    supported = tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.dtype in cpu.FORMATS
    return "cpu" if supported and cpu.load().library is not None else "reference"


def backend_report() -> str:
    """Says in one line, for a trial's log, which path prunes CPU tensors; if the slow one, why and at what cost."""
    return cpu.load().description


def backend_in_use() -> str:
    """What `backend_report` says in a process that asked for it or pruned; else empty, and nothing is compiled."""
    return cpu.load().description if cpu.load.cache_info().currsize else ""


def _is_channels_last(tensor: Tensor) -> bool:
    """Whether the memory is dense in (N, P, Q, K) or (rows, K) order."""
    return tensor.movedim(1, -1).is_contiguous()


def _to_channels_last(grad: Tensor) -> Tensor:
    """A new tensor in channels-last order."""
    return torch.empty_like(grad.movedim(1, -1), memory_format=torch.contiguous_format).movedim(-1, 1).copy_(grad)


def _empty_result(grad: Tensor) -> Tensor:
    if grad.dim() == 2 or (grad.is_contiguous() and not _is_channels_last(grad)):
        return torch.empty_like(grad, memory_format=torch.contiguous_format)
    return torch.empty_like(grad, memory_format=torch.channels_last)
