"""SDGP's Fig. 9 from known times, and the times of a small network."""

import pytest

from reports.papers.sdgp import time_shares
from reports.papers.sdgp.layer_times import product_seconds
from reports.papers.sdgp.time_shares import Figure9

SECONDS = {
    "first": {"forward": 1.0, "wgrad": 2.0},
    "second": {"forward": 2.0, "dgrad": 3.0, "wgrad": 2.0, "pruning": 0.5},
}


def test_the_share_is_that_of_the_three_products():
    share, pruning = Figure9().lines(SECONDS, "net", time_shares.SHARE)
    assert (share.ours.mean, share.published) == (pytest.approx(30.0), 33.17)
    assert (pruning.ours.mean, pruning.published) == (pytest.approx(5.0), None)


def test_savings_follow_from_the_share_and_from_pruning():
    found = Figure9().saved(SECONDS)
    assert [one.ours.mean for one in found] == pytest.approx([15.0, 10.0, 22.5, 17.5])
    assert [one.published for one in found if one.published] == [16.6, 24.9]
    assert {one.kind for one in found} == {"modelled"}


def test_the_first_layer_has_no_data_gradient_and_all_others_are_pruned():
    found = product_seconds("resnet9[width=0.125]", (3, 32, 32), 10, 2, "float32", time_shares.METHOD, "cpu")
    first, *convolutions = [parts for name, parts in found.items() if "dgrad" not in parts or "pruning" in parts]
    assert set(first) >= {"forward", "wgrad"}
    assert "dgrad" not in first
    assert convolutions
    assert all(set(parts) == {"forward", "dgrad", "wgrad", "pruning"} for parts in convolutions)
    assert all(seconds > 0 for parts in found.values() for seconds in parts.values())


def test_the_counted_share_of_resnet18():
    assert time_shares.counted_share() == pytest.approx(0.31856, abs=1e-5)
