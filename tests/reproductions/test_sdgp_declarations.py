"""What the reproductions of SDGP declare, and the arithmetic of its gradient's figure, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from reproductions import sdgp, sdgp_gradient
from suite import registry
from suite.brackets import read_list
from suite.parameters import choices

NAMES = registry.names("reproduction")


@pytest.mark.parametrize("name", NAMES)
def test_a_declaration_holds_together(name):
    reproduction = registry.get("reproduction", name)()
    reproduction.check()
    names = [part.name for part in reproduction.parts]
    assert names
    assert len(set(names)) == len(names)
    for part in reproduction.parts:
        requests = read_list(part.methods, part.name)
        labels = {str(choice) for one in requests for choice in choices(one, registry.get("method", one.name))}
        for one in part.compared:
            assert one.method in labels


def test_the_pairs_are_those_that_the_repository_prints():
    group = sdgp.Table1().published.group(sdgp.GRID)
    assert {f"{n}:{m}" for n, m in sdgp.PAIRS} == set(group.values)
    assert len(sdgp.PAIRS) == 11


@pytest.mark.parametrize(("preset", "parts"), [("smoke", 2), ("quick", 1), ("paper", 2)])
def test_quick_leaves_the_long_part_out(preset, parts):
    for reproduction in (sdgp.Table1, sdgp.Figure8):
        assert sum(preset in part.presets for part in reproduction.parts) == parts
        assert preset in reproduction.parts[0].presets


def test_the_loudest_group():
    grad = torch.zeros(3, 10, 2, 2)
    grad[2, 5] = -1.0
    grad[1, 9] = 100.0  # in the short last group, which is none
    assert sdgp_gradient.loudest_group(grad) == (2, 1)


def test_what_is_left_of_a_channel():
    dense = torch.tensor([[1.0, -4.0, 0.0], [3.0, 4.0, 0.0]]).reshape(2, 3, 1, 1)
    pruned = torch.tensor([[0.0, -4.0, 0.0], [3.0, 0.0, 0.0]]).reshape(2, 3, 1, 1)
    assert sdgp_gradient.channel_ratios(dense, pruned).tolist() == [0.75, 0.5]
    assert sdgp_gradient.zeros(pruned) == pytest.approx(4 / 6)
    assert sdgp_gradient.cosine(dense, pruned) == pytest.approx(25 / (math.sqrt(42) * 5))


def test_the_error_of_the_data_gradient():
    layer = nn.Conv2d(1, 2, 1, bias=False)
    nn.init.constant_(layer.weight, 2.0)
    grad = torch.tensor([3.0, 1.0]).reshape(1, 2, 1, 1)
    captured = sdgp_gradient.Captured("x", layer, 0, grad, torch.Size((1, 1, 1, 1)))
    assert sdgp_gradient.data_gradient_error(captured, grad) == 0
    # dD = 2 * 3 + 2 * 1 = 8 without pruning, 6 with.
    pruned = torch.tensor([3.0, 0.0]).reshape(1, 2, 1, 1)
    assert sdgp_gradient.data_gradient_error(captured, pruned) == pytest.approx(0.25)


def test_each_way_of_pruning_is_the_papers():
    torch.manual_seed(0)
    grad = torch.randn(2, 8, 4, 4)
    pruned = sdgp_gradient.prune(grad, seed=1)
    assert list(pruned) == ["dense", "random", "magnitude", "rescaled"]
    for name in ("random", "magnitude", "rescaled"):
        assert sdgp_gradient.zeros(pruned[name]) == 0.5
    assert torch.equal(pruned["magnitude"] != 0, pruned["rescaled"] != 0)
    assert sdgp_gradient.channel_ratios(grad, pruned["rescaled"]).tolist() == pytest.approx([1.0] * 8)
    assert sdgp_gradient.channel_ratios(grad, pruned["magnitude"]).max() < 1
    kept = pruned["random"] != 0
    assert torch.equal(pruned["random"][kept], grad[kept])
    assert (grad.abs() * ~kept).max() > (grad.abs() * (pruned["magnitude"] == 0)).max()
