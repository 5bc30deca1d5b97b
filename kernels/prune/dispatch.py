"""Chooses the backend for a gradient and brings the gradient into the layout that the backend wants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from kernels.prune import cpu, cuda, reference
from kernels.prune.arguments import check, check_compression, signed, split_seed

_COMPILED = {"cpu": cpu, "cuda": cuda}
_told: dict[str, str] = {}  # by `replay_backends`


def prune_nm(
    grad: Tensor, n: int, m: int, mode: str = "magnitude", rescale: str = "none", seed: int | Tensor = 0
) -> Tensor:
    """Prunes a gradient to n of every m consecutive channels of each pixel.

    The last group of a pixel is short when m does not divide K; it keeps min(n, its size). No value raises. The result
    carries no autograd graph. A rescaled value beyond the dtype's range becomes an infinity, as in any conversion.

    Args:
        grad: (N, K, P, Q) in any layout, or (rows, K); fp32, bf16, fp16 or fp64. The compiled kernels take the first
            three; channels-last (or contiguous rows) spares them a conversion.
        n: channels kept of each group, 1..m.
        m: channels of a group, 2..32.
        mode: `magnitude` keeps the largest |g|; ties keep the lower channel, NaN ranks above infinity. `random` keeps a
            uniformly random subset, the same for equal seeds on every backend and in every layout.
        rescale: multiplies the survivors by sum |G| / sum |G^| over a scope, summed in fp32, and by 0 where nothing
            survived: `none`; `group`; `sample_channel`, over P and Q (of a matrix: over each row); `channel`, over
            N, P and Q (of a matrix: over the rows).
        seed: of `random`, 0..2^64-1; or an int64 tensor with no dimensions, on the gradient's device, whose 64 bits are
            the seed: the CUDA kernels read it when they run, so that a replayed CUDA graph draws new masks.

    Returns:
        A new tensor of the shape and dtype of `grad`; NCHW-contiguous if `grad` is, else channels-last (4-D) or
        contiguous (2-D).

    Raises:
        ValueError: n, m, seed, mode, rescale or the number of dimensions is out of range.
        TypeError: n, m or seed is not an integer, or the dtype is not supported.

    Source: McDanel et al., Structured Data Gradient Pruning (SDGP), Sec. III-B; the scope `sample_channel` is that of
    its published code, `channel` that of its text.
    """
    check(grad, n, m, mode, rescale, seed)
    number, key = split_seed(seed)
    # The registered operator, not the function: torch.compile and dispatch modes see one call.
    return torch.ops.pdt.prune_nm(grad.detach(), n, m, mode, rescale, signed(number), key)  # type: ignore[no-any-return]


def prune_nm_(
    grad: Tensor, n: int, m: int, mode: str = "magnitude", rescale: str = "none", seed: int | Tensor = 0
) -> Tensor:
    """Prunes a gradient in its own memory and returns it; arguments and errors as in `prune_nm`.

    Raises:
        ValueError: also when elements of `grad` share memory (an expanded tensor).
    """
    check(grad, n, m, mode, rescale, seed)
    target = grad.detach()
    if _may_overlap(target):
        raise ValueError(f"prune_nm_: elements of grad share memory (strides {target.stride()}); use prune_nm")
    if target.numel() and backend_of(target) != "reference" and _is_channels_last(target):
        number, key = split_seed(seed)
        _prune_dense(target, target, n, m, mode, rescale, number, key)
        # The kernel wrote behind autograd's back: without this, a saved tensor would not be found to have changed.
        torch.autograd.graph.increment_version(grad)
    else:
        grad.detach().copy_(prune_nm(target, n, m, mode, rescale, seed))
    return grad


def prune_compress_24(
    grad: Tensor, n: int, m: int, mode: str = "magnitude", rescale: str = "none", seed: int | Tensor = 0
) -> tuple[Tensor, Tensor]:
    """Prunes a gradient and leaves out what cannot be kept: two values of every four channels, for sparse tensor cores.

    The CUDA kernel does it in one pass over the gradient, where nothing is rescaled. Elsewhere plain torch does it.

    Args:
        grad: (N, K, P, Q) or (rows, K) with K a multiple of 16; bf16 or fp16.
        n: channels kept of each group, 1 or 2: no aligned four channels then keep more than two.
        m: channels of a group, 4, 8 or 16.
        mode, rescale, seed: as in `prune_nm`.

    Returns:
        values: (N, K/2, P, Q) or (rows, K/2), in channels-last order: of each four channels the two that are kept, in
            their order. Where fewer are kept, the lowest other channels fill up, with the value 0.
        metadata: int16, (N, K/16, P, Q) or (rows, K/16), in channels-last order: 4 bits of each four channels, the
            lowest bits for the first four, place0 | place1 << 2 with place0 < place1: rows in their natural order, not
            the shuffled one of cuSPARSELt.

    Raises:
        ValueError, TypeError: as in `prune_nm`, or K, n, m or the dtype does not fit.
    """
    check(grad, n, m, mode, rescale, seed)
    check_compression(grad, n, m)
    number, key = split_seed(seed)
    return torch.ops.pdt.prune_compress_24(grad.detach(), n, m, mode, rescale, signed(number), key)  # type: ignore[no-any-return]


def backend_of(tensor: Tensor) -> str:
    """Says which backend would prune this tensor: `cpu` or `cuda` (compiled kernels), or `reference` (plain torch).

    The first call for a CPU tensor compiles the kernel if the cache does not have it (about 15 s); the first call for
    a CUDA tensor looks for CuPy.
    """
    kind = tensor.device.type
    backend = _COMPILED.get(kind)
    taken = backend is not None and tensor.layout == torch.strided and tensor.dtype in backend.DTYPES
    return _backend_of_kind(kind) if taken else "reference"


def backend_report(device: torch.device | str = "cpu") -> str:
    """Says in one line, for a trial's log, which path prunes tensors of a device; if the slow one, why."""
    kind = torch.device(device).type
    if _told.get(kind) == "reference":
        return "prune_nm: plain torch, as when the trial began"
    if kind not in _COMPILED:
        return f"prune_nm: plain torch; compiled kernels are for {' and '.join(_COMPILED)}, not for {kind}"
    return _COMPILED[kind].load().description


def backends_in_use() -> dict[str, str]:
    """Which backend prunes tensors of each kind of device that this process asked about; compiles nothing."""
    return {
        kind: _backend_of_kind(kind)
        for kind, backend in _COMPILED.items()
        if backend.load.cache_info().currsize or kind in _told
    }


def replay_backends(backends: Mapping[str, str]) -> None:
    """Prunes as an earlier process did, so that a resumed trial stays bit-equal.

    Args:
        backends: what `backends_in_use` said there. Plain torch is taken again wherever it was; a compiled kernel that
            is not to be had here cannot be, and `backends_in_use` then says something else.
    """
    _told.update({kind: backend for kind, backend in backends.items() if backend == "reference"})


def prepare(shapes: Iterable[tuple[int, ...]], device: torch.device, n: int, m: int, mode: str, rescale: str) -> None:
    """Compiles what `prune_nm` of such gradients needs, before a clock runs; their first dimension does not matter."""
    if device.type not in _COMPILED:
        return
    for shape in {(1, *shape[1:]) for shape in shapes}:
        for dtype in _COMPILED[device.type].DTYPES:
            prune_nm(torch.zeros(shape, dtype=dtype, device=device), n, m, mode, rescale)


def _backend_of_kind(kind: str) -> str:
    if _told.get(kind) == "reference":
        return "reference"
    return kind if _COMPILED[kind].load().available else "reference"


def _prune(grad: Tensor, n: int, m: int, mode: str, rescale: str, seed: int, key: Tensor | None = None) -> Tensor:
    """The operator `pdt::prune_nm` on every device; `seed` is the 64-bit number as a signed one."""
    pruned = _empty_result(grad)
    if grad.numel() == 0:
        return pruned
    seed %= 2**64
    if backend_of(grad) == "reference":
        seed = seed if key is None else _read(key)
        return pruned.copy_(reference.prune_nm(grad, n, m, mode, rescale, seed))
    if _is_channels_last(grad) and _is_channels_last(pruned):
        _prune_dense(grad, pruned, n, m, mode, rescale, seed, key)
        return pruned
    # One conversion in, pruned in place, one conversion back where the caller's layout is NCHW.
    converted = pruned.copy_(grad) if _is_channels_last(pruned) else _to_channels_last(grad)
    _prune_dense(converted, converted, n, m, mode, rescale, seed, key)
    return pruned if converted is pruned else pruned.copy_(converted)


def _prune_dense(
    grad: Tensor, pruned: Tensor, n: int, m: int, mode: str, rescale: str, seed: int, key: Tensor | None
) -> None:
    """Runs the device's compiled kernel on tensors that are dense in channels-last order."""
    if grad.device.type == "cuda":
        cuda.prune(grad, pruned, n, m, mode, rescale, seed, key)
    else:
        cpu.prune(grad, pruned, n, m, mode, rescale, seed if key is None else _read(key))


def _compress(
    grad: Tensor, n: int, m: int, mode: str, rescale: str, seed: int, key: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The operator `pdt::prune_compress_24` on every device."""
    values, metadata = _empty_compressed(grad)
    if grad.numel() == 0:
        return values, metadata
    if backend_of(grad) != "cuda":
        number = seed % 2**64 if key is None else _read(key)
        found, places = reference.prune_compress_24(grad, n, m, mode, rescale, number)
        return values.copy_(found), metadata.copy_(places)
    dense = grad
    if rescale != "none":
        # What was rescaled has been pruned: the two largest of each four are what is left of it.
        dense, mode = _prune(grad, n, m, mode, rescale, seed, key), "magnitude"
    if not _is_channels_last(dense) or dense.data_ptr() % 16:
        dense = _to_channels_last(dense)
    cuda.compress(dense, values, metadata, n, m, mode, seed % 2**64, key)
    return values, metadata


def _read(key: Tensor) -> int:
    """A seed in memory as a number, for a backend that Python drives."""
    if key.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"a CUDA graph cannot draw random masks without the CUDA kernels; {backend_report('cuda')}")
    return int(key) % 2**64


def _may_overlap(tensor: Tensor) -> bool:
    """Whether two elements may share memory: some stride is shorter than what the smaller ones span."""
    span = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < span:
                return True
            span += (size - 1) * stride
    return False


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


def _empty_compressed(grad: Tensor) -> tuple[Tensor, Tensor]:
    *outer, channels = grad.movedim(1, -1).shape
    values = grad.new_empty([*outer, channels // 2]).movedim(-1, 1)
    metadata = grad.new_empty([*outer, channels // 16], dtype=torch.int16).movedim(-1, 1)
    return values, metadata


def _fake_prune(grad: Tensor, n: int, m: int, mode: str, rescale: str, seed: int, key: Tensor | None = None) -> Tensor:
    return _empty_result(grad)


def _fake_compress(
    grad: Tensor, n: int, m: int, mode: str, rescale: str, seed: int, key: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return _empty_compressed(grad)


# One function for every device: it chooses the backend, which also depends on dtype and on what could be compiled.
_OPERATORS = torch.library.Library("pdt", "FRAGMENT")
_ARGUMENTS = "(Tensor grad, int n, int m, str mode, str rescale, SymInt seed, Tensor? key=None)"
for _name, _returns, _real, _fake in (
    ("prune_nm", "Tensor", _prune, _fake_prune),
    ("prune_compress_24", "(Tensor, Tensor)", _compress, _fake_compress),
):
    _OPERATORS.define(f"{_name}{_ARGUMENTS} -> {_returns}")
    _OPERATORS.impl(_name, _real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"pdt::{_name}", _fake, lib=_OPERATORS)
