"""The source of the CUDA kernels, executed on the CPU by the plans for a device, compared with the reference."""

from __future__ import annotations

import ctypes
import itertools

import pytest
import torch
from drawn_gradients import bits_of
from emulated import build, kernels_of, needs_compiler, poisoned_like, run, run_launch, shape_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import PruneRule
from kernels.prune import cuda_plan as plans
from kernels.prune import reference
from kernels.prune.cuda_plan import Plan, Shape
from kernels.prune.rule import MODES

pytestmark = pytest.mark.slow  # the sources take half a minute to compile

RELATIVE_TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Every format, every power of two, every mode, and an m that only the slow kernels support.
MENU = [
    (dtype, n, m, mode)
    for (dtype, n, m), mode in itertools.product(
        [
            ("float32", 2, 4),
            ("float32", 8, 16),
            ("bfloat16", 1, 2),
            ("bfloat16", 4, 8),
            ("bfloat16", 16, 32),
            ("float16", 2, 4),
            ("float16", 3, 7),
        ],
        MODES,
    )
]
SCOPES = ["none", "group", "sample_channel", "channel"]
# Of each case of the menu.
CASES = [
    (case, rescale) for case, rescale in itertools.product(MENU, SCOPES) if case[3] != "unbiased" or rescale == "none"
]
A100_SHARED_BYTES = 163 * 1024


def plan(grad: Tensor, case: tuple[str, int, int, str], rescale: str, aligned: bool, shared: int) -> Plan:
    dtype, n, m, mode = case
    return plans.plan_prune(shape_of(grad), dtype, PruneRule(n, m, mode, rescale), aligned, shared)


@pytest.fixture(scope="module")
def launchers():
    needs_compiler()
    shapes = (Shape(2, 9, 64), Shape(2, 9, 63), Shape(5, 1, 64, matrix=True))
    kernels = kernels_of(
        plans.plan_prune(shape, dtype, PruneRule(n, m, mode, rescale), True, shared)
        for ((dtype, n, m, mode), rescale), shape, shared in itertools.product(CASES, shapes, (A100_SHARED_BYTES, 0))
    )
    return build(kernels)


@st.composite
def gradients(draw: st.DrawFn, dtype: torch.dtype) -> Tensor:
    """Draw channels-last gradients with ties and zeros, which fill slabs, end within one, or have a short group."""
    channels = draw(st.sampled_from([8, 32, 64, 96, 160]) | st.integers(1, 70))
    shape = (draw(st.integers(1, 3)), channels, draw(st.integers(1, 7)), draw(st.integers(1, 7)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    grad = torch.randn(shape, generator=generator)
    if draw(st.booleans()):
        grad = (grad * 2).round() / 2
    grad = grad.to(dtype).contiguous(memory_format=torch.channels_last)
    return grad if draw(st.booleans()) else grad[:, :, 0, 0].contiguous()


@pytest.mark.parametrize("case", MENU, ids=lambda case: "-".join(map(str, case)))
@settings(max_examples=25)
@given(st.data())
def test_every_plan_gives_what_the_oracle_gives(launchers, case, data):
    dtype, n, m, mode = case
    grad = data.draw(gradients(DTYPES[dtype]))
    rescale = data.draw(st.sampled_from([rescale for other, rescale in CASES if other == case]))
    aligned = data.draw(st.booleans())
    shared = data.draw(st.sampled_from([A100_SHARED_BYTES, 0]))
    seed = data.draw(st.integers(0, 2**64 - 1))
    pruned = poisoned_like(grad)
    run(plan(grad, case, rescale, aligned, shared), launchers, {"grad": grad, "pruned": pruned}, seed)
    expected = reference.prune_nm(grad, PruneRule(n, m, mode, rescale), seed)
    if rescale == "none":
        assert torch.equal(bits_of(pruned), bits_of(expected))
    else:
        torch.testing.assert_close(pruned, expected, rtol=RELATIVE_TOLERANCE[grad.dtype], atol=0)


@pytest.mark.parametrize(("case", "rescale"), [one for one in CASES if one[0][2] != 7], ids=str)
def test_the_fast_kernels_prune_in_place(launchers, case, rescale):
    dtype, n, m, mode = case
    grad = torch.randn(2, 64, 5, 3).to(DTYPES[dtype]).contiguous(memory_format=torch.channels_last)
    for shared in (A100_SHARED_BYTES, 0):
        target = grad.clone()
        run(plan(grad, case, rescale, True, shared), launchers, {"grad": target, "pruned": target}, 4)
        expected = reference.prune_nm(grad, PruneRule(n, m, mode, rescale), 4)
        torch.testing.assert_close(target, expected, rtol=RELATIVE_TOLERANCE[grad.dtype], atol=0)


@pytest.mark.parametrize("rescale", ["sample_channel", "channel"])
@pytest.mark.parametrize(
    ("dtype", "n", "m"), [("float32", 2, 4), ("float16", 2, 4), ("bfloat16", 4, 8), ("float16", 3, 7)]
)
@pytest.mark.parametrize("shared", [A100_SHARED_BYTES, 0])
def test_a_pruned_place_stays_zero_though_its_channel_holds_a_nan_elsewhere(launchers, dtype, n, m, shared, rescale):
    grad = torch.randn(2, 56, 4, 4, generator=torch.Generator().manual_seed(2))
    grad[0, ::3, 0, 0] = float("nan")
    grad[1, ::5, 1, 1] = -float("inf")
    grad = grad.to(DTYPES[dtype]).contiguous(memory_format=torch.channels_last)
    pruned = poisoned_like(grad)
    case = (dtype, n, m, "magnitude")
    run(plan(grad, case, rescale, True, shared), launchers, {"grad": grad, "pruned": pruned}, 0)
    kept = reference.keep_mask(grad, PruneRule(n, m))
    assert pruned[~kept].eq(0).all()
    finite = reference.prune_nm(grad, PruneRule(n, m, rescale=rescale)).isfinite()
    assert torch.equal(pruned.isfinite(), finite)


def test_no_plan_asks_for_more_shared_memory_than_a_block_may_have():
    for channels, pixels, ((dtype, n, m, mode), rescale) in itertools.product(
        (64, 512, 2048), (36, 3136, 12544), CASES
    ):
        for most in (48 * 1024, A100_SHARED_BYTES):
            found = plans.plan_prune(Shape(4, pixels, channels), dtype, PruneRule(n, m, mode, rescale), True, most)
            # The sums of a block need up to 32 KiB; everything else is optional.
            assert all(launch.shared_bytes <= most for launch in found.launches)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("mode", ["magnitude", "unbiased"])
def test_nan_infinity_and_subnormals_are_pruned_as_by_the_oracle(launchers, dtype, mode):
    case = next(case for case in MENU if case[0] == dtype and case[3] == mode)
    special = torch.tensor([float("nan"), -float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-40, 6e-8, 1.0])
    generator = torch.Generator().manual_seed(0)
    grad = special[torch.randint(0, len(special), (500, 64), generator=generator)].to(DTYPES[dtype])
    pruned = poisoned_like(grad)
    run(plan(grad, case, "none", True, 0), launchers, {"grad": grad, "pruned": pruned}, 0)
    assert torch.equal(bits_of(pruned), bits_of(reference.prune_nm(grad, PruneRule(case[1], case[2], mode))))


@pytest.mark.parametrize("mode", ["random", "unbiased"])
def test_the_key_of_random_masks_is_read_from_memory_where_there_is_some(launchers, mode):
    case = ("float32", 2, 4, mode)
    grad = torch.randn(40, 64)
    pruned = poisoned_like(grad)
    key = ctypes.c_uint64(2**63 + 5)
    (launch,) = plan(grad, case, "none", True, 0).launches
    run_launch(launch, launchers, {"grad": grad, "pruned": pruned}, 1, memory=ctypes.addressof(key))
    assert torch.equal(pruned, reference.prune_nm(grad, PruneRule(2, 4, mode), seed=2**63 + 5))
