"""The arithmetic of the time pass, with known times."""

import numpy as np
import pytest

from suite.timing.estimate import run_ratio


def pairs(ratios, dense=2.0):
    return np.array([[ratio * dense, dense] for ratio in ratios])


def test_stages_count_with_their_steps():
    found = run_ratio([pairs([1.0] * 5), pairs([0.5] * 5)], [10, 30], 40, reconfigure_s=0.0)
    assert (found.ratio, found.low, found.high) == pytest.approx((0.625, 0.625, 0.625))


def test_reconfigurations_are_relative_to_the_time_of_all_dense_steps():
    found = run_ratio([pairs([1.0] * 5)], [40], 40, reconfigure_s=8.0)
    assert (found.ratio, found.low, found.reconfiguration) == pytest.approx((1.1, 1.1, 0.1))


def test_fewer_steps_than_dense_take_less_time():
    """A method with a larger batch takes fewer, longer steps."""
    assert run_ratio([pairs([1.8] * 5)], [20], 40, 0.0).ratio == pytest.approx(0.9)


def test_one_slow_step_changes_nothing():
    assert run_ratio([pairs([0.8, 0.8, 30.0, 0.8, 0.8])], [40], 40, 0.0).ratio == pytest.approx(0.8)


def test_intervals_contain_the_ratio_and_narrow_with_more_pairs():
    random = np.random.default_rng(1)
    widths = []
    for count in (10, 160):
        found = run_ratio([pairs(random.normal(0.9, 0.05, count))], [40], 40, 0.0)
        assert found.low <= found.ratio <= found.high
        widths.append(found.high - found.low)
    assert widths[1] < widths[0] / 2


def test_intervals_cover_the_true_ratio():
    random, covered = np.random.default_rng(2), 0
    for _ in range(50):
        times = [pairs(random.normal(ratio, 0.1, 30)) for ratio in (1.0, 0.6)]
        found = run_ratio(times, [20, 20], 40, 0.0)
        covered += found.low <= 0.8 <= found.high
    assert covered >= 42
