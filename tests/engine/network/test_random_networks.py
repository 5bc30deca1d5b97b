"""Random networks are cut as the masked network computes, and a network that is cut wrongly is found."""

import pytest
import random_networks
from random_networks import RandomNetwork, examine

from suite.engine.network.channels.tracing import ChannelLabels

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
