"""The parts that methods with masks share, and the base class, through the examples of the documentation."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from small_subject import small

from methods.masks import schedules, structures
from suite import registry
from suite.engine.training.conformance.contracts import density_is_true
from suite.errors import UsageError

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture
def example(tiny_residual):
    """Load an example for one test; its full check is in `tests/test_docs.py`."""
    loaded = []

    def load(name, parameters):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        loaded.append(name)
        return small(name, parameters, epochs=4, steps=8)

    yield load
    for name in loaded:
        del registry._objects["method", name]


def trained(subject):
    """Train with the density of every step checked; return the trainer and its masked weights."""
    assert "32 steps" in density_is_true(subject)
    trainer, records, _ = subject.undisturbed
    weights = trainer.runner.method.weights(trainer.ctx)
    assert len(weights) == len(trainer.ctx.layers) - 2  # not the first, not the last
    kept = sum(int(weight.count_nonzero()) for weight in weights.values())
    total = sum(weight.numel() for weight in weights.values())
    assert records[-1]["method"]["sparsity"] == pytest.approx(1 - kept / total)
    return weights, records


@pytest.mark.parametrize("distribution", ["uniform", "erdos_renyi", "global"])
def test_sparsity_grows_to_the_target_and_is_divided_among_layers(example, distribution):
    weights, records = trained(example("gradual_magnitude", {"distribution": distribution}))
    reached = [record["method"]["sparsity"] for record in records]
    assert reached[0] < reached[1] < reached[3] == pytest.approx(0.9, abs=1e-3)
    densities = [int(weight.count_nonzero()) / weight.numel() for weight in weights.values()]
    assert (max(densities) - min(densities) < 0.01) is (distribution == "uniform")


@pytest.mark.parametrize("structure", ["n:m", "channel"])
def test_masks_have_the_structure(example, structure):
    weights, _ = trained(
        example("gradual_magnitude", {"structure": structure, "sparsity": 0.5, "distribution": "uniform"})
    )
    for weight in weights.values():
        kept = weight != 0
        if structure == "channel":
            assert set(kept.flatten(1).float().mean(1).tolist()) == {0.0, 1.0}
        else:
            assert kept.unflatten(1, (-1, 4)).sum(2).unique().tolist() == [2]


@pytest.mark.parametrize(
    ("sparsity", "m", "possible"), [(0.9, 4, "0.75"), (0.6, 4, "0.5 or 0.75"), (0.5, 3, "0.3333 or 0.6667")]
)
def test_a_sparsity_that_the_structure_cannot_have_is_refused(example, sparsity, m, possible):
    message = f"sparsity is {sparsity}; structure=n:m keeps a whole number of {m} weights, at least one: {possible} is"
    with pytest.raises(UsageError, match=re.escape(message)):
        example("gradual_magnitude", {"structure": "n:m", "sparsity": sparsity, "m": m}).trainer()


@pytest.mark.parametrize(
    ("sparsity", "m", "n"), [(0.6, 5, 2), (0.75, 8, 2), (0.875, 16, 2), (1 / 3, 3, 2), (0.5, 2, 1)]
)
def test_groups_of_any_size_keep_what_the_sparsity_says(example, sparsity, m, n):
    given = {"structure": "n:m", "sparsity": sparsity, "m": m, "distribution": "uniform"}
    method = example("gradual_magnitude", given).method()
    mask = method.choose_masks({"a": torch.rand(4, 2 * m, 3, 3), "b": torch.rand(3, m)}, sparsity)
    assert mask["a"].unflatten(1, (-1, m)).sum(2).unique().tolist() == [n]
    assert mask["b"].sum(1).unique().tolist() == [n]


def test_rewiring_moves_connections_and_keeps_their_number(example):
    subject = example("rewiring", {})
    method = subject.trainer().runner.method
    weights, records = trained(subject)
    assert all(record["method"]["sparsity"] == pytest.approx(0.9, abs=1e-3) for record in records)
    for name, weight in weights.items():
        first = method.masks[name]
        assert int(weight.count_nonzero()) == int(first.sum())
        assert not torch.equal(weight != 0, first)


def test_schedules():
    assert [schedules.cubic(at, 0.2, 0.6) for at in (0.1, 0.2, 0.4, 0.6, 1.0)] == [
        0.0,
        0.0,
        pytest.approx(7 / 8),
        1.0,
        1.0,
    ]
    assert [schedules.cubic(at, 0.5, 0.5) for at in (0.4, 0.5)] == [0.0, 1.0]
    assert [schedules.cosine(at, 0.5) for at in (0.0, 0.25, 0.5, 0.9)] == [1.0, pytest.approx(0.5), 0.0, 0.0]
    assert [step for step in range(9) if schedules.periodic(step, 4)] == [4, 8]


def test_a_short_last_group_keeps_as_many_as_it_has():
    score = torch.tensor([[1.0, 4.0, 3.0, 2.0, 9.0, 5.0]])
    assert structures.n_of_m(score, 0.25, 4).tolist() == [[False, True, False, False, True, False]]
    assert structures.n_of_m(score, 0.75, 4).tolist() == [[False, True, True, True, True, True]]
    assert structures.n_of_m(torch.rand(2, 6, 3, 3), 0.5, 4).sum(1).unique().tolist() == [4]


def test_a_structure_keeps_something_and_prefers_the_first_of_equal_scores():
    assert structures.unstructured(torch.ones(2, 3), 0.01).tolist() == [[True, False, False], [False] * 3]
    assert structures.channel(torch.tensor([[1.0, 1.0], [5.0, 0.0]]), 0.1).tolist() == [[False, False], [True, True]]


def test_groups_of_more_channels_than_a_layer_has_are_refused(example):
    subject = example("gradual_magnitude", {"structure": "n:m", "sparsity": 0.5, "m": 64})
    with pytest.raises(ValueError, match=r"reads \d+ channels, fewer than m=64; use a smaller m, or ignore="):
        subject.trainer().fit()


def test_a_sparsity_may_be_typed_with_few_digits(example):
    assert example("gradual_magnitude", {"structure": "n:m", "sparsity": 0.3333, "m": 3}).method().m == 3


def test_the_strongest_are_the_first_of_a_stable_order():
    generator = torch.Generator().manual_seed(67)
    for case in range(200):
        score = torch.randint(-1, 4, (case + 1,), generator=generator).float()
        score[torch.rand(case + 1, generator=generator) < 0.1] = float("nan")
        count = int(torch.randint(case + 2, (1,), generator=generator))
        order = score.argsort(descending=True, stable=True)[:count]
        assert structures.strongest(score, count).nonzero().flatten().tolist() == sorted(order.tolist())
