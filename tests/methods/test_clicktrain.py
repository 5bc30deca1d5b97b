"""ClickTrain's stages, step by step."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from small_clicktrain import SHAPE, Run, stages

from methods.clicktrain.clicktrain import momentum_of
from methods.dense import Dense
from suite.choices import build_model
from suite.errors import UsageError


def test_the_first_batch_after_the_warm_up_decides_alone():
    run = Run(stages())
    run.epochs(1)
    assert run.method.record(run.runner.ctx)["stage"] == "warm-up"
    run.step(10)
    chosen = {name: numbers.clone() for name, numbers in run.method._masks._patterns.items()}
    threes = [name for name, layer in run.runner.ctx.layers.items() if layer.weight.shape[2:] == (3, 3)]
    assert [*chosen] == threes[1:]
    for name, numbers in chosen.items():
        saliency = (run.gradients[name] * run.before[name]).square()
        worth = torch.stack(
            [saliency[:, :, 1:, 1:], saliency[:, :, 1:, :2], saliency[:, :, :2, 1:], saliency[:, :, :2, :2]]
        )
        assert torch.equal(worth.sum((3, 4)).argmax(0), numbers)
        gone = run.method._masks[name].kernels
        assert gone.sum() == math.ceil(0.71875 * gone.numel())
        importance = saliency.sum((2, 3))
        assert importance[gone].max() <= importance[~gone].min()
    run.step(11)
    run.step(12)
    run.runner.end_epoch()
    run.epochs(2)
    assert all(torch.equal(chosen[name], numbers) for name, numbers in run.method._masks._patterns.items())


def test_saliencies_of_several_batches_are_averaged():
    run = Run(stages(batches=2))
    run.epochs(1)
    run.step(10)
    first = {name: (run.gradients[name] * run.before[name]).square() for name in run.gradients}
    assert not run.method._masks._patterns
    run.step(11)
    name = next(iter(first))
    both = first[name] + (run.gradients[name] * run.before[name]).square()
    gone = run.method._masks[name].kernels
    assert both.sum((2, 3))[gone].max() <= both.sum((2, 3))[~gone].min()


def test_the_lasso_is_the_coefficient_times_the_norms_of_what_goes():
    run = Run(stages(coefficient=0.25))
    run.epochs(1)
    run.step(10)
    by_hand = 0.0
    for name, weight in run.weights().items():
        mask = run.method._masks[name]
        by_hand += (weight.square().mul(mask.outside).sum((2, 3)) + 1e-8).sqrt().sum().item()
        by_hand += (weight.square().sum((2, 3)) * mask.kernels + 1e-8).sqrt().sum().item()
    term = run.method.regularization(run.model, run.runner.ctx)
    assert term.item() == pytest.approx(0.25 * by_hand, rel=1e-5)
    none = Run(stages(coefficient=0.0))
    none.epochs(1)
    none.step(10)
    assert none.method.regularization(none.model, none.runner.ctx) is None


def test_a_network_s_pool_is_that_of_its_configuration():
    for name, size in (("vgg16_click", 12), ("vgg11_click", 4)):
        run = Run(stages(pool="published", hard_prune=0.75), build_model(f"{name}[width=0.0625]", SHAPE, 10),
                  "cifar10", name)  # fmt: skip
        run.epochs(1)
        run.step(10)
        assert len(run.method._masks._pool) == size


def test_saliencies_go_on_where_a_checkpoint_stopped_them():
    run = Run(stages(batches=4))  # of three steps an epoch
    run.epochs(2)
    whole = run.method
    other = Run(stages(batches=4))
    other.epochs(1)
    for step in range(3):
        other.step(10 + step)
    state = other.method.state_dict()
    assert not state["patterns"]
    again = stages(batches=4)
    again.setup(other.runner.ctx)
    again.load_state_dict(state)
    other.method = other.runner.method = again
    other.runner.end_epoch()
    for one in (run, other):
        one.step(20)
    assert whole._masks._patterns
    for name, numbers in whole._masks._patterns.items():
        assert torch.equal(numbers, again._masks._patterns[name])
        assert torch.equal(whole._masks[name].kernels, again._masks[name].kernels)


def test_each_stage_is_named_spends_and_penalises_from_its_step_on():
    run = Run(stages())
    name, weight = next(iter(run.weights().items()))
    penalised, spent, named = [], [], []

    def look(epoch, step):
        penalised.append(run.method._penalised)
        spent.append(run.method.overhead(name, 8, run.runner.ctx))

    for _ in range(4):
        run.epochs(1, look)
        named.append(run.method.record(run.runner.ctx)["stage"])
    assert named == ["warm-up", "lasso", "masked", "masked"]
    assert penalised == [False] * 4 + [True] * 2 + [False] * 6
    lasso = 8 * weight.numel() + 3 * 2 * weight.shape[0] * weight.shape[1]
    assert spent == [0.0] * 4 + [lasso] * 2 + [weight.numel()] * 6
    assert run.method.overhead("nobody", 8, run.runner.ctx) == 0.0


@pytest.mark.parametrize("second", [0.0, 0.9])
def test_the_momentum_of_each_optimizer_is_masked_if_it_has_one(second):
    run = Run(stages(mask_momentum=True))
    first, *others = run.weights().values()
    rest = [one for one in run.model.parameters() if one is not first]
    run.optimizer = torch.optim.SGD([first], lr=0.05, momentum=0.9)
    other = torch.optim.SGD(rest, lr=0.05, momentum=second)
    run.runner.attach(run.optimizer, other)
    run.epochs(3)
    assert not run.optimizer.state[first]["momentum_buffer"][first == 0].any()
    assert (first == 0).any()
    for weight in others if second else ():
        assert not other.state[weight]["momentum_buffer"][weight == 0].any()


def test_the_momentum_of_adam_is_masked_and_an_unknown_one_is_named():
    run = Run(stages(mask_momentum=True))
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.01)
    run.runner.attach(run.optimizer)
    run.epochs(3)
    for weight in run.weights().values():
        assert (weight == 0).any()
        assert not run.optimizer.state[weight]["exp_avg"][weight == 0].any()
        assert run.optimizer.state[weight]["exp_avg_sq"][weight == 0].any()
    with pytest.raises(UsageError, match=r"^mask_momentum=true knows .*, and the optimizer has velocity; use SGD"):
        momentum_of({"velocity": torch.ones(2, 2), "step": torch.tensor(1.0)})
    assert momentum_of({"step": torch.tensor(1.0)}) is None


@pytest.mark.parametrize("mask_momentum", [False, True])
def test_from_hard_pruning_on_what_goes_is_zero_after_every_step(mask_momentum):
    run = Run(stages(mask_momentum=mask_momentum))
    held = []

    def look(epoch, step):
        if epoch < 2:
            assert all(weight.count_nonzero() == weight.numel() for weight in run.weights().values())
            return
        for name, weight in run.weights().items():
            mask = run.method._masks[name]
            stays = mask.kept(weight.detach()).bool()
            assert not weight[~stays].any()
            assert weight[stays].all()
            held.append(bool(run.optimizer.state[weight]["momentum_buffer"][~stays].any()))
        share = 4 / 9 * (1 - math.ceil(0.71875 * stays.shape[0] * stays.shape[1]) / stays.shape[0] / stays.shape[1])
        assert run.method.density(name, run.runner.ctx) == pytest.approx((share,) * 3)

    run.epochs(4, look)
    assert any(held) is not mask_momentum

    def in_step(step):
        return dataclasses.replace(run.runner.ctx, step=step)

    first_masked = 6  # the step whose update is the first to be masked; its own products were dense
    assert run.method.density(name := next(iter(run.weights())), in_step(first_masked)) == (1, 1, 1)
    assert run.method.density(name, in_step(first_masked + 1)).forward < 0.14
    record = run.method.record(run.runner.ctx)
    assert record["stage"] == "masked"
    kept = sum(int(weight.count_nonzero()) for weight in run.weights().values())
    assert sum(record["patterns"].values()) * 4 == kept
    assert set(record["patterns"]) == {"000011011", "000110110", "011011000", "110110000"}


def test_the_warm_up_is_dense_training_bit_for_bit():
    ours, dense = Run(stages(mixup=0.3)), Run(Dense())
    dense.weights = dict  # nothing to keep copies of
    for run in (ours, dense):
        run.epochs(1)
    states = ours.model.state_dict()
    assert all(torch.equal(tensor, states[name]) for name, tensor in dense.model.state_dict().items())
    for run in (ours, dense):
        run.epochs(1)
    assert not all(torch.equal(tensor, states[name]) for name, tensor in dense.model.state_dict().items())


def test_mixup_begins_with_hard_pruning():
    run = Run(stages(mixup=0.3))
    run.epochs(2)
    assert run.step(20).shape == (8, 10)
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(8, *SHAPE, generator=generator), torch.arange(8)
    mixed, targets = run.method.transform_batch(images, labels, run.runner.ctx)
    torch.testing.assert_close(targets.sum(1), torch.ones(8))
    share = targets[torch.arange(8), labels].amin().item()
    assert 0 <= share <= 1
    others = (targets - share * F.one_hot(labels, 10)).argmax(1)
    torch.testing.assert_close(mixed, share * images + (1 - share) * images[others], rtol=1e-4, atol=1e-5)
    again, _ = run.method.transform_batch(images, labels, run.runner.ctx)
    assert torch.equal(mixed, again)  # drawn by the step, not by what was drawn before
    run.runner.ctx.step += 1
    later, _ = run.method.transform_batch(images, labels, run.runner.ctx)
    assert not torch.equal(mixed, later)
    early = Run(stages(mixup=0.3))
    same, _ = early.method.transform_batch(images, labels, early.runner.ctx)
    assert same is images


@pytest.mark.parametrize("given", [{"pool": "dynamic"}, {"pool": 12, "balance": "filter"}, {"scope": "filter"}])
def test_variants_mask_as_they_say(given):
    run = Run(stages(**given))
    run.epochs(4)
    for name, weight in run.weights().items():
        alive = (weight != 0).sum((2, 3))
        assert set(alive.unique().tolist()) <= {0, 4}
        if "balance" in given:
            assert len((alive > 0).sum(1).unique()) == 1
        if "scope" in given:
            numbers = run.method._masks._patterns[name]
            assert torch.equal(numbers, numbers[:, :1].expand_as(numbers))
