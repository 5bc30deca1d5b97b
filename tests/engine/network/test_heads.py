"""Attention heads: queries, keys, values and projection of a head are removed together, exactly."""

import copy
import math

import pytest
import torch
from cuttable_nets import assert_equal_steps, make_optimizer, silence, step, without
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from methods.prunetrain.lasso import (
    EPSILON,
    head_arithmetic,
    lasso_heads,
    lasso_layers,
    penalty,
    soft_threshold_heads,
    total_penalty,
)
from methods.prunetrain.step_sizes import StepSize
from suite.engine.cost.flops import count_layers, count_model
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import apply_plan
from suite.engine.network.channels.trial_cut import freeze_what_fails
from suite.method import ReconfigPlan
from tasks.models.transformers.vision_transformer import EncoderBlock

SHAPE = (3, 16, 16)
WIDTH, HEADS = 12, 3
FIRST, SECOND = "blocks.0.attention.query", "blocks.1.attention.query"
LAYERS = [f"blocks.0.attention.{name}" for name in ("query", "key", "value")]


class Transformer(nn.Module):
    """Two encoder blocks of three heads on four tokens."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.blocks = nn.Sequential(EncoderBlock(WIDTH, HEADS, 0.0), EncoderBlock(WIDTH, HEADS, 0.0))
        self.classifier = nn.Linear(WIDTH, 5)

    def forward(self, images):
        return self.classifier(self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


@pytest.fixture
def found():
    torch.manual_seed(0)
    model = Transformer().double()
    return model, find_index_spaces(model, SHAPE)


def planned(model):
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, (nn.Linear, nn.Conv2d))}


def test_the_heads_of_an_attention_are_one_space(found):
    model, spaces = found
    freeze_what_fails(model, spaces, SHAPE)
    space = spaces[FIRST]
    assert not space.frozen
    assert spaces.consists_of_heads(space)
    assert not spaces.consists_of_heads(spaces["blocks.0.mlp.expand"])
    assert space.size == HEADS
    assert space.producers == LAYERS
    assert space.consumers == ["blocks.0.attention.projection"]
    assert all(part.entries.tolist() == torch.arange(WIDTH).view(HEADS, -1).tolist() for part in space.slices)
    assert [one.name for one in spaces.values() if not one.frozen] == [
        f"blocks.{n}.{part}" for n in range(2) for part in ("attention.query", "mlp.expand")
    ]


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("dead", [{FIRST: [1]}, {FIRST: [0, 2], SECOND: [2], "blocks.0.mlp.expand": [3, 40]}])
def test_a_model_without_heads_is_the_masked_model(found, kind, dead):
    model, spaces = found
    images = torch.randn(4, *SHAPE, dtype=torch.float64)
    optimizer = make_optimizer(kind, model)
    step(model, optimizer, images)
    silence(model, spaces, dead)
    masked, other = copy.deepcopy((model, optimizer))
    index_map = apply_plan(model, without(spaces, dead), spaces, optimizer)
    torch.testing.assert_close(model(images), masked(images), rtol=1e-9, atol=1e-12)
    assert_equal_steps((model, optimizer), (masked, other), images, index_map)


def test_the_number_of_heads_and_the_counted_attention_follow(found):
    model, spaces = found
    before = count_layers(model, SHAPE)["blocks.0.attention.products:attention"].macs
    apply_plan(model, ReconfigPlan(kept={FIRST: [2]}), spaces, None)
    assert model.blocks[0].attention.products.heads == 1
    assert model.blocks[1].attention.products.heads == HEADS
    assert model.blocks[0].attention.query.out_features == WIDTH // HEADS
    assert model.blocks[0].attention.projection.in_features == WIDTH // HEADS
    assert count_layers(model, SHAPE)["blocks.0.attention.products:attention"].macs * HEADS == before
    images = torch.randn(1, *SHAPE, dtype=torch.float64)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model.eval()(images)
    assert count_model(model, SHAPE)["inference_flops"] == counter.get_total_flops()


def test_the_last_head_stays(found):
    model, spaces = found
    with pytest.raises(ValueError, match="has to keep a channel"):
        apply_plan(model, ReconfigPlan(kept={FIRST: []}), spaces, None)


def test_heads_of_torchs_own_module_are_frozen_by_name():
    class Torchs(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches, self.attention = nn.Conv2d(3, 8, 8, stride=8), nn.MultiheadAttention(8, 2, batch_first=True)
            self.classifier = nn.Linear(8, 5)

        def forward(self, images):
            tokens = self.patches(images).flatten(2).transpose(1, 2)
            return self.classifier(self.attention(tokens, tokens, tokens)[0].mean(1))

    spaces = find_index_spaces(Torchs(), SHAPE)
    reason = "'attention' is a MultiheadAttention, whose heads have the width embed_dim / num_heads"
    assert reason in spaces.not_followed


@pytest.mark.parametrize("by_size", [False, True])
def test_a_head_is_one_group_of_the_lasso(found, by_size):
    model, spaces = found
    layers = planned(model)
    channels = lasso_layers(layers, spaces)
    assert set(channels) == {f"blocks.{n}.mlp.{name}" for n in range(2) for name in ("expand", "reduce")}
    expected = penalty(channels.values(), by_size)
    for block in model.blocks:
        rows = torch.cat([getattr(block.attention, name).weight for name in ("query", "key", "value")], 1)
        group = torch.cat([rows, block.attention.projection.weight.T], 1).unflatten(0, (HEADS, -1)).flatten(1)
        factor = math.sqrt(group.shape[1]) if by_size else 1.0
        expected = expected + factor * (group.square().sum(1) + EPSILON).sqrt().sum()
    total = total_penalty(layers, spaces, by_size)
    torch.testing.assert_close(total, expected)
    weights = [layer.weight for layer in layers.values()]
    for ours, theirs in zip(
        torch.autograd.grad(total, weights, allow_unused=True),
        torch.autograd.grad(expected, weights, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_heads_with_a_weight_that_is_not_trained_are_not_penalised(found):
    model, spaces = found
    model.blocks[0].attention.value.requires_grad_(False)
    assert [heads.name for heads in lasso_heads(planned(model), spaces)] == [SECOND]


def test_the_soft_threshold_shrinks_the_norm_of_a_head(found):
    model, spaces = found
    heads = lasso_heads(planned(model), spaces)[0]
    assert heads.name == FIRST

    def norms():
        parts = [part.weight.detach().movedim(part.axis, 0)[part.entries].flatten(1) for part in heads.parts]
        return torch.cat(parts, 1).norm(dim=1)

    model.blocks[0].attention.key.weight.data[:4] *= 0.01
    before = norms()
    shrink = float(before.min() + before.max()) / 2
    soft_threshold_heads(heads, [StepSize(shrink)] * len(heads.parts))
    torch.testing.assert_close(norms(), (before - shrink).clamp(min=0))
    assert 0 < int((norms() == 0).sum()) < HEADS


def test_operations_on_heads_are_counted_by_layer(found):
    model, spaces = found
    costs = {}
    for name, layer in planned(model).items():
        for heads in lasso_heads({name: layer}, spaces):
            costs[name] = head_arithmetic(heads, name, 4, 3)
    parts = ("query", "key", "value", "projection")
    expected = {f"blocks.{n}.attention.{part}": 4.0 * WIDTH * WIDTH for n in range(2) for part in parts}
    for name in (FIRST, SECOND):
        expected[name] += 3 * HEADS
    assert costs == expected
