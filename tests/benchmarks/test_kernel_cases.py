"""Tests of the cases of the kernel benchmarks: shapes, options, alternatives and clock, with facts computed by hand."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import kernels
from benchmarks import stopwatch
from benchmarks.kernels import alternatives
from benchmarks.kernels import cases as kernel_cases
from benchmarks.kernels.gradient_shapes import gradients
from kernels import PruneRule
from kernels.prune import reference
from suite.engine.cost import interleaved as pairs
from suite.errors import UsageError

TYPED = dict.fromkeys(("shapes", "batch_size", "dtypes", "groups", "modes", "rounds", "slow_rounds"))
TYPED |= {"device": "cpu", "compile": False, "quick": False}


def test_shapes_of_resnet9_are_those_of_its_seven_pruned_layers():
    found = {gradient.shape: gradient.layers for gradient in gradients("resnet9", None, 1)}
    assert {shape: len(layers) for shape, layers in found.items()} == {
        (512, 256, 16, 16): 3,
        (512, 512, 16, 16): 1,
        (512, 512, 8, 8): 2,
        (512, 256, 6, 6): 1,
    }
    assert found[512, 256, 6, 6] == ("resnet9 reduce.conv",)


def test_resnets_of_imagenet_have_their_published_layers_and_equal_shapes_stand_once():
    found = {gradient.shape: gradient.layers for gradient in gradients("resnet18,resnet50", 2, 1)}
    of_18 = [layer for layers in found.values() for layer in layers if layer.startswith("resnet18 ")]
    of_50 = [layer for layers in found.values() for layer in layers if layer.startswith("resnet50 ")]
    # 20 and 53 convolutions including projections; the first reads the image.
    assert (len(of_18), len(of_50)) == (19, 52)
    assert not any(layer.endswith(" conv1") for layers in found.values() for layer in layers)
    both = found[2, 64, 56, 56]
    assert "resnet18 layer1.0.conv1" in both
    assert "resnet50 layer1.0.conv1" in both
    assert (2, 2048, 7, 7) in found
    assert len(found) == 11


def test_large_has_the_bytes_that_are_asked_for_and_not_a_batch_more():
    (large,) = gradients("large", None, 2**28 + 1)
    assert large.shape == (1536, 512, 16, 16)
    assert 2 * math.prod(large.shape) >= 2**28 + 1 > 2 * math.prod((1024, 512, 16, 16))
    assert gradients("large", 4, 2**27)[0].shape == (512, 512, 16, 16)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("resnet81", "did you mean 'resnet1"),
        ("resnet9[widht=1]", "did you mean 'width'"),
        ("resnet18[width=1]", "resnet18 takes no parameters"),
        ("large[n=1]", "large takes no parameters"),
    ],
)
def test_a_wrong_network_is_named(text, line):
    with pytest.raises(UsageError, match=r"--shapes|resnet9") as caught:
        gradients(text, None, 1)
    assert line in str(caught.value)


def test_options_make_the_product_and_keep_a_tensors_cases_together():
    plan = kernel_cases.read(TYPED | {"shapes": "resnet9", "batch_size": 2, "modes": "magnitude,channel"})
    tensors = [(case.gradient.shape, case.dtype) for case in plan.cases if case.kernel == "prune_nm"]
    assert len(tensors) == 4 * 2 * 3 * 2
    assert len(list(itertools.groupby(tensors))) == 4 * 2
    assert (plan.rounds, plan.slow_rounds, plan.slow_modes) == (30, 3, ("magnitude",))


def test_a_cpu_run_is_short_by_default():
    default = kernel_cases.read(TYPED)
    assert {case.gradient.layers[0].partition(" ")[0] for case in default.cases} == {"resnet9[width=0.25]", "resnet9"}
    largest = max(math.prod(case.gradient.shape) for case in default.cases)
    assert 2 * largest >= kernel_cases.large_bytes(torch.device("cpu"))


def test_the_large_gradient_exceeds_the_cache_where_memory_suffices(monkeypatch):
    cpu, cache = torch.device("cpu"), 100 * 2**20
    monkeypatch.setattr(kernel_cases, "cache_bytes", lambda device: (cache, "a test"))
    monkeypatch.setattr(kernel_cases.psutil, "virtual_memory", lambda: SimpleNamespace(total=1000 * cache))
    assert kernel_cases.large_bytes(cpu) >= 4 * cache
    monkeypatch.setattr(kernel_cases.psutil, "virtual_memory", lambda: SimpleNamespace(total=10 * cache))
    assert kernel_cases.large_bytes(cpu) < 4 * cache


def test_quick_is_one_gradient_of_one_type():
    quick = [case for case in kernel_cases.read(TYPED | {"quick": True}).cases if case.kernel == "prune_nm"]
    assert [case.mode for case in quick] == ["magnitude", "random", "unbiased", "sample_channel"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"groups": "2-4"}, "--groups '2-4': expected n:m"),
        ({"groups": "5:4"}, "--groups '5:4'"),
        ({"groups": "2:64"}, "--groups '2:64'"),
        ({"dtypes": "bfloat"}, "did you mean 'bfloat16'"),
        ({"modes": "magnitud"}, "did you mean 'magnitude'"),
        ({"rounds": 1}, "--rounds 1: the smallest is 2"),
        ({"slow_rounds": 1}, "--slow-rounds 1: an interval needs two rounds"),
        ({"batch_size": 0}, "--batch-size 0: the smallest is 1"),
        ({"device": "gpu"}, "--device 'gpu'"),
    ],
)
def test_a_wrong_option_is_named(changes, line):
    with pytest.raises(UsageError) as caught:
        kernel_cases.read(TYPED | changes)
    assert line in str(caught.value)


@pytest.mark.parametrize("mode", [mode for mode in kernel_cases.MODES if mode != "unbiased"])
def test_topk_and_scatter_agrees_with_the_reference(mode):
    rule = PruneRule(2, 8, *kernel_cases.MODES[mode])
    grad = torch.randn(3, 24, 4, 5).contiguous(memory_format=torch.channels_last)
    found = alternatives.prune_by_topk(grad, rule)
    if mode == "random":
        assert ((found.movedim(1, -1).reshape(-1, 8) != 0).sum(1) == 2).all()
        assert torch.equal(found[found != 0], grad[found != 0])
    else:
        torch.testing.assert_close(found, reference.prune_nm(grad, rule))


def test_alternatives_apply_where_they_can():
    grad = torch.randn(2, 12, 3, 3)
    topk, oracle, compiled, tile = alternatives.TOPK, alternatives.ORACLE, alternatives.COMPILED, alternatives.TILE

    def names(*rule, **options):
        return list(alternatives.alternatives(grad, PruneRule(*rule), **options))

    assert names(2, 4, "magnitude", "none", compiled=False) == [topk, oracle]
    assert names(2, 8, "magnitude", "none", compiled=False) == [oracle]  # 12 is not a multiple of 8
    assert names(2, 4, "magnitude", "channel", compiled=True) == [topk, oracle, compiled]
    assert names(2, 4, "random", "none", compiled=True) == [topk]
    assert names(2, 4, "unbiased", "none", compiled=True) == [oracle]
    assert set(alternatives.NOTES) == {alternatives.PRUNE, topk, oracle, compiled, tile}


def test_a_compressed_gradient_expands_to_the_pruned_one():
    grad = torch.randn(2, 10, 3, 3).to(torch.bfloat16)
    expanded = alternatives.expand(*kernels.compress_nm(grad, PruneRule(2, 4)), grad)
    assert torch.equal(expanded, reference.prune_nm(grad, PruneRule(2, 4)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_way_to_copy_copies(dtype, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    source = torch.randn(7, 6, 13, 11).to(dtype).contiguous(memory_format=torch.channels_last)
    targets = []
    made = torch.empty_like

    def kept(tensor):
        targets.append(made(tensor))
        return targets[-1]

    monkeypatch.setattr(torch, "empty_like", kept)
    ways = stopwatch.copies(source)
    assert list(ways) == ["Tensor.copy_", "numpy.copyto", "memmove", "memmove in 3 threads"]
    (target,) = targets
    for name, copy in ways.items():
        target.zero_()
        copy()
        assert torch.equal(target, source), name


def test_the_clock_advances_only_by_counted_times():
    began = stopwatch.measured_time()
    assert stopwatch.measured_time() == began
    stopwatch.count(0.25)
    assert stopwatch.measured_time() - began == pytest.approx(0.25)


def test_cache_sizes_are_read_as_sys_writes_them():
    assert [stopwatch._kibibytes(text) for text in ("32768K", "32M", "512")] == [32768 * 1024, 32 * 2**20, 512]
    size, known_from = stopwatch.cache_bytes(torch.device("cpu"))
    assert size >= 2**18
    assert known_from


def test_ratio_of_pairs_has_median_interval_and_least():
    ratio = pairs.ratio_of(np.array([2.0, 3, 8, 4, 5]), np.array([1.0, 1, 2, 2, 1]))
    assert ratio.median == 3.0  # median of 2, 3, 4, 2, 5
    assert ratio.least == 2.0
    assert 2.0 <= ratio.low <= 3.0 <= ratio.high <= 5.0
    assert (ratio.first_s, ratio.second_s) == (4.0, 1.0)


def test_a_kernel_that_moves_fewer_bytes_than_a_copy_reaches_less_of_its_rate():
    pytest.importorskip("pytest_benchmark")
    from benchmarks.kernels import bench_kernels

    copy_over_kernel = pairs.ratio_of([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    found = bench_kernels.fraction_of_copy(copy_over_kernel, 25 / 32)
    assert found == {"median": 25 / 64, "low": 25 / 64, "high": 25 / 64, "least": 25 / 64}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_device_times_leave_out_what_launching_takes():
    watch = stopwatch.watch_of(torch.device("cuda"))
    tensor = torch.zeros(4, device="cuda")
    seconds = sorted(watch.time(lambda: tensor.add_(1)) for _ in range(21))[10]
    assert 0 < seconds < 1e-3
    # Launching twenty calls from Python takes longer than their execution on the device.
    assert sorted(watch.time(lambda: [tensor.add_(1) for _ in range(20)]) for _ in range(21))[10] < 1e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_torchs_tile_keeps_two_of_four_in_rows_and_columns():
    grad = torch.randn(2, 64, 4, 4, device="cuda").to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
    assert alternatives.tile_applies(grad, PruneRule(2, 4))
    found = alternatives.prune_by_tiles(grad)
    assert torch.equal(found[found != 0], grad[found != 0])
    matrix = found.movedim(1, -1).reshape(-1, 64)
    assert ((matrix.reshape(-1, 4) != 0).sum(1) <= 2).all()
    assert ((matrix.t().reshape(-1, 4) != 0).sum(1) <= 2).all()
