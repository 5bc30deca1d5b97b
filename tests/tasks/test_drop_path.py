"""Stochastic depth as a parameter of models: which images skip a branch, on which values, and how it is named."""

import pytest
import torch
from torchvision.ops import StochasticDepth

from suite.choices import ModelChoice, build_model
from suite.errors import UsageError
from tasks.models.transformers.vision_transformer import EncoderBlock, MixerBlock

SHAPE = (3, 8, 8)


@pytest.mark.parametrize("make", [lambda: EncoderBlock(8, 2, 0.5), lambda: MixerBlock(3, 8, 0.5)])
def test_each_branch_is_skipped_by_some_images_and_doubled_for_the_others(make):
    torch.manual_seed(0)
    block = make()
    tokens = torch.randn(64, 3, 8)
    torch.testing.assert_close(block.eval()(tokens), type(block).forward(block, tokens))
    block.train()
    skipped = (block(tokens) == tokens).flatten(1).all(1)
    assert 0.1 < skipped.float().mean() < 0.45  # a quarter of the images skips both branches


def test_probabilities_rise_from_zero_to_the_parameter_and_are_no_module_by_default():
    model = build_model("vit_tiny[patch=4,drop_path=0.2]", SHAPE, 4)
    rates = [module.p for module in model.modules() if isinstance(module, StochasticDepth)]
    assert rates == pytest.approx([0.2 * block / 11 for block in range(1, 12)])
    plain = build_model("vit_tiny[patch=4]", SHAPE, 4)
    assert not any(isinstance(module, StochasticDepth) for module in plain.modules())
    assert plain.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("name", ["swin_t", "efficientnet_b0"])
def test_torchvisions_probabilities_are_scaled(name):
    def rates(text):
        with torch.device("meta"):
            model = build_model(text, (3, 64, 64), 4)
        return [module.p for module in model.modules() if isinstance(module, StochasticDepth)]

    own = rates(name)
    assert rates(f"{name}[drop_path=0.4]") == pytest.approx([p * 0.4 / max(own) for p in own])
    assert set(rates(f"{name}[drop_path=0]")) == {0.0}


def test_trials_name_it_and_a_typed_default_is_no_other_network():
    assert ModelChoice.read("vit_tiny").parameters() == {"patch": 0, "drop_path": 0.0}
    assert ModelChoice.read("vit_tiny[drop_path=0]").parameters() == {"patch": 0, "drop_path": 0.0}
    assert str(ModelChoice.read("vit_tiny[drop_path=0]").canonical()) == "vit_tiny"
    assert ModelChoice.read("vit_tiny[drop_path=0.1]").parameters() == {"patch": 0, "drop_path": 0.1}
    assert ModelChoice.read("swin_t").parameters()["drop_path"] is None
    with pytest.raises(UsageError, match="drop_path"):
        ModelChoice.read("vit_tiny[drop_path=1]").build(SHAPE, 4)
    with pytest.raises(UsageError, match="has no parameter 'drop_path'"):
        ModelChoice.read("mobilenet_v2[drop_path=0.1]")
