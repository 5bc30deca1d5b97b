"""Checks a gradient, chooses its backend, and converts it to the layout of that backend."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from kernels.prune import cpu, cuda, reference
from kernels.prune.arguments import checked, is_channels_last, to_channels_last
from kernels.prune.rule import Mode, PruneRule, Scope

_COMPILED = {"cpu": cpu, "cuda": cuda}
_replayed: dict[str, str] = {}  # backend by kind of device, set by `replay_backends`


def prune_nm(grad: Tensor, rule: PruneRule, seed: int | Tensor = 0) -> Tensor:
    """Prune a gradient to n of every m consecutive channels of each pixel.

    All values are accepted. The result carries no autograd graph. A rescaled value beyond the range of the dtype
    becomes infinite, as in any conversion.

    Args:
        grad: (N, K, P, Q) in any layout, or (rows, K); fp32, bf16, fp16 or fp64. The compiled kernels support the first
            three. Gradients in channels-last layout (or contiguous rows) need no conversion.
        rule: Channels to keep, and how to rescale them.
        seed: Seed of random masks, 0 to 2^64 - 1, or a zero-dimensional int64 tensor on the device of the gradient
            whose 64 bits are the seed. CUDA kernels read the tensor when they run, so a replayed CUDA graph draws new
            masks. Equal seeds give equal masks on every backend and in every layout.

    Returns:
        A new tensor with the shape and dtype of `grad`; NCHW-contiguous if `grad` is, otherwise channels-last (4-D) or
        contiguous (2-D).

    Raises:
        ValueError: The seed or the number of dimensions is out of range.
        TypeError: The seed is not an integer, or the dtype is not supported.

    Source: McDanel et al., Structured Data Gradient Pruning (SDGP), Sec. III-B. The scope `sample_channel` is that of
    the published code, `channel` that of the text.
    """
    number, key = checked("prune_nm", grad, seed)
    # torch.compile and dispatch modes see one call of the registered operator, rather than the function's many.
    return torch.ops.pdt.prune_nm(grad.detach(), rule.n, rule.m, rule.mode, rule.rescale, number, key)  # type: ignore[no-any-return]


def backend_of(tensor: Tensor) -> str:
    """Return the backend that prunes this tensor: `cpu` or `cuda` (compiled kernels), or `reference` (plain torch).

    The first call for a CPU tensor compiles the kernel if it is not in the cache (about 15 s). The first call for a
    CUDA tensor imports CuPy.
    """
    kind = tensor.device.type
    backend = _COMPILED.get(kind)
    supported = backend is not None and tensor.layout == torch.strided and tensor.dtype in backend.DTYPES
    return _backend_of_kind(kind) if supported else "reference"


def backend_report(device: torch.device | str = "cpu") -> str:
    """Return one line that names the backend of a device and, for plain torch, the reason."""
    kind = torch.device(device).type
    if _replayed.get(kind) == "reference":
        return "prune_nm: plain torch, as at the start of the trial"
    if kind not in _COMPILED:
        return f"prune_nm: plain torch; there are compiled kernels for {' and '.join(_COMPILED)}, not for {kind}"
    return _COMPILED[kind].load().description


def backends_in_use() -> dict[str, str]:
    """Return the backend of each kind of device that this process has asked for. Compiles nothing."""
    return {
        kind: _backend_of_kind(kind)
        for kind, backend in _COMPILED.items()
        if backend.load.cache_info().currsize or kind in _replayed
    }


def replay_backends(backends: Mapping[str, str]) -> None:
    """Use the backends of an earlier process, so that a resumed trial stays bit-identical.

    Args:
        backends: Return value of `backends_in_use` in that process. Plain torch is used again if it was used before. A
            compiled kernel may be unavailable here; `backends_in_use` then returns another value.
    """
    _replayed.update({kind: backend for kind, backend in backends.items() if backend == "reference"})


def prepare(shapes: Iterable[tuple[int, ...]], device: torch.device, rule: PruneRule) -> None:
    """Compile all kernels that `prune_nm` needs for gradients of these shapes. Their first dimension is ignored."""
    if device.type not in _COMPILED:
        return
    for shape in {(1, *shape[1:]) for shape in shapes}:
        for dtype in _COMPILED[device.type].DTYPES:
            prune_nm(torch.zeros(shape, dtype=dtype, device=device), rule)


def _backend_of_kind(kind: str) -> str:
    if _replayed.get(kind) == "reference":
        return "reference"
    return kind if _COMPILED[kind].load().available else "reference"


@functools.lru_cache(maxsize=64)  # a training calls the operator thousands of times with a few rules
def rule_of(n: int, m: int, mode: Mode, rescale: Scope) -> PruneRule:
    return PruneRule(n, m, mode, rescale)


def _prune(grad: Tensor, n: int, m: int, mode: Mode, rescale: Scope, seed: int, key: Tensor | None = None) -> Tensor:
    """Implement the operator `pdt::prune_nm`. Operator arguments can only be numbers, strings and tensors."""
    pruned = _empty_result(grad)
    if grad.numel() == 0:
        return pruned
    rule, seed = rule_of(n, m, mode, rescale), seed % 2**64
    if backend_of(grad) == "reference":
        return pruned.copy_(reference.prune_nm(grad, rule, seed if key is None else read_key(key)))
    if is_channels_last(grad) and is_channels_last(pruned):
        _prune_dense(grad, pruned, rule, seed, key)
        return pruned
    # Convert once, prune in place, and convert back only if the caller's layout is NCHW.
    converted = pruned.copy_(grad) if is_channels_last(pruned) else to_channels_last(grad)
    _prune_dense(converted, converted, rule, seed, key)
    return pruned if converted is pruned else pruned.copy_(converted)


def _prune_dense(grad: Tensor, pruned: Tensor, rule: PruneRule, seed: int, key: Tensor | None) -> None:
    """Run the compiled kernel of the device on tensors that are dense in channels-last order."""
    if grad.device.type == "cuda":
        cuda.prune(grad, pruned, rule, seed, key)
    else:
        cpu.prune(grad, pruned, rule, seed if key is None else read_key(key))


def read_key(key: Tensor) -> int:
    """Return the seed that a tensor holds, for a backend that Python drives."""
    if key.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"a CUDA graph cannot draw random masks without the CUDA kernels; {backend_report('cuda')}")
    return int(key) % 2**64


def _empty_result(grad: Tensor) -> Tensor:
    if grad.dim() == 2 or (grad.is_contiguous() and not is_channels_last(grad)):
        return torch.empty_like(grad, memory_format=torch.contiguous_format)
    return torch.empty_like(grad, memory_format=torch.channels_last)


# One implementation serves every device. It chooses the backend, which also depends on the dtype and on what compiled.
_OPERATORS = torch.library.Library("pdt", "FRAGMENT")
_OPERATORS.define("prune_nm(Tensor grad, int n, int m, str mode, str rescale, SymInt seed, Tensor? key=None) -> Tensor")
_OPERATORS.impl("prune_nm", _prune, "CompositeExplicitAutograd")
# The fake implementation returns the shape and the layout of the result, which depend on the gradient alone.
torch.library.register_fake("pdt::prune_nm", lambda grad, *_, **__: _empty_result(grad), lib=_OPERATORS)
