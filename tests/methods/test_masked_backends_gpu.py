"""The backends of masked weights on a GPU, compared with torch's dense products of the same weights."""

import pytest
import torch

from kernels.sparse_conv.dispatch import available
from methods.backends.blocks import BlockConvolutions
from methods.backends.sparse_convolution import Skipping
from suite.method import Geometry
from suite.ops import TORCH

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("which", ["skipping", "blocks"])
@pytest.mark.parametrize("stride", [1, 2])
def test_masked_weights_are_multiplied_as_torch_does(which, stride, monkeypatch):
    device = torch.device("cuda")
    if which == "skipping" and not available(device):
        pytest.skip("no CuPy")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    generator = torch.Generator().manual_seed(0)
    kept = torch.zeros(16, 8, 3, 3, dtype=torch.bool)
    for number in range(16):
        top, left = divmod(number % 4, 2)
        kept[number, :, top : top + 2, left : left + 2] = True
    kept &= (torch.rand(16, 8, 1, 1, generator=generator) > 0.5).expand_as(kept)
    last = torch.channels_last
    weight = (torch.randn(kept.shape, generator=generator) * kept).to(device).contiguous(memory_format=last)
    activation = torch.randn(40, 8, 9, 9, generator=generator).to(device).contiguous(memory_format=last)
    geometry = Geometry("conv", (stride, stride), (1, 1))
    kept = kept.to(device)
    backend = Skipping(kept, geometry) if which == "skipping" else BlockConvolutions(kept)
    expected = TORCH.forward(activation, weight, None, geometry)
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(backend.forward(activation, weight, None, geometry), expected, **close)
    grad = torch.randn(expected.shape, generator=generator).to(device).contiguous(memory_format=last)
    dense = TORCH.dgrad(grad, weight, activation, geometry)
    torch.testing.assert_close(backend.dgrad(grad, weight, activation, geometry), dense, **close)
    ours, _ = backend.wgrad(grad, activation, weight, geometry, False)
    whole, _ = TORCH.wgrad(grad, activation, weight, geometry, False)
    torch.testing.assert_close(ours[kept], whole[kept], rtol=1e-4, atol=1e-3)
