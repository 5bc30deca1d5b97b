"""Formatting of numbers and intervals, compared with values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from reports import formatting
from reports.data.estimates import Estimate, Missing, Ratio, estimate, paired


def test_interval_of_three_seeds_is_the_t_interval_of_a_table() -> None:
    # Mean 71.3, standard deviation 0.556776 (variance 0.31), t(0.975, 2) = 4.302653.
    found = estimate([71.2, 71.9, 70.8], "")
    assert isinstance(found, Estimate)
    assert found.mean == pytest.approx(71.3)
    assert found.half_width == pytest.approx(4.302653 * math.sqrt(0.31 / 3), rel=1e-6)


def test_one_seed_has_no_interval_and_tells_nothing_apart() -> None:
    assert estimate([0.7], "") == Estimate(0.7, None, 1)
    assert Estimate(0.7, None, 1).covers(0)
    assert estimate([], "why") == Missing("why")


def test_differences_are_paired_by_seed_and_not_by_position() -> None:
    found = paired({0: 1.0, 1: 2.0, 7: 9.0}, {1: 1.5, 0: 0.5, 8: 4.0}, "difference")
    assert isinstance(found, Estimate)
    assert (found.mean, found.half_width, found.count) == (0.5, None, 2)


def test_ratios_have_geometric_means_and_the_intervals_of_their_logarithms() -> None:
    ours, dense = {0: 1.0, 1: 30.0, 2: 4.0}, {0: 2.0, 1: 10.0, 2: 5.0}
    found, inverse = paired(ours, dense, "ratio"), paired(dense, ours, "ratio")
    assert isinstance(found, Ratio)
    assert isinstance(inverse, Ratio)
    logarithms = np.log([0.5, 3.0, 0.8])
    expected = scipy.stats.t.interval(0.95, 2, np.mean(logarithms), scipy.stats.sem(logarithms))
    assert found.mean == pytest.approx(1.2 ** (1 / 3))
    assert (found.low, found.high) == pytest.approx(tuple(np.exp(expected)))
    # Dense relative to the method is the inverse, with its ends.
    assert (inverse.mean, inverse.low, inverse.high) == pytest.approx((1 / found.mean, 1 / found.high, 1 / found.low))
    saving = found.complement().scaled(100)
    assert (saving.mean, saving.low, saving.high) == pytest.approx(
        (100 - 100 * found.mean, 100 - 100 * found.high, 100 - 100 * found.low)
    )
    assert found.covers(found.low)
    assert not found.covers(0.99 * found.low)


def test_ratios_without_a_spread_or_a_logarithm() -> None:
    assert paired({0: 0.3, 1: 0.6}, {0: 0.1, 1: 0.2}, "ratio") == Ratio(pytest.approx(3.0), None, 2)
    assert isinstance(paired({0: 0.0}, {0: 1.0}, "ratio"), Missing)
    far = paired({0: 1e-30, 1: 1e30, 2: 1e30}, {0: 1e30, 1: 1e-30, 2: 1e30}, "ratio")
    assert isinstance(far, Ratio)
    assert math.isfinite(far.high)


def test_the_text_of_a_ratio_has_both_ends() -> None:
    assert formatting.ratio(Ratio(0.912, 0.05, 3, (0.861, 0.968))) == "0.91 [0.86, 0.97]"
    # More decimals where rounded ends would contradict whether the interval covers 1.
    assert formatting.ratio(Ratio(0.96, 0.04, 3, (0.92, 0.998))) == "0.960 [0.920, 0.998]"
    assert formatting.ratio(Ratio(0.5, 1e-9, 3, (0.5, 0.5)), exact=True) == "0.50"


def test_no_common_seed_is_missing_and_not_zero() -> None:
    found = paired({0: 1.0}, {1: 1.0}, "difference")
    assert isinstance(found, Missing)
    assert "no seed in common" in found.reason


@pytest.mark.parametrize(
    ("mean", "half_width", "text"),
    [
        (91.234, None, "91.23"),
        (91.234, 0.5, "91.2 ± 0.5"),
        (91.234, 0.14, "91.23 ± 0.14"),
        (91.234, 1.4, "91.2 ± 1.4"),
        (91.234, 3.0, "91 ± 3"),
        (91.234, 0.01, "91.23 ± 0.01"),
        (91.234, 0.0, "91.23 ± 0.00"),
    ],
)
def test_no_more_digits_than_the_interval_supports(mean: float, half_width: float | None, text: str) -> None:
    assert formatting.interval(Estimate(mean, half_width, 3), 2) == text


@given(st.floats(-50, 50), st.floats(0.001, 30))
def test_written_intervals_say_what_the_exact_ones_say(mean: float, half_width: float) -> None:
    exact = Estimate(mean, half_width, 3)
    # Closer to the edge than any sensible count of decimals can show.
    if abs(abs(mean) - half_width) < 1e-4:
        return
    text = formatting.interval(exact, 2, reference=0).replace(formatting.MINUS, "-")
    written_mean, written_half_width = (float(part) for part in text.split(" ± "))
    assert (abs(written_mean) <= written_half_width) == exact.covers(0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(372, "6 min 12 s"), (59.96, "1 min 00 s"), (12.34, "12.3 s"), (0.0421, "0.042 s"), (7505, "2 h 05 min 05 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert formatting.duration(seconds).replace("60.0 s", "1 min 00 s") == text


def test_durations_with_intervals_lose_digits_that_are_not_supported() -> None:
    assert formatting.duration_interval(Estimate(372, 17.39, 3)) == "6 min 12 s ± 17 s"
    assert formatting.duration_interval(Estimate(372, 95, 3)) == "6 min 10 s ± 1 min 40 s"
    assert formatting.duration_interval(Estimate(12.34, 0.4, 3)) == "12.3 s ± 0.4 s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.8e12, "1.80 TFLOPs"),
        (9.996e11, "1.00 TFLOPs"),
        (8e7, "80.0 MFLOPs"),
        (999, "999 FLOPs"),
        (4e17, "400 PFLOPs"),
    ],
)
def test_flops_have_si_prefixes(value: float, text: str) -> None:
    assert formatting.si(value, "FLOPs") == text


@pytest.mark.parametrize(
    ("value", "text"), [(512, "512 B"), (300 * 2**20, "300 MiB"), (1000 * 2**20, "0.98 GiB"), (1.5 * 2**30, "1.50 GiB")]
)
def test_bytes_have_iec_prefixes(value: float, text: str) -> None:
    assert formatting.binary_bytes(value) == text


def test_signs_are_true_and_zero_has_none() -> None:
    assert formatting.signed(-0.2, 1) == "−0.2"
    assert formatting.signed(0.2, 1) == "+0.2"
    assert formatting.signed(-0.04, 1) == "0.0"
