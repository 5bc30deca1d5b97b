"""The remaining time of a sweep, on a clock that the tests move."""

import contextlib
import dataclasses
import io
import re

import pytest
from rich.console import Console
from small_trials import spec

from suite.trials import listeners
from suite.trials.listeners import SWEEP_INTERVAL, Lines, Measurements, _AllTrials, listener_for
from suite.trials.progress import Position, Sweep

EPOCHS = 10


class Clock:
    def __init__(self):
        self.seconds = 1000.0

    def __call__(self):
        return self.seconds


def trials(*methods, **changes):
    return [spec(method, seed=seed, epochs=EPOCHS, **changes) for seed, method in enumerate(methods)]


@pytest.fixture
def clock():
    return Clock()


def test_nothing_is_known_before_a_share_is_done(clock):
    first, second = trials("dense", "dense")
    sweep = Sweep([first, second], clock)
    assert sweep.remaining() is None
    sweep.started(first)
    clock.seconds += 5
    sweep.position(first, Position(0, EPOCHS, 0.01))
    assert sweep.remaining() is None
    sweep.position(first, Position(1, EPOCHS, 0.1))
    assert sweep.remaining() == pytest.approx(45 + 50)


def test_what_precedes_the_first_step_counts_once(clock):
    first, second = trials("dense", "dense")
    sweep = Sweep([first, second], clock)
    sweep.started(first)
    clock.seconds += 30  # imports, and kernels that are compiled in the trial
    sweep.position(first, Position(0, EPOCHS, 0.0))
    clock.seconds += 2
    sweep.position(first, Position(1, EPOCHS, 0.1))
    assert sweep.remaining() == pytest.approx(18 + 30 + 20)


def test_waiting_trials_take_as_long_as_those_of_their_method(clock):
    dense, sdgp, again, more = trials("dense", "sdgp", "dense", "sdgp")
    sweep = Sweep([dense, sdgp, again, more], clock)
    for trial, seconds in ((dense, 100.0), (sdgp, 60.0)):
        sweep.started(trial)
        clock.seconds += seconds
        sweep.ended(trial, "done", seconds)
    assert sweep.remaining() == pytest.approx(160)
    assert (sweep.num_ended, sweep.done) == (2, 2)


def test_other_numbers_of_epochs_count_by_epoch(clock):
    (done,) = trials("dense")
    longer = spec("sdgp", epochs=3 * EPOCHS)
    elsewhere = dataclasses.replace(longer, model="vgg11")
    sweep = Sweep([done, longer, elsewhere], clock)
    sweep.started(done)
    sweep.ended(done, "done", 50.0)
    assert sweep.remaining() == pytest.approx(150 + 150)


def test_trials_that_run_at_the_same_time_share_the_rest(clock):
    found = trials("dense", "dense", "dense", "dense")
    sweep = Sweep(found, clock)
    for trial in found[:2]:
        sweep.started(trial)
    clock.seconds += 20
    for trial in found[:2]:
        sweep.position(trial, Position(2, EPOCHS, 0.2))
    assert sweep.remaining() == pytest.approx((80 + 80 + 100 + 100) / 2)
    sweep.ended(found[2], "done", 100.0)
    sweep.ended(found[3], "done", 100.0)
    # The last ones cannot be divided.
    sweep.position(found[1], Position(4, EPOCHS, 0.5))
    sweep.ended(found[0], "done", 100.0)
    assert sweep.remaining() == pytest.approx(20)


def test_failed_trials_say_nothing(clock):
    first, second = trials("dense", "dense")
    sweep = Sweep([first, second], clock)
    sweep.started(first)
    sweep.ended(first, "error", 1.0)
    assert sweep.remaining() is None
    sweep.started(second)
    sweep.ended(second, "skipped", 0.0)
    assert sweep.remaining() == 0


def test_larger_images_take_longer_by_their_pixels(clock):
    first, second = trials("dense", "dense", train_sizes=(32, 64), size_milestones=(0.5,))
    sweep = Sweep([first, second], clock)
    sweep.started(first)
    clock.seconds += 20
    sweep.position(first, Position(2, EPOCHS, 0.2))
    # Five epochs of 10 s, then five of 40 s.
    assert sweep.remaining() == pytest.approx(230 + 250)
    clock.seconds += 70
    sweep.position(first, Position(6, EPOCHS, 0.6))
    assert sweep.remaining() == pytest.approx(160 + 250)
    sweep.ended(first, "done", 250.0)
    sweep.started(second)
    clock.seconds += 60
    sweep.position(second, Position(6, EPOCHS, 0.65, resumed_after=5))
    assert sweep.remaining() == pytest.approx(140)


def test_lines_about_all_trials_come_after_each_trial_and_at_most_once_a_minute(clock):
    first, second, third = trials("dense", "dense", "dense")
    lines = _AllTrials([first, second, third], clock)
    lines.sweep.started(first)
    clock.seconds += 30
    lines.sweep.position(first, Position(5, EPOCHS, 0.5))
    assert lines.line(at_once=False) == ""
    clock.seconds += SWEEP_INTERVAL - 30
    lines.sweep.position(first, Position(10, EPOCHS, 1.0))
    assert lines.line(at_once=False) == "0 of 3 trials have ended, about 2 min 0 s left for all of them"
    assert lines.line(at_once=False) == ""
    lines.sweep.ended(first, "done", 60.0)
    assert lines.line(at_once=True) == "1 of 3 trials have ended, about 2 min 0 s left for all of them"
    for trial in (second, third):
        lines.sweep.started(trial)
        lines.sweep.ended(trial, "done", 60.0)
    assert lines.line(at_once=True) == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_both_listeners_show_the_rest_of_the_sweep(terminal, monkeypatch):
    monkeypatch.setattr(listeners, "SWEEP_INTERVAL", 0.0)
    first, second = trials("dense", "dense")
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    with listener_for(console, [first, second]) as shown:
        assert isinstance(shown, Lines) is not terminal
        shown.started(first)
        shown.position(first, Position(5, EPOCHS, 0.5))
        shown.ended(first, {"status": "done", "message": "", "result": {}}, 200.0)
        shown.started(second)
    text = console.file.getvalue()
    assert "about 3 min 20 s left" in text
    assert ("0 of 2 trials have ended" in text) is not terminal  # within an epoch
    assert ("all trials" in text) is terminal


@pytest.mark.parametrize("terminal", [False, True])
def test_each_measurement_is_announced_with_the_time_of_those_that_have_ended(clock, monkeypatch, terminal):
    monkeypatch.setattr(listeners.time, "monotonic", clock)
    dense, again, sdgp, last = trials("dense", "dense", "sdgp[n=1,m=4]", "sdgp[n=1,m=4]")
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    shown = Measurements([dense, dense, sdgp, sdgp, sdgp], console)
    # `again` has another seed than was foreseen; the first measurement fails and tells nothing about the others.
    for trial, seconds in ((sdgp, None), (dense, 20.0), (sdgp, 30.0), (again, 10.0), (last, 30.0)):
        with contextlib.suppress(ZeroDivisionError), shown.measuring(trial, trial.label):
            clock.seconds += seconds or 1 / 0
    text = console.file.getvalue()
    assert re.findall(r"measurement \d.*", text) == [
        "measurement 1/5: sdgp[n=1,m=4]",
        "measurement 2/5: dense",
        "measurement 3/5: sdgp[n=1,m=4]; about 20 s, about 1 min 0 s left for all of them",
        "measurement 4/5: dense; about 20 s, about 50 s left for all of them",
        "measurement 5/5: sdgp[n=1,m=4]; about 30 s",
    ]
    assert ("all measurements" in text) is terminal
