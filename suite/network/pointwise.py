"""1x1 convolutions with a stride on the CPU: as ones of stride 1, of every stride-th row and column of the input.

The results are the same sums of the same products. oneDNN's own kernels for this case write past the end of their
workspace where there are fewer input channels than one vector block (8 on AVX2, 16 on AVX-512): the process crashes or
hangs, or weight gradients are wrong. The rule is by geometry, for all channel counts and CPUs: which kernel oneDNN
takes cannot be known beforehand, and what the copy of the sampled input costs, oneDNN's kernels spend on the same copy.

Source: https://github.com/uxlfoundation/oneDNN/issues/6035; measured by `benchmarks/products/search_products.py`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

Pair = tuple[int, int]


def is_sampled(weight: Tensor, stride: Pair) -> bool:
    """Whether a convolution of this weight, (K, C, R, S), is computed from a sampled input."""
    return weight.device.type == "cpu" and weight.shape[2:] == (1, 1) and tuple(stride) != (1, 1)


def sample(activation: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """The pixels that a 1x1 convolution reads: (N, C, P, Q) of (N, C, H, W), dense, in the same memory format.

    Differentiable, any number of times.
    """
    function = _Sample if torch.compiler.is_compiling() else _SampleForward
    sampled: Tensor = function.apply(activation, tuple(stride), tuple(padding))
    return sampled


def spread(sampled: Tensor, size: Pair, stride: Pair, padding: Pair) -> Tensor:
    """The transpose of `sample`: (N, C, H, W), with `sampled` where its pixels were read and 0 elsewhere.

    Args:
        sampled: (N, C, P, Q).
        size: (H, W).
        stride, padding: as of `sample`.
    """
    function = _Spread if torch.compiler.is_compiling() else _SpreadForward
    whole: Tensor = function.apply(sampled, tuple(size), tuple(stride), tuple(padding))
    return whole


def sampled_like(activation: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """A tensor with shape, type and memory format of `sample(activation, ...)`; its values may be anything."""
    sizes = [
        (length + 2 * pad - 1) // step + 1
        for length, step, pad in zip(activation.shape[2:], stride, padding, strict=True)
    ]
    return torch.empty(
        (*activation.shape[:2], *sizes),
        dtype=activation.dtype,
        device=activation.device,
        memory_format=_memory_format(activation),
    )


class _Sample(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(activation: Tensor, stride: Pair, padding: Pair) -> Tensor:  # type: ignore[override]
        (down, right), (top, left) = stride, padding
        padded = F.pad(activation, (left, left, top, top)) if top or left else activation
        # A clone, since an output may not be a view of what was given; a slice of one row and column would be one.
        return padded[:, :, ::down, ::right].clone(memory_format=_memory_format(activation))

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Tensor) -> None:
        activation, *numbers = inputs
        ctx.numbers = (tuple(activation.shape[2:]), *numbers)  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return spread(grad, *ctx.numbers), None, None


class _Spread(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(sampled: Tensor, size: Pair, stride: Pair, padding: Pair) -> Tensor:  # type: ignore[override]
        (rows, columns), (down, right), (top, left) = size, stride, padding
        images, channels = sampled.shape[:2]
        size = (rows + 2 * top, columns + 2 * left)
        # `new_zeros`, which knows of vmap, has no argument for the memory format.
        if _memory_format(sampled) == torch.channels_last:
            whole = sampled.new_zeros(images, *size, channels).permute(0, 3, 1, 2)
        else:
            whole = sampled.new_zeros(images, channels, *size)
        whole[:, :, ::down, ::right] = sampled
        # A clone for the same reason as above, and because its consumer expects a dense tensor.
        return (
            whole[:, :, top : top + rows, left : left + columns].clone(memory_format=_memory_format(sampled))
            if top or left
            else whole
        )

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, size, stride, padding = inputs
        ctx.size, ctx.numbers = size, (stride, padding)  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return sample(grad, *ctx.numbers), None, None, None


# torch.compile takes no function with a rule for forward mode.
class _SampleForward(_Sample):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:  # type: ignore[override]
        _, stride, padding = ctx.numbers
        return sample(tangent, stride, padding)


class _SpreadForward(_Spread):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:  # type: ignore[override]
        return spread(tangent, ctx.size, *ctx.numbers)


def _memory_format(tensor: Tensor) -> torch.memory_format:
    """Channels-last where the channels are side by side, also in a part of a larger tensor."""
    is_last = tensor.stride(1) == 1 and (tensor.shape[1] > 1 or tensor.is_contiguous(memory_format=torch.channels_last))
    return torch.channels_last if is_last else torch.contiguous_format
