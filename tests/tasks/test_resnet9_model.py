from __future__ import annotations

import pytest
import torch
from torch import nn

from tasks.models.residual import Residual
from tasks.models.resnet9 import resnet9


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def convolution_macs(model: nn.Module, input_shape: tuple[int, int, int]) -> int:
    macs = 0

    def count(layer: nn.Conv2d, _: object, output: torch.Tensor) -> None:
        nonlocal macs
        macs += layer.weight.numel() * output.shape[2] * output.shape[3]

    handles = [layer.register_forward_hook(count) for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    with torch.no_grad():
        model.eval()(torch.zeros(1, *input_shape))
    for handle in handles:
        handle.remove()
    return macs


def test_resnet9_has_the_papers_parameters_and_multiply_adds() -> None:
    model = resnet9()
    assert count_parameters(model) == 9_088_128
    # 3x128x9x32² + 128x256x25x16² + 4 convolutions of residual blocks + 256x512x9x16² + 512x256x9x6²
    by_hand = 3_538_944 + 209_715_200 + 2 * 150_994_944 + 301_989_888 + 2 * 150_994_944 + 42_467_328
    assert convolution_macs(model, (3, 32, 32)) == by_hand
    assert round(by_hand / 1e6, 2) == 1161.69


def test_quarter_width_quarters_every_channel_count() -> None:
    wide, narrow = resnet9(), resnet9(width=0.25)
    for (name, layer), other in zip(wide.named_modules(), narrow.modules(), strict=True):
        if isinstance(layer, nn.Conv2d):
            assert isinstance(other, nn.Conv2d)
            assert other.out_channels * 4 == layer.out_channels, name
    # The first layer's cost falls by 4, since its input stays; all others' by 16.
    assert convolution_macs(narrow, (3, 32, 32)) == 3_538_944 // 4 + 1_158_152_192 // 16


@pytest.mark.parametrize("width", [0.0, -1.0, 0.3, 1 / 256, float("nan"), float("inf")])
def test_width_without_whole_channels_is_refused(width: float) -> None:
    with pytest.raises(ValueError, match="width"):
        resnet9(width=width)


def test_too_small_images_are_refused_and_the_smallest_work() -> None:
    with pytest.raises(ValueError, match="11x11"):
        resnet9(input_shape=(3, 10, 32))
    model = resnet9(width=0.125, input_shape=(3, 11, 11)).eval()
    assert model(torch.zeros(2, 3, 11, 11)).shape == (2, 10)


def test_residual_adds_its_branch_and_names_it() -> None:
    block = Residual(nn.Conv2d(4, 4, 1))
    images = torch.randn(2, 4, 5, 5)
    assert torch.equal(block(images), images + block.branch(images))
    residuals = {name: module for name, module in resnet9(width=0.125).named_modules() if isinstance(module, Residual)}
    assert list(residuals) == ["residual1", "residual2"]
    assert all(hasattr(module, Residual.residual_branch) for module in residuals.values())


def test_logits_are_a_fifth_of_the_linear_layers_output_and_have_no_bias() -> None:
    model = resnet9(width=0.125).eval()
    seen: list[torch.Tensor] = []
    model.classifier.register_forward_hook(lambda *call: seen.append(call[2]))
    logits = model(torch.randn(2, 3, 32, 32))
    torch.testing.assert_close(logits, seen[0] * 0.2)
    assert model.classifier.bias is None
