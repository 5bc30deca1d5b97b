"""How far the inputs of batch normalisations are from zero mean."""

import pytest
import torch
from torch import nn

from benchmarks.evidence.normalization_offsets import line, offsets


def test_offsets_are_means_in_standard_deviations():
    norm = nn.BatchNorm2d(3, eps=0.0)
    norm.running_mean.copy_(torch.tensor([-6.0, 1.0, 0.5]))
    norm.running_var.copy_(torch.tensor([4.0, 1.0, 1.0]))
    model = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), norm, nn.BatchNorm2d(3, track_running_stats=False))
    nn.init.constant_(model[0].weight, 2.0)
    assert offsets(model) == pytest.approx({"1": 1.0})
    assert line("dense-s0", model) == "dense-s0: largest 1.00 (1), median 1.00, norm of the weights 4.9"


def test_a_network_without_batch_normalisation_says_so():
    assert line("dense-s0", nn.Linear(2, 2)).endswith("no batch normalisation with running averages")
