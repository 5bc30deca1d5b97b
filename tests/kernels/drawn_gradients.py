"""Gradients and rules that hypothesis draws, and their layouts."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = st.one_of(
    st.tuples(st.integers(0, 40), st.integers(1, 140)),
    st.tuples(st.integers(0, 3), st.integers(1, 140), st.integers(1, 6), st.integers(0, 6)),
)


def bits_of(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


@st.composite
def gradients(draw: st.DrawFn, special: bool = False) -> Tensor:
    """Draw a gradient with many ties and zeros; `special` adds NaN, infinities and subnormals."""
    shape, dtype = draw(SHAPES), draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    grad = torch.randn(shape, generator=generator)
    if draw(st.booleans()):
        grad = (grad * 2).round() / 2
    grad = grad.to(dtype)
    if special:
        values = torch.tensor([float("nan"), -float("inf"), float("inf"), -0.0, torch.finfo(dtype).tiny / 4]).to(dtype)
        chosen = torch.randint(0, len(values), shape, generator=generator)
        grad = torch.where(torch.rand(shape, generator=generator) < 0.3, values[chosen], grad)
    if grad.dim() == 4 and draw(st.booleans()):
        grad = grad.contiguous(memory_format=torch.channels_last)
    return grad


@st.composite
def group_shapes(draw: st.DrawFn) -> tuple[int, int]:
    m = draw(st.one_of(st.sampled_from([2, 4, 8, 16, 32]), st.integers(2, 32)))
    return draw(st.integers(1, m)), m


def layouts_of(grad: Tensor) -> dict[str, Tensor]:
    """Return tensors of equal values in other layouts."""
    return {
        "channels_last": grad.contiguous(memory_format=torch.channels_last),
        "width_first": grad.transpose(2, 3).contiguous().transpose(2, 3),
        "slice": torch.cat([grad, grad], 1)[:, : grad.shape[1]],
        "every_other": torch.stack([grad, grad], -1).flatten(3)[..., ::2],
    }
