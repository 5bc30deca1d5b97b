"""Random networks are cut as the masked network computes, and a network that is cut wrongly is found."""

import copy
import random

import pytest
import random_networks
import torch
from cuttable_nets import silence
from random_networks import SHAPE, RandomNetwork, examine

from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import apply_plan
from suite.engine.network.channels.tracing import ChannelLabels
from suite.method import ReconfigPlan

SEEDS, MORE = range(20), range(20, 200)
WRONG = 13  # a seed whose network is cut wrongly if labels are wrong


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MORE)])
def test_a_random_network_is_cut_right(seed):
    found = examine(seed)
    assert not found.is_wrong, found
    assert found.frozen_by_trial == 0, found


def test_the_sample_has_every_kind_of_block_and_is_cut():
    kinds = {type(block) for seed in SEEDS for block in RandomNetwork(seed).body[1:]}
    assert kinds == set(random_networks.BLOCKS)
    assert sum(examine(seed).free > 0 for seed in SEEDS[:3]) >= 2


def test_labels_that_are_wrong_are_noticed(monkeypatch):
    """By the trial cut, and without it by the differences, or by an error of the cut network."""
    monkeypatch.setattr(ChannelLabels, "_stop", lambda self, reason, label: None)
    assert examine(WRONG).frozen_by_trial
    monkeypatch.setattr(random_networks, "freeze_what_fails", lambda *args: None)
    with pytest.raises((AssertionError, RuntimeError)):
        assert not examine(WRONG).is_wrong


@pytest.mark.parametrize("seed", range(200, 210))
def test_cuts_of_random_channels_compose(seed):
    draw, model = random.Random(seed), RandomNetwork(seed).double()
    spaces, images = find_index_spaces(model, SHAPE), torch.randn(4, *SHAPE, dtype=torch.float64)
    free = [space for space in spaces.values() if not space.frozen]
    for _ in range(2):
        dead = {space.name: draw.sample(range(space.size), draw.randrange(space.size)) for space in free}
        silence(model, spaces, dead)
        masked = copy.deepcopy(model)
        kept = {
            space.name: [one for place, one in enumerate(space.original) if place not in dead[space.name]]
            for space in free
        }
        apply_plan(model, ReconfigPlan(kept=kept), spaces, None)
        assert {space.name: space.original for space in free} == kept
        for training in (False, True):
            found, wanted = (network.train(training)(images) for network in (model, masked))
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
        for space in spaces.values():
            assert all(len(one.entries) == space.size for one in space.slices)
