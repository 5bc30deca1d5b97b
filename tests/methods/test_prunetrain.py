"""PruneTrain: the penalty, its coefficient, the decision what goes, and a short training."""

import math

import pytest
import torch
from torch import nn

from methods.prunetrain import PruneTrain
from methods.shared.lasso import (
    LassoLayer,
    arithmetic,
    channel_peaks,
    lasso_layers,
    penalty,
    soft_threshold,
    soft_threshold_arithmetic,
)
from suite.choices import build_method
from suite.errors import UsageError
from suite.network.channels.spaces import find_index_spaces
from suite.ops import apply
from tasks.models.resnet9 import resnet9

SHAPE, CLASSES, BATCH = (3, 16, 16), 10, 16


def start(train_images=0, **parameters):
    """A narrow ResNet-9 with hooks of PruneTrain, and its optimizer."""
    torch.manual_seed(0)
    model = resnet9(width=1 / 16)
    method = PruneTrain(**{"interval": 1, "threshold": 1e-2} | parameters)
    sizes = {"epochs": 4, "batch_size": BATCH, "train_images": train_images}
    hooks = apply(model, method, input_shape=SHAPE, num_classes=CLASSES, **sizes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    hooks.attach(optimizer)
    return model, method, hooks, optimizer


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    return torch.randn(BATCH, *SHAPE, generator=generator) + labels.view(-1, 1, 1, 1) / 5, labels


def train(hooks, optimizer, steps, seed=0):
    """Train for some steps; returns task loss and regulariser of the first."""
    first = None
    for index in range(steps):
        images, labels = batch(seed + index)
        loss = nn.functional.cross_entropy(hooks.model.train()(images), labels)
        term = hooks.regularization(loss)
        first = first or (loss.item(), None if term is None else term.item())
        optimizer.zero_grad()
        (loss if term is None else loss + term).backward()
        hooks.optimizer_step()
    return first


def naive_penalty(model, by_size=False):
    """The penalty by its definition, group by group."""
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    total = 0.0
    for index, (_, layer) in enumerate(layers):
        weight = layer.weight
        groups = [weight[k] for k in range(weight.shape[0])] if index < len(layers) - 1 else []
        groups += [weight[:, c] for c in range(weight.shape[1])] if index > 0 else []
        for group in groups:
            factor = math.sqrt(group.numel()) if by_size else 1.0
            total = total + factor * torch.sqrt((group * group).sum() + 1e-8)
    return total


# The penalty


@pytest.mark.parametrize("by_size", [False, True])
def test_prunetrain_2_penalty_is_that_of_a_naive_loop(by_size):
    model = resnet9(width=1 / 16).double()
    spaces = find_index_spaces(model, SHAPE)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))}
    ours, naive = penalty(lasso_layers(layers, spaces).values(), by_size), naive_penalty(model, by_size)
    torch.testing.assert_close(ours, naive, rtol=1e-12, atol=0)
    parameters = [layer.weight for layer in layers.values()]
    for got, wanted in zip(torch.autograd.grad(ours, parameters), torch.autograd.grad(naive, parameters), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


def test_prunetrain_2_image_channels_and_classes_contribute_nothing():
    model = resnet9(width=1 / 16)
    spaces = find_index_spaces(model, SHAPE)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))}
    found = lasso_layers(layers, spaces)
    assert (found["prep.conv"].outputs, found["prep.conv"].inputs) == (True, False)
    assert (found["classifier"].outputs, found["classifier"].inputs) == (False, True)
    assert all(layer.outputs and layer.inputs for layer in list(found.values())[1:-1])
    # 8 groups of the first layer, 16 of the last, and both groupings of seven convolutions between them
    for layer in layers.values():
        layer.weight.data.zero_()
    channels = 8 + (8 + 16) + 2 * (16 + 16) + (16 + 32) + 2 * (32 + 32) + (32 + 16) + 16
    assert penalty(found.values()).item() == pytest.approx(channels * 1e-4, rel=1e-5)


def test_depthwise_convolutions_are_not_penalised():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 2, 4), nn.Flatten())
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)}
    assert list(lasso_layers(layers, find_index_spaces(model, (3, 8, 8)))) == ["0", "2"]


def test_hidden_linear_layers_have_both_groupings():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    found = lasso_layers(layers, find_index_spaces(model, (3, 2, 2)))
    assert [(layer.outputs, layer.inputs) for layer in found.values()] == [(True, False), (True, True), (False, True)]


@pytest.mark.parametrize("update", ["subgradient", "proximal"])
@pytest.mark.parametrize("coefficient", ["global", "size"])
def test_prunetrain_1_the_first_step_fixes_the_coefficient(update, coefficient):
    model, method, hooks, optimizer = start(ratio=0.25, update=update, coefficient=coefficient)
    total = naive_penalty(model, coefficient == "size").item()
    task_loss, term = train(hooks, optimizer, 1)
    fixed = method.state_dict()["penalty_coefficient"]
    assert fixed * total / (task_loss + fixed * total) == pytest.approx(0.25, abs=1e-6)
    if update == "subgradient":
        assert term / (task_loss + term) == pytest.approx(0.25, abs=1e-6)
    else:
        assert term is None
    train(hooks, optimizer, 3, seed=1)
    hooks.end_epoch()
    train(hooks, optimizer, 1, seed=4)
    assert method.state_dict()["penalty_coefficient"] == fixed
    resumed = PruneTrain()
    resumed.load_state_dict(method.state_dict())
    assert resumed.state_dict() == method.state_dict()


def test_the_penalty_multiplies_the_gradient_that_comes_in():
    _, _, hooks, _ = start()
    layers = list(lasso_layers(hooks.ctx.layers, hooks.ctx.spaces).values())
    (once,) = torch.autograd.grad(penalty(layers), layers[0].weight)
    (thrice,) = torch.autograd.grad(3 * penalty(layers), layers[0].weight)
    torch.testing.assert_close(thrice, 3 * once)
    assert once.abs().max() > 0


def test_a_first_step_that_is_not_finite_fixes_nothing():
    _, method, hooks, _ = start()
    assert hooks.regularization(torch.tensor(math.nan)) is None
    assert method.state_dict()["penalty_coefficient"] is None
    assert hooks.regularization(torch.tensor(1.0)) is not None
    assert method.state_dict()["penalty_coefficient"] > 0


def test_soft_threshold_shrinks_norms_and_zeroes_what_is_less():
    weight = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    soft_threshold(LassoLayer(weight, outputs=True, inputs=False), 1.0)
    torch.testing.assert_close(weight, torch.tensor([[2.4, 3.2], [0.0, 0.0], [0.0, 0.0]]))
    soft_threshold(LassoLayer(weight, outputs=False, inputs=True), 2.8)
    torch.testing.assert_close(weight, torch.tensor([[0.0, 0.4], [0.0, 0.0], [0.0, 0.0]]))
    weight = torch.tensor([[3.0, 4.0]])  # a row of two: sqrt(2) times the step
    soft_threshold(LassoLayer(weight, outputs=True, inputs=False), 2.5 / math.sqrt(2), by_size=True)
    torch.testing.assert_close(weight, torch.tensor([[1.5, 2.0]]))


def test_proximal_update_shrinks_by_learning_rate_times_coefficient():
    model, method, hooks, optimizer = start(update="proximal")
    train(hooks, optimizer, 1)
    fixed = method.state_dict()["penalty_coefficient"]
    for group in optimizer.param_groups:
        group["lr"] = 2.0
    before = model.prep.conv.weight.detach().clone()
    method.after_optimizer_step(hooks.ctx)
    shrunk = before.flatten(1).norm(dim=1) - model.prep.conv.weight.detach().flatten(1).norm(dim=1)
    torch.testing.assert_close(shrunk, torch.full_like(shrunk, 2.0 * fixed), rtol=1e-3, atol=0)


# The decision


def kill(model, spaces, name, index, value=0.0, spare=()):
    """Set a channel's weights to a value in every producer and consumer that is not spared."""
    layers = {name: layer for name, layer in model.named_modules() if name not in spare}
    for _, weight, axis, entries in spaces.weights(spaces[name], layers):
        if weight.ndim > 1:  # not a normalisation's
            weight.data.movedim(axis, 0)[entries[index]] = value


def decide(hooks):
    hooks.ctx.epochs_done += 1
    hooks.method.on_epoch_end(hooks.ctx)
    return hooks.method.reconfigure(hooks.ctx)


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
    hooks.carry_out(plan)
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
    plan = hooks.close_epoch()
    assert not model.prep.conv.weight[0].any()
    assert not model.down.conv.weight[:, 0].any()
    assert model.down.conv.weight[4].any() == (zeroing == "removed")
    assert model.expand.conv.weight[:, 4].any()
    before = model.eval()(images)
    hooks.carry_out(plan)
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
    hooks.carry_out(plan)
    assert decide(hooks) is None


def test_it_decides_every_interval_epochs_and_after_the_last_where_it_divides():
    model, _, hooks, _ = start(interval=2)
    decided = []
    for epoch in range(4):
        kill(model, hooks.ctx.spaces, "reduce.conv", 0)
        plan = hooks.close_epoch()
        decided.append(plan is not None)
        if plan:
            hooks.carry_out(plan)
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


def test_prunetrain_10_the_batch_grows_within_the_memory_of_the_start():
    model, method, hooks, optimizer = start(train_images=1000, dynamic_batch="start")
    estimates = []
    measure = hooks.ctx.memory_estimate
    hooks.ctx.memory_estimate = lambda plan: estimates.append(measure(plan)) or estimates[-1]
    train(hooks, optimizer, 1)
    for name, space in hooks.ctx.spaces.items():
        for index in range(space.size - 1):
            if not space.frozen:
                kill(model, hooks.ctx.spaces, name, index)
    plan = decide(hooks)
    bound, now, more = estimates
    assert plan.batch_size > BATCH
    assert (plan.batch_size - BATCH) % 32 == 0
    assert plan.lr_scale == plan.batch_size / BATCH
    each = (more - now) / 32
    assert now + each * (plan.batch_size - BATCH) <= bound < now + each * (plan.batch_size + 32 - BATCH)
    hooks.carry_out(plan)
    assert hooks.ctx.batch_size == plan.batch_size
    # The bound stays that of the start, also in a trial that was resumed.
    assert method.state_dict()["memory_bound"] == bound
    resumed = PruneTrain(dynamic_batch="start")
    resumed.load_state_dict(method.state_dict())
    assert resumed.state_dict() == method.state_dict()


def test_a_learning_rate_grows_with_the_batch_from_its_first_size():
    model, _, hooks, optimizer = start(train_images=10_000, dynamic_batch="start")
    train(hooks, optimizer, 1)
    # Of a bound of 1000: what a cut of any size leaves room for is a batch of 48, then one of 80.
    for images, channel in ((48, 0), (80, 1)):
        kill(model, hooks.ctx.spaces, "prep.conv", channel)
        hooks.ctx.memory_estimate = lambda plan, most=images: 1000 + (plan.batch_size or most) - most
        plan = decide(hooks)
        assert (plan.batch_size, plan.lr_scale) == (images, images / BATCH)
        hooks.carry_out(plan)


def test_a_growing_batch_needs_the_images_of_an_epoch():
    with pytest.raises(UsageError, match="dynamic_batch=start needs train_images, the number of images per epoch"):
        start(dynamic_batch="start")


def test_a_loop_that_keeps_its_batch_where_a_larger_one_was_asked_for_is_told(caplog):
    model, _, hooks, optimizer = start(train_images=1000, dynamic_batch="start")
    hooks.transform_batch(*batch(0))
    train(hooks, optimizer, 1)
    for name, space in hooks.ctx.spaces.items():
        for index in range(space.size - 1):
            if not space.frozen:
                kill(model, hooks.ctx.spaces, name, index)
    assert hooks.end_epoch() is not None
    asked = hooks.ctx.batch_size
    assert asked > BATCH
    assert not caplog.records
    hooks.transform_batch(torch.zeros(asked, *SHAPE), torch.zeros(asked, dtype=torch.int64))
    hooks.end_epoch()
    assert not caplog.records
    hooks.transform_batch(*batch(1))
    hooks.end_epoch()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"epoch 3 was trained with batches of {BATCH} images, but the method asked")


def test_a_batch_is_never_larger_than_the_data_nor_smaller_than_it_was():
    model, _, hooks, optimizer = start(train_images=BATCH + 40, dynamic_batch="start")
    train(hooks, optimizer, 1)
    for index in range(5):
        kill(model, hooks.ctx.spaces, "prep.conv", index)
    hooks.ctx.memory_estimate = lambda plan: 1000 if plan.batch_size is None else plan.batch_size
    plan = decide(hooks)
    assert plan.batch_size == BATCH + 32
    hooks.ctx.memory_estimate = lambda plan: 2000 + (plan.batch_size or 0)
    assert hooks.method._with_larger_batch(plan, hooks.ctx).batch_size == BATCH


def test_a_batch_grows_by_what_the_micro_batches_divide():
    model, _, hooks, optimizer = start(train_images=10_000, dynamic_batch="start")
    hooks.ctx.micro_batches = 3
    train(hooks, optimizer, 1)
    kill(model, hooks.ctx.spaces, "prep.conv", 0)
    hooks.ctx.memory_estimate = lambda plan: 10_000 if plan.batch_size is None else 100 + plan.batch_size
    assert decide(hooks).batch_size == BATCH + 96 * ((10_000 - 100 - BATCH) // 96)


def test_the_devices_memory_bounds_on_a_device_alone():
    with pytest.raises(ValueError, match="dynamic_batch=device needs a CUDA device"):
        start(dynamic_batch="device")


# The rest


def test_channel_peaks_of_both_axes():
    weight = torch.tensor([[1.0, -5.0, 0.5, 0.0], [-2.0, 3.0, 0.25, 0.0]])
    assert channel_peaks(weight, 0, torch.tensor([[0], [1]])).tolist() == [5.0, 3.0]
    assert channel_peaks(weight, 1, torch.arange(4)[:, None]).tolist() == [2.0, 5.0, 0.5, 0.0]
    assert channel_peaks(weight, 1, torch.tensor([[0, 1], [2, 3]])).tolist() == [5.0, 0.5]
    assert channel_peaks(weight, 1, torch.tensor([[2], [1]])).tolist() == [0.5, 5.0]  # part of an axis, in any order


def test_overhead_counts_the_lasso():
    assert arithmetic(LassoLayer(torch.zeros(4, 2, 3, 3), True, True)) == 4 * 72 + 2 * 2 * 8 + 3 * 6
    assert arithmetic(LassoLayer(torch.zeros(4, 2), False, True)) == 4 * 8 + 2 * 8 + 3 * 2
    assert soft_threshold_arithmetic(LassoLayer(torch.zeros(4, 2, 3, 3), True, True)) == 3 * 2 * 72 + 4 * 6
    assert soft_threshold_arithmetic(LassoLayer(torch.zeros(4, 2), False, True)) == 3 * 8 + 4 * 2
    _, method, hooks, _ = start()
    assert (
        method.overhead("prep.conv", 1, hooks.ctx)
        == method.overhead("prep.conv", 64, hooks.ctx)
        == 4 * 8 * 27 + 2 * 8 * 3 + 3 * 8
    )


def test_a_model_that_cannot_be_followed_is_refused_by_the_name_of_the_step():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 14), nn.Flatten())
    with pytest.raises(ValueError, match="the channels of this model cannot be traced: '1' is not understood"):
        apply(model, PruneTrain(), input_shape=SHAPE, num_classes=2, epochs=1, batch_size=1)


def test_a_model_with_nothing_to_cut_is_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 10))
    with pytest.raises(ValueError, match="no channel of this model can be removed"):
        apply(model, PruneTrain(), input_shape=SHAPE, num_classes=CLASSES, epochs=1, batch_size=1)


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
