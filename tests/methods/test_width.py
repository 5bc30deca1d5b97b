"""Dense training of a narrower network: `dense[width=0.5]`."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from small_training import RECIPE, SHAPE, SmallBatches, assert_it_resumes, fitted, small_net, small_trainer
from torch import nn

from methods.dense import Dense
from suite.choices import build_model
from suite.engine.cost.flops import PRODUCTS, count_layers
from suite.ops import apply

FIVE = dataclasses.replace(RECIPE, epochs=5)  # 20 steps


def narrow_net():
    """Return the small network with the first 4 of 8 channels in all layers."""
    torch.manual_seed(0)
    model = small_net()
    for layer in model.modules():
        for tensors in (layer._parameters, layer._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.ndim:
                    rows = tensor if len(tensor) == 4 else tensor[:4]  # there are 4 classes
                    narrow = rows[:, :4].clone() if tensor.ndim > 1 else rows.clone()
                    tensors[name] = nn.Parameter(narrow.detach()) if tensors is layer._parameters else narrow
        for name in ("num_features", "in_channels", "out_channels", "in_features"):
            if getattr(layer, name, 0) == 8:
                setattr(layer, name, 4)
    return model.to(memory_format=torch.channels_last)


def test_a_training_is_that_of_the_narrow_network_by_hand_bit_for_bit():
    trainer, records = fitted(Dense(width=0.5), FIVE)
    model = narrow_net()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, weight_decay=5e-4)
    data, step = SmallBatches(64, seed=1), 0
    for epoch in range(5):
        for images, labels in data.epoch(epoch, 16):
            optimizer.param_groups[0]["lr"] = 0.05 * (1 - 0.9 * step / 20)
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            step += 1
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    costs = count_layers(model, SHAPE).values()
    assert records[-1]["train_flops"]["executed"] == 320 * sum(one.flops(name) for one in costs for name in PRODUCTS)
    assert records[-1]["train_flops"]["dense"] > 2 * records[-1]["train_flops"]["executed"]


def test_a_resumed_training_ends_with_equal_bits():
    assert_it_resumes(lambda **callbacks: small_trainer(Dense(width=0.6), RECIPE, **callbacks), after=[1])


@pytest.mark.parametrize(("width", "channels"), [(0.13, 1), (0.01, 1), (0.7, 5), (0.25, 2), (0.875, 7), (0.9, 7)])
def test_channels_are_rounded_down_and_one_is_left(width, channels):
    assert small_trainer(Dense(width=width)).model[0].out_channels == channels


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"match": "prunetrain", "width": 0.5}, "match=prunetrain decides the width"),
        ({"ignore": ("0",)}, "ignore leaves layers out"),
        ({"width": 0.0}, "width is 0"),
    ],
)
def test_what_contradicts_a_width_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Dense(**wrong)


def test_a_network_that_begins_as_the_identity_keeps_the_channels_that_pass_something_on():
    """As in `airbench[width=0.25]`: 24 whitened channels, and no normalisation of a channel without variance."""
    model = build_model("airbench[width=0.5]", (3, 32, 32), 10)
    apply(model, Dense(width=0.5), input_shape=(3, 32, 32), num_classes=10, epochs=1, batch_size=2)
    built = build_model("airbench[width=0.25]", (3, 32, 32), 10)
    assert [parameter.shape for parameter in model.parameters()] == [one.shape for one in built.parameters()]
    identities = [layer.weight.flatten(1).count_nonzero(1) for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert all((counts > 0).all() for counts in identities)
    assert [(counts == 1).sum().item() for counts in identities[1:]] == [16, 16, 16, 64, 64, 64]
