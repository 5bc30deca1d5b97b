"""PruneTrain: the decision which channels are removed, a short training, and what it refuses."""

import pytest
import torch
from small_prunetrain import CLASSES, SHAPE, batch, decide, kill, start, train
from torch import nn

from methods.prunetrain import PruneTrain
from suite.choices import build_method
from suite.ops import apply


def test_prunetrain_5_a_channel_that_one_layer_still_uses_survives():
    _, _, hooks, _ = start(threshold=1e-4)
    model, spaces = hooks.model, hooks.ctx.spaces
    shared = spaces["down.conv"]  # a residual node: two producers, two consumers
    users = [*shared.producers, *shared.consumers]
    assert len(users) == 4
    for index, user in enumerate(users):
        kill(model, spaces, "down.conv", index, spare=[user])
    kill(model, spaces, "down.conv", 9)
    plan = decide(hooks)
    assert plan.kept == {"down.conv": [index for index in range(16) if index != 9]}
    assert plan.removed_branches == ()


def test_prunetrain_5_every_entry_behind_a_flattening_counts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(8), nn.Flatten(), nn.Linear(16, 5))
    hooks = apply(model, PruneTrain(interval=1), input_shape=SHAPE, num_classes=5, epochs=1, batch_size=4)
    for index in (1, 2):
        kill(model, hooks.ctx.spaces, "0", index)
    model[3].weight.data[0, 4 * 1 + 3] = 0.5  # one of the four entries of channel 1
    assert decide(hooks).kept == {"0": [0, 1, 3]}


@pytest.mark.parametrize(("value", "goes"), [(-1.0, False), (1.0, False), (-9e-5, True), (9e-5, True), (1.1e-4, False)])
def test_prunetrain_6_the_threshold_is_on_magnitudes(value, goes):
    _, _, hooks, _ = start(threshold=1e-4)
    kill(hooks.model, hooks.ctx.spaces, "reduce.conv", 5, value)
    plan = decide(hooks)
    assert (plan is not None and 5 not in plan.kept["reduce.conv"]) == goes


def test_prunetrain_7_a_dead_inner_space_takes_its_branch_out():
    model, _, hooks, _ = start()
    for index in range(32):
        kill(model, hooks.ctx.spaces, "residual2.branch.block1.conv", index, 1e-3)
    kill(model, hooks.ctx.spaces, "residual1.branch.block1.conv", 3)
    plan = decide(hooks)
    assert plan.removed_branches == ("residual2.branch",)
    assert plan.kept == {
        "residual1.branch.block1.conv": [index for index in range(16) if index != 3],
        "residual2.branch.block1.conv": [],
    }
    hooks.apply_plan(plan)
    assert not list(model.residual2.branch.parameters())
    assert decide(hooks) is None


@pytest.mark.parametrize("zeroing", ["dead", "removed"])
def test_dead_weights_are_zero_and_outputs_stay(zeroing):
    model, _, hooks, optimizer = start(threshold=1e-2, zeroing=zeroing)
    train(hooks, optimizer, 2)
    for name, index in [("prep.conv", 0), ("down.conv", 3), ("expand.conv", 31), ("reduce.conv", 7)]:
        kill(model, hooks.ctx.spaces, name, index, 9e-3)
    kill(model, hooks.ctx.spaces, "down.conv", 4, 9e-3, spare=["expand.conv"])  # stays, with one layer that uses it
    images, _ = batch(9)
    plan = hooks.plan_epoch_end()
    assert not model.prep.conv.weight[0].any()
    assert not model.down.conv.weight[:, 0].any()
    assert model.down.conv.weight[4].any() == (zeroing == "removed")
    assert model.expand.conv.weight[:, 4].any()
    before = model.eval()(images)
    hooks.apply_plan(plan)
    torch.testing.assert_close(model(images), before, rtol=1e-4, atol=1e-6)
    assert model.prep.conv.out_channels == 7
    assert model.down.conv.out_channels == 15


def test_a_space_that_has_to_keep_a_channel_keeps_its_strongest():
    model, _, hooks, _ = start()
    for index in range(16):
        kill(model, hooks.ctx.spaces, "reduce.conv", index, 1e-3)
    model.reduce.conv.weight.data[11, 2, 1, 1] = -2e-3
    plan = decide(hooks)
    assert plan.kept == {"reduce.conv": [11]}
    assert model.reduce.conv.weight[11].any()
    hooks.apply_plan(plan)
    assert decide(hooks) is None


def test_it_decides_every_interval_epochs_and_after_the_last_where_it_divides():
    model, _, hooks, _ = start(interval=2)
    decided = []
    for epoch in range(4):
        kill(model, hooks.ctx.spaces, "reduce.conv", 0)
        plan = hooks.plan_epoch_end()
        decided.append(plan is not None)
        if plan:
            hooks.apply_plan(plan)
        assert hooks.ctx.epochs_done == epoch + 1
    assert decided == [False, True, False, True]


@pytest.mark.parametrize("parameters", [{}, {"update": "proximal", "ratio": 0.95}, {"coefficient": "size"}])
def test_prunetrain_9_a_training_shrinks_and_never_grows(parameters):
    model, _, hooks, optimizer = start(**{"ratio": 0.5, "threshold": 5e-2} | parameters)
    sizes = [{name: space.size for name, space in hooks.ctx.spaces.items()}]
    for epoch in range(4):
        train(hooks, optimizer, 10, seed=10 * epoch)
        hooks.end_epoch()
        sizes.append({name: space.size for name, space in hooks.ctx.spaces.items()})
        for name, size in sizes[-1].items():
            assert size <= sizes[-2][name]
    assert sum(sizes[-1].values()) < sum(sizes[0].values())
    assert model.prep.conv.in_channels == 3
    assert model.classifier.out_features == CLASSES
    assert torch.isfinite(model.eval()(batch(0)[0])).all()


@pytest.mark.parametrize(("round_to", "left"), [(1, 5), (4, 8), (8, 8), (16, 16)])
def test_channels_are_cut_to_a_multiple_and_the_strongest_of_the_dead_fill_up(round_to, left):
    _, _, hooks, _ = start(round_to=round_to)
    for index in range(5, 16):
        kill(hooks.model, hooks.ctx.spaces, "reduce.conv", index, 1e-4 * index)  # of 16 channels, the later the larger
    plan = decide(hooks)
    if left == 16:
        assert plan is None
    else:
        assert plan.kept == {"reduce.conv": [*range(5), *range(16 - (left - 5), 16)]}


def test_a_branch_without_living_channels_goes_whatever_the_rounding():
    _, _, hooks, _ = start(round_to=8)
    for index in range(32):
        kill(hooks.model, hooks.ctx.spaces, "residual2.branch.block1.conv", index, 1e-3)
    assert decide(hooks).removed_branches == ("residual2.branch",)


def test_a_model_that_cannot_be_followed_is_refused_by_the_name_of_the_step():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(1, 4), nn.Conv2d(4, 2, 14), nn.Flatten())
    with pytest.raises(ValueError, match=r"no channel of this model can be removed: .*'1' is a GroupNorm of one group"):
        apply(model, PruneTrain(), input_shape=SHAPE, num_classes=2, epochs=1, batch_size=1)


def test_defaults_are_published_for_paper_and_short_otherwise():
    assert PruneTrain.defaults("cifar10", "paper") == {}
    assert PruneTrain.defaults("imagenet", "paper") == {"ratio": 0.25, "interval": 5}
    assert PruneTrain.defaults("cifar10", "quick")["interval"] == 1
    assert (PruneTrain().ratio, PruneTrain().interval, PruneTrain().threshold) == (0.2, 10, 1e-4)
    build_method("prunetrain", PruneTrain.defaults("digits", "smoke"))


@pytest.mark.parametrize(
    ("parameters", "line"),
    [
        ({"ratio": 0.0}, "ratio is 0.0"),
        ({"ratio": 1.0}, "ratio is 1.0"),
        ({"interval": 0}, "interval is 0"),
        ({"threshold": 0.0}, "threshold is 0.0"),
        ({"update": "prox"}, "update is 'prox'; allowed: subgradient, proximal"),
        ({"coefficient": "all"}, "coefficient is 'all'; allowed: global, size"),
        ({"zeroing": "all"}, "zeroing is 'all'; allowed: dead, removed"),
        ({"round_to": 0}, "round_to is 0"),
        ({"dynamic_batch": "on"}, "dynamic_batch is 'on'; allowed: off, start, device"),
    ],
)
def test_wrong_parameters_are_one_line(parameters, line):
    with pytest.raises(ValueError, match=line):
        PruneTrain(**parameters)
