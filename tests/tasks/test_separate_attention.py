"""torchvision's vision transformers with separate linear layers for attention: equal functions, and heads to cut."""

import pytest
import torch
from masked_cuts import differences
from torch import nn

pytest.importorskip("torchvision")
from torchvision.models import VisionTransformer

from suite.choices import ModelChoice, build_model
from suite.engine.cost.flops import count
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.trial_cut import freeze_what_fails
from tasks.models.transformers.separate_attention import SeparateAttention, separate_attention

SHAPE, HEADS, LAYERS = (3, 32, 32), 3, 2


def transformer(separate, seed=0):
    torch.manual_seed(seed)
    model = VisionTransformer(32, 16, LAYERS, HEADS, 12 * HEADS, 48, num_classes=10)
    nn.init.normal_(model.heads.head.weight)  # torchvision begins with zeros
    for block in model.encoder.layers:
        nn.init.normal_(block.self_attention.in_proj_bias)  # also zeros
    if separate:
        separate_attention(model)
    return model


def gradients(model):
    torch.manual_seed(1)
    model(torch.randn(4, *SHAPE)).logsumexp(1).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_outputs_and_gradients_are_those_of_torch():
    plain, separated = transformer(False), transformer(True)
    images = torch.randn(4, *SHAPE)
    torch.testing.assert_close(separated(images), plain(images))
    theirs, ours = gradients(plain), gradients(separated)
    for name, gradient in theirs.items():
        if "in_proj" in name:
            path, _, kind = name.replace("in_proj_", "{}.").rpartition(".")
            found = torch.cat([ours[f"{path}.{kind}".format(part)] for part in ("query", "key", "value")])
        else:
            found = ours[name.replace("out_proj", "projection")]
        torch.testing.assert_close(found, gradient, msg=name)


def test_the_same_random_numbers_follow():
    transformer(False)
    expected = torch.rand(3)
    transformer(True)
    assert torch.equal(torch.rand(3), expected)


def test_flops_are_the_same_and_belong_to_layers():
    def flops(model):
        found = count(model, SHAPE).layers
        products = ("forward", "dgrad", "wgrad")
        return {name: sum(cost.flops(product) for product in products) for name, cost in found.items()}

    plain, separated = flops(transformer(False)), flops(transformer(True))
    assert sum(separated.values()) == sum(plain.values())
    assert any(name.endswith(":in_proj_weight") for name in plain)
    outside = [name for name in separated if ":" in name]
    assert len(outside) == LAYERS  # the products of attention, which have no weights
    assert all(name.endswith(":attention") for name in outside)


def test_heads_and_hidden_units_are_cut_as_in_the_masked_network():
    model = transformer(True)
    spaces = find_index_spaces(model, SHAPE)
    freeze_what_fails(model, spaces, SHAPE)
    assert len(spaces.heads) == LAYERS
    free = [space.size for space in spaces.values() if space.producers and not space.frozen]
    assert sorted(free) == [HEADS] * LAYERS + [48] * LAYERS
    outputs, step = differences(model, spaces, SHAPE, True)
    assert outputs < 1e-4
    assert step < 1e-6


@pytest.mark.parametrize(
    "changed",
    [{"batch_first": False}, {"bias": False}, {"dropout": 0.1}, {"add_bias_kv": True}, {"add_zero_attn": True}],
)
def test_other_attention_is_refused(changed):
    attention = nn.MultiheadAttention(6, 3, **{"batch_first": True, **changed})
    with pytest.raises(ValueError, match="cannot be separated"):
        SeparateAttention(attention)


def test_the_model_has_the_parameter():
    choice = ModelChoice.read("torchvision/vit_b_32[separate_attention=true]")
    assert str(choice.canonical()) == "torchvision/vit_b_32[separate_attention=true]"
    assert choice.parameters()["separate_attention"] is True
    assert ModelChoice.read("vit_b_32").parameters()["separate_attention"] is False
    with torch.device("meta"):
        network = choice.build((3, 32, 32), 10)
        plain = build_model("vit_b_32", (3, 32, 32), 10)
    assert sum(isinstance(layer, SeparateAttention) for layer in network.modules()) == 12
    assert not any(isinstance(layer, SeparateAttention) for layer in plain.modules())
