"""ClickTrain's figures, computed by hand and from made-up records."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from small_trials import recorded

from reports.papers import stages, timed_calls
from reports.papers.contract import ReproductionData
from reports.papers.networks import network_shares
from reports.papers.stages import step_times, time_by_stage
from suite.choices import build_model
from suite.engine.cost.flops import count_layers


def test_figure_1_by_hand():
    """Of ResNet-18: its first convolution has no data gradient by ours, and one by PruneTrain's."""
    with torch.device("meta"):
        costs = count_layers(build_model("resnet18", (3, 224, 224), 1000), (3, 224, 224))
    first = costs["conv1"]
    assert first.macs == 64 * 112 * 112 * 3 * 49
    whole = sum(cost.macs for cost in costs.values())
    suites, theirs = network_shares("resnet18")
    assert suites == pytest.approx(100 * (2 * whole - first.macs) / (3 * whole - first.macs))
    assert theirs > suites


def test_figure_9_makes_forms_of_the_same_weights():
    weight = torch.zeros(4, 3, 3, 3)
    weight[1, 2, 0, 0], weight[3, 0, 1, 2] = 2.0, -1.0
    layer = timed_calls.Layer("one", weight, (1, 1), (1, 1), (1, 1), (5, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        csr, known, anew = (call() for call in timed_calls.conversions(layer).values())
    assert csr.values().tolist() == known.tolist() == anew.tolist() == [2.0, -1.0]


def trial_of(*epochs):
    """Each epoch: its stage, steps, seconds of training until then, of which for reconfigurations."""
    records = tuple(
        {"epoch": 1 + at, "steps": steps, "train_time_s": time, "reconfigure_time_s": other,
         **({"method": {"stage": stage}} if stage else {})}
        for at, (stage, steps, time, other) in enumerate(epochs)
    )  # fmt: skip
    return recorded(epochs=records)


def test_figure_13_has_the_time_of_a_step_by_stage():
    trial = trial_of(
        ("warm-up", 10, 9.0, 4.0), ("warm-up", 10, 11.0, 4.0), ("lasso", 10, 14.0, 4.0), ("masked", 5, 15.0, 4.0)
    )
    assert step_times(trial) == {"warm-up": [0.2], "lasso": [0.3], "masked": [0.2]}
    assert step_times(trial_of(("", 10, 5.0, 0.0))) == {"dense": [0.5]}
    assert time_by_stage(trial) == {
        "dense steps": 7.0, "under the lasso": 3.0, "after hard pruning": 1.0, "measuring the backends": 4.0,
    }  # fmt: skip


def test_what_learned_nothing_is_said_to_have_lost_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(stages, "inputs_of", lambda spec: SimpleNamespace(classes=10))
    trials = {accuracy: recorded({"test_accuracy": accuracy}) for accuracy in (0.1, 0.4)}
    ran = ReproductionData(tmp_path, {}, {trials[0.1].name: None}, "cpu")
    (line,) = stages.warnings(ran, [trials[0.4], trials[0.1]], [])
    assert "it classifies 10 % of the test images correctly, and 10 % is chance" in line
    assert stages.warnings(ran, [trials[0.4]], []) == stages.warnings(ran, [], []) == ()
