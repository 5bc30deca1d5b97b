"""Each kind of operation between two layers: its channels are cut exactly, or frozen by name while others are cut.

The reference is the masked network: the same outputs in evaluation and training, and the same next step of AdamW,
behind a step that gives the optimizer a state.
"""

import copy

import pytest
import torch
from cuttable_nets import assert_equal_steps, make_optimizer, silence, step, without
from surgery_operations import CUT, FROZEN, SHAPE, WIDTH, Net
from torch import nn

from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import apply_plan
from suite.engine.network.channels.trial_cut import freeze_what_fails


def net(build):
    torch.manual_seed(0)
    model = Net(build()).double()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm, nn.InstanceNorm2d)) and module.weight is not None:
            module.weight.data.normal_(1.0, 0.3)
            module.bias.data.normal_(0.3, 0.3)
    return model, find_index_spaces(model, SHAPE)


def dead_channels(spaces):
    free = [space for space in spaces.values() if not space.frozen and space.size > 1]
    return {space.name: list(range(index % 2, space.size - 1, 2)) for index, space in enumerate(free)}


def compare_with_the_masked_network(model, spaces):
    """Cut every other free channel, and compare with the masked network; return what was cut."""
    dead = dead_channels(spaces)
    images = torch.randn(4, *SHAPE, dtype=torch.float64)
    optimizer = make_optimizer("adam", model)
    step(model, optimizer, images)
    silence(model, spaces, dead)
    masked, other = copy.deepcopy((model, optimizer))
    index_map = apply_plan(model, without(spaces, dead), spaces, optimizer)
    for training in (False, True):
        ours, theirs = model.train(training)(images), masked.train(training)(images)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    assert_equal_steps((model, optimizer), (masked, other), images, index_map)
    for layer in model.modules():
        if type(layer) is nn.Conv2d:
            assert layer.weight.shape[:2] == (layer.out_channels, layer.in_channels // layer.groups)
    for name, wanted in masked.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), index_map(name, wanted), rtol=1e-9, atol=1e-11, msg=name)
    return dead


@pytest.mark.parametrize("name", CUT)
def test_what_is_cut_is_the_masked_network(name):
    build, count = CUT[name]
    model, spaces = net(build)
    before = copy.deepcopy(spaces)
    freeze_what_fails(model, spaces, SHAPE)
    assert dict(spaces) == dict(before)  # tracing alone is right: the trial cut found nothing wrong
    assert not spaces.not_followed
    assert sum(spaces[name].size for name in spaces.outputs_of("first")) == count
    assert all(not spaces[name].frozen for name in spaces.outputs_of("first"))
    assert "other" in compare_with_the_masked_network(model, spaces)


@pytest.mark.parametrize("name", FROZEN)
def test_what_is_frozen_has_a_reason_and_the_rest_is_cut(name):
    build, reason = FROZEN[name]
    model, spaces = net(build)
    before = copy.deepcopy(spaces)
    assert reason in spaces["first"].frozen_because
    assert spaces["first"].frozen
    freeze_what_fails(model, spaces, SHAPE)
    assert dict(spaces) == dict(before)
    assert "other" in compare_with_the_masked_network(model, spaces)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_outputs_of_a_transposed_convolution_are_cut_and_its_inputs_frozen_by_name(stride):
    model, spaces = net(lambda: nn.ConvTranspose2d(WIDTH, 8, stride, stride=stride))
    assert spaces["first"].frozen_because == "'between' is a ConvTranspose2d, whose inputs are not cut"
    assert spaces["between"].size == 8
    assert set(compare_with_the_masked_network(model, spaces)) == {"between", "other"}
