"""What the reproductions of SDGP declare, and the arithmetic of its gradient's figure, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from reproduced_files import page, parts_of
from torch import nn

from reports.papers import gradients, paper
from reports.papers.contract import named
from suite import registry
from suite.brackets import read_list
from suite.choices import MethodChoice

NAMES = registry.names("reproduction")


@pytest.mark.parametrize("name", NAMES)
def test_a_declaration_holds_together(name):
    names = [part.name for part in parts_of(name)]
    assert names
    assert len(set(names)) == len(names)
    for part in parts_of(name):
        requests = read_list(part.methods, part.name)
        labels = {str(choice) for one in requests for choice in MethodChoice.expand(one)}
        for one in part.compared:
            assert one.method in labels


def test_every_function_that_a_declaration_names_is_there():
    for name in NAMES:
        declared = page(name).declared
        drawn = [f"reports.papers.charts:{declared.chart.draw}"] if declared.chart else []
        curves = [panel.values for panel in declared.chart.panels] if declared.chart else []
        for function in filter(None, [*declared.columns, declared.measured, *drawn, *curves]):
            assert callable(named(function))


@pytest.mark.parametrize(("preset", "parts"), [("smoke", 2), ("quick", 1), ("paper", 2)])
def test_quick_leaves_the_long_part_out(preset, parts):
    for name in ("sdgp-table1", "sdgp-fig8"):
        assert sum(preset in part.presets for part in parts_of(name)) == parts
        assert preset in parts_of(name)[0].presets


def declared(name):
    """The rows of a comparison: quantity, label, and the published numbers that are used."""
    return {
        (one.quantity, one.method, one.published.partition("/")[2], one.published_baseline.partition("/")[2])
        for part in parts_of(name)
        for one in part.compared
    }


def test_each_quantity_stands_beside_its_own_number():
    table = declared("sdgp-table1")
    rescaled = "sdgp[n=2,m=4,mode=rescaled]"
    expected = {("accuracy, dense", "dense", "dense", "")}
    for mode in ("random", "magnitude", "rescaled"):
        name = f"sdgp[n=2,m=4,mode={mode}]"
        expected |= {(f"accuracy, {mode} 2:4", name, mode, ""), (f"{mode} 2:4 minus dense", name, mode, "dense")}
    expected.add(("training time saved, rescaled 2:4, against dense", rescaled, "2:4", ""))
    for n, m in ((1, 4), (2, 4), (1, 8), (2, 8), (4, 8), (2, 16), (4, 16), (8, 16), (4, 32), (8, 32), (16, 32)):
        name = f"sdgp[n={n},m={m},mode=rescaled]"
        expected.add((f"accuracy, rescaled {n}:{m} (repository)", name, f"{n}:{m}", ""))
        expected.add((f"rescaled {n}:{m} (repository) minus dense", name, f"{n}:{m}", "dense"))
    assert table == expected
    figure = {
        (quantity.replace(" (repository)", ""), *rest) for quantity, *rest in expected if "repository" in quantity
    }
    assert declared("sdgp-fig8") == figure | {("accuracy, dense", "dense", "dense", "")}
    (saved,) = [one for part in parts_of("sdgp-table1") for one in part.compared if one.against == "saving"]
    assert saved.published.startswith("sdgp-time-saved-resnet18/")


def test_the_recipe_that_a_part_sets():
    assert [part.overrides for part in parts_of("sdgp-fig5")] == [{"epochs": 1}]
    assert not any(part.overrides for name in ("sdgp-table1", "sdgp-fig8") for part in parts_of(name))


def test_every_published_group_is_quoted_by_a_reproduction():
    quoted = set()
    for name in NAMES:
        one = page(name).declared
        quoted |= {*filter(None, [one.reference]), *one.also, *one.compared_with}
        quoted |= {line.published.partition("/")[0] for part in one.parts for line in part.compared if line.published}
    assert quoted == {group for path in paper.OWN for group in paper.read(path).groups}


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
