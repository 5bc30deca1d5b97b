"""`prune_nm` as a torch operator: under torch.compile, under dispatch modes, with a seed in memory, and replayed."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels import PruneRule
from kernels.prune import dispatch, reference

GRADIENTS = {
    "nchw": torch.randn(2, 32, 5, 3),
    "channels_last": torch.randn(2, 32, 5, 3).contiguous(memory_format=torch.channels_last),
    "sliced": torch.randn(2, 64, 5, 3)[:, ::2],
    "matrix": torch.randn(6, 32),
    "half": torch.randn(2, 32, 5, 3).to(torch.bfloat16),
    "double": torch.randn(2, 32, 5, 3).double(),
    "empty": torch.randn(0, 32, 5, 3),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("rescale", ["none", "sample_channel"])
def test_the_operator_keeps_what_its_fake_implementation_promises(name, rescale):
    arguments = (GRADIENTS[name], 2, 4, "magnitude", rescale, 3)
    torch.library.opcheck(torch.ops.pdt.prune_nm.default, arguments)
    pruned = kernels.prune_nm(GRADIENTS[name], PruneRule(2, 4, "magnitude", rescale), seed=3)
    assert torch.ops.pdt.prune_nm(*arguments).stride() == pruned.stride()


def test_a_compiled_function_takes_it_whole_and_draws_anew_for_each_seed():
    def loss(grad, seed):
        return kernels.prune_nm(grad * 1, PruneRule(2, 4, "random"), seed=seed) + 0

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    grad = torch.randn(4, 32, 3, 3)
    for seed in (0, 1, 2, 2**62, 2**63 - 1):
        assert torch.equal(compiled(grad, seed), loss(grad, seed)), seed
    assert not torch.equal(compiled(grad, 1), compiled(grad, 2))


def test_a_compiled_function_draws_by_a_seed_in_memory():
    def loss(grad, seed):
        return kernels.prune_nm(grad * 1, PruneRule(2, 4, "random"), seed=seed) + 0

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    grad = torch.randn(4, 32, 3, 3)
    for seed in (1, 2, 2**62):
        assert torch.equal(
            compiled(grad, torch.tensor(seed)), kernels.prune_nm(grad, PruneRule(2, 4, "random"), seed=seed)
        )


@pytest.mark.parametrize("seed", [0, 5, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_seed_in_memory_is_the_number_with_its_64_bits(seed, dtype):
    grad = torch.randn(4, 32, dtype=dtype)
    memory = torch.tensor(seed - 2**64 if seed >= 2**63 else seed)
    expected = reference.prune_nm(grad, PruneRule(2, 4, "random"), seed=seed)
    assert torch.equal(kernels.prune_nm(grad, PruneRule(2, 4, "random"), seed=memory), expected)
    assert torch.equal(kernels.prune_nm(grad, PruneRule(2, 4, "random"), seed=seed), expected)


@pytest.mark.parametrize(
    ("seed", "what"),
    [(torch.tensor([1]), "(1,)"), (torch.tensor(1.0), "float32"), (torch.tensor(1, device="meta"), "meta")],
)
def test_a_seed_in_memory_that_is_none_is_named(seed, what):
    with pytest.raises(ValueError, match="a tensor seed must be int64 with no dimensions on cpu") as error:
        kernels.prune_nm(torch.randn(4, 32), PruneRule(2, 4, "random"), seed=seed)
    assert what in str(error.value)


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(dispatch, "_replayed", {})


@pytest.mark.usefixtures("told", "compiled")
def test_a_process_prunes_by_plain_torch_where_an_earlier_one_did():
    grad = torch.randn(2, 32)
    assert kernels.backends_in_use()["cpu"] == "cpu"
    kernels.replay_backends({"cpu": "cpu"})
    assert kernels.backend_of(grad) == "cpu"
    kernels.replay_backends({"cpu": "reference"})
    assert kernels.backend_of(grad) == "reference"
    assert kernels.backends_in_use() == {"cpu": "reference"}
    assert kernels.backend_report() == "prune_nm: plain torch, as at the start of the trial"
