"""The arithmetic of the time pass, with known times."""

import numpy as np
import pytest

from suite.errors import UsageError
from suite.timing.estimate import StagePairs
from suite.timing.estimate import run_ratio as run_ratio_of


def pairs(ratios, dense=2.0):
    return np.array([[ratio * dense, dense] for ratio in ratios])


def run_ratio(times, steps, dense_steps, reconfigure_s):
    """Return the ratio with images of one size."""
    stages = [StagePairs(*one) for one in zip(times, steps, strict=True)]
    return run_ratio_of(stages, {None: dense_steps}, reconfigure_s)


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


def test_steps_count_with_the_time_of_a_dense_step_of_their_size():
    """30 dense steps take 1 s each, and 10 take 4 s; the method halves only the latter."""
    stages = [StagePairs(pairs([1.0] * 5, dense=1.0), 30, 96), StagePairs(pairs([0.5] * 5, dense=4.0), 10, 160)]
    found = run_ratio_of(stages, {96: 30, 160: 10}, reconfigure_s=7.0)
    assert (found.ratio, found.low, found.high) == pytest.approx((57 / 70,) * 3)
    assert found.reconfiguration == pytest.approx(0.1)
    assert found.dense_step == pytest.approx({96: 40 / 70, 160: 160 / 70})


def test_stages_of_one_size_share_their_dense_steps():
    stages = [
        StagePairs(pairs([1.0] * 5, dense=1.0), 20, 96),
        StagePairs(pairs([1.0] * 5, dense=3.0), 20, 96),  # the machine was slower
        StagePairs(pairs([0.5] * 5, dense=4.0), 20, 160),
    ]
    found = run_ratio_of(stages, {96: 40, 160: 20}, reconfigure_s=0.0)
    assert found.ratio == pytest.approx((40 * 2 + 20 * 4 * 0.5) / (40 * 2 + 20 * 4))


def test_intervals_contain_the_noise_of_dense_steps_of_several_sizes():
    random, covered, sizes = np.random.default_rng(3), 0, ((96, 1.0, 1.0), (160, 4.0, 0.5))
    for _ in range(50):
        stages = []
        for size, dense, ratio in sizes:
            steps = dense * random.normal(1.0, 0.1, 30)
            own = ratio * dense * random.normal(1.0, 0.1, 30)
            stages.append(StagePairs(np.stack([own, steps], axis=1), 20, size))
        found = run_ratio_of(stages, {96: 20, 160: 20}, 0.0)
        covered += found.low <= (20 + 40) / 100 <= found.high
    assert covered >= 42


def test_a_size_that_was_not_measured_is_named():
    with pytest.raises(UsageError, match="no stage of its trial has training images of 160 pixels"):
        run_ratio_of([StagePairs(pairs([1.0] * 5), 20, 96)], {96: 20, 160: 20}, 0.0)
    stages = [StagePairs(pairs([1.0] * 5), 20, size) for size in (96, 128)]
    with pytest.raises(UsageError, match="a stage has training images of 128 pixels, of which dense has none"):
        run_ratio_of(stages, {96: 20}, 0.0)


def test_the_noise_of_dense_steps_widens_the_interval_of_several_sizes():
    """The method's steps take exactly 1.0 and 0.5 of dense's, so that only the weights of the sizes are uncertain."""
    random, widths = np.random.default_rng(4), []
    for noise in (0.02, 0.2):
        stages = []
        for size, dense, ratio in ((96, 1.0, 1.0), (160, 4.0, 0.5)):
            steps = dense * random.normal(1.0, noise, 30)
            stages.append(StagePairs(np.stack([ratio * steps, steps], axis=1), 20, size))
        found = run_ratio_of(stages, {96: 20, 160: 20}, 0.0)
        assert found.low < found.ratio < found.high
        widths.append(found.high - found.low)
    assert widths[1] > 3 * widths[0]


def test_dense_noise_cancels_where_all_steps_have_one_size():
    steps = np.random.default_rng(5).normal(1.0, 0.2, 30)
    found = run_ratio_of([StagePairs(np.stack([0.5 * steps, steps], axis=1), 20)], {None: 20}, 0.0)
    assert (found.low, found.high) == pytest.approx((0.5, 0.5))
