"""Cases computed by hand, numbered like the tests of SDGP in the design notes; each runs on every path."""

from __future__ import annotations

import itertools
import math

import pytest
import scipy.stats
import torch
from drawn_gradients import layouts_of
from torch import Tensor

from kernels import PruneRule
from kernels.prune import reference

INF, NAN = math.inf, math.nan


def pixel(*channels: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return one sample with one pixel: (1, K, 1, 1)."""
    return torch.tensor(channels, dtype=dtype).reshape(1, -1, 1, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(
    ("grad", "n", "expected"),
    [
        ([1, 7, -3, 2], 2, [0, 7, -3, 0]),
        ([2, -2, 2, 2], 2, [2, -2, 0, 0]),
        ([1, 7, -3, 2], 1, [0, 7, 0, 0]),
        ([1, 7, -3, 2], 4, [1, 7, -3, 2]),
        ([0, 0, 0, 0], 2, [0, 0, 0, 0]),
        ([1, 7, -3, 2, 5, 5, 6, -5], 2, [0, 7, -3, 0, 5, 0, 6, 0]),
    ],
)
def test_sdgp_1_hand_cases(prune, dtype, grad, n, expected):
    assert prune(pixel(*grad, dtype=dtype), PruneRule(n, 4)).flatten().tolist() == expected
    assert prune(torch.tensor([grad], dtype=dtype), PruneRule(n, 4)).flatten().tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", ["magnitude", "random", "unbiased"])
@pytest.mark.parametrize("m", [2, 4, 8, 16, 32])
def test_sdgp_2_exactly_n_survive_in_each_group(prune, m, mode, dtype):
    grad = torch.rand(2, 64, 3, 5).add(0.5).to(dtype)
    for n in {1, m // 2, m - 1, m}:
        survivors = prune(grad, PruneRule(n, m, mode)).ne(0).unflatten(1, (-1, m)).sum(2)
        assert survivors.eq(n).all()


def test_sdgp_2_nan_ranks_above_infinity_and_is_kept(prune):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        kept = prune(pixel(INF, NAN, 1, -INF, dtype=dtype), PruneRule(1, 4)).flatten()
        assert kept[1].isnan()
        assert kept[[0, 2, 3]].tolist() == [0, 0, 0]
        assert prune(pixel(3, -INF, 1, INF, dtype=dtype), PruneRule(1, 4)).flatten().tolist() == [0, -INF, 0, 0]
        # NaNs tie with each other, whatever their sign.
        kept = prune(pixel(1, -NAN, NAN, 1, dtype=dtype), PruneRule(1, 4)).flatten()
        assert kept.isnan().tolist() == [False, True, False, False]


@pytest.mark.parametrize("rescale", ["group", "sample_channel", "channel"])
def test_sdgp_2_pruned_channels_stay_zero_beside_nan_and_infinity(prune, rescale):
    for special in (NAN, INF):
        rescaled = prune(pixel(1, special, 3, 2), PruneRule(2, 4, rescale=rescale)).flatten()
        assert rescaled[[0, 3]].tolist() == [0, 0]
        assert not rescaled[1].isfinite()


@pytest.mark.parametrize("rescale", ["sample_channel", "channel"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("special", [NAN, INF])
def test_sdgp_2_a_pruned_place_stays_zero_though_its_channel_holds_a_nan_elsewhere(prune, dtype, rescale, special):
    # Two pixels: channel 0 keeps the special value in the first and loses in the second.
    grad = torch.tensor([[special, 1.0], [5, 7], [1, 8], [2, 3]]).reshape(1, 4, 1, 2).to(dtype)
    rescaled = prune(grad, PruneRule(2, 4, rescale=rescale)).reshape(4, 2)
    assert not rescaled[0, 0].isfinite()
    assert rescaled[[0, 3], 1].tolist() == [0, 0]
    assert rescaled[[2, 3], 0].tolist() == [0, 0]
    # A channel that is pruned everywhere has no ratio and stays zero.
    assert rescaled[3].tolist() == [0, 0]
    assert rescaled[1].isfinite().all()


def test_sdgp_3_rescaled_per_sample_and_channel(prune):
    grad = torch.tensor([[1.0, 4], [7, 1], [-3, 5], [2, -9]]).reshape(1, 4, 1, 2)
    expected = torch.tensor([[0.0, 0], [8, 0], [-3, 5], [0, -11]]).reshape(1, 4, 1, 2)
    torch.testing.assert_close(prune(grad, PruneRule(2, 4, rescale="sample_channel")), expected)


def test_sdgp_3_rescaled_per_group(prune):
    # Groups [1, 7, -3, 2] (13 / 10) and [4, 1, 5, -9] (19 / 14).
    grad = torch.tensor([[1.0, 4], [7, 1], [-3, 5], [2, -9]]).reshape(1, 4, 1, 2)
    expected = torch.tensor([[0.0, 0], [9.1, 0], [-3.9, 95 / 14], [0, -171 / 14]]).reshape(1, 4, 1, 2)
    torch.testing.assert_close(prune(grad, PruneRule(2, 4, rescale="group")), expected)


def test_sdgp_3_rescaled_per_channel_over_the_batch(prune):
    # The same two pixels, one in each sample: alone, neither sample would change.
    grad = torch.tensor([[1.0, 7, -3, 2], [4, 1, 5, -9]]).reshape(2, 4, 1, 1)
    expected = torch.tensor([[0.0, 8, -3, 0], [0, 0, 5, -11]]).reshape(2, 4, 1, 1)
    torch.testing.assert_close(prune(grad, PruneRule(2, 4, rescale="channel")), expected)
    assert torch.equal(prune(grad, PruneRule(2, 4, rescale="sample_channel")), prune(grad, PruneRule(2, 4)))


def test_sdgp_3_scopes_of_a_matrix(prune):
    # Row ratios 13 / 10 and 19 / 14 over two groups each; column ratios as for the batch.
    grad = torch.tensor([[1.0, 7, -3, 2], [4, 1, 5, -9]])
    per_row = torch.tensor([[0.0, 9.1, -3.9, 0], [0, 0, 95 / 14, -171 / 14]])
    torch.testing.assert_close(prune(grad, PruneRule(2, 4, rescale="sample_channel")), per_row)
    torch.testing.assert_close(
        prune(grad, PruneRule(2, 4, rescale="channel")), torch.tensor([[0.0, 8, -3, 0], [0, 0, 5, -11]])
    )


@pytest.mark.parametrize("mode", ["magnitude", "random", "unbiased"])
@pytest.mark.parametrize("channels", [16, 13])
def test_sdgp_6_layouts_give_the_same_result(prune, mode, channels):
    grad = torch.randn(3, channels, 5, 4)
    expected = prune(grad, PruneRule(2, 4, mode), seed=5)
    for name, same in layouts_of(grad).items():
        assert torch.equal(same, grad), name
        assert torch.equal(prune(same, PruneRule(2, 4, mode), seed=5), expected), name


@pytest.mark.parametrize("rescale", ["none", "group", "sample_channel", "channel"])
def test_sdgp_6_expanded_gradients(prune, rescale):
    grad = torch.randn(2, 8, 1, 1).expand(2, 8, 4, 3)
    assert torch.equal(
        prune(grad, PruneRule(2, 4, rescale=rescale)), prune(grad.clone(), PruneRule(2, 4, rescale=rescale))
    )
    scalar = torch.ones(()).expand(2, 8, 4, 3)
    assert prune(scalar, PruneRule(2, 4))[0, :, 0, 0].tolist() == [1, 1, 0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("rescale", ["group", "sample_channel", "channel"])
def test_sdgp_7_fp16_with_a_loss_scale_is_finite(prune, rescale):
    # Channel 0 loses everywhere, and each channel's sum is far beyond fp16's 65504.
    grad = torch.full((2, 4, 64, 64), 20.0, dtype=torch.float16)
    grad[:, 0] = 1.0
    rescaled = prune(grad, PruneRule(2, 4, rescale=rescale))
    assert rescaled.isfinite().all()
    assert rescaled[:, 0].eq(0).all()


@pytest.mark.parametrize("rescale", ["group", "sample_channel", "channel"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sdgp_7_result_does_not_depend_on_the_loss_scale(prune, dtype, rescale):
    # 2^-8 keeps fp16 clear of its subnormals, where a scaled value is another value.
    grad = torch.randint(1, 64, (2, 16, 6, 5)).to(dtype)
    scaled = prune(grad * 2.0**-8, PruneRule(2, 4, rescale=rescale))
    assert torch.equal(scaled * 2.0**8, prune(grad, PruneRule(2, 4, rescale=rescale)))


def test_sdgp_8_random_is_reproducible_by_seed(prune):
    grad = torch.rand(2, 32, 5, 5) + 1
    assert torch.equal(prune(grad, PruneRule(2, 4, "random"), seed=3), prune(grad, PruneRule(2, 4, "random"), seed=3))
    assert not torch.equal(
        prune(grad, PruneRule(2, 4, "random"), seed=3), prune(grad, PruneRule(2, 4, "random"), seed=4)
    )
    # Both halves of the seed count.
    assert not torch.equal(
        prune(grad, PruneRule(2, 4, "random"), seed=3), prune(grad, PruneRule(2, 4, "random"), seed=3 + 2**32)
    )


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 2), (3, 8), (2, 5), (1, 3)])
def test_sdgp_8_every_subset_is_equally_likely(prune, n, m):
    groups = 60_000
    kept = prune(torch.ones(groups // 100, 100 * m), PruneRule(n, m, "random"), seed=11).reshape(groups, m) != 0
    code = (kept.long() * 2 ** torch.arange(m)).sum(1)
    counts = torch.bincount(code, minlength=2**m)
    subsets = [sum(2**i for i in chosen) for chosen in itertools.combinations(range(m), n)]
    assert counts[subsets].sum() == groups
    assert scipy.stats.chisquare(counts[subsets].numpy()).pvalue > 1e-4


def test_sdgp_8_philox_known_answer():
    # Random123's kat_vectors: philox4x32, 7 rounds, counter 0, key 0.
    words = reference.philox4x32(torch.zeros(1, dtype=torch.int64), 0)
    assert [int(word) for word in words] == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]


@pytest.mark.parametrize("apart", ["by group", "by seed"])
@pytest.mark.parametrize(("n", "m"), [(2, 4), (4, 8)])
def test_sdgp_8_masks_of_neighbours_are_independent(prune, n, m, apart):
    groups, ones = 60_000, torch.ones(1, 60_001 * m)
    first = prune(ones, PruneRule(n, m, "random"), seed=40).reshape(-1, m)
    second = first[1:] if apart == "by group" else prune(ones, PruneRule(n, m, "random"), seed=41).reshape(-1, m)[1:]
    together = first[:groups].T @ second[:groups]  # how often channel i of one and j of the other are kept
    expected = groups * (n / m) ** 2
    deviation = (together - expected) / math.sqrt(expected * (1 - (n / m) ** 2))
    assert deviation.abs().max() < 4.5


@pytest.mark.parametrize("mode", ["magnitude", "random", "unbiased"])
def test_sdgp_9_a_short_last_group_keeps_min_n_and_its_size(prune, mode):
    grad = torch.rand(3, 10, 4, 4) + 1
    survivors = prune(grad, PruneRule(3, 4, mode)) != 0
    assert survivors[:, :4].sum(1).eq(3).all()
    assert survivors[:, 4:8].sum(1).eq(3).all()
    assert survivors[:, 8:].sum(1).eq(2).all()
    assert prune(grad, PruneRule(1, 4, mode))[:, 8:].ne(0).sum(1).eq(1).all()


def test_sdgp_9_hand_case_and_tail_of_the_batch(prune):
    assert prune(pixel(1, 7, -3, 2, 5, -6), PruneRule(1, 4)).flatten().tolist() == [0, 7, 0, 0, 0, -6]
    last = prune(torch.rand(5, 7, 3, 3) + 1, PruneRule(2, 4))[-1]
    assert last.ne(0).sum(0).eq(4).all()
