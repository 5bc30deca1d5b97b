"""The lasso of PruneTrain: penalty, gradient, coefficient and proximal update, compared with explicit loops."""

import functools
import math

import pytest
import torch
from small_prunetrain import SHAPE, start, train
from torch import nn

from methods.prunetrain import PruneTrain
from methods.prunetrain.lasso import (
    LassoLayer,
    arithmetic,
    channel_peaks,
    lasso_layers,
    penalty,
    soft_threshold,
    soft_threshold_arithmetic,
)
from methods.prunetrain.step_sizes import StepSize, adaptive, holders, step_size
from suite.engine.network.channels.spaces import find_index_spaces
from suite.ops import apply
from tasks.models.resnet9 import resnet9


def naive_penalty(model, by_size=False):
    """Return the penalty by its definition, group by group."""
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


def test_without_a_trained_group_the_network_is_refused():
    model = resnet9(width=1 / 16)
    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.requires_grad_(False)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"belongs to a layer whose weight is not trained .*, such as 'prep.conv'"):
            apply(model, PruneTrain(), input_shape=SHAPE, num_classes=10, epochs=2, batch_size=4)
        model.classifier.requires_grad_(True)  # its inputs are also the outputs of a layer that is not trained


class Fork(nn.Module):
    """A stem that two convolutions read, whose sum the head reads."""

    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b = (nn.Conv2d(width, 8, 3, padding=1, bias=False) for width in (3, 8, 8))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

    def forward(self, images):
        stem = self.stem(images).relu()
        return self.head((self.a(stem) + self.b(stem)).relu())


def forked(frozen, **parameters):
    """Return a fork with layers that are not trained, and its hooks."""
    torch.manual_seed(0)
    model = Fork()
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    sizes = {"input_shape": (3, 8, 8), "num_classes": 4, "epochs": 2, "batch_size": 8}
    hooks = apply(model, PruneTrain(interval=1, **parameters), **sizes)
    hooks.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    return model, hooks


@pytest.mark.parametrize(
    ("gating", "frozen"),
    [
        *((False, frozen) for frozen in ((), ("stem",), ("head.2",))),
        *((True, frozen) for frozen in ((), ("stem",), ("a",), ("head.2",), ("stem", "head.2"))),
    ],
)
def test_the_penalised_groups_are_those_of_channels_that_can_be_removed(frozen, gating):
    _, hooks = forked(frozen, gating=gating)
    ctx, method = hooks.ctx, hooks.method
    layers, heads = method._penalised(ctx)
    assert not heads
    penalised = {(name, axis) for name, layer in layers.items() for axis in (0, 1) if layer[1 + axis]}
    spaces = method._prunable(ctx)
    assert (
        penalised == {(one.layer, one.axis) for own in spaces for one in ctx.spaces.weights(own, ctx.layers)} != set()
    )
    # The operations are those of the penalised groups.
    assert method.overhead("a", 8, ctx) == (arithmetic(layers["a"]) if "a" in layers else 0)


@pytest.mark.parametrize("update", ["subgradient", "proximal"])
def test_the_penalty_leaves_groups_alone_that_share_channels_with_a_weight_that_is_not_trained(update):
    model, hooks = forked(["stem"], update=update)
    weight = model.a.weight
    before = weight.detach().clone()
    hooks.regularization(torch.tensor(1.0)).backward()
    hooks.method.after_optimizer_step(hooks.ctx)
    change = weight.grad if update == "subgradient" else before - weight.detach()
    # Each output group is scaled as a whole, so no input group has a part in it.
    scale = (change / before).flatten(1)
    assert (scale > 0).all()
    torch.testing.assert_close(scale, scale[:, :1].expand_as(scale), rtol=1e-3, atol=0)


def test_a_step_without_a_trained_weight_fixes_no_coefficient():
    model, hooks = forked([])
    model.requires_grad_(False)
    assert hooks.regularization(torch.tensor(1.0)) == 0
    assert hooks.method._penalty_coefficient is None
    hooks.end_step()
    model.requires_grad_(True)
    assert hooks.regularization(torch.tensor(1.0)) > 0


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
        assert term == 0
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
    assert hooks.regularization(torch.tensor(math.nan)) == 0
    hooks.end_step()
    assert method.state_dict()["penalty_coefficient"] is None
    assert hooks.regularization(torch.tensor(1.0)) > 0
    assert method.state_dict()["penalty_coefficient"] > 0


def test_soft_threshold_shrinks_norms_and_zeroes_what_is_less():
    weight = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    soft_threshold(LassoLayer(weight, outputs=True, inputs=False), StepSize(1.0))
    torch.testing.assert_close(weight, torch.tensor([[2.4, 3.2], [0.0, 0.0], [0.0, 0.0]]))
    soft_threshold(LassoLayer(weight, outputs=False, inputs=True), StepSize(2.8))
    torch.testing.assert_close(weight, torch.tensor([[0.0, 0.4], [0.0, 0.0], [0.0, 0.0]]))
    weight = torch.tensor([[3.0, 4.0]])  # a row of two: sqrt(2) times the step
    soft_threshold(LassoLayer(weight, outputs=True, inputs=False), StepSize(2.5 / math.sqrt(2)), by_size=True)
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_penalty_of_short_types_has_a_gradient_at_zero(dtype):
    """1e-8 is zero in float16, so that a group of zeros would have the gradient NaN."""
    weight = torch.zeros(4, 3, dtype=dtype, requires_grad=True)
    total = penalty([LassoLayer(weight, True, True)])
    total.backward()
    torch.testing.assert_close(total, torch.tensor(7e-4))
    assert weight.grad.dtype == dtype
    assert not weight.grad.any()
    values = torch.randn(4, 3).to(dtype)
    wanted = values.float().requires_grad_()
    weight = values.clone().requires_grad_()
    for one in (weight, wanted):
        penalty([LassoLayer(one, True, True)]).backward()
    torch.testing.assert_close(weight.grad.float(), wanted.grad, rtol=1e-2, atol=0)


started = functools.cache(lambda update: start(update=update))  # for tests that attach optimizers
ADAPTIVE = {"Adam": 0.001, "AdamW": 0.001, "NAdam": 0.001, "RMSprop": 0.001, "Adagrad": 0.01}
REFUSED = {"Adadelta": 1.0, "Adamax": 0.002, "Rprop": 0.01, "RAdam": 0.001}


@pytest.mark.parametrize("name", [*ADAPTIVE, *REFUSED])
def test_the_subgradient_is_refused_with_optimizers_that_divide_by_gradients(name):
    make, rate = getattr(torch.optim, name), (ADAPTIVE | REFUSED)[name]
    model, _, hooks, _ = started("subgradient")
    advice = "use SGD, or update=proximal with Adam, AdamW, NAdam, RMSprop or Adagrad of torch.optim"
    refusal = f"update=subgradient removes no channel with {name}, which divides the penalty .*; {advice}$"
    with pytest.raises(ValueError, match=refusal):
        hooks.attach(make(model.parameters(), lr=rate))
    # Only those that hold penalised weights count.
    matrices = [one for one in model.parameters() if one.ndim > 1]
    others = [one for one in model.parameters() if one.ndim <= 1]
    hooks.attach(torch.optim.SGD(matrices, lr=0.1), make(others, lr=rate))


def test_the_proximal_update_takes_the_adaptive_optimizers_whose_step_it_knows():
    model, _, hooks, _ = started("proximal")
    for name, rate in ADAPTIVE.items():
        hooks.attach(type("Own", (getattr(torch.optim, name),), {})(model.parameters(), lr=rate))


class Wrapper(torch.optim.Optimizer):
    """An optimizer that passes everything to another, as that of Accelerate does."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)


class Sign(torch.optim.SGD):
    """Moves each weight by the rate, from the second step on, and draws a random number."""

    def __init__(self, weights, lr):
        super().__init__(weights, lr)
        self.noise = 0.0

    @torch.no_grad()
    def step(self):
        for one in (one for group in self.param_groups for one in group["params"] if one.grad is not None):
            if "seen" in self.state[one]:
                one -= self.param_groups[0]["lr"] * one.grad.sign() + self.noise * torch.rand_like(one)
            self.state[one]["seen"] = True


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.ASGD, functools.partial(torch.optim.SGD, momentum=0.9)])
def test_optimizers_are_asked_and_not_changed(make):
    weight = torch.nn.Parameter(torch.ones(8, 3, 3, 3))
    optimizer = make([weight], lr=0.1, weight_decay=5e-4)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)  # a warm-up that begins with a rate of 0
    optimizer.register_step_pre_hook(lambda *_: pytest.fail("the user's hook ran"))
    random_state = torch.get_rng_state()
    assert not adaptive(optimizer)
    assert adaptive(Sign([weight], lr=0.0))
    assert torch.equal(weight, torch.ones_like(weight))
    assert (dict(optimizer.state), weight.grad) == ({}, None)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert len(optimizer.param_groups[0]["params"]) == 1


@pytest.mark.parametrize("update", ["subgradient", "proximal"])
def test_an_optimizer_that_does_not_show_what_it_does_is_refused_by_name(update):
    model, _, hooks, _ = started(update)
    hooks.ctx.optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ValueError, match=r"^LBFGS does not show whether it divides .* argument: 'closure'\); use SGD"):
        hooks.method.on_attached(hooks.ctx)


@pytest.mark.parametrize("name", [*REFUSED, "Adafactor", "Sign"])
def test_the_proximal_update_refuses_other_adaptive_optimizers(name):
    make = Sign if name == "Sign" else getattr(torch.optim, name)
    advice = "use SGD, or Adam, AdamW, NAdam, RMSprop or Adagrad of torch.optim"
    model, _, hooks, _ = started("proximal")
    for wrap in (lambda one: one, Wrapper):
        optimizer = make(model.parameters(), lr=REFUSED.get(name, 0.1))
        hooks.ctx.optimizer = wrap(optimizer)
        with pytest.raises(ValueError, match=f"does not know the step size of {name}, by which .*; {advice}$"):
            hooks.method.on_attached(hooks.ctx)


OPTIONS = {
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.0},
    "NAdam": {"momentum_decay": 0.0},
    "RMSprop": {"centered": True},
    "Adagrad": {"lr_decay": 0.5},
}


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in ADAPTIVE), *OPTIONS.items()])
def test_the_proximal_step_is_that_of_the_optimizer(name, options):
    """In the optimizer's first steps with a constant gradient, a weight moves by its step size times the gradient."""
    if name in ("AdamW", "NAdam"):
        options = OPTIONS[name]
    weight = torch.nn.Parameter(torch.full((2, 3), 5.0))
    optimizer = getattr(torch.optim, name)([weight], lr=ADAPTIVE[name], **options)
    assert step_size(holders(optimizer), weight).rate == 0  # not moved yet
    weight.grad = torch.tensor([[1.0, 2.0, 4.0], [0.5, 0.5, 0.5]])
    for _ in range(3):
        before = weight.detach().clone()
        optimizer.step()
        step = step_size(holders(Wrapper(optimizer)), weight)
        size = step.rate / (step.squares.sqrt() + step.eps)
        # The rate of NAdam's first steps has another factor for its momentum.
        moved = before - weight.detach()
        torch.testing.assert_close(size * weight.grad, moved, rtol=0.6 if name == "NAdam" else 2e-3, atol=1e-6)
    assert step_size(holders(optimizer), torch.zeros(1)).rate == 0


def test_the_proximal_step_of_amsgrad_has_the_largest_square_so_far():
    weight = torch.nn.Parameter(torch.full((2, 3), 5.0))
    optimizer = torch.optim.Adam([weight], lr=0.1, betas=(0.0, 0.5), amsgrad=True)
    for gradient in (4.0, 0.5, 0.5):
        weight.grad, before = torch.full_like(weight, gradient), weight.detach().clone()
        optimizer.step()
        step = step_size(holders(optimizer), weight)
        torch.testing.assert_close(step.rate * gradient / (step.squares.sqrt() + step.eps), before - weight.detach())


def test_a_dead_channel_does_not_take_the_groups_that_cross_it():
    weight = torch.ones(4, 3)
    squares = torch.full((4, 3), 0.01)
    squares[0] = 0  # an output channel without gradients
    soft_threshold(LassoLayer(weight, outputs=True, inputs=False), StepSize(0.1, squares, 1e-8))
    assert not weight[0].any()
    torch.testing.assert_close(weight[1], torch.full((3,), 1 - 0.1 / 0.1 / math.sqrt(3)))
    soft_threshold(LassoLayer(weight, outputs=False, inputs=True), StepSize(1e-3, squares, 1e-8))
    assert (weight[1:] > 0).all()
