"""Products with a compressed output gradient against torch's products with the dense one."""

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from kernels.compressed import reference
from suite.plan import Geometry

LINEAR = Geometry("linear")


class Gradient(NamedTuple):
    """A compressed gradient that may be wrong; `suite.plan.Compressed` refuses what does not agree."""

    values: torch.Tensor
    channels: torch.Tensor
    n: int
    m: int


def compressed(shape, n, m, generator, dtype=torch.float32):
    """Return a random gradient with n of every m channels, dense in float64 and compressed, with numbers of a dtype."""
    outer, channels = (shape[0], *shape[2:]), shape[1]
    sizes = [min(m, channels - begin) for begin in range(0, channels, m)]
    kept = torch.cat(
        [
            begin + torch.rand(*outer, size, generator=generator).argsort(-1)[..., :n].sort(-1).values
            for begin, size in zip(range(0, channels, m), sizes, strict=True)
        ],
        -1,
    )
    values = torch.randn(kept.shape, generator=generator).to(dtype).float()
    grad = torch.zeros(*outer, channels, dtype=torch.float64).scatter_(-1, kept, values.double()).movedim(-1, 1)
    return grad, Gradient(values, kept.to(torch.int16).contiguous(), n, m)


GEOMETRIES = [
    {},
    {"padding": (1, 1)},
    {"stride": (2, 1), "padding": (1, 2)},
    {"dilation": (2, 1), "padding": (2, 0)},
    {"groups": 2},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 2)])
def test_reference_equals_the_derivatives_of_a_convolution(geometry, kernel, dtype):
    generator = torch.Generator().manual_seed(0)
    given = Geometry("conv", **geometry)
    activation = torch.randn(2, 4, 8, 7, generator=generator).to(dtype).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(10, 4 // given.groups, *kernel, generator=generator).to(dtype)
    wide = [tensor.double().requires_grad_() for tensor in (activation, weight)]
    out = F.conv2d(*wide, None, **geometry)
    dense, grad = compressed(out.shape, 2, 4, generator)
    assert grad.values.shape == (*out.movedim(1, -1).shape[:3], 2 + 2 + 2)
    out.backward(dense)
    found = reference.data_gradient(grad, weight, (8, 7), given)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, wide[0].grad.to(dtype))
    found = reference.weight_gradient(grad, activation, weight, given)
    assert found.stride() == weight.stride()
    torch.testing.assert_close(found, wide[1].grad.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reference_equals_the_derivatives_of_a_linear_layer(dtype):
    generator = torch.Generator().manual_seed(0)
    activation, weight = torch.randn(6, 5, generator=generator).to(dtype), torch.randn(9, 5).to(dtype)
    dense, grad = compressed((6, 9), 1, 4, generator)
    found = reference.data_gradient(grad, weight, (1, 1), LINEAR)
    assert torch.equal(found, (dense @ weight.double()).to(dtype))
    found = reference.weight_gradient(grad, activation, weight, LINEAR)
    assert torch.equal(found, (dense.t() @ activation.double()).to(dtype))
