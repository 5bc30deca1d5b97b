"""Gradual magnitude pruning: how sparse the network is when, and which weights are masked."""

import random
from types import SimpleNamespace

import pytest
import torch
from small_training import RECIPE, assert_it_resumes, fitted, small_net, small_trainer
from torch import nn

from methods.gmp import GMP

EVERY_THIRD = {
    "every": 3,
    "start": 0.25,
    "end": 0.75,
    "sparsity": 0.75,
    "backend": "masked",
}  # of 12 steps: from step 3 to step 9
MASKED = ["3.branch.0", "3.branch.3", "4"]


class Steps:
    """A method on two weights, without a network."""

    def __init__(self, weights, **parameters):
        self.weights = {str(index): nn.Parameter(weight) for index, weight in enumerate(weights)}
        self.method = GMP(**parameters)
        self.method.weights = lambda ctx: self.weights
        self.method.end_updates = lambda ctx: setattr(self.method, "_is_final", True)
        layers = {name: SimpleNamespace(weight=weight) for name, weight in self.weights.items()}
        self.ctx = SimpleNamespace(step=0, progress=0.0, seed=0, rank=0, layers=layers, replan=lambda: None)

    def step(self, number, of):
        self.ctx.step, self.ctx.progress = number, number / of
        for weight in self.weights.values():
            weight.grad = torch.ones_like(weight)
        self.method.before_optimizer_step(self.ctx)
        gradients = {name: weight.grad for name, weight in self.weights.items()}
        self.method.after_optimizer_step(self.ctx)
        return gradients


def test_two_updates_by_hand():
    weight = torch.tensor([[0.4, -3.0, 1.0, -0.1, 2.0, 0.3, 5.0, -6.0]])
    steps = Steps([weight], start=0.0, end=0.5, every=2, sparsity=0.75)
    for number in range(2):
        steps.step(number, 8)
        assert not steps.method.masks
    gradients = steps.step(2, 8)  # half of the ramp: 0.75 * (1 - 0.5 ** 3) = 0.65625, so that 2.75 of 8 remain
    assert steps.weights["0"].tolist() == [[0, -3, 0, 0, 0, 0, 5, -6]]
    assert gradients["0"].tolist() == [[0, 1, 0, 0, 0, 0, 1, 1]]
    steps.step(3, 8)
    assert steps.weights["0"].tolist() == [[0, -3, 0, 0, 0, 0, 5, -6]]
    steps.step(4, 8)  # the end
    assert steps.weights["0"].tolist() == [[0, 0, 0, 0, 0, 0, 5, -6]]
    with torch.no_grad():
        steps.weights["0"][0, 6:] = torch.tensor([0.0, 1.0])
    steps.step(6, 8)
    assert steps.method.masks["0"].tolist() == [[False] * 6 + [True] * 2]


def slow_sparsity(progress, initial, sparsity, start, end):
    """Equation 1 of the paper with n * dt = end - start."""
    share = min(max((progress - start) / (end - start), 0.0), 1.0)
    return sparsity + (initial - sparsity) * (1 - share) ** 3


def test_masks_are_those_of_a_slow_definition():
    """200 random trainings of 12 steps: every layer loses its smallest weights, and none comes back."""
    rng = random.Random(0)
    for case in range(200):
        torch.manual_seed(case)
        shapes = [(rng.randint(1, 5), rng.randint(1, 5), *((3, 3) if rng.random() < 0.5 else ())) for _ in range(2)]
        start, end = sorted((rng.uniform(0, 0.9), rng.uniform(0.05, 0.95)))
        sparsity, every = rng.uniform(0.3, 0.95), rng.randint(1, 4)
        initial = rng.uniform(0, sparsity)
        given = {"sparsity": sparsity, "start": start, "end": end, "every": every, "initial": initial}
        steps = Steps([torch.randn(shape) for shape in shapes], **given)
        expected = {name: weight.detach().clone() for name, weight in steps.weights.items()}
        final = False
        for number in range(12):
            gradients = steps.step(number, 12)
            progress = number / 12
            updates = (number > 0 and number % every == 0) if progress < end else True
            if progress >= start and updates and not final:
                final = progress >= end
                wanted = slow_sparsity(progress, initial, sparsity, start, end)
                for weight in expected.values():
                    flat = weight.flatten()
                    kept = max(1, round((1 - wanted) * len(flat)))
                    for index in sorted(range(len(flat)), key=lambda index: abs(float(flat[index])))[
                        : len(flat) - kept
                    ]:
                        flat[index] = 0.0
            for name, weight in steps.weights.items():
                assert torch.equal(weight, expected[name]), (case, number)
                if name in steps.method.masks:
                    assert torch.equal(gradients[name] != 0, weight != 0)


def test_a_training_ends_with_the_sparsity_of_every_layer():
    trainer, records = fitted(GMP(**EVERY_THIRD))
    reached = [record["method"]["sparsity"] for record in records]
    # The last updates of the three epochs are in step 3, 6 and 9, and that in step 3 is at the beginning of the ramp.
    assert reached == [pytest.approx(0.0), pytest.approx(0.75 * (1 - 0.5**3), abs=1e-2), pytest.approx(0.75)]
    for name, layer in trainer.ctx.layers.items():
        share = layer.weight.count_nonzero() / layer.weight.numel()
        assert share == (0.25 if name in MASKED else 1.0)


def test_the_last_update_comes_though_no_period_ends():
    trainer, records = fitted(GMP(every=100, start=0.25, end=0.8, sparsity=0.5, backend="masked"))
    assert [record["method"]["sparsity"] for record in records] == [0.0, 0.0, pytest.approx(0.5)]
    again = small_trainer(GMP(backend="masked")).runner.method
    again.load_state_dict(trainer.runner.method.state_dict())
    assert again._is_final


def test_the_last_update_comes_after_the_last_epoch_if_no_step_begins_so_late():
    trainer, records = fitted(GMP(every=3, end=0.95, sparsity=0.75))  # the last of 12 steps begins at 0.917
    assert records[1]["method"]["sparsity"] < records[2]["method"]["sparsity"] == pytest.approx(0.75)
    assert trainer.ctx.layers["4"].weight.count_nonzero() == 0.25 * 8 * 8 * 9


@pytest.mark.parametrize("mode", ["magnitude", "random"])
def test_a_resumed_training_ends_with_equal_bits(mode):
    assert_it_resumes(lambda **callbacks: small_trainer(GMP(mode=mode, **EVERY_THIRD), **callbacks))


def test_the_twin_masks_as_many_weights_at_the_same_time_and_by_the_seed_alone():
    own, twin, again, rank, seed = (
        Steps([torch.arange(1.0, 41).view(4, 10)], every=2, mode=mode) for mode in ("magnitude", *["random"] * 4)
    )
    rank.ctx.rank, seed.ctx.seed = 1, 1
    before = {}
    for number in range(10):
        for steps in (own, twin, again, rank, seed):
            steps.step(number, 10)
        masks = [steps.method.masks for steps in (own, twin, again, rank, seed)]
        assert len({int(mask["0"].sum()) if mask else 40 for mask in masks}) == 1
        if masks[1]:
            assert torch.equal(masks[1]["0"], masks[2]["0"])
            assert torch.equal(masks[1]["0"], masks[3]["0"])
            if before:
                assert not (masks[1]["0"] & ~before["0"]).any()  # none comes back
            before = masks[1]
    assert int(before["0"].sum()) == 4
    assert not torch.equal(before["0"], own.method.masks["0"])
    assert not torch.equal(before["0"], seed.method.masks["0"])


def test_layers_that_share_a_weight_have_one_random_mask():
    model = small_net()
    first, second = model[3].branch[0], model[3].branch[3]
    second.weight = first.weight
    trainer, _ = fitted(GMP(mode="random", **EVERY_THIRD), model=model)
    masks = trainer.runner.method.masks
    assert torch.equal(masks["3.branch.0"], masks["3.branch.3"])
    assert first.weight.count_nonzero() == masks["3.branch.0"].sum() == 0.25 * first.weight.numel()


def test_gradients_of_masked_weights_are_not_communicated():
    method = small_trainer(GMP(**EVERY_THIRD)).runner.method
    assert method.kept_gradients(None) == {}
    trainer, _ = fitted(GMP(**EVERY_THIRD))
    kept = trainer.runner.method.kept_gradients(trainer.ctx)
    assert sorted(kept) == MASKED
    assert all(torch.equal(mask, trainer.ctx.layers[name].weight != 0) for name, mask in kept.items())


def test_defaults_and_refusals():
    assert GMP.defaults("cifar10", "paper") == {}
    assert GMP.defaults("cifar10", "quick") == {"every": 5}
    assert GMP().distribution == "uniform"
    with pytest.raises(ValueError, match=r"start is 0.5; it must not be greater than end, 0.4"):
        GMP(start=0.5, end=0.4)
    with pytest.raises(ValueError, match=r"initial is 0.6; it must not be greater than sparsity, 0.5"):
        GMP(initial=0.6, sparsity=0.5)
    with pytest.raises(ValueError, match="distribution is global; with mode=random, scores say nothing about layers"):
        GMP(mode="random", distribution="global")
    with pytest.raises(ValueError, match="no trained layer between its first and its last"):
        small_trainer(GMP(), RECIPE, nn.Sequential(nn.Flatten(), nn.Linear(192, 4)))
