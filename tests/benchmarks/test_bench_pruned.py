"""Tests of the times of pruned networks, on narrow networks and with two pairs."""

from __future__ import annotations

import sys

import pytest
import torch

from benchmarks.steps import bench_pruned
from benchmarks.steps.training_steps import SHAPE
from suite.choices import build_model
from suite.engine.cost.flops import count_model
from suite.engine.network.channels.spaces import find_index_spaces


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def setting(monkeypatch):
    monkeypatch.setattr(bench_pruned, "BATCH", 8)
    return bench_pruned.setting_of("resnet32[width=0.25]", torch.float32)


@pytest.mark.parametrize("round_to", [1, 8])
def test_a_plan_leaves_the_share_that_was_asked_for_in_rounded_channels(round_to):
    model = build_model("vgg11[width=0.5]", SHAPE, 10)
    plan = bench_pruned.final_plan(model, 0.35, round_to)
    smaller = bench_pruned.smaller(model, [plan])
    left, whole = (count_model(one, SHAPE)["inference_flops"] for one in (smaller, model))
    assert 0.3 < left / whole <= 0.35
    sizes = {name: space.size for name, space in find_index_spaces(model, SHAPE).items()}
    assert all(len(kept) % round_to == 0 or len(kept) == sizes[name] for name, kept in plan.kept.items())
    shares = [len(kept) / sizes[name] for name, kept in plan.kept.items()]
    assert max(shares) > 1.2 * min(shares)  # different shares per index space


def test_steps_are_those_of_the_cut_network(setting, capsys):
    found = {}
    plan = bench_pruned.final_plan(setting.new_model(), 0.34, 1)
    bench_pruned.measure_steps(setting, {"round_to 1": [plan]}, 2, found)
    line = found["resnet32[width=0.25], round_to 1"]
    assert line["inference_flops"] <= 0.34
    assert line["step_flops"] == pytest.approx(line["inference_flops"], abs=0.1)
    assert line["saved"] == pytest.approx((1 - line["median"]) / (1 - line["step_flops"]))
    profile = found["resnet32[width=0.25], profile"]
    assert profile["dense_ms"]["convolution"] > profile["dense_ms"].get("linear layers", 0.0) > 0
    assert profile["dense_ms"]["normalisation"] > 0
    assert "saved time / saved FLOPs" in capsys.readouterr().out


def test_gates_and_union_are_measured_on_one_function(setting, capsys):
    found = {}
    bench_pruned.measure_gating(setting, 2, found)
    union, gated = (found[f"{setting.model}: {name} / dense"]["inference_flops"] for name in ("union", "gated"))
    assert gated < union < 1
    differ = float(capsys.readouterr().out.split("at most ")[1].split()[0])
    assert differ < 1e-3


def test_the_penalty_is_in_the_measured_step(setting):
    found = {}
    bench_pruned.measure_lasso(setting, 2, found)
    (line,) = found.values()
    assert line["first_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["stepz"], "'stepz'; known: steps, lasso, surgery, gating"), (["--pairs", "1"], "an interval needs at least 2")],
)
def test_an_invalid_option_is_refused_with_one_line(monkeypatch, capsys, arguments, expected):
    monkeypatch.setattr(sys, "argv", ["bench_pruned.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        bench_pruned.main()
    assert expected in capsys.readouterr().err
