"""Launch of the CUDA kernels: with a replacement of CuPy that runs their source on the CPU, and on a device."""

from __future__ import annotations

import itertools

import emulated
import pytest
import torch
from stand_in import standing_in
from torch import Tensor

import kernels
from kernels import PruneRule
from kernels.cuda import library
from kernels.prune import cuda, reference
from kernels.prune import cuda_plan as plans
from kernels.prune.cuda_plan import Shape

SCOPES = ["none", "group", "sample_channel", "channel"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.fixture(scope="module")
def launchers():
    emulated.needs_compiler()
    shapes = (Shape(2, 9, 64), Shape(5, 1, 64, matrix=True))
    found = emulated.kernels_of(
        plans.plan_prune(shape, "float32", PruneRule(n, m, "random", rescale), aligned, 2**20)
        for (n, m), shape, rescale, aligned in itertools.product(((2, 4), (3, 7)), shapes, SCOPES, (True, False))
    )
    return emulated.build(found)


@pytest.fixture
def on_cpu(launchers, monkeypatch):
    """Let `kernels.cuda.library` launch on CPU tensors."""
    with standing_in(monkeypatch, launchers) as compiled:
        yield compiled


@pytest.mark.parametrize("rescale", SCOPES)
@pytest.mark.parametrize(("n", "m"), [(2, 4), (3, 7)])
@pytest.mark.parametrize("shape", [(2, 64, 5, 3), (5, 64)])
def test_arguments_reach_the_kernels_in_their_order(on_cpu, shape, n, m, rescale):
    grad = torch.randn(shape)
    if grad.dim() == 4:
        grad = grad.contiguous(memory_format=torch.channels_last)
    expected = reference.prune_nm(grad, PruneRule(n, m, "random", rescale), 2**63 + 9)
    pruned = torch.full_like(grad, float("nan"))
    cuda.prune(grad, pruned, PruneRule(n, m, "random", rescale), 2**63 + 9)
    torch.testing.assert_close(pruned, expected, rtol=2e-6, atol=0)
    # In place, where the slow kernels read their input again, and with a seed in memory.
    cuda.prune(grad, grad, PruneRule(n, m, "random", rescale), 1, torch.tensor(9 - 2**63))
    torch.testing.assert_close(grad, expected, rtol=2e-6, atol=0)


def test_memory_that_is_not_aligned_goes_to_the_slow_kernels(on_cpu):
    grad = torch.randn(8 * 64 + 1)[1:].reshape(8, 64)
    pruned = torch.empty_like(grad)
    cuda.prune(grad, pruned, PruneRule(2, 4, "random", "none"), 3)
    assert torch.equal(pruned, reference.prune_nm(grad, PruneRule(2, 4, "random"), seed=3))
    assert on_cpu == ["pdt::prune_any<pdt::Float32, 4, 2, pdt::mode_random, false>"]


def test_a_kernel_is_compiled_once_and_given_the_shared_memory_it_needs(on_cpu):
    grad = torch.randn(1, 64, 40, 40).contiguous(memory_format=torch.channels_last)
    for _ in range(2):
        cuda.prune(grad, torch.empty_like(grad), PruneRule(2, 4, "random", "sample_channel"), 3)
    assert on_cpu == ["pdt::prune_and_rescale_samples<pdt::Float32, 4, 2, pdt::mode_random, true>"]


def test_an_error_of_many_lines_is_told_in_one():
    assert library._line(ImportError("\n====\n  first\n\n second ")) == "==== first second"
    assert library._line(ValueError("")) == "ValueError"
    assert len(library._line(ValueError("word " * 100))) == 200


# ---- on a device ----

on_device = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def gradient(dtype: torch.dtype, shape: tuple[int, ...] = (3, 64, 9, 7)) -> Tensor:
    grad = (torch.randn(shape) * 4).round() / 4
    grad = grad.to(dtype)
    return grad.contiguous(memory_format=torch.channels_last) if grad.dim() == 4 else grad


@pytest.mark.usefixtures("cuda_kernels")
class TestOnADevice:
    pytestmark = on_device

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("mode", ["magnitude", "random"])
    @pytest.mark.parametrize("rescale", SCOPES)
    @pytest.mark.parametrize(("n", "m"), [(1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (3, 7)])
    def test_results_are_those_of_the_oracle(self, n, m, rescale, mode, dtype):
        for shape in ((3, 64, 9, 7), (5, 96), (2, 512, 28, 28), (2, 40, 3, 3)):
            grad = gradient(dtype, shape)
            expected = reference.prune_nm(grad, PruneRule(n, m, mode, rescale), 11)
            tolerance = 0.0 if rescale == "none" else TOLERANCE[dtype]
            moved = grad.cuda()
            assert kernels.backend_of(moved) == "cuda"
            for found in (
                kernels.prune_nm(moved, PruneRule(n, m, mode, rescale), 11),
                kernels.prune_nm(moved, PruneRule(n, m, mode, rescale), torch.tensor(11, device="cuda")),
            ):
                torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=0, equal_nan=True)

    @pytest.mark.parametrize("rescale", SCOPES)
    def test_a_replayed_graph_reads_its_seed_and_gradient_anew(self, rescale):
        grad, key = gradient(torch.float16).cuda(), torch.tensor(1, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            kernels.prune_nm(grad, PruneRule(2, 4, "random", rescale), key)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = kernels.prune_nm(grad, PruneRule(2, 4, "random", rescale), key)
        for seed in (2, 3):
            grad.copy_(gradient(torch.float16))
            key.fill_(seed)
            graph.replay()
            assert torch.equal(found, kernels.prune_nm(grad, PruneRule(2, 4, "random", rescale), seed))

    def test_launches_follow_the_current_stream(self):
        grad, stream = torch.zeros(2**24, 16, device="cuda"), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10**8)
            grad += 1  # ends long after the launch below is queued
            pruned = kernels.prune_nm(grad, PruneRule(2, 4))
        stream.synchronize()
        assert pruned.sum().item() == grad.numel() / 2
