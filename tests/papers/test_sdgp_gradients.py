"""The arithmetic of the figure of SDGP's gradient, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from reports.papers import gradients


def test_the_loudest_group():
    grad = torch.zeros(3, 10, 2, 2)
    grad[2, 5] = -1.0
    grad[1, 9] = 100.0  # in the short last group, which is none
    assert gradients.loudest_group(grad) == (2, 1)


def test_what_is_left_of_a_channel():
    dense = torch.tensor([[1.0, -4.0, 0.0], [3.0, 4.0, 0.0]]).reshape(2, 3, 1, 1)
    pruned = torch.tensor([[0.0, -4.0, 0.0], [3.0, 0.0, 0.0]]).reshape(2, 3, 1, 1)
    assert gradients.channel_ratios(dense, pruned).tolist() == [0.75, 0.5]
    assert gradients.zeros(pruned) == pytest.approx(4 / 6)
    assert gradients.cosine(dense, pruned) == pytest.approx(25 / (math.sqrt(42) * 5))


def test_the_error_of_the_data_gradient():
    layer = nn.Conv2d(1, 2, 1, bias=False)
    nn.init.constant_(layer.weight, 2.0)
    grad = torch.tensor([3.0, 1.0]).reshape(1, 2, 1, 1)
    captured = gradients.Captured("x", layer, 0, grad, torch.Size((1, 1, 1, 1)))
    assert gradients.data_gradient_error(captured, grad) == 0
    # dD = 2 * 3 + 2 * 1 = 8 without pruning, 6 with.
    pruned = torch.tensor([3.0, 0.0]).reshape(1, 2, 1, 1)
    assert gradients.data_gradient_error(captured, pruned) == pytest.approx(0.25)


def test_each_way_of_pruning_is_the_papers():
    torch.manual_seed(0)
    grad = torch.randn(2, 8, 4, 4)
    pruned = gradients.prune(grad, seed=1)
    assert list(pruned) == ["dense", "random", "magnitude", "rescaled"]
    for name in ("random", "magnitude", "rescaled"):
        assert gradients.zeros(pruned[name]) == 0.5
    assert torch.equal(pruned["magnitude"] != 0, pruned["rescaled"] != 0)
    assert gradients.channel_ratios(grad, pruned["rescaled"]).tolist() == pytest.approx([1.0] * 8)
    assert gradients.channel_ratios(grad, pruned["magnitude"]).max() < 1
    # The published code's scope: each channel of each sample keeps its sum, and not the channel over the batch alone.
    torch.testing.assert_close(pruned["rescaled"].abs().sum((2, 3)), grad.abs().sum((2, 3)))
    kept = pruned["random"] != 0
    assert torch.equal(pruned["random"][kept], grad[kept])
    assert (grad.abs() * ~kept).max() > (grad.abs() * (pruned["magnitude"] == 0)).max()
