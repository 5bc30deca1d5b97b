"""1x1 convolutions with a stride on the CPU, computed with stride 1 from a sampled input.

The sampled input has every stride-th row and column, so that the results are the same sums of the same products.
oneDNN's own kernels for this case write past the end of their workspace if there are fewer input channels than one
vector block (8 on AVX2, 16 on AVX-512): the process crashes or hangs, or weight gradients are wrong. This module
samples for all channel counts and CPUs, because nothing tells beforehand which kernel oneDNN chooses. The copy of the
input costs no extra time, because oneDNN's kernels make the same copy.

Source: https://github.com/uxlfoundation/oneDNN/issues/6035.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from suite.plan import Pair


def sample(activation: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return the pixels that a 1x1 convolution reads: (N, C, P, Q) from (N, C, H, W), in the same memory format.

    The result can be differentiated any number of times.
    """
    function = _Sample if torch.compiler.is_compiling() else _SampleForward
    sampled: Tensor = function.apply(activation, tuple(stride), tuple(padding))
    return sampled


def spread(sampled: Tensor, size: Pair, stride: Pair, padding: Pair) -> Tensor:
    """Return the transpose of `sample`: (N, C, H, W) with `sampled` at the pixels that are read and 0 elsewhere.

    Args:
        sampled: (N, C, P, Q).
        size: (H, W).
        stride: Stride of the convolution.
        padding: Padding of the convolution.
    """
    function = _Spread if torch.compiler.is_compiling() else _SpreadForward
    whole: Tensor = function.apply(sampled, tuple(size), tuple(stride), tuple(padding))
    return whole


def sampled_like(activation: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return an uninitialised tensor with shape, type and memory format of `sample(activation, ...)`."""
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
        (row_step, column_step), (top, left) = stride, padding
        padded = F.pad(activation, (left, left, top, top)) if top or left else activation
        # The output of an autograd function must not be a view of its input, hence the clone.
        return padded[:, :, ::row_step, ::column_step].clone(memory_format=_memory_format(activation))

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Tensor) -> None:
        activation, *settings = inputs
        ctx.settings = (tuple(activation.shape[2:]), *settings)  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return spread(grad, *ctx.settings), None, None


class _Spread(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(sampled: Tensor, size: Pair, stride: Pair, padding: Pair) -> Tensor:  # type: ignore[override]
        (rows, columns), (row_step, column_step), (top, left) = size, stride, padding
        images, channels = sampled.shape[:2]
        size = (rows + 2 * top, columns + 2 * left)
        # `new_zeros` supports vmap but has no argument for the memory format.
        if _memory_format(sampled) == torch.channels_last:
            whole = sampled.new_zeros(images, *size, channels).permute(0, 3, 1, 2)
        else:
            whole = sampled.new_zeros(images, channels, *size)
        whole[:, :, ::row_step, ::column_step] = sampled
        # Clone for the same reason as above, and because the consumer expects a dense tensor.
        return (
            whole[:, :, top : top + rows, left : left + columns].clone(memory_format=_memory_format(sampled))
            if top or left
            else whole
        )

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, size, stride, padding = inputs
        ctx.size, ctx.settings = size, (stride, padding)  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return sample(grad, *ctx.settings), None, None, None


# torch.compile does not support functions with a rule for forward-mode differentiation.
class _SampleForward(_Sample):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:  # type: ignore[override]
        _, stride, padding = ctx.settings
        return sample(tangent, stride, padding)


class _SpreadForward(_Spread):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:  # type: ignore[override]
        return spread(tangent, ctx.size, *ctx.settings)


def _memory_format(tensor: Tensor) -> torch.memory_format:
    """Return channels-last if channels are adjacent in memory. The tensor may be a part of a larger one."""
    is_last = tensor.stride(1) == 1 and (tensor.shape[1] > 1 or tensor.is_contiguous(memory_format=torch.channels_last))
    return torch.channels_last if is_last else torch.contiguous_format
