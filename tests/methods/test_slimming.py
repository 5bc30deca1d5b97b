"""Network Slimming: the penalty, the global threshold over index spaces, the cut, and what is refused."""

import dataclasses
import math
import random

import pytest
import torch
import torch.nn.functional as F
from small_training import CLASSES, RECIPE, SHAPE, SmallBatches, assert_it_resumes, fitted, small_net, small_trainer
from torch import nn

from methods.slimming import Slimming
from suite.ops import apply
from tasks.models.airbench import airbench

SIZES = {"input_shape": SHAPE, "num_classes": CLASSES, "epochs": 4, "batch_size": 16}
METHOD = {"strength": 0.01, "ratio": 0.5, "at": 0.4}


def start(model=None, **parameters):
    """Return the hooks of Slimming on a model before the end of the second of four epochs."""
    torch.manual_seed(0)
    hooks = apply(model or small_net(), Slimming(**METHOD | parameters), **SIZES)
    hooks.ctx.epochs_done, hooks.ctx.progress = 2, 0.5
    return hooks


def set_scales(model, **scales):
    for name, values in scales.items():
        model.get_submodule(name.replace("_", ".")).weight.data = torch.tensor(values)


def by_hand(penalty_after, momentum):
    """Train twelve steps as `RECIPE` does, with the subgradient of the authors' `main.py`, and a cut after eight."""
    torch.manual_seed(0)
    model = small_net().to(memory_format=torch.channels_last)
    # The runs are the same up to the cut; the suite cuts.
    hooks = apply(model, Slimming(**METHOD, momentum=momentum), **SIZES | {"epochs": 3})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    hooks.attach(optimizer)
    scales = [model[1].weight, model[3].branch[1].weight, model[3].branch[4].weight]
    data, step = SmallBatches(64, seed=1), 0
    for epoch in range(3):
        for images, labels in data.epoch(epoch, 16):
            optimizer.param_groups[0]["lr"] = 0.05 * (1 - 0.9 * step / 12)
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            if penalty_after or epoch < 2:
                for scale in scales:
                    scale.grad += 0.01 * torch.sign(scale.data)
            optimizer.step()
            step += 1
        hooks.end_epoch()
        if epoch == 1:
            assert bool(optimizer.state) is (momentum == "kept")
    return model


@pytest.mark.parametrize(("after", "momentum"), [(False, "new"), (True, "kept")])
def test_a_training_is_that_by_hand(after, momentum):
    trainer, records = fitted(Slimming(**METHOD, penalty_after=after, momentum=momentum))
    assert [record["method"]["cut"] for record in records] == [False, True, True]
    expected = by_hand(after, momentum).state_dict()
    for name, tensor in trainer.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], msg=name)


def test_one_threshold_for_all_layers_and_the_largest_scale_of_a_shared_channel():
    """Half of 16 channels go. Channel 1 of the residual stage is small before the block only, 2 behind it only."""
    hooks = start()
    set_scales(
        hooks.model,
        **{"1": [0.1, 0.1, 0.9, 0.9, -0.9, 0.9, 0.2, 0.9]},
        **{"3_branch_4": [0.1, -0.9, 0.1, 0.9, 0.1, 0.9, -0.1, 0.9]},
        **{"3_branch_1": [0.3, 0.31, -0.32, 0.33, 0.34, -0.8, 0.35, 0.81]},
    )
    plan = hooks.method.reconfigure(hooks.ctx)
    assert plan.kept == {"0": [1, 2, 3, 4, 5, 7], "3.branch.0": [5, 7]}
    assert not plan.restart
    assert hooks.method.reconfigure(hooks.ctx) is None  # only once


def test_a_group_of_a_group_normalisation_has_its_largest_scale():
    model = nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(3, 6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(6, CLASSES),
    )
    hooks = start(model, ratio=0.34)
    set_scales(model, **{"1": [0.1, 0.5, 0.2, 0.3, 0.4, -0.6]})
    assert hooks.method.reconfigure(hooks.ctx).kept == {"0": [0, 2]}


def slow(ratio, round_to, first, behind, inside):
    """Return what remains of the two spaces, by lists: the threshold is over all, the strongest come back."""
    scores = {"0": [max(abs(a), abs(b)) for a, b in zip(first, behind, strict=True)], "3.branch.0": map(abs, inside)}
    listed = sorted((score, name, index) for name, own in scores.items() for index, score in enumerate(own))
    number = int(ratio * len(listed) + 1e-9)
    kept = {}
    for name in ("0", "3.branch.0"):
        own = [index for _, space, index in listed[number:] if space == name]
        lost = [index for _, space, index in listed[:number] if space == name]
        while not own or (len(own) % round_to and lost):
            own.append(lost.pop())  # the list is ascending
        if lost:
            kept[name] = sorted(own)
    return kept


def test_it_cuts_as_the_slow_definition_does():
    hooks, draw = start(), random.Random(0)
    method = hooks.method
    for case in range(200):
        method.ratio, method.round_to, method.is_cut = draw.uniform(0.02, 0.98), draw.choice([1, 1, 2, 3, 4, 8]), False
        wide = draw.choice([1, 5])  # one space may lose all channels
        drawn = [[draw.gauss(0, 1) * factor for _ in range(8)] for factor in (1, 1, wide)]
        set_scales(hooks.model, **dict(zip(("1", "3_branch_4", "3_branch_1"), drawn, strict=True)))
        exact = [torch.tensor(own).tolist() for own in drawn]
        plan = method.reconfigure(hooks.ctx)
        assert (plan.kept if plan else {}) == slow(method.ratio, method.round_to, *exact), case


def test_the_penalty_is_the_sum_of_the_scales_of_channels_that_can_go():
    hooks = start()
    values = {"1": [0.5, -0.5] * 4, "3_branch_1": [2.0] * 8, "3_branch_4": [-1.0] * 8}
    set_scales(hooks.model, **values)
    term = hooks.method.regularization(hooks.model, hooks.ctx)
    assert term.item() == pytest.approx(0.01 * (8 * 0.5 + 16 + 8))
    term.backward()
    assert hooks.model[1].weight.grad.tolist() == pytest.approx([0.01, -0.01] * 4)
    hooks = start(ignore=("0",))  # so that the residual stage keeps its channels
    set_scales(hooks.model, **values)
    assert hooks.method.regularization(hooks.model, hooks.ctx).item() == pytest.approx(0.01 * 16)
    assert hooks.method.scores(hooks.ctx).keys() == {"3.branch.0"}
    hooks.method.strength = 0.0
    assert hooks.method.regularization(hooks.model, hooks.ctx) is None
    with pytest.raises(ValueError, match="no channel that can be removed has a scale"):
        start(ignore=("3",))


def test_the_moment_is_the_first_end_of_an_epoch_behind_the_share_and_never_the_last():
    for epochs, at, expected in ((10, 0.3, 3), (10, 0.31, 4), (3, 0.9, 2), (2, 0.1, 1), (4, 0.25, 1)):
        hooks = start(at=at)
        hooks.ctx.epochs, cut = epochs, []
        for done in range(1, epochs + 1):
            hooks.ctx.epochs_done, hooks.ctx.progress = done, done / epochs
            if hooks.method.reconfigure(hooks.ctx):
                cut.append(done)
        assert cut == [expected]


def test_the_random_twin_keeps_as_many_channels_of_each_space_and_the_seed_draws_them():
    plans = {}
    for seed, selection in ((0, "scale"), (0, "random"), (1, "random"), (1, "random")):
        hooks = start(selection=selection)
        hooks.ctx.seed = seed
        set_scales(hooks.model, **{"1": [float(n) for n in range(8)], "3_branch_1": [n / 2 for n in range(8)]})
        plan = hooks.method.reconfigure(hooks.ctx)
        assert plans.setdefault((seed, selection), plan) == plan
    sizes = [{name: len(kept) for name, kept in plan.kept.items()} for plan in plans.values()]
    assert sizes[0] == sizes[1] == sizes[2]
    assert len({str(plan.kept) for plan in plans.values()}) == 3


def test_a_resumed_training_ends_with_equal_bits():
    assert_it_resumes(lambda **callbacks: small_trainer(Slimming(**METHOD), RECIPE, **callbacks), after=(1, 2))


def test_scales_that_the_network_does_not_train_are_refused_or_trained():
    model = airbench(width=0.125, input_shape=(3, 16, 16))
    sizes = SIZES | {"input_shape": (3, 16, 16), "num_classes": 10}
    with pytest.raises(
        ValueError, match=r"not trained, such as 'groups.0.norm1.weight' \(requires_grad\): train_scales"
    ):
        apply(model, Slimming(), **sizes)
    model = airbench(width=0.125, input_shape=(3, 16, 16))
    hooks = apply(model, Slimming(train_scales=True, at=0.5), **sizes)
    assert len(hooks.method.scales) == 6
    assert all(scale.requires_grad for scale in hooks.method.scales)
    hooks.ctx.epochs_done, hooks.ctx.progress = 2, 0.5
    model.groups[0].norm1.weight.data[:3] = 0.0
    removed = set(range(8)) - set(hooks.method.reconfigure(hooks.ctx).kept["groups.0.conv1"])
    assert {0, 1, 2} <= removed


def test_networks_without_scales_and_trainings_of_one_epoch_are_refused():
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))
    with pytest.raises(ValueError, match="no channel that can be removed has a scale of batch, instance or group"):
        small_trainer(Slimming(), RECIPE, nn.Sequential(*layers))
    plain = nn.Sequential(layers[0], nn.BatchNorm2d(4, affine=False), *layers[1:])
    with pytest.raises(ValueError, match=r"no scale, such as that of '1' \(affine=False\); gradual_channels"):
        small_trainer(Slimming(), RECIPE, plain)
    with pytest.raises(ValueError, match="this training has 1: take 2 or more"):
        small_trainer(Slimming(), dataclasses.replace(RECIPE, epochs=1))


def test_a_score_that_is_not_a_number_counts_as_large():
    hooks = start()
    set_scales(hooks.model, **{"3_branch_1": [math.nan] + [0.001] * 7})
    assert hooks.method.reconfigure(hooks.ctx).kept["3.branch.0"] == [0]
