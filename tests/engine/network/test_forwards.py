"""Forwards as users write them: options, checks of shapes, lists of parts, outputs of any kind, kept activations."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_channel_numbers import SHAPE, Net, check
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from methods.dense import Dense
from methods.prunetrain import PruneTrain
from methods.sdgp import SDGP
from suite.engine.cost.flops import count
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.trial_cut import (
    CHANGES_OUTPUTS,
    NO_OUTPUTS,
    NOT_FINITE,
    freeze_what_fails,
)
from suite.engine.network.forward_pass import copied
from suite.ops import apply


def asserts(net, x, y):
    assert y.shape[-1] == 8
    assert y.ndim == 4
    return y


def as_numbers(net, x, y):
    return y / int(x.shape[0]) / float(x.size(2)) / len(x)


def listed(net, x, y):
    parts = list(y.chunk(2, 1))
    parts.append(parts[-1] + parts[0])
    return torch.cat(parts[1:], 1)


def by_number(net, x, y):
    parts = y.chunk(2, 1)
    return torch.cat([parts[place] for place in range(len(parts))], 1)


FOLLOWED: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "assert": asserts,
    "numbers of images and places": as_numbers,
    "a list of parts": listed,
    "parts by number": by_number,
    "the own shape": lambda net, x, y: y.reshape(*y.shape),
    "another type and back": lambda net, x, y: y.double().to(x.dtype).detach() + y,
    "powers and functions of entries": lambda net, x, y: (y**2 + 1).log() + y.pow(3).sin() - y.exp().reciprocal(),
    "padded places": lambda net, x, y: F.pad(y, (1, 0, 0, y.shape[2])) + F.pad(y, [1, 0, 0, 8], value=2.0),
    "an interval that takes all": lambda net, x, y: y[:, :8] + y[:, 0:] + y[:, -20:] + y[:, :99, ::1],
    "frozen statistics": lambda net, x, y: net.frozen(y),
}


@pytest.mark.parametrize(
    ("taken", "stays"),
    [
        (slice(3), 3), (slice(3, None), 3), (slice(-2, None), 2), (slice(None, -2), 2), (slice(1, 5), 5),
        (slice(2, -2), 4), (slice(None, None, 2), 8),
    ],
)  # fmt: skip
def test_an_interval_of_channels_keeps_those_on_which_its_place_depends(taken, stays):
    torch.manual_seed(0)
    model = Net(lambda net, x, y: y[:, taken])
    model.c = nn.Conv2d(len(range(8)[taken]), 8, 1)
    spaces = find_index_spaces(model, SHAPE)
    freeze_what_fails(model, spaces, SHAPE)
    own = [space for space in spaces.values() if "b" in space.producers]
    assert sum(space.size for space in own if space.frozen) == stays
    assert all(CHANGES_OUTPUTS not in space.frozen_because for space in own)
    assert not spaces["c"].frozen


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_forward_is_followed(name):
    torch.manual_seed(0)
    model = Net(FOLLOWED[name])
    model.frozen = FrozenBatchNorm2d(8)
    model.frozen.running_var.uniform_(0.5, 2.0)
    spaces = find_index_spaces(model, SHAPE)
    assert not spaces.not_followed
    freeze_what_fails(model, spaces, SHAPE)
    assert {"a", "b", "c"} <= check(model, spaces).keys()


def test_values_of_images_decide_nothing_and_the_line_is_named():
    def on_values(net, x, y):
        if torch.isnan(y).any():
            raise ValueError("not finite")
        return y

    line = on_values.__code__.co_firstlineno + 1
    spaces = find_index_spaces(Net(on_values), SHAPE)
    assert all(space.frozen for space in spaces.values())
    (reason,) = spaces.not_followed
    assert reason.startswith("the model cannot be traced in evaluation: TraceError: the code depends on the values of")
    assert reason.endswith(f"(test_forwards.py:{line})")


class Options(nn.Module):
    """A classifier that can also return a loss, as those of large libraries."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, images, labels=None, return_dict=False, *more, scale=1.0, **others):
        logits = self.head(F.relu(self.norm(self.conv(images))).mean((2, 3))) * scale
        if labels is not None:
            return F.cross_entropy(logits, labels), logits
        return {"logits": logits} if return_dict else logits


def test_options_have_their_defaults():
    spaces = find_index_spaces(Options(), SHAPE)
    assert [name for name, space in spaces.items() if not space.frozen] == ["conv"]
    hooks = apply(Options(), SDGP(layers="all"), input_shape=SHAPE, num_classes=4, epochs=1, batch_size=4)
    assert hooks.ctx.spaces.model_outputs == {"head"}


@dataclass
class Answer:
    logits: Tensor


class Plain:
    def __init__(self, logits):
        self.logits = logits


@dataclass(slots=True)
class SlottedAnswer:
    logits: Tensor


MASKED = torch.tensor([False, False, True, False])
OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda logits: logits,
    "dictionary": lambda logits: {"logits": logits, "loss": None},
    "tuple": lambda logits: (None, [logits]),
    "dataclass": Answer,
    "own class": Plain,
    "a class that is masked": lambda logits: logits.masked_fill(MASKED, -torch.inf),
    "logarithms": torch.log,
    "complex": lambda logits: torch.complex(torch.ones_like(logits), logits),
    "with an empty one": lambda logits: (logits, torch.zeros(0)),
    "sparse": lambda logits: logits.to_sparse(),
    "slots beside a constant": lambda logits: {"a": SlottedAnswer(logits), "b": torch.ones(1)},
}


class ScaledBySize(nn.Module):
    """Depends on the number of channels in a way that no trace shows, unless it returns nothing that tells."""

    def __init__(self, output, scaled=True):
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 4)
        self.output, self.scaled = output, scaled

    def forward(self, x):
        x = F.relu(self.b(F.relu(self.a(x)))).mean((2, 3))
        if self.scaled:
            x = x * (sum(p.numel() for p in self.parameters()) / 1000) ** 0.5
        return self.output(self.head(x))


@pytest.mark.parametrize("kind", OUTPUTS)
def test_outputs_of_every_kind_are_compared_by_a_trial_cut(kind):
    torch.manual_seed(0)
    for scaled in (False, True):
        model = ScaledBySize(OUTPUTS[kind], scaled)
        spaces = find_index_spaces(model, SHAPE)
        assert spaces["head"].frozen
        freeze_what_fails(model, spaces, SHAPE)
        assert {spaces[name].frozen_because for name in "ab"} == ({CHANGES_OUTPUTS} if scaled else {""})


@pytest.mark.parametrize(
    ("output", "reason"),
    [(lambda logits: logits * torch.nan, NOT_FINITE), (lambda logits: torch.zeros(0), NO_OUTPUTS)],
)
def test_outputs_without_a_number_freeze_all(output, reason):
    model = ScaledBySize(output)
    spaces = find_index_spaces(model, SHAPE)
    freeze_what_fails(model, spaces, SHAPE)
    assert {spaces[name].frozen_because for name in "ab"} == {reason}


class MixesInTraining(nn.BatchNorm2d):
    def forward(self, input):
        found = super().forward(input)
        return found * (1 + input.mean(1, keepdim=True)) if self.training else found


def test_a_normalisation_that_mixes_channels_in_training_only_is_found_by_a_trial_cut():
    model = Net(lambda net, x, y: net.own(y))
    model.own = MixesInTraining(8)
    spaces = find_index_spaces(model, SHAPE)
    assert not spaces["b"].frozen
    freeze_what_fails(model, spaces, SHAPE)
    assert spaces["b"].frozen_because == CHANGES_OUTPUTS
    assert {"a", "c"} <= check(model, spaces).keys()


def kept_activations(net, x):
    net.trace.append(x)
    net.last = x


@pytest.mark.parametrize("held", [threading.Lock(), (number for number in range(3)), open("/dev/null", "w")])  # noqa: SIM115
def test_what_cannot_be_copied_is_shared_with_the_copy(held):
    model = ScaledBySize(lambda logits: logits)
    model.held, model.trace, model.names = held, [], ["a"]
    model.register_forward_hook(lambda net, given, output: kept_activations(net, output))
    model(torch.zeros(2, *SHAPE))
    copy = copied(model)
    assert copy.held is held
    assert copy.last is model.last
    assert copy.names is not model.names
    assert copy.a.weight is not model.a.weight
    copy(torch.zeros(2, *SHAPE))
    assert (len(model.trace), len(copy.trace)) == (1, 2)
    apply(model, SDGP(), input_shape=SHAPE, num_classes=4, epochs=1, batch_size=4)


class WithActivation(nn.BatchNorm2d):
    def forward(self, input):
        return F.silu(super().forward(input))


class AlsoInGroups(nn.GroupNorm):
    def forward(self, input):
        return F.relu(super().forward(input))


@pytest.mark.parametrize("norm", [WithActivation(8), AlsoInGroups(4, 8), type("Own", (nn.InstanceNorm2d,), {})(8)])
def test_a_subclass_of_a_normalisation_counts_as_its_base_class(norm):
    model = Net(lambda net, x, y: net.own(y))
    model.own = norm
    spaces = find_index_spaces(model, SHAPE)
    assert not spaces.not_followed
    freeze_what_fails(model, spaces, SHAPE)
    assert {"a", "b", "c"} <= check(model, spaces).keys()


class WithState(nn.Module):
    """A network whose forward keeps something, as `keep(net, features)` says, between convolution and head."""

    def __init__(self, keep):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)
        self.keep = keep
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(8))
        self.values, self.calls, self.last = [], 0, None

    def forward(self, x):
        y = self.keep(self, torch.relu(self.first(x)))
        return self.head(torch.relu(self.second(y)).mean((2, 3)))


def counts_in_place(net, y):
    net.steps += 1
    return y


def counts(net, y):
    if net.training:
        net.steps = net.steps + 1
    net.calls += 1
    return y


def averages(net, y):
    if net.training:
        net.mean = 0.9 * net.mean + 0.1 * y.mean((0, 2, 3)).detach()
    return y - net.mean[:, None, None]


def appends(net, y):
    net.values.append(y.detach())
    return y


def adds_the_last(net, y):
    last, net.last = net.last, y.detach()
    return y if last is None else y + last.mean(0)


def asks_the_count(net, y):
    net.steps = net.steps + 1
    return y * 2 if net.steps > 3 else y


KEEPING = {function.__name__: function for function in (
    counts_in_place, counts, averages, appends, adds_the_last, asks_the_count
)}  # fmt: skip


METHODS = {"dense": Dense, "sdgp": lambda: SDGP(layers="all"), "prunetrain": lambda: PruneTrain(interval=1)}
PAIRS = [(name, "prunetrain") for name in KEEPING if name != "asks_the_count"]  # which lets no channel be removed
PAIRS += [("asks_the_count", "sdgp"), ("counts", "sdgp"), ("adds_the_last", "dense")]


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_what_a_forward_keeps_is_as_before_and_the_model_trains(name, method):
    torch.manual_seed(0)
    net = WithState(KEEPING[name])
    hooks = apply(net, METHODS[method](), input_shape=SHAPE, num_classes=4, epochs=2, batch_size=4)
    assert type(net.steps) is type(net.mean) is Tensor
    assert (net.steps, net.mean.any(), net.values, net.calls, net.last) == (0, False, [], 0, None)
    assert not any(key.startswith("_tensor_constant") for key in vars(net))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    hooks.attach(optimizer)
    for _ in range(2):
        loss = F.cross_entropy(net(torch.randn(4, *SHAPE)), torch.arange(4))
        (loss + hooks.regularization(loss)).backward()
        hooks.optimizer_step()
        optimizer.zero_grad()
    hooks.end_epoch()
    assert net.first.weight.grad is None
    assert name != "appends" or len(net.values) == 2


def test_a_counter_freezes_nothing_and_a_decision_on_it_names_its_line():
    spaces = find_index_spaces(WithState(counts), SHAPE)
    assert not spaces["first"].frozen
    assert not spaces.not_followed
    reason = find_index_spaces(WithState(asks_the_count), SHAPE)["first"].frozen_because
    assert re.search(r"depends on the values .*\(test_forwards.py:\d+\)", reason)


def test_an_assigned_buffer_is_followed_as_what_it_was_assigned():
    def of_all_channels(net, y):
        net.mean = net.head(y.mean((2, 3)))[:, :1]
        return y * net.mean[:, :, None, None]

    spaces = find_index_spaces(WithState(of_all_channels), SHAPE)
    assert "head" in spaces["first"].consumers


def makes_a_buffer(net, y):
    if not hasattr(net, "grid"):
        net.register_buffer("grid", torch.ones(1, 1, 8, 8))
    return y * net.grid


def makes_one_for_each_channel(net, y):
    if not hasattr(net, "grid"):
        net.register_buffer("grid", torch.ones(8, 1, 1))
    return y * net.grid


@pytest.mark.parametrize("keep", [makes_a_buffer, makes_one_for_each_channel])
def test_a_tensor_that_the_first_forward_makes_is_followed_and_not_left_in_the_model(keep):
    net = WithState(keep)
    state = list(net.state_dict())
    spaces = find_index_spaces(net, SHAPE)
    assert spaces["first"].frozen == (keep is makes_one_for_each_channel)
    assert not spaces["second"].frozen
    freeze_what_fails(net, spaces, SHAPE)
    assert not spaces["second"].frozen
    assert list(net.state_dict()) == state
    assert net.last is None


def test_hooks_that_refer_to_the_model_leave_nothing_in_it():
    net = WithState(lambda net, y: y)
    net.seen = deque()
    net.second.register_forward_hook(lambda *_: net.values.append(1))
    net.second.register_forward_hook(lambda *_: net.seen.append(1))
    apply(net, PruneTrain(interval=1), input_shape=SHAPE, num_classes=4, epochs=2, batch_size=4)
    count(net, SHAPE)
    assert not net.values
    assert not net.seen
