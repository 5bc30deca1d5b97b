"""Sparse convolution on CUDA equals masked dense convolution: the kernels' source on the CPU, and on a device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from emulated import build, needs_compiler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparse_conv_kernels import kernels_of
from stand_in import standing_in
from test_sparse_conv import compare, dgrad, patterned, wgrad

from kernels.cuda import library
from kernels.sparse_conv import cuda_plan as tap_plan
from kernels.sparse_conv.cuda import CudaSparseConvolution, available, from_blocks, to_blocks
from kernels.sparse_conv.taps import Window

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
drawn = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
SEED = st.integers(0, 2**31)
ENOUGH = st.sampled_from([1, 40, 400])  # warps that fill the device: a smaller number gives larger tiles


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# ---- the kernels' source, on the CPU ----


@pytest.fixture(scope="module")
def launchers():
    needs_compiler()
    found = {}
    for dtype, steps in (("float32", (0, 1, 2)), ("bfloat16", (1,)), ("float16", (1, 2))):
        found.update(build(kernels_of(dtype, steps), tap_plan.SOURCE))
    return found


def want_warps(monkeypatch, enough):
    """Make plans assume that `enough` warps fill the device."""
    monkeypatch.setattr(tap_plan, "ENOUGH_WARPS", enough)
    tap_plan.plan_sum.cache_clear()
    tap_plan.plan_products.cache_clear()


@pytest.fixture
def on_cpu(launchers, monkeypatch):
    """Let `kernels.cuda.library` launch on CPU tensors; uninitialized memory is NaN."""
    torch.use_deterministic_algorithms(True)
    with standing_in(monkeypatch, launchers) as compiled:
        yield compiled
    torch.use_deterministic_algorithms(False)
    tap_plan.plan_sum.cache_clear()
    tap_plan.plan_products.cache_clear()
    assert launchers["beyond"]() == 0


@pytest.mark.slow
@pytest.mark.usefixtures("on_cpu")
class TestOnTheCpu:
    @drawn
    @given(
        st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.tuples(st.integers(1, 11), st.integers(1, 11)),
        st.integers(1, 3), st.integers(0, 3), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.booleans(), SEED, ENOUGH,
    )  # fmt: skip
    def test_patterns_of_any_shape(
        self, monkeypatch, out_channels, in_channels, images, size, stride, padding, absent, last, seed, enough
    ):
        if min(size) + 2 * padding < 3:
            return
        want_warps(monkeypatch, enough)
        kept = patterned(out_channels, in_channels, absent, generator(seed))
        compare(kept, images, size, stride, padding, last=last, seed=seed, convolution=CudaSparseConvolution)

    @drawn
    @given(
        st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.floats(0, 1), st.booleans(),
        SEED, ENOUGH,
    )  # fmt: skip
    def test_any_weights_may_be_absent(self, monkeypatch, rows, columns, stride, dilation, density, last, seed, enough):
        """Kernels of any size with a random number of weights in each."""
        want_warps(monkeypatch, enough)
        kept = torch.rand(5, 7, rows, columns, generator=generator(seed)) < density
        compare(kept, 3, (9, 11), stride, 1, dilation, last=last, seed=seed, convolution=CudaSparseConvolution)

    @pytest.mark.parametrize("last", [False, True])
    @pytest.mark.parametrize(("dtype", "stride"), [(torch.bfloat16, 1), (torch.float16, 1), (torch.float16, 2)])
    @pytest.mark.parametrize("enough", [1, 400])
    def test_16_bits_are_summed_in_fp32(self, monkeypatch, dtype, stride, last, enough):
        want_warps(monkeypatch, enough)
        kept = patterned(7, 10, 0.3, generator())
        compare(kept, 67, (8, 9), stride, 1, dtype=dtype, last=last, convolution=CudaSparseConvolution)

    def test_results_have_the_memory_format_of_activations_and_weights(self):
        kept = patterned(5, 6, 0.5, generator())
        for last in (False, True):
            layout = torch.channels_last if last else torch.contiguous_format
            out, grad, of_weight = compare(kept, 4, (6, 6), 1, 1, last=last, convolution=CudaSparseConvolution)
            assert all(found.is_contiguous(memory_format=layout) for found in (out, grad, of_weight))

    def test_a_weight_may_have_a_type_of_its_own(self):
        """For example a master weight in fp32 with activations in 16 bits."""
        kept = patterned(5, 6, 0.5, generator())
        taps = CudaSparseConvolution(kept, (1, 1), (1, 1))
        activation, weight = torch.randn(4, 6, 5, 5).bfloat16(), torch.randn(5, 6, 3, 3)
        out = taps.forward(activation, weight)
        exact = F.conv2d(activation.float(), weight * kept, padding=1)
        torch.testing.assert_close(out.float(), exact, rtol=2**-7, atol=2**-7)
        assert wgrad(taps, out, activation, weight).dtype == torch.float32

    @pytest.mark.parametrize("stride", [1, 2])
    def test_what_is_not_a_number_goes_where_taps_read_it_and_no_further(self, monkeypatch, stride):
        """Tiles do not divide these sizes: those at the edge overlap other tiles."""
        want_warps(monkeypatch, 1)
        kept = patterned(4, 4, 0.3, generator())
        taps = CudaSparseConvolution(kept, (stride, stride), (1, 1))
        activation, weight = torch.randn(33, 4, 10, 11), torch.rand(4, 4, 3, 3) + 1
        activation[32, 2, 8, 10] = activation[0, 1, 9, 0] = float("nan")
        marked = activation.isnan().double()
        indicator = kept.double().requires_grad_()
        reached = F.conv2d(marked, indicator, None, stride, 1)
        reached.sum().backward()
        assert torch.equal(taps.forward(activation, weight).isnan(), reached > 0)
        of_weight = wgrad(taps, torch.ones(reached.shape), activation, weight)
        assert torch.equal(of_weight.isnan(), (indicator.grad > 0) & kept)

    def test_values_of_every_class_begin_where_16_bytes_may_be_read(self, monkeypatch):
        """A device requires the alignment, the CPU does not. The classes of stride 2 have 15, 30, 30 and 60 taps."""
        begins, launch_kernel = [], library.launch_kernel

        def note(launch, tensors):
            if "value" in tensors:
                begins.append(tensors["value"].data_ptr() % 16)
            launch_kernel(launch, tensors)

        monkeypatch.setattr(library, "launch_kernel", note)
        taps = CudaSparseConvolution(torch.ones(3, 5, 3, 3, dtype=torch.bool), (2, 2), (1, 1))
        dgrad(taps, torch.randn(2, 3, 4, 4), torch.randn(3, 5, 3, 3), torch.randn(2, 5, 8, 8))
        assert begins == [0, 0, 0, 0]

    def test_nothing_comes_of_nothing(self):
        taps = CudaSparseConvolution(patterned(5, 6, 0.5, generator()), (1, 1), (1, 1))
        activation, weight = torch.randn(0, 6, 5, 5), torch.randn(5, 6, 3, 3)
        assert taps.forward(activation, weight).shape == (0, 5, 5, 5)
        assert dgrad(taps, torch.randn(0, 5, 5, 5), weight, activation).shape == activation.shape
        assert not wgrad(taps, torch.randn(0, 5, 5, 5), activation, weight).any()

    @pytest.mark.parametrize("dtype", DTYPES.values())
    @pytest.mark.parametrize("last", [False, True])
    @pytest.mark.parametrize("shape", [(1, 1, 1, 1), (70, 19, 5, 3), (32, 16, 4, 4), (3, 1, 4, 20)])
    def test_blocks_give_back_what_they_were_given(self, shape, last, dtype):
        layout = torch.channels_last if last else torch.contiguous_format
        plain = torch.randn(shape).to(dtype).contiguous(memory_format=layout)
        rows, columns = shape[2:]
        bordered = to_blocks(plain, Window(rows, columns, 2, 1, rows + 3, columns + 4))
        assert bordered.data.shape[-1] == 128 // dtype.itemsize
        inside = bordered.data[:, :, 2 : 2 + rows, 1 : 1 + columns]
        images = inside.movedim(-1, 1).reshape(-1, *shape[1:])
        assert torch.equal(images[: shape[0]], plain)
        assert not images[shape[0] :].any()
        assert bordered.data.count_nonzero() == plain.count_nonzero()  # the border is zero
        assert torch.equal(from_blocks(bordered, plain), plain)


def test_a_cpu_has_none_of_these_kernels():
    assert not available(torch.device("cpu"))


# ---- on a device ----


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.usefixtures("cuda_kernels")
class TestOnADevice:
    @pytest.mark.parametrize("dtype", DTYPES.values())
    @pytest.mark.parametrize("last", [False, True])
    @pytest.mark.parametrize("stride", [1, 2, 3])
    @pytest.mark.parametrize(("channels", "images", "size"), [((64, 48), 128, (32, 32)), ((160, 160), 70, (7, 9))])
    def test_results_are_those_of_masked_dense_ones(self, channels, images, size, stride, last, dtype):
        kept = patterned(*channels, 0.7, generator())
        for padding, dilation in ((1, 1), (2, 2), (0, 1)):
            compare(
                kept,
                images,
                size,
                stride,
                padding,
                dilation,
                dtype,
                last,
                convolution=CudaSparseConvolution,
                device="cuda",
            )
