"""Interface of pruning: layouts of results, in-place use, empty tensors, errors, backends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kernels
from kernels import PruneRule
from kernels.prune import reference

SCOPES = ["none", "group", "sample_channel", "channel"]


def test_the_layout_of_a_dense_gradient_is_kept():
    grad = torch.randn(2, 8, 3, 5)
    assert kernels.prune_nm(grad, PruneRule(2, 4)).is_contiguous()
    channels_last = grad.contiguous(memory_format=torch.channels_last)
    assert kernels.prune_nm(channels_last, PruneRule(2, 4)).is_contiguous(memory_format=torch.channels_last)
    sliced = torch.randn(2, 16, 3, 5)[:, ::2]
    assert kernels.prune_nm(sliced, PruneRule(2, 4)).is_contiguous(memory_format=torch.channels_last)
    assert kernels.prune_nm(torch.randn(8, 6).t(), PruneRule(2, 4)).is_contiguous()


def test_the_gradient_itself_is_not_changed():
    for grad in (torch.randn(2, 8, 3, 5), torch.randn(4, 16)):
        before = grad.clone()
        for rescale in SCOPES:
            kernels.prune_nm(grad, PruneRule(2, 4, rescale=rescale))
            assert torch.equal(grad, before)


def test_a_seed_may_be_an_integer_of_numpy():
    grad = torch.randn(4, 32)
    expected = kernels.prune_nm(grad, PruneRule(2, 4, "random"), seed=2**63 + 5)
    assert torch.equal(kernels.prune_nm(grad, PruneRule(2, 4, "random"), seed=np.uint64(2**63 + 5)), expected)


def test_a_device_without_kernels_is_named():
    assert "not for mps" in kernels.backend_report("mps")


@pytest.mark.parametrize("shape", [(0, 8, 3, 3), (2, 0, 3, 3), (2, 8, 0, 3), (0, 8), (4, 0)])
@pytest.mark.parametrize("rescale", SCOPES)
@pytest.mark.parametrize("mode", ["magnitude", "random"])
def test_empty_gradients(shape, rescale, mode):
    grad = torch.empty(shape)
    assert kernels.prune_nm(grad, PruneRule(2, 4, mode, rescale)).shape == shape
    assert reference.prune_nm(grad, PruneRule(2, 4, mode, rescale)).shape == shape


def test_double_precision_takes_the_reference_path():
    grad = torch.randn(2, 8, 3, 3, dtype=torch.float64)
    assert kernels.backend_of(grad) == "reference"
    assert torch.equal(kernels.prune_nm(grad, PruneRule(2, 4)), reference.prune_nm(grad, PruneRule(2, 4)))


def test_the_result_carries_no_graph():
    grad = torch.randn(2, 8, requires_grad=True)
    assert not kernels.prune_nm(grad, PruneRule(2, 4)).requires_grad


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"m": 1}, ValueError, "m must be in 2..32, got m=1"),
        ({"m": 33}, ValueError, "m must be in 2..32, got m=33"),
        ({"n": 0}, ValueError, "n must be in 1..m, got n=0 with m=4"),
        ({"n": 5}, ValueError, "n must be in 1..m, got n=5 with m=4"),
        ({"n": 2.0}, TypeError, "'float' object cannot be interpreted as an integer"),
        ({"m": "4"}, TypeError, "'str' object cannot be interpreted as an integer"),
        ({"mode": "magnitud"}, ValueError, "mode must be one of magnitude, random, unbiased, got 'magnitud'"),
        ({"rescale": "sample-channel"}, ValueError, "rescale must be one of none, .*, got 'sample-channel'"),
    ],
)
def test_a_wrong_rule_is_named_in_one_line(arguments, error, message):
    with pytest.raises(error, match=message) as raised:
        PruneRule(**{"n": 2, "m": 4, **arguments})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"seed": -1}, ValueError, r"seed must be in 0..2\^64-1, got seed=-1"),
        ({"seed": 2**64}, ValueError, "seed must be in"),
        ({"seed": 1.0}, TypeError, "'float' object cannot be interpreted as an integer"),
        ({"grad": torch.ones(4)}, ValueError, r"grad must be \(N, K, P, Q\) or \(rows, K\), got shape \(4,\)"),
        ({"grad": torch.ones(4, 4, 4)}, ValueError, "got shape"),
        ({"grad": torch.ones(4, 4, dtype=torch.int32)}, TypeError, "got int32"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(arguments, error, message):
    with pytest.raises(error, match=message) as raised:
        kernels.prune_nm(**{"grad": torch.ones(2, 8), "rule": PruneRule(2, 4), **arguments})
    assert "\n" not in str(raised.value)


def test_a_rule_of_numpy_integers_equals_one_of_integers():
    assert PruneRule(np.int64(2), np.int32(4)) == PruneRule(2, 4)
    assert hash(PruneRule(np.int64(2), np.int32(4))) == hash(PruneRule(2, 4))
