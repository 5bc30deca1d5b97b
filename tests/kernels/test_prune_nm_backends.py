"""The compiled kernel compared with the reference, for shapes, dtypes, modes and every n:m."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from drawn_gradients import DTYPES, bits_of, gradients, group_shapes
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from kernels import PruneRule
from kernels.prune import reference

pytestmark = pytest.mark.usefixtures("compiled")

# Sums in another order differ by a few fp32 roundings; a 16-bit result then differs by at most one of its units.
RELATIVE_TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@settings(max_examples=80)
@given(
    gradients(special=True),
    group_shapes(),
    st.sampled_from(["magnitude", "random", "unbiased"]),
    st.integers(0, 2**64 - 1),
)
def test_values_are_bit_equal_to_the_oracle(grad, group, mode, seed):
    compiled = kernels.prune_nm(grad, PruneRule(*group, mode), seed=seed)
    assert torch.equal(bits_of(compiled), bits_of(reference.prune_nm(grad, PruneRule(*group, mode), seed=seed)))


@settings(max_examples=60)
@given(gradients(), group_shapes(), st.sampled_from(["magnitude", "random"]),
       st.sampled_from(["group", "sample_channel", "channel"]), st.integers(0, 2**64 - 1))  # fmt: skip
def test_rescaled_values_agree_with_the_oracle(grad, group, mode, rescale, seed):
    compiled = kernels.prune_nm(grad, PruneRule(*group, mode, rescale), seed)
    expected = reference.prune_nm(grad, PruneRule(*group, mode, rescale), seed)
    assert torch.equal(compiled != 0, expected != 0)
    torch.testing.assert_close(compiled, expected, rtol=RELATIVE_TOLERANCE[grad.dtype], atol=0)


@pytest.mark.parametrize("mode", ["magnitude", "random", "unbiased"])
@pytest.mark.parametrize("m", range(2, 33))
def test_every_group_shape_is_bit_equal_to_the_oracle(m, mode):
    # 96 channels: whole groups for ten of the sizes, a short last group for the rest; ties throughout.
    grad = torch.randint(-3, 4, (2, 96, 3, 7), generator=torch.Generator().manual_seed(m)).float()
    for n in range(1, m + 1):
        for dtype in DTYPES if n in (1, m // 2) else DTYPES[:1]:
            same = grad.to(dtype)
            expected = reference.prune_nm(same, PruneRule(n, m, mode), seed=n)
            assert torch.equal(kernels.prune_nm(same, PruneRule(n, m, mode), seed=n), expected), (n, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_value_is_ranked_and_rescaled_as_by_the_oracle(dtype):
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    shuffled = patterns[torch.randperm(2**16, generator=torch.Generator().manual_seed(0))].view(dtype).reshape(-1, 64)
    assert torch.equal(
        bits_of(kernels.prune_nm(shuffled, PruneRule(2, 4))), bits_of(reference.prune_nm(shuffled, PruneRule(2, 4)))
    )
    # A value with a small neighbour (1:2, ratio near 1) covers every rounding of the format.
    finite = shuffled.flatten()[shuffled.flatten().isfinite()]
    pairs = torch.stack([finite, finite.abs() / 3], 1)
    torch.testing.assert_close(
        kernels.prune_nm(pairs, PruneRule(1, 2, rescale="group")),
        reference.prune_nm(pairs, PruneRule(1, 2, rescale="group")),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize(
    ("n", "m", "mode", "dtype"),
    [
        (2, 4, "magnitude", torch.float32),
        (8, 16, "magnitude", torch.bfloat16),
        (2, 4, "random", torch.bfloat16),
        (2, 16, "unbiased", torch.float32),
    ],
)
def test_results_that_are_written_past_the_caches_are_right(n, m, mode, dtype):
    # At least 16 MiB, with an incomplete tile and an incomplete block.
    grad = torch.randn(2**24 // 64 // dtype.itemsize + 5, 64, generator=torch.Generator().manual_seed(3)).to(dtype)
    grad[::7] = (grad[::7] * 2).round()  # ties
    pruned = torch.full_like(grad, float("nan"))
    del pruned  # the next tensor of this size reuses its memory, so that a missing write is seen
    assert torch.equal(
        kernels.prune_nm(grad, PruneRule(n, m, mode), seed=4), reference.prune_nm(grad, PruneRule(n, m, mode), seed=4)
    )


@pytest.mark.parametrize("rescale", ["sample_channel", "channel", "group"])
@pytest.mark.parametrize("shape", [(3, 65536), (1, 512, 56, 56), (40000, 24)])
def test_long_sums_agree_with_the_oracle(shape, rescale):
    grad = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    if grad.dim() == 4:
        grad = grad.contiguous(memory_format=torch.channels_last)
    expected = reference.prune_nm(grad.double(), PruneRule(2, 4, rescale=rescale)).float()
    torch.testing.assert_close(kernels.prune_nm(grad, PruneRule(2, 4, rescale=rescale)), expected, rtol=2e-6, atol=0)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("mode", "rescale"),
    [("unbiased", "none"), *itertools.product(["magnitude", "random"], ["none", "group", "sample_channel", "channel"])],
)
def test_result_does_not_depend_on_the_number_of_threads(mode, rescale):
    grad = torch.randn(17, 48, 13, 11)
    results = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        results.append(kernels.prune_nm(grad, PruneRule(2, 4, mode, rescale), seed=9))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
