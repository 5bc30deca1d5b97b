"""Transformers and ConvNeXt: heads and hidden units are cut exactly; everything else is frozen with a reason."""

import copy

import pytest
import torch
from cuttable_nets import assert_equal_steps, every_other, make_optimizer, silence, step, without
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from suite.choices import build_model
from suite.engine.cost.flops import PRODUCTS, count, count_model
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import apply_plan
from suite.engine.network.channels.trial_cut import freeze_what_fails

SHAPE = (3, 32, 32)


@pytest.fixture(scope="module", autouse=True)
def shallow():
    """Let networks have few blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.models.transformers.vision_transformer.DEPTH", 2)
        patch.setattr("tasks.models.convnext.DEPTHS", (1, 1, 1, 1))
        yield


def build(text, shape=SHAPE, classes=5):
    torch.manual_seed(0)
    return build_model(text, shape, classes)


@pytest.fixture(scope="module", params=["vit_tiny[patch=16]", "convnext_atto"])
def modern(request):
    model = build(request.param).double()
    for name, parameter in model.named_parameters():
        if name.endswith(".scale"):  # of ConvNeXt's branches, whose initial 1e-6 would hide a wrong cut
            nn.init.uniform_(parameter, 0.5, 1.0)
    return model, find_index_spaces(model, SHAPE)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_tiny[patch=16]", [f"blocks.{n}.{part}" for n in range(2) for part in ("attention.query", "mlp.expand")]),
        (
            "mlp_mixer_tiny[patch=16]",
            [f"blocks.{n}.{part}_mlp.expand" for n in range(2) for part in ("token", "channel")],
        ),
        ("mlp[width=64]", ["1", "4", "7"]),
        ("convnext_atto", [f"stages.{n}.expand" for n in (0, 3, 6, 9)]),
    ],
)
def test_heads_and_hidden_units_are_free_and_nothing_else(name, expected):
    model = build(name)
    spaces = find_index_spaces(model, SHAPE)
    freeze_what_fails(model, spaces, SHAPE)
    assert [space.name for space in spaces.values() if not space.frozen] == expected
    assert all(space.frozen_because for space in spaces.values() if space.frozen)


def test_the_step_after_a_cut_is_that_of_the_masked_model(modern):
    model, spaces = copy.deepcopy(modern)
    images = torch.randn(4, *SHAPE, dtype=torch.float64)
    optimizer = make_optimizer("adam", model)
    step(model, optimizer, images)
    dead = every_other(spaces)
    silence(model, spaces, dead)
    big, other = copy.deepcopy((model, optimizer))
    index_map = apply_plan(model, without(spaces, dead), spaces, optimizer)
    torch.testing.assert_close(model(images), big(images), rtol=1e-9, atol=1e-12)
    assert_equal_steps((model, optimizer), (big, other), images, index_map)


class Perceptron(nn.Module):
    """A perceptron on tokens."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 8, stride=8)
        self.expand, self.reduce, self.head = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 5)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        return self.head(self.reduce(torch.relu(self.expand(tokens))).mean(1))


@pytest.mark.parametrize("side", [32, 8])  # of 8, there is a single token
def test_layers_on_tokens_are_not_gated(side):
    spaces = find_index_spaces(model := Perceptron(), (3, side, side))
    reason = spaces.why_not_gated(spaces["expand"], dict(model.named_modules()))
    assert reason == "'expand' is applied to tokens"


@pytest.mark.parametrize("name", ["vit_tiny[patch=8]", "mlp_mixer_tiny[patch=8]", "convnext_atto"])
def test_flops_are_those_of_torchs_counter_with_attention(name):
    model = build(name).eval()
    # Without the flash kernel, attention is products that the counter sees: two forward, and two backward for each.
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        logits = model(torch.randn(1, *SHAPE))
        forward = counter.get_total_flops()
        logits.sum().backward()
    counts = count(model, SHAPE)
    assert count_model(model, SHAPE)["inference_flops"] == forward
    assert counts.not_counted == ()
    if name != "convnext_atto":  # the counter multiplies groups of convolutions into their backward
        step = sum(layer.flops(product) for layer in counts.layers.values() for product in PRODUCTS)
        assert step == counter.get_total_flops()
    attention = [layer.macs for layer in counts.layers.values() if layer.kind == "attention"]
    assert attention == ([2 * 17 * 17 * 192] * 2 if name.startswith("vit") else [])  # 16 patches and the class token


def test_convnext_has_the_flops_of_timms_network(monkeypatch):
    monkeypatch.setattr("tasks.models.convnext.DEPTHS", (2, 2, 6, 2))
    shape = (3, 224, 224)
    assert count_model(build("convnext_atto", shape, 10), shape)["inference_flops"] == 1_094_031_360


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vit_tiny[patch=5]", "patches of 5x5"),
        ("convnext_atto", "images are 24x24; the smallest are 32x32"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(text, message):
    with pytest.raises(Exception, match=message) as caught:
        build(text, (3, 24, 24) if text == "convnext_atto" else SHAPE)
    assert "\n" not in str(caught.value)
