"""Patterns of 3x3 kernels and their lasso, on cases computed by hand."""

import itertools

import pytest
import torch

from methods.clicktrain.patterns import (
    EPSILON,
    PruneMask,
    choose_patterns,
    dynamic_pool,
    generic_pool,
    penalty,
)
from methods.masks.structures import least_important_kernels


def picture(pattern):
    text = "".join("1" if kept else "0" for kept in pattern.tolist())
    return " ".join(text[start : start + 3] for start in (0, 3, 6))


def test_every_pattern_keeps_four_weights_and_no_two_are_equal():
    pool = generic_pool(12)
    assert pool.shape == (12, 9)
    assert pool.sum(1).tolist() == [4] * 12
    assert len({picture(pattern) for pattern in pool}) == 12
    for size in (4, 8):
        assert torch.equal(generic_pool(size), pool[:size])


def test_patterns_are_those_of_the_published_code():
    """They are written row by row, as in its source; the first four are the 2x2 blocks."""
    assert [picture(pattern) for pattern in generic_pool(12)] == [
        "000 011 011", "000 110 110", "011 011 000", "110 110 000",
        "000 001 111", "000 111 010", "010 011 010", "010 110 010",
        "111 010 000", "000 100 111", "111 100 000", "000 101 011",
    ]  # fmt: skip


@pytest.mark.parametrize("size", [0, 13])
def test_a_pool_of_another_size_is_refused(size):
    with pytest.raises(ValueError, match=f"1 to 12 patterns, not {size}"):
        generic_pool(size)


def test_a_kernel_takes_the_pattern_where_its_saliency_is():
    pool = generic_pool(12)
    saliency = torch.stack([pattern.float().view(3, 3) for pattern in pool])[None]  # one filter, twelve kernels
    assert choose_patterns(saliency, pool).tolist() == [list(range(12))]


def test_of_equal_patterns_the_first_is_taken():
    saliency = torch.zeros(1, 2, 3, 3)
    saliency[0, 1, 1, 1] = 1.0  # the centre, which the first four all keep
    assert choose_patterns(saliency, generic_pool(4)).tolist() == [[0, 0]]
    saliency[0, 1, 0, 1] = 1.0  # above it: the third and the fourth
    assert choose_patterns(saliency, generic_pool(4)).tolist() == [[0, 2]]


def test_a_filter_takes_the_pattern_that_suits_all_its_kernels():
    pool = generic_pool(4)
    saliency = torch.zeros(2, 3, 3, 3)
    saliency[0, 0] = 1.0 * pool[1].view(3, 3)
    saliency[0, 1] = 1.0 * pool[1].view(3, 3)
    saliency[0, 2] = 5.0 * pool[3].view(3, 3)
    saliency[1] = pool[2].view(3, 3).float()
    each = choose_patterns(saliency, pool)
    assert each.tolist() == [[1, 1, 3], [2, 2, 2]]
    assert choose_patterns(saliency, pool, one_per_filter=True).tolist() == [[3, 3, 3], [2, 2, 2]]


def test_as_many_kernels_go_as_are_asked_for_and_the_least_of_the_layer():
    saliency = torch.tensor([[5.0, 1.0, 6.0, 7.0], [2.0, 3.0, 8.0, 9.0]])[:, :, None, None].expand(2, 4, 3, 3)
    assert least_important_kernels(saliency, 30).tolist() == [[False, True, False, False], [True, True, False, False]]
    in_filters = least_important_kernels(saliency, 30, equal_in_filters=True)
    assert in_filters.tolist() == [[True, True, False, False], [True, True, False, False]]
    assert not least_important_kernels(saliency, 0).any()
    assert least_important_kernels(saliency, 100).all()


def test_a_share_that_is_a_whole_number_of_kernels_is_not_rounded_up():
    assert 0.55 * 100 > 55
    assert least_important_kernels(torch.rand(10, 10, 1, 1), 55).sum() == 55
    assert least_important_kernels(torch.rand(10, 10, 1, 1), 55.01).sum() == 56


def test_of_equal_kernels_the_first_go():
    assert least_important_kernels(torch.ones(2, 2, 3, 3), 50).tolist() == [[True, True], [False, False]]


def some_mask():
    off = ~generic_pool(4)[torch.tensor([[0, 3], [1, 2]])].view(2, 2, 3, 3)
    return PruneMask(off, torch.tensor([[False, True], [False, False]]))


def test_what_stays_is_the_pattern_of_every_kernel_that_stays():
    weight = torch.randn(2, 2, 3, 3).to(memory_format=torch.channels_last)
    kept = some_mask().kept(weight)
    assert kept.dtype == weight.dtype
    assert kept.stride() == weight.stride()
    assert kept.sum((2, 3)).tolist() == [[4, 0], [4, 4]]
    assert kept[1, 1].tolist() == [[0, 1, 1], [0, 1, 1], [0, 0, 0]]


def test_the_penalty_sums_norms_of_what_goes():
    mask = some_mask()
    weight = torch.full((2, 2, 3, 3), 2.0, dtype=torch.float64)
    # Five weights outside each of four patterns; nine of the one kernel that goes; nothing of the three others.
    expected = 4 * (5 * 4 + EPSILON) ** 0.5 + (9 * 4 + EPSILON) ** 0.5 + 3 * EPSILON**0.5
    assert penalty([mask], [weight]).item() == pytest.approx(expected, rel=1e-12)
    ones = torch.full((2, 2, 1, 1), 3.0, dtype=torch.float64)  # 1x1: kernels alone
    both = penalty([mask, PruneMask(None, mask.kernels)], [weight, ones])
    assert both.item() == pytest.approx(expected + (9 + EPSILON) ** 0.5 + 3 * EPSILON**0.5, rel=1e-12)


@pytest.mark.parametrize("last", [False, True])
def test_the_penalty_has_its_gradient_and_none_for_what_stays(last):
    torch.manual_seed(0)
    mask = [some_mask(), PruneMask(None, torch.tensor([[True, False]]))]
    weights = [torch.randn(2, 2, 3, 3, dtype=torch.float64), torch.randn(1, 2, 1, 1, dtype=torch.float64)]
    if last:
        weights[0] = weights[0].to(memory_format=torch.channels_last)
    weights = [weight.requires_grad_() for weight in weights]
    assert torch.autograd.gradcheck(lambda *given: penalty(mask, given), weights)
    gradients = torch.autograd.grad(3.0 * penalty(mask, weights), weights)
    for one, weight, gradient in zip(mask, weights, gradients, strict=True):
        stays = one.kept(weight.detach()).bool()
        assert not gradient[stays].any()
        assert gradient[~stays].all()
    doubly = gradients[0][0, 1][some_mask().outside[0, 1]]  # outside the pattern of a kernel that goes
    weight = weights[0].detach()[0, 1]
    outside = weight[some_mask().outside[0, 1]]
    expected = (
        3.0 * outside * (1 / (outside.square().sum() + EPSILON).sqrt() + 1 / (weight.square().sum() + EPSILON).sqrt())
    )
    torch.testing.assert_close(doubly, expected)


def test_a_dynamic_pool_finds_the_patterns_that_kernels_have():
    """If kernels have four patterns around the centre, no other pool keeps all of their saliency."""
    pool = generic_pool(8)[[1, 4, 5, 7]]
    assert picture(pool[1]) == "000 001 111"  # without the centre
    pool[1] = torch.tensor([mark == "1" for mark in "000010111"])
    of_kernels = pool.repeat_interleave(6, 0).float().view(4, 6, 3, 3)
    found = dynamic_pool([of_kernels[:2], of_kernels[2:]])
    assert {picture(pattern) for pattern in found} == {picture(pattern) for pattern in pool}


def kept_by(pool, saliency):
    return (saliency.reshape(-1, 9).double() @ pool.double().t()).amax(1).sum().item()


def test_a_dynamic_pool_keeps_more_than_the_generic_one_and_nearly_what_the_best_would():
    generator = torch.Generator().manual_seed(3)
    saliency = torch.randn(16, 16, 3, 3, generator=generator).square()
    saliency[:, :, 0, 0] *= 4  # a corner matters most
    found = dynamic_pool([saliency], size=2)
    assert found.shape == (2, 9)
    assert found.sum(1).tolist() == [4, 4]
    assert found[:, 0].all()  # the first position
    assert kept_by(dynamic_pool([saliency]), saliency) > kept_by(generic_pool(4), saliency)
    every = torch.tensor([[place in places for place in range(9)] for places in itertools.combinations(range(9), 4)])
    best = max(kept_by(every[list(pair)], saliency) for pair in itertools.combinations(range(len(every)), 2))
    assert kept_by(found, saliency) > (1 - 1 / 2.718281828) * best


def test_a_dynamic_pool_has_different_patterns_even_where_one_is_enough():
    saliency = generic_pool(1).float().view(1, 1, 3, 3)
    found = dynamic_pool([saliency])
    assert picture(found[0]) == picture(generic_pool(1)[0])
    assert len({picture(pattern) for pattern in found}) == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_penalty_of_short_types_has_a_gradient_at_zero(dtype):
    """1e-8 is zero in float16, so that a group of zeros would have the gradient NaN."""
    weight = torch.zeros((*some_mask().kernels.shape, 3, 3), dtype=dtype, requires_grad=True)
    penalty([some_mask()], [weight]).backward()
    assert weight.grad.dtype == dtype
    assert not weight.grad.any()
