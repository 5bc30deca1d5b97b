"""The clock of a step's parts with points in time that the tests set."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite.engine.cost.clock import BackwardClock, CudaStamps, NormalizationClock, StepClock, is_normalization


class Ticks:
    """Each reading is one second after the last, unless `skip` lets more time pass."""

    def __init__(self):
        self.time = 0.0

    def skip(self, seconds):
        self.time += seconds

    def now(self):
        self.time += 1.0
        return self.time

    def seconds(self, first, second):
        return second - first


@pytest.fixture
def ticks():
    return Ticks()


@pytest.fixture
def clock(ticks):
    return StepClock(torch.device("cpu"), ticks)


def test_a_span_interrupts_the_one_around_it(clock, ticks):
    clock.begin()
    with clock.span("network"):
        ticks.skip(10)
        with clock.span("forward", "conv"):
            ticks.skip(100)
        ticks.skip(1000)
        with clock.span("forward", "conv"):
            ticks.skip(10_000)
    found = clock.end()
    assert found == {("rest", ""): 2.0, ("network", ""): 1013.0, ("forward", "conv"): 10_102.0}
    assert sum(found.values()) == ticks.time - 1.0


def test_a_part_ends_with_an_error(clock):
    clock.begin()
    with pytest.raises(ZeroDivisionError), clock.span("input"):
        raise ZeroDivisionError
    assert clock.part == "rest"


def test_another_step_begins_with_nothing(clock):
    clock.begin()
    with clock.span("input"):
        pass
    clock.begin()
    assert set(clock.end()) == {("rest", "")}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("relu relu_ relu6 gelu celu silu hardswish leaky_relu batch_norm group_norm layer_norm rms_norm tanh", True),
        ("NativeBatchNormBackward0 CudnnBatchNormBackward0 ReluBackward0 EluBackward0 GeluBackward0", True),
        (
            "conv2d linear max_pool2d normalize select norm cross_entropy dropout LogSoftmaxBackward0 AddBackward0",
            False,
        ),
    ],
)
def test_functions_are_known_by_name(names, expected):
    assert {name: is_normalization(name) for name in names.split()} == dict.fromkeys(names.split(), expected)


def test_normalization_is_timed_forward_and_backward(clock):
    """Each of the two functions takes one second in each direction: the time between two readings of the clock."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 2))
    images = torch.randn(2, 3, 8, 8)
    backward = BackwardClock(clock)
    clock.begin()
    with clock.span("network"):
        with NormalizationClock(clock):
            loss = net(images).sum()
        backward.time_normalization(loss)
        loss.backward()
    found = clock.end()
    assert found[("normalization", "")] == 4.0
    assert set(found) == {("rest", ""), ("network", ""), ("normalization", "")}


def test_functions_inside_another_part_belong_to_it(clock):
    clock.begin()
    with clock.span("network"), NormalizationClock(clock):
        with clock.span("pruning", "conv"):
            F.relu(torch.zeros(3))
    assert set(clock.end()) == {("rest", ""), ("network", ""), ("pruning", "conv")}


def test_the_backward_of_a_term_is_pruning_without_what_it_shares_with_the_loss(clock):
    weight = torch.ones(3, requires_grad=True)
    hidden = weight.exp()
    loss = hidden.relu().sum()
    term = hidden.sin().sum()
    backward = BackwardClock(clock)
    backward.time_normalization(loss)
    backward.time_pruning(term)
    clock.begin()
    with clock.span("network"):
        (loss + term).backward()
    found = clock.end()
    # Sine and sum of the term; the exponential function belongs to both.
    assert (found[("pruning", "")], found[("normalization", "")]) == (2.0, 1.0)


def test_cuda_parts_are_between_events(monkeypatch):
    """Events only have times after the device has reached them."""

    class Event:
        count = 0

        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            assert stream == ("stream of", torch.device("cuda", 1))
            Event.count += 1
            self.milliseconds, self.reached = 10.0 * Event.count, False

        def synchronize(self):
            self.reached = True

        def elapsed_time(self, other):
            assert other.reached
            return other.milliseconds - self.milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream of", device))
    clock = StepClock(torch.device("cuda", 1))
    assert isinstance(clock._stamps, CudaStamps)
    clock.begin()
    with clock.span("optimizer"):
        pass
    assert clock.end() == pytest.approx({("rest", ""): 0.02, ("optimizer", ""): 0.01})
