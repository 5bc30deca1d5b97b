"""SDGP's Fig. 9 from known times, and the times of a small network."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_trials
from reproduced_files import page

from reports.papers import timed
from reports.papers.contract import ReproductionData
from reports.papers.timed_calls import product_seconds
from suite.measure.calls import SubprocessResult

SECONDS = {
    "first": {"forward": 1.0, "wgrad": 2.0},
    "second": {"forward": 2.0, "dgrad": 3.0, "wgrad": 2.0, "pruning": 0.5},
}


@pytest.mark.usefixtures("drawn")
def test_shares_and_savings_follow_from_the_times(monkeypatch, capsys):
    monkeypatch.setattr(timed, "call_in_subprocess", lambda *arguments: SubprocessResult(SECONDS, "here", 0.0))
    monkeypatch.setattr(timed, "inputs_of", lambda spec: SimpleNamespace(shape=(3, 8, 8), classes=10))
    spec = dataclasses.replace(small_trials.spec("dense", batch_size=2), model="net", task="made-up")
    trial = small_trials.recorded()
    data = ReproductionData(Path(), {"resnet9": {"dense": (trial,)}}, {trial.name: spec}, "cpu")
    found = {line.quantity: line for line in page("sdgp-fig9").outcome(data).comparisons}
    said = [line.partition(";")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["measurement 1/2: product seconds of resnet18", "measurement 2/2: product seconds of net"]
    share = found["data gradient's share of the products' time, ResNet-18 at 224 pixels"]
    assert (share.ours.mean, share.published, share.kind) == (pytest.approx(30.0), 33.17, "measured")
    assert found["data gradient's share of the products' time, net on made-up"].published == 33.31
    assert found["2:4 pruning relative to the products' time, net on made-up"].ours.mean == pytest.approx(5.0)
    saved = [line for quantity, line in found.items() if quantity.startswith("saved by")]
    assert [line.ours.mean for line in saved] == pytest.approx([15.0, 10.0, 22.5, 17.5])
    assert [line.published for line in saved if line.published] == [16.6, 24.9]
    assert {line.kind for line in saved} == {"modelled"}
    counted = found["data gradient's share of FLOPs, ResNet-18 at 224 pixels"]
    assert (counted.ours.mean, counted.kind) == (pytest.approx(31.856, abs=1e-3), "counted")


def test_the_first_layer_has_no_data_gradient_and_all_others_are_pruned():
    found = product_seconds("resnet9[width=0.125]", (3, 32, 32), 10, 2, "float32", timed.METHOD, "cpu")
    first, *convolutions = [parts for name, parts in found.items() if "dgrad" not in parts or "pruning" in parts]
    assert set(first) >= {"forward", "wgrad"}
    assert "dgrad" not in first
    assert convolutions
    assert all(set(parts) == {"forward", "dgrad", "wgrad", "pruning"} for parts in convolutions)
    assert all(seconds > 0 for parts in found.values() for seconds in parts.values())
