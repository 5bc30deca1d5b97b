"""What a model's forward depends on: sizes used as numbers, weights that it reads, paths used only in training."""

import copy
import itertools
import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from methods.prunetrain import PruneTrain
from methods.prunetrain.lasso import lasso_layers
from suite.engine.network.channels import trial_cut
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import apply_plan
from suite.engine.network.channels.trial_cut import (
    CHANGES_OUTPUTS,
    freeze_what_fails,
    warn_of_frozen_channels,
)
from suite.engine.training.method_runner import removes_channels
from suite.method import Method, ReconfigPlan
from suite.ops import apply

SHAPE = (3, 8, 8)


class Net(nn.Module):
    """Three convolutions, with a computation behind the second one, and a linear layer.

    Args:
        between: (net, output of `a`, output of `b`) -> what `c` is given.
    """

    def __init__(self, between):
        super().__init__()
        self.between = between
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.c, self.aux = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 4)
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        x = torch.relu(self.a(x))
        y = self.norm(self.b(x))
        return self.head(self.c(self.between(self, x, y)).mean((2, 3)))


def unpacked(net, x, y):
    _, channels, _, _ = y.shape
    return y / channels


NUMBERS = {
    "shape": lambda net, x, y: y / y.shape[1] ** 0.5,
    "size": lambda net, x, y: y / y.size(1),
    "size by name": lambda net, x, y: y / y.size(dim=-3),
    "numel": lambda net, x, y: y * (1e3 / y.numel()),
    "product": lambda net, x, y: y / (y.shape[1] * y.shape[2]),
    "square root": lambda net, x, y: y / math.sqrt(y.shape[1]),
    "part of the shape": lambda net, x, y: y / y.shape[1:].numel(),
    "unpacked": unpacked,
    "strides": lambda net, x, y: y * y.stride(0) / 512,
    "alpha": lambda net, x, y: torch.add(y, y, alpha=y.shape[1]),
    "argument": lambda net, x, y: F.leaky_relu(y, negative_slope=1 / y.shape[1]),
    "in_channels": lambda net, x, y: y / net.c.in_channels,
    "out_channels": lambda net, x, y: y / net.b.out_channels,
    "num_features": lambda net, x, y: y / net.norm.num_features,
    "condition": lambda net, x, y: y * 2 if net.b.out_channels > 5 else y,
    "shape of a weight": lambda net, x, y: y / net.b.weight.shape[0],
    "statistics": lambda net, x, y: y / net.norm.running_var.sum(),
    "weight": lambda net, x, y: F.conv2d(y, net.b.weight, padding=1),
    "weight as a tensor": lambda net, x, y: y * net.b.weight.square().sum(),
}
HIDDEN = {
    "first parameter": lambda net, x, y: y / len(next(net.b.parameters()).detach().numpy()),
    "all parameters": lambda net, x, y: y / sum(len(p.data) for p in net.b.parameters()),
    "state": lambda net, x, y: y / len(net.norm.state_dict()["bias"]),
}
FREE = {
    "one number": lambda net, x, y: y * net.factor,
    "nothing": lambda net, x, y: y,
    "images": lambda net, x, y: y / y.shape[0],
    "places": lambda net, x, y: y / (y.shape[-1] * y.size(2)) ** 0.5,
    "places of a part": lambda net, x, y: F.adaptive_avg_pool2d(y, y.shape[2:]),
    "axes": lambda net, x, y: y / y.ndim / y.dim(),
    "not used": lambda net, x, y: (y.shape[1] * 2, y)[1],
    "keyword": lambda net, x, y: net.aux(input=y) + y,
}


def check(model, spaces):
    """Cut half of every free space and compare with the model in which nothing reads these channels."""
    torch.manual_seed(0)
    model = model.double()
    images = torch.randn(4, *SHAPE, dtype=torch.float64)
    model.train()(images)  # statistics
    layers, parameters = dict(model.named_modules()), dict(model.named_parameters())
    kept = {name: space.original[::2] for name, space in spaces.items() if not space.frozen}
    for name in kept:
        for one in spaces[name].slices:
            if isinstance(layers[one.module], (nn.Conv2d, nn.Linear)):
                parameters[one.tensor].data.movedim(one.axis, 0)[one.entries[1::2].flatten()] = 0.0
    for training in (False, True):
        model.train(training)
        masked = copy.deepcopy(model)
        cut, found = copy.deepcopy(model), copy.deepcopy(spaces)
        apply_plan(cut, ReconfigPlan(kept=kept), found, None)
        torch.testing.assert_close(cut(images), masked(images), rtol=1e-9, atol=1e-9)
    return kept


@pytest.mark.parametrize("name", NUMBERS)
def test_what_a_size_as_a_number_or_a_weight_that_is_read_reaches_is_frozen(name):
    torch.manual_seed(0)
    model = Net(NUMBERS[name])
    spaces = find_index_spaces(model, SHAPE)
    assert spaces["b"].frozen
    kept = check(model, spaces)
    assert "c" in kept
    assert ("a" in kept) == ("weight" not in name)


@pytest.mark.parametrize("name", FREE)
def test_sizes_that_no_cut_changes_freeze_nothing(name):
    torch.manual_seed(0)
    model = Net(FREE[name])
    spaces = find_index_spaces(model, SHAPE)
    freeze_what_fails(model, spaces, SHAPE)
    assert {"a", "b", "c"} <= set(check(model, spaces))


@pytest.mark.parametrize("name", HIDDEN)
def test_what_tracing_cannot_see_is_found_by_a_cut_on_trial(name):
    torch.manual_seed(0)
    model = Net(HIDDEN[name])
    spaces = find_index_spaces(model, SHAPE)
    assert not spaces["b"].frozen
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    freeze_what_fails(model, spaces, SHAPE)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert spaces["b"].frozen_because == CHANGES_OUTPUTS
    assert {"a", "c"} <= set(check(model, spaces))


@pytest.mark.parametrize(
    ("between", "only_float32", "frozen"),
    [
        (FREE["nothing"], False, set()),
        (HIDDEN["all parameters"], False, {"b"}),
        (FREE["nothing"], True, {"a", "b", "c"}),
    ],
)
def test_rounding_errors_that_a_network_amplifies_freeze_nothing(between, only_float32, frozen, monkeypatch):
    signs, exact = itertools.cycle([1.0, -1.0]), trial_cut._outputs

    def with_errors(model, images):
        if images.dtype == torch.float64:
            return exact(model, "no images" if only_float32 else images)
        error = 0.01 * next(signs)
        return [output * (1 + error) for output in exact(model, images)]

    monkeypatch.setattr(trial_cut, "_outputs", with_errors)
    torch.manual_seed(0)
    model = Net(between)
    spaces = find_index_spaces(model, SHAPE)
    freeze_what_fails(model, spaces, SHAPE)
    assert {name for name in "abc" if spaces[name].frozen_because == CHANGES_OUTPUTS} == frozen


class Removes(Method):
    shrinks_network = True


class Reconfigures(Method):
    def reconfigure(self, ctx):
        return None


class Begins(Method):
    other: str = ""

    def depends_on(self):
        return (self.other,) if self.other else ()

    def begin(self, ctx):
        return ()


def test_only_methods_that_may_remove_channels_try_a_cut_and_warn_of_those_that_stay(caplog):
    assert [removes_channels(one) for one in (Removes(), Reconfigures(), Begins(other="x"))] == [True, True, True]
    assert [removes_channels(one) for one in (Method(), Begins())] == [False, False]
    for method, warns in ((Begins(), False), (PruneTrain(), True)):
        model = Net(HIDDEN["all parameters"])
        hooks = apply(model, method, input_shape=SHAPE, num_classes=4, epochs=1, batch_size=4)
        assert hooks.ctx.spaces["b"].frozen_because == CHANGES_OUTPUTS
        assert not hooks.ctx.spaces["a"].frozen
        line = f"prunetrain: no channel of 'b' can be removed: {CHANGES_OUTPUTS}"
        assert (line in [record.getMessage() for record in caplog.records]) == warns


def test_many_reasons_are_counted_and_the_most_frequent_come_first(caplog):
    spaces = find_index_spaces(nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(14))), SHAPE)
    inner = [space for name, space in spaces.items() if name not in {spaces.model_input, *spaces.model_outputs}]
    reasons = ["odd", "'a' is new", "'a' is new", "'x' is old; 'a' is new", "'y' is old", "'z' is old", "'z' is old"]
    for space, reason in zip(inner, [*reasons, "b", "c", "d", "e"], strict=False):
        space.frozen_because = reason
    warn_of_frozen_channels(spaces, Removes())
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "Removes: channels can be removed from the outputs of 2 layers; 11 other sets of channels, each shared by the "
        "layers that write and read them, have to stay, some for several reasons: 'x' is old (4 times, with other "
        "names too); 'a' is new (3 times, with this name); odd; b; c; and 2 more reasons"
    )


class HiddenInBranch(nn.Module):
    """A residual block whose branch is scaled by its number of parameters, which a trace does not show."""

    residual_branch = "branch"

    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1, bias=False))

    def forward(self, x):
        return x + self.branch(x) * (sum(parameter.numel() for parameter in self.branch.parameters()) / 500)


def test_a_branch_with_channels_that_fail_the_trial_is_not_taken_out():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), HiddenInBranch(), nn.Flatten(), nn.Linear(8 * 36, 4))
    spaces = find_index_spaces(model, SHAPE)
    assert spaces["1.branch.0"].may_be_empty
    assert "1.branch" in spaces.removable_branches
    freeze_what_fails(model, spaces, SHAPE)
    assert spaces["1.branch.0"].frozen_because == CHANGES_OUTPUTS
    assert not spaces["1.branch.0"].may_be_empty
    assert spaces.fixed_branches == {"1.branch": CHANGES_OUTPUTS}
    assert not spaces.removable_branches


def test_constants_of_a_trace_do_not_stay_in_the_model():
    model = Net(lambda net, x, y: y + torch.ones(1))
    before = set(vars(model))
    find_index_spaces(model, SHAPE)
    assert set(vars(model)) == before


def test_a_forward_that_ends_when_anything_is_cut_leaves_nothing_to_cut():
    def asserts(net, x, y):
        if sum(p.numel() for p in net.parameters()) != total:
            raise RuntimeError("another net")
        return y

    model = Net(asserts)
    total = sum(p.numel() for p in model.parameters())
    with pytest.raises(
        ValueError, match=r"no channel of this model can be removed: .*cutting it changes what the model"
    ):
        apply(model, PruneTrain(), input_shape=SHAPE, num_classes=4, epochs=1, batch_size=4)


TRAINING = {
    "sum": lambda net, x, y: net.aux(y) + x if net.training else y,
    "number": lambda net, x, y: y / x.shape[1] if net.training else y,
    "functional": lambda net, x, y: F.dropout(y, 0.0, training=net.training) * (2 if net.training else 1),
}


@pytest.mark.parametrize("name", TRAINING)
def test_paths_of_training_constrain_channels_too(name):
    torch.manual_seed(0)
    model = Net(TRAINING[name])
    spaces = find_index_spaces(model, SHAPE)
    kept = check(model, spaces)
    if name == "sum":
        # `c` consumes the output of `b` in evaluation and the sum of the others in training: they are one space.
        assert set(spaces["a"].producers) == {"a", "b", "aux"}
        assert spaces.positions["aux"] == 64
    assert ("a" in kept) == (name != "number")


class Auxiliary(nn.Module):
    """A second head that is used only in training, and a layer that is never called."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 6, 1)
        self.early, self.late = nn.Linear(8, 4), nn.Linear(6, 4)
        self.never = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        x = torch.relu(self.norm(self.a(x)))
        if self.training:
            random.random()
            F.dropout(x)
            return self.late(self.b(x).mean((2, 3))), self.early(x.mean((2, 3)))
        return self.late(self.b(x).mean((2, 3)))


def test_an_auxiliary_head_is_cut_with_what_it_reads_and_nothing_is_disturbed():
    torch.manual_seed(0)
    model = Auxiliary()
    before, states = copy.deepcopy(model.state_dict()), (torch.get_rng_state(), random.getstate())
    spaces = find_index_spaces(model, SHAPE)
    freeze_what_fails(model, spaces, SHAPE)
    assert model.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert (torch.get_rng_state().tolist(), random.getstate()) == (states[0].tolist(), states[1])
    assert spaces["a"].consumers == ["b", "early"]
    assert spaces.model_outputs == {"late", "early"}
    assert check(model, spaces) == {"a": [0, 2, 4, 6], "b": [0, 2, 4]}


def test_the_penalty_leaves_out_what_the_forward_never_runs():
    model = Auxiliary()
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))}
    assert list(lasso_layers(layers, find_index_spaces(model, SHAPE))) == ["a", "b", "early", "late"]


def test_a_forward_that_cannot_be_traced_in_training_alone_is_refused_with_the_mode():
    def depends(net, x, y):
        return y * 2 if net.training and x.sum() > 0 else y

    model = Net(depends)
    spaces = find_index_spaces(model, SHAPE)
    assert spaces["a"].frozen
    assert spaces.positions["b"] == 64
    with pytest.raises(ValueError, match="can be removed: the model cannot be traced in training: TraceError"):
        apply(model, PruneTrain(), input_shape=SHAPE, num_classes=4, epochs=1, batch_size=4)


@torch.fx.wrap
def softplus(x):
    """A function that is not torch's own."""
    return x - x.mean(1, keepdim=True)


@torch.fx.wrap
def mish(x):
    """A function whose name and library suggest that it keeps the axes."""
    return x.unsqueeze(2)


mish.__module__ = "torchvision.ops"


def test_a_function_that_changes_the_axes_is_not_understood():
    spaces = find_index_spaces(Net(lambda net, x, y: mish(y).squeeze(2)), SHAPE)
    assert spaces["b"].frozen
    assert "'mish' is not understood" in spaces.not_followed


def test_a_function_of_the_users_own_is_not_taken_for_torchs_of_the_same_name():
    spaces = find_index_spaces(Net(lambda net, x, y: softplus(y)), SHAPE)
    assert spaces["b"].frozen
    assert spaces.not_followed == ("'softplus' is not understood",)


def test_axes_of_the_same_size_are_not_taken_for_channels():
    # A linear layer on the last axis of (N, 8, 8, 8), where channels, positions and features are all 8.
    model = Net(lambda net, x, y: net.mixed(y))
    model.mixed = nn.Linear(8, 8)
    spaces = find_index_spaces(model, SHAPE)
    assert spaces["b"].frozen
    assert spaces["b"].frozen_because == "'mixed' is applied to another axis"
    assert spaces["mixed"].frozen_because == "'c' is applied to another axis"
    check(model, spaces)
    # (2, 8) is added to the last two axes of (2, 8, 2, 8): its second axis is the columns there.
    model = Net(lambda net, x, y: F.adaptive_avg_pool2d(y, (2, 8)) + x.mean((2, 3)))
    spaces = find_index_spaces(model, SHAPE)
    assert spaces["a"].frozen
    assert spaces["b"].frozen
    assert spaces.not_followed == ("'add' is not understood",)
