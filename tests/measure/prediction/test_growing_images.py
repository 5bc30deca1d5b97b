"""Predictions for training images that grow, from probes that end before or after the last size."""

from __future__ import annotations

from pathlib import Path

import image_trials
import pytest
from small_trials import train
from tiny_net import TINY

from suite.measure.prediction import forecast as module
from suite.measure.prediction.estimate import predict
from suite.measure.prediction.probe import Probe
from suite.measure.prediction.render import table
from suite.method import Method, ReconfigPlan
from suite.registry import register
from suite.trials.spec import TrialSpec

GROWING = {"train_sizes": (16, 32), "size_milestones": (0.5,)}


@register("method", "restarts_once")
class RestartsOnce(Method):
    """Begins the schedule again after the second epoch."""

    def reconfigure(self, ctx):
        return ReconfigPlan(restart=True) if ctx.epochs_done == 2 else None


def spec(folder: Path, method: str, **changes) -> TrialSpec:
    if not folder.is_dir():
        image_trials.write_images(folder, count=12)
    return image_trials.spec(folder, method, TINY, **{"epochs": 4, **GROWING, **changes})


def probed(trial: TrialSpec, folder: Path, monkeypatch, epochs: int):
    """Return the result of a probe whose time is over after some epochs."""
    monkeypatch.setattr(Probe, "_left", lambda self: 600.0 if self.epochs < epochs else -1.0)
    return Probe(trial, folder, 2, 600.0).run()


@pytest.fixture(scope="module")
def dense_flops(tmp_path_factory):
    """The FLOPs that a trial of dense counts in its training."""
    folder = tmp_path_factory.mktemp("dense")
    return train(folder / "trial", spec(folder / "pets", "dense"))[-1]["train_flops"]


@pytest.mark.parametrize("method", ["dense", "sdgp[backend=masked]", "prunetrain"])
@pytest.mark.parametrize("reached", [1, 4])
def test_dense_flops_are_those_of_each_epochs_size(tmp_path, monkeypatch, dense_flops, method, reached):
    trial = spec(tmp_path / "pets", method)
    found = probed(trial, tmp_path, monkeypatch, reached)
    known = predict(trial, found)
    small, large = found["dense_per_image"][::3]
    assert found["dense_per_image"] == [small, small, large, large]
    assert 3.5 * small < large < 4 * small + 1
    assert known.flops_dense == pytest.approx(dense_flops["dense"], rel=1e-12)
    assert known.flops_executed == pytest.approx(dense_flops["executed"], rel=1e-12)
    assert any("in 2 of 4 epochs a dense step has other FLOPs" in note for note in known.notes) == (reached == 1)
    assert any("the memory is that of" in note for note in known.notes) == (reached == 1)


def test_times_grow_with_the_images_and_are_no_bounds(tmp_path, monkeypatch):
    trial = spec(tmp_path / "pets", "prunetrain")
    found = probed(trial, tmp_path, monkeypatch, 2)
    known = predict(trial, found)
    (stage,) = found["stages"]
    small, large = found["dense_per_image"][1:3]
    steps = 2 + 2 * large / small
    whole = stage["total_steps"] if trial.make_recipe().drop_last else found["images"] / stage["batch_size"]
    expected = steps * whole * stage["step_s"] + 4 * found["epoch_start_s"] + 2 * found["reconfigure_s"]
    assert known.train_s == pytest.approx(expected)
    assert known.is_bound
    # All FLOPs are executed, so that those of another size are counted; the rest is modelled, or of smaller images.
    assert known.bounds == ("communication_s", "flops_executed")
    stage["flops"]["executed"] /= 2
    assert predict(trial, found).bounds == ("communication_s",)


def test_a_walk_that_finds_the_larger_images_counts_them_from_their_first_epoch(tmp_path, monkeypatch):
    trial = spec(tmp_path / "pets", "prunetrain", epochs=8)
    monkeypatch.setattr(Probe, "_left", lambda self: 1e-6 if self.epochs else 600.0)
    found = Probe(trial, tmp_path, 2, 600.0).run()
    assert [stage["epoch"] for stage in found["stages"]] == [1, 6]  # the walk sees epoch 5, and epoch 6 is measured
    small, large = found["dense_per_image"][::7]
    assert predict(trial, found).flops_dense == pytest.approx(4 * (small + large) * found["images"])
    assert predict(trial, found).bounds[-1] == "memory_bytes"


@pytest.mark.parametrize("reached", [1, 2, 3, 6])
def test_sizes_begin_again_with_the_schedule(tmp_path, monkeypatch, reached):
    trial = spec(tmp_path / "pets", "restarts_once")
    found = probed(trial, tmp_path, monkeypatch, reached)
    dense = found["dense_per_image"]
    small, large = min(dense), max(dense)
    # Before the restart, which only training can show, four epochs are expected.
    assert dense == ([small] * 2 + [large] * 2 if reached == 1 else [small] * 4 + [large] * 2)


def test_at_most_is_left_out_for_disturbed_times(tmp_path, monkeypatch):
    trial = spec(tmp_path / "pets", "prunetrain", train_sizes=(), size_milestones=())
    found = probed(trial, tmp_path, monkeypatch, 1)
    for busy_cores, most in ((0.0, True), (64.0, False)):
        (one,) = module.forecast(
            [trial], tmp_path / "out", "missing", 1, lambda *_, n=busy_cores: {**found, "busy_cores": n}, lambda _: None
        )
        assert one.prediction is not None
        assert ("train_s" in one.prediction.bounds) == most
        cells = {column.header: next(iter(column.cells)) for column in table([one]).columns}
        assert cells["training"].startswith("at most ") == most
        assert cells["FLOPs executed"].startswith("at most ")
        assert cells["memory"].startswith("at most ")
