"""slimming, earlybird and gradual_channels on two ranks: both remove the same channels, and move the same means."""

import dataclasses

import pytest
import torch
from gloo_threads import found_by_ranks
from rank_trainers import plain_net
from small_training import RECIPE, small_net, small_trainer

from methods.earlybird import EarlyBird
from methods.gradual_channels import GradualChannels
from methods.slimming import Slimming

RANKS = 2
TRAININGS = {
    "gradual_channels": lambda: (GradualChannels(width=0.5), plain_net()),
    "slimming": lambda: (Slimming(selection="random"), small_net()),
    "earlybird": lambda: (EarlyBird(look_every=0.05, distance=1.0), small_net()),
}


def trained(name):
    method, model = TRAININGS[name]()
    trainer = small_trainer(method, dataclasses.replace(RECIPE, epochs=2), model)
    trainer.fit()  # checks after every epoch that the ranks agree
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def on_rank(rank, folder):
    """Run every training on one rank, and return its weights."""
    return {name: trained(name) for name in TRAININGS}


@pytest.mark.slow
def test_two_ranks_train_the_same_network_as_one(tmp_path):
    first, second = found_by_ranks(on_rank, tmp_path, RANKS)
    for name in TRAININGS:
        assert all(map(torch.equal, first[name], second[name])), name
    assert first["slimming"][0].shape[0] < 8
    # The other nets have batch normalisation, whose statistics are those of a rank.
    for there, here in zip(first["gradual_channels"], trained("gradual_channels"), strict=True):
        torch.testing.assert_close(there, here, rtol=0, atol=1e-5)
