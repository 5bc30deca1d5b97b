"""Mode `unbiased`: probabilities, expectation and variance against independent computations, on every path."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import kernels
from kernels import PruneRule
from kernels.prune import reference, unbiased

INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LIMIT = 4.5  # standard deviations; each test looks at fewer than 200 values
GROUPS = [(1, 2), (2, 4), (1, 4), (3, 7), (2, 16), (8, 16), (5, 32)]


def probabilities(magnitude: list[float], n: int) -> list[float]:
    """Return min(1, c |g|) with the sum min(n, nonzero values), where c is found by bisection."""
    wanted = min(n, sum(size > 0 for size in magnitude))
    low, high = 0.0, wanted / min((size for size in magnitude if size), default=1.0)
    for _ in range(200):
        middle = (low + high) / 2
        kept = sum(min(1.0, middle * size) for size in magnitude)
        low, high = (middle, high) if kept < wanted else (low, middle)
    return [min(1.0, high * size) for size in magnitude]


def skewed(m: int, seed: int = 0) -> Tensor:
    """Return m values of both signs, one of which is so large that it is kept with certainty if n > 1."""
    values = torch.randn(m, generator=torch.Generator().manual_seed(100 * m + seed))
    values = values.sign() * (values.abs() + 0.1) ** 2
    values[m // 2] = 0.0
    values[m // 2] = 3 * values.abs().sum()
    return values


def deviations(draws: Tensor, grad: Tensor, n: int) -> Tensor:
    """Return by how many standard deviations the mean of each channel differs from its value; (draws, m) and (m,)."""
    probability = torch.tensor(probabilities(grad.abs().tolist(), n), dtype=torch.float64)
    grad = grad.double()
    deviation = grad.abs() * ((1 / probability - 1) / len(draws)).sqrt()
    # Values kept with certainty, and the rounding of the sums.
    return (draws.double().mean(0) - grad) / (deviation + grad.abs().sum() * 1e-5)


@pytest.mark.parametrize(("n", "m"), GROUPS)
def test_probabilities_are_proportional_to_magnitudes_and_at_most_one(n, m):
    grad = skewed(m).abs()
    points = 2**14
    uniform = (torch.arange(points) + 0.5) / points
    kept, value = unbiased.sample(grad[:, None].expand(m, points), n, uniform)
    expected = probabilities(grad.tolist(), n)
    assert any(p > 0.999 for p in expected) == (n > 1)
    # A channel is selected by one interval of uniform numbers, or by one at each end.
    for channel, p in enumerate(expected):
        assert kept[channel].double().mean() == pytest.approx(p, abs=2 / points + 1e-6)
        seen = value[channel][kept[channel]]
        assert seen.numel() == 0 or seen.double().tolist() == pytest.approx([float(grad[channel]) / p] * len(seen))


@pytest.mark.parametrize(("n", "m"), GROUPS)
def test_the_expectation_is_the_gradient_for_every_group(prune, n, m):
    grad = skewed(m, seed=1)
    draws = prune(grad.expand(30_000, m), PruneRule(n, m, "unbiased"), seed=22)
    assert deviations(draws, grad, n).abs().max() < LIMIT


@pytest.mark.parametrize(("n", "m"), GROUPS)
def test_the_variance_is_the_smallest(prune, n, m):
    grad = skewed(m, seed=2).double()
    draws = prune(grad.float().expand(20_000, m), PruneRule(n, m, "unbiased"), seed=23).double()
    error = (draws - grad).square().sum(1)
    wanted = sum(g * g * (1 / p - 1) for g, p in zip(grad.tolist(), probabilities(grad.abs().tolist(), n), strict=True))
    assert abs(error.mean() - wanted) < LIMIT * error.std() / math.sqrt(len(error)) + 1e-5 * wanted
    # Uniform sampling, whose values are multiplied by m / n, and probabilities that are not those of the optimum.
    assert wanted < grad.square().sum() * (m / n - 1)
    if n == 1:
        assert wanted == pytest.approx(float(grad.abs().sum() ** 2 - grad.square().sum()))
    generator = torch.Generator().manual_seed(3)
    for _ in range(200):
        other = torch.rand(m, generator=generator, dtype=torch.float64)
        other *= n / other.sum()
        if other.max() <= 1:
            assert wanted < (grad.square() * (1 / other - 1)).sum()


@st.composite
def groups_of_values(draw: st.DrawFn) -> tuple[Tensor, int]:
    m = draw(st.integers(2, 32))
    values = draw(
        st.lists(
            st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.0000001, 3.0, 1e-4]) | st.floats(-2.0, 2.0, width=32),
            min_size=m,
            max_size=m,
        )
    )
    return torch.tensor(values), draw(st.integers(1, m))


@settings(max_examples=150)
@given(groups_of_values(), st.sampled_from(DTYPES), st.integers(0, 2**64 - 1))
def test_exactly_n_or_all_nonzero_values_are_kept(group, dtype, seed):
    grad, n = group
    grad = grad.to(dtype).expand(50, len(grad))
    for prune in (kernels.prune_nm, reference.prune_nm):
        pruned = prune(grad, PruneRule(n, len(grad[0]), "unbiased"), seed)
        assert torch.equal((pruned != 0).sum(1), (grad != 0).sum(1).clamp(max=n))
        assert (pruned * grad >= 0).all()  # no sign changes
        assert (pruned.abs() >= grad.abs() * 0.999)[pruned != 0].all()
        few = (grad != 0).sum(1) <= n
        assert torch.equal(pruned[few], grad[few])


@pytest.mark.parametrize("m", [2, 3, 4, 5, 7, 8, 11, 16, 23, 31, 32])
@pytest.mark.parametrize("n_of", [lambda m: 1, lambda m: m // 2, lambda m: m - 1])
def test_equal_magnitudes_are_kept_equally_often(prune, m, n_of):
    n, draws = n_of(m), 5_000
    pruned = prune(torch.full((draws, m), -0.3), PruneRule(n, m, "unbiased"), seed=24)
    kept = pruned != 0
    assert kept.sum(1).eq(n).all()
    torch.testing.assert_close(pruned[kept], torch.full((draws * n,), -0.3 * m / n))
    deviation = (kept.sum(0) - draws * n / m) / math.sqrt(draws * n / m * (1 - n / m))
    assert deviation.abs().max() < LIMIT


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_hand_cases(prune, dtype):
    def pruned(values: list[float], n: int, m: int) -> set[tuple[float, ...]]:
        grad = torch.tensor(values, dtype=dtype).expand(300, -1)
        return set(map(tuple, prune(grad, PruneRule(n, m, "unbiased"), seed=1).tolist()))

    assert pruned([1, -3], 1, 2) == {(4, 0), (0, -4)}
    # The largest is certain; of the others one is kept, with the probabilities 1/4, 1/4 and 1/2.
    assert pruned([1, -1, 8, 2], 2, 4) == {(4, 0, 8, 0), (0, -4, 8, 0), (0, 0, 8, 4)}
    # No more than n values: unchanged. In a group of zeros nothing is kept.
    assert pruned([0, -5, 1e-3, 0], 2, 4) == {tuple(torch.tensor([0, -5, 1e-3, 0], dtype=dtype).tolist())}
    assert pruned([0, 0, -0.0, 0], 2, 4) == {(0, 0, 0, 0)}
    # A short last group of two.
    assert {row[4:] for row in pruned([1, 1, 1, 1, 3, -1], 1, 4)} == {(4, 0), (0, -4)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), [(1, 4), (2, 4), (3, 7), (4, 16), (9, 32)])
def test_a_group_that_is_not_finite_keeps_its_largest_unchanged(prune, n, m, dtype):
    generator = torch.Generator().manual_seed(5)
    grad = torch.randn(400, m, generator=generator)
    special = torch.tensor([NAN, -NAN, INF, -INF])[torch.randint(0, 4, grad.shape, generator=generator)]
    grad = torch.where(torch.rand(grad.shape, generator=generator) < 0.8 / m, special, grad).to(dtype)
    broken = ~grad.isfinite().all(1)
    assert 100 < broken.sum() < 300
    pruned = prune(grad, PruneRule(n, m, "unbiased"), seed=6)
    expected = prune(grad, PruneRule(n, m))
    assert torch.equal(pruned[broken].nan_to_num(7), expected[broken].nan_to_num(7))
    # The other groups are drawn as if the broken ones were not there.
    without = prune(grad.masked_fill(broken[:, None], 1), PruneRule(n, m, "unbiased"), seed=6)
    assert torch.equal(pruned[~broken], without[~broken])


def test_a_sum_beyond_fp32_keeps_the_largest_unchanged(prune):
    grad = torch.tensor([[3e38, 1e38, -2e38, 1.0], [3e38, 1e37, 1e36, 0.0]])
    pruned = prune(grad, PruneRule(2, 4, "unbiased"))
    assert pruned[0].tolist() == [grad[0, 0], 0, grad[0, 2], 0]
    assert pruned[1, 0] == grad[1, 0]
    assert pruned.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_rounded_to_nearest(prune, dtype):
    grad = torch.rand(500, 64).add(0.1).to(dtype)
    pruned = prune(grad, PruneRule(3, 8, "unbiased"), seed=2)
    wide = prune(grad.float(), PruneRule(3, 8, "unbiased"), seed=2)
    assert not torch.equal(pruned.float(), wide)
    assert torch.equal(pruned, wide.to(dtype))


def test_rescaling_is_refused():
    with pytest.raises(ValueError, match=r"'unbiased' keeps the expectation.*rescale must be 'none', got 'group'"):
        PruneRule(2, 4, "unbiased", "group")


@pytest.mark.parametrize("n", [2, 3])
def test_a_point_that_rounding_moves_beyond_the_last_interval_selects_the_last_channel(n):
    uniform = torch.tensor([1 - 2.0**-24])  # in fp32, uniform + 1 is 2
    kept, value = unbiased.sample(torch.ones(4, 1), n, uniform)
    assert kept.sum() == n
    assert kept[-1]
    torch.testing.assert_close(value.sum(), torch.tensor(4.0))
