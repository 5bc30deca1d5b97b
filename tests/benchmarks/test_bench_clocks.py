"""The benchmark of the clocks in ordinary training counts what it repeats."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.steps import bench_clocks
from suite.engine.network import products
from suite.engine.network.planned_layer import StepState


def test_contexts_are_entered_more_often_and_restored(monkeypatch):
    entered = []

    class Clock:
        def span(self, part, layer):
            entered.append((part, layer))
            return products._UNTIMED

    layer = SimpleNamespace(step_state=StepState(clock=Clock()), name="conv")
    call = products._Call(layer, None, None, 0, 0)
    before = products._Call.timed
    with bench_clocks.entered_more_often(3) as count, call.timed("forward"):
        pass
    assert (entered, count) == ([("forward", "conv")] * 4, [1])
    assert products._Call.timed is before


def test_the_share_is_that_of_one_context(monkeypatch):
    """A step with all repetitions takes 1.5 times as long, so that one context takes half a percent."""
    monkeypatch.setattr(bench_clocks, "interleaved_times", lambda calls, pairs: np.array([[1.5, 1]] * 9))
    share, low, high, _ = bench_clocks.cost_of_contexts(lambda: None, 9)
    assert (share, low, high) == pytest.approx((0.005, 0.005, 0.005))
