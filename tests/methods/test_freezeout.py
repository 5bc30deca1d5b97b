"""FreezeOut: learning rates, when layers are frozen, and what is left to train and to compute."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from small_training import RECIPE, SHAPE, SmallBatches, assert_it_resumes, fitted, small_net, small_trainer
from torch import nn

from methods.freezeout import FreezeOut
from suite.engine.cost.flops import count_layers
from suite.errors import UsageError
from suite.method import Context
from suite.ops import apply

FIVE = dataclasses.replace(RECIPE, epochs=5)  # 20 steps
LAYERS = (("0.", "1."), ("3.branch.0", "3.branch.1"), ("3.branch.3", "3.branch.4"), ("4.",), ("8.",))
ENDS = (2, 3, 4, 4, 5)  # epochs: 0.5, 0.625, 0.75, 0.875 and 1 of 5, rounded
METHOD = {"start": 0.5, "power": 1}


def by_hand(rates):
    """Train 20 steps as `RECIPE` does, in plain torch."""
    torch.manual_seed(0)
    model = small_net().to(memory_format=torch.channels_last)
    named = dict(model.named_parameters())
    groups = [[named[name] for name in named if name.startswith(starts)] for starts in LAYERS]
    optimizer = torch.optim.SGD([{"params": group} for group in groups], momentum=0.9, weight_decay=5e-4)
    data, step = SmallBatches(64, seed=1), 0
    norms = [model[1], model[3].branch[1], model[3].branch[4]]
    for epoch in range(5):
        for layer, end in enumerate(ENDS[:4]):
            if end <= epoch:
                for parameter in groups[layer]:
                    parameter.requires_grad_(False)
                for norm in norms[layer : layer + 1]:
                    norm.eval()
        for images, labels in data.epoch(epoch, 16):
            share = step / 20
            for group, end in zip(optimizer.param_groups, ENDS, strict=True):
                group["lr"] = 0.05 * (1 - 0.9 * share) * factor(rates, share, end / 5)
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            step += 1
    return model


def factor(rates, share, end):
    if rates == "constant" or end == 1:
        return 1.0
    if share >= end:
        return 0.0
    fall = (1 + math.cos(math.pi * share / end)) / (1 + math.cos(math.pi * share))
    return fall / end if rates == "scaled" else fall


@pytest.mark.parametrize("rates", ["scaled", "annealed", "constant"])
def test_a_training_is_that_by_hand_bit_for_bit(rates):
    trainer, records = fitted(FreezeOut(rates=rates, **METHOD), FIVE)
    assert [record["method"]["frozen_layers"] for record in records] == [0, 1, 2, 4, 4]
    expected = by_hand(rates).state_dict()
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert len(trainer.optimizer.param_groups) == 1


def test_steps_cost_what_is_left_to_compute():
    records = fitted(FreezeOut(**METHOD), FIVE)[1]
    macs = {name: cost.macs for name, cost in count_layers(small_net(), SHAPE).items()}
    forward, first = sum(macs.values()), macs["0"]
    branch, tail = macs["3.branch.3"], macs["4"] + macs["8"]
    assert macs["3.branch.0"] == branch
    expected = [
        forward + (forward - first) + forward,  # no data gradient of the first layer
        forward + (branch + tail) + (2 * branch + tail),  # the branch needs none either
        forward + tail + (branch + tail),
        forward + macs["8"],
    ]
    found = [record["step_flops"] for record in records]
    assert [found[epoch]["executed"] for epoch in (1, 2, 3, 4)] == [16 * 2 * value for value in expected]
    assert {flops["dense"] for flops in found} == {16 * 2 * expected[0]}
    assert all(flops["current"] == flops["executed"] == flops["effective"] for flops in found)


@pytest.mark.parametrize(
    "more",
    [
        {"precise_bn": 32, "lookahead_steps": 2},
        {"optimizer": "adamw", "ema": 0.9},
        {"freeze": ("1.bias",), "freeze_after": 4},  # which the method freezes two epochs earlier
    ],
)
def test_a_resumed_training_ends_with_equal_bits(more):
    recipe = dataclasses.replace(FIVE, **more)
    assert_it_resumes(lambda **callbacks: small_trainer(FreezeOut(**METHOD), recipe, **callbacks))


def test_statistics_of_frozen_layers_are_kept_and_used_to_estimate_those_of_others():
    plain, _ = fitted(FreezeOut(**METHOD), FIVE)
    trainer, _ = fitted(FreezeOut(**METHOD), dataclasses.replace(FIVE, precise_bn=32))
    assert all(map(torch.equal, trainer.model.buffers(), plain.model.buffers()))  # all of its norms are frozen
    only_first = FreezeOut(ignore=("3", "4"), **METHOD)
    trainer, _ = fitted(only_first, dataclasses.replace(FIVE, precise_bn=32))
    norms = [trainer.model[1], trainer.model[3].branch[1]]
    kept, estimated = (norm.running_mean.clone() for norm in norms)
    outputs = []
    trainer.model.train()
    norms[0].eval()
    norms[1].register_forward_pre_hook(lambda norm, inputs: outputs.append(inputs[0].mean((0, 2, 3))))
    with torch.no_grad():
        for images, _ in list(SmallBatches(64, seed=1).epoch(5, 16))[:2]:
            trainer.model(images)
    assert torch.equal(norms[0].running_mean, kept)
    torch.testing.assert_close(estimated, torch.stack(outputs).mean(0))


def test_rates_are_those_of_the_authors_where_the_recipe_falls_as_a_cosine():
    """Their rate of layer i: 0.5 * (1 + cos(pi * p / t_i)) / t_i of the initial one, with t_i to the third power."""
    method = FreezeOut()
    method.setup(Context(small_net(), SHAPE, num_classes=4, epochs=1000, batch_size=16, layers=layers_of(small_net())))
    shares = [(0.8 + 0.2 * layer / 4) ** 3 for layer in range(5)]
    assert method.ends == [round(1000 * share) for share in shares]
    for layer, end in enumerate(method.ends):
        for progress in (0.0, 0.2, 0.5):
            cosine = 0.5 * (1 + math.cos(math.pi * progress))
            theirs = 0.5 * (1 + math.cos(math.pi * progress * 1000 / end)) * 1000 / end
            assert cosine * method.factor(layer, progress, 1000) == pytest.approx(theirs)


def layers_of(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, (nn.Conv2d, nn.Linear))}


def test_a_layer_is_trained_for_at_least_an_epoch_and_none_is_frozen_after_the_last_one():
    two = dataclasses.replace(RECIPE, epochs=2, precise_bn=32)
    trainer, records = fitted(FreezeOut(start=0.1, power=3), two)
    assert trainer.runner.method.ends == [1, 1, 1, 1, 2]
    assert [record["method"]["frozen_layers"] for record in records] == [4, 4]
    trainer, records = fitted(FreezeOut(start=0.9, power=1), two)
    assert [record["reconfigured"] for record in records] == [False, False]


def test_an_ignored_layer_is_trained_to_the_end():
    trainer, _ = fitted(FreezeOut(ignore=("3.branch.3",), **METHOD), FIVE)
    frozen = {name for plan in trainer.runner.reconfigurations for name in plan.frozen}
    assert {*dict(trainer.model.named_parameters())} - frozen == {"3.branch.3.weight", "8.weight", "8.bias"}


def test_a_layer_that_is_not_trained_counts_as_frozen_from_the_start():
    model = small_net()
    model[0].weight.requires_grad_(False)
    trainer = small_trainer(FreezeOut(**METHOD), FIVE, model)
    assert trainer.runner.method.parameters[0] == [
        "0.weight",
        "1.weight",
        "1.bias",
        "3.branch.0.weight",
        "3.branch.1.weight",
        "3.branch.1.bias",
    ]


def test_a_loop_of_ones_own_keeps_statistics_and_gets_a_network_that_can_be_trained_again():
    model = small_net()
    hooks = apply(model, FreezeOut(**METHOD), input_shape=SHAPE, num_classes=4, epochs=3, batch_size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    hooks.attach(optimizer)
    for epoch in range(3):
        kept = model[1].running_mean.clone()
        model.train()
        for images, labels in SmallBatches(64, seed=1).epoch(epoch, 16):
            images, labels = hooks.transform_batch(images, labels)
            F.cross_entropy(model(images), labels).backward()
            hooks.optimizer_step()
            optimizer.zero_grad()
        hooks.end_epoch()
        scheduler.step()
    assert torch.equal(model[1].running_mean, kept)
    F.cross_entropy(model(images), labels).backward()
    with pytest.raises(UsageError, match=r"transform_batch was not called in step 12, so that FreezeOut has no effect"):
        hooks.optimizer_step()
    assert not all(parameter.requires_grad for parameter in model.parameters())
    hooks.finish()
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_network_with_one_trained_layer_is_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    with pytest.raises(ValueError, match="1 trained layer"):
        small_trainer(FreezeOut(), FIVE, model)
