"""The profile pass: the parts of real steps on digits, what it stores, and what it refuses."""

import json

import numpy as np
import pytest
import torch
from profiles import stage as stage_of
from profiles import step
from small_trials import flushed as spec
from small_trials import train_in_suite
from tiny_net import TINY

from suite.cli.folders import contents
from suite.engine.cost import roofline
from suite.engine.cost.clock import NO_CLOCK
from suite.engine.cost.roofline import Machine
from suite.measure import profile_pass, running
from suite.measure import profile_steps as steps
from suite.measure.profile_pass import ProfilePass
from suite.measure.profile_steps import ProfiledSteps
from suite.measure.profiles import PROFILES, MethodProfile, StepProfile
from suite.measure.steps import Steps
from suite.trials.building import build_trainer, load_splits
from suite.trials.folder import store
from suite.trials.stages import Stage

SMALL = {"model": TINY, "train_images": 32, "test_images": 16, "batch_size": 16, "epochs": 1}
MACHINE = Machine(1e9, ((1024, 1e9),))


def invented(candidate, arguments, threads):
    """Return a measurement without any training."""
    found = stage_of(step(effective=0.5), step() if arguments["dense"] else None, 0.75 if arguments["dense"] else None)
    machine = {"macs_per_s": 1e9, "copies": [{"bytes": 1024, "bytes_per_s": 1e9}]}
    names = ("method", "dense", "ratio")
    return {name: found[name] for name in names} | {"machine": machine, "provenance": {"busy_cores": 0.1}}


def in_this_process(candidate, arguments, threads):
    return steps.measure(**arguments)


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    monkeypatch.setattr(running, "busy_cores", lambda seconds: 0.1)
    monkeypatch.setattr(steps, "collect", lambda device: {"busy_cores": 0.1})
    monkeypatch.setattr(store, "LOCK_TIMEOUT", 0.05)
    monkeypatch.setitem(roofline.SIDE, "cpu", 64)
    monkeypatch.setattr(roofline, "COPIES", (2**14, 2**16))
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def lines():
    return []


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("profiled")
    for method in ("dense", "sdgp[n=1,m=4]"):
        train_in_suite(out, spec(method, **SMALL))
    return out


@pytest.fixture
def folder(trained):
    """Folder with a dense trial and one of SDGP, and without profiles."""
    (trained / "profile.json").unlink(missing_ok=True)
    return trained


def entry(out):
    (group,) = PROFILES.read(out)
    (found,) = group.methods.values()
    return found


def test_a_method_is_profiled_next_to_dense(folder, lines):
    assert ProfilePass(folder, rounds=6, measure=in_this_process, show=lines.append).run()
    found = entry(folder)
    (stage,) = found.stages
    assert found.trial.startswith("sdgp")
    assert lines[0].startswith("sdgp[n=1,m=4]: step ")
    # FLOPs are those of a step in the records.
    cost = json.loads((folder / "trials" / found.trial / "epochs.jsonl").read_text().splitlines()[0])["step_flops"]
    for column in ("dense", "current", "effective", "executed"):
        counted = sum(getattr(one, column) for layer in stage.method.layers for one in layer.products.values())
        assert counted == pytest.approx(cost[column])
    # The first layer has no data gradient; all other products of the convolutions were timed.
    first, *others = (layer for layer in stage.method.layers if layer.kind == "conv")
    assert set(first.products) == {"forward", "wgrad"}
    assert all(one.seconds > 0 and one.bound.seconds > 0 for one in first.products.values())
    assert all(one.seconds > 0 for layer in others for one in layer.products.values())
    # Only the method prunes, and all of its pruning is in the layers but the hooks.
    assert all(layer.pruning_s > 0 for layer in others)
    assert sum(layer.pruning_s for layer in stage.dense.layers) == 0
    assert sum(layer.pruning_s for layer in stage.method.layers) <= stage.method.parts["pruning"]
    for one in (stage.method, stage.dense):
        assert all(one.parts[part] > 0 for part in ("normalization", "optimizer", "input", "network", "rest"))
    assert (folder / "profile.json").read_bytes() in [content for _, content in contents(folder)]


def test_parts_add_up_to_a_step():
    """With 256 images per step, clocks are small."""
    own = spec("dense", model="resnet9[width=0.0625]", train_images=256, test_images=32, batch_size=256)
    trained = ProfiledSteps(Steps(build_trainer(own, None, load_splits(own))))
    steps.run_rounds([trained], 1)
    (samples,) = steps.run_rounds([trained], 3)
    found = StepProfile.model_validate(steps.summary(samples, MACHINE))
    assert 0.8 * found.clocked_s < sum(found.parts.values()) <= found.clocked_s


def test_clocks_leave_no_trace():
    """A step with clocks computes the same weights, and the next step has no clocks."""
    weights = []
    for clocked in (False, True):
        own = spec("sdgp", **SMALL)
        profiled = ProfiledSteps(Steps(build_trainer(own, None, load_splits(own))))
        trainer = profiled.trainer
        for _ in range(3):
            profiled.clocked() if clocked else profiled.steps()
        assert trainer.runner.clock is NO_CLOCK
        assert all(layer.step_state.clock is None for layer in trainer.runner.planned_layers)
        weights.append(np.concatenate([one.detach().flatten() for one in trainer.model.parameters()]))
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-4, atol=1e-6)


def test_the_faster_half_of_the_steps_counts(monkeypatch):
    class Instead:
        """Steps with known times: the slow one is disturbed."""

        trainer = build_trainer(spec("dense", **SMALL), None, load_splits(spec("dense", **SMALL)))
        flops = {}  # noqa: RUF012

    parts = [{("input", ""): seconds, ("clocks", ""): 0.5} for seconds in (49.0, 1.0, 2.0, 30.0)]
    samples = steps.Samples(Instead, np.array([1.0, 2.0, 9.0, 9.0]), np.array([50.0, 3.0, 5.0, 40.0]), parts)
    monkeypatch.setattr(steps, "_layer", lambda *_: None)
    found = steps.summary(samples, MACHINE)
    assert (found["step_s"], found["clocked_s"], found["parts"]["input"]) == (1.5, 4.0, 1.5)
    assert "clocks" not in found["parts"]


def test_first_and_last_stage_unless_all_are_asked_for():
    stages = [
        Stage(epoch, epoch + 1, 10, type("Cost", (), {"flops": (9.0,), "executed": 10.0 - epoch}))
        for epoch in (1, 3, 5)
    ]
    both = profile_pass.chosen_stages(stages, all_stages=False)
    assert [(stage.epoch, before) for stage, before in both] == [(1, 9.0), (5, 7.0)]
    assert [stage.epoch for stage, _ in profile_pass.chosen_stages(stages, all_stages=True)] == [1, 3, 5]
    assert [stage.epoch for stage, _ in profile_pass.chosen_stages(stages[:1], all_stages=False)] == [1]


def test_dense_is_profiled_alone_if_it_is_named(folder, capsys):
    assert ProfilePass(folder, measure=invented).run()
    assert ProfilePass(folder, "dense", measure=invented).run()
    (group,) = PROFILES.read(folder)
    assert set(group.methods) == {"sdgp[n=1,m=4]", "dense"}
    said = [line.partition(", stage from epoch 1")[0] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in said if line[0] == "m"] == ["measurement 1/1: sdgp[n=1,m=4]", "measurement 1/1: dense"]
    (stage,) = group.methods["dense"].stages
    assert (stage.dense, stage.ratio) == (None, None)


def test_a_stage_that_cannot_be_measured_is_named(folder, lines):
    assert not ProfilePass(folder, measure=lambda *_: {"error": "no such state"}, show=lines.append).run()
    assert lines == ["sdgp[n=1,m=4]: not measured: no such state"]
    assert not (folder / "profile.json").exists()


def test_a_profile_of_another_machine_is_refused(folder, lines):
    def measure(*arguments):
        return {**invented(*arguments), "provenance": {"busy_cores": 0.1, "hardware_id": "h0000000"}}

    assert not ProfilePass(folder, measure=measure, show=lines.append).run()
    assert "its trials have the hardware_id" in lines[0]
    assert not (folder / "profile.json").exists()


def test_times_in_a_file_are_finite(folder):
    assert ProfilePass(folder, measure=invented).run()
    good = entry(folder).model_dump(mode="json")
    for name, value in (("stages", []), ("load", float("nan")), ("threads", 0)):
        with pytest.raises(ValueError, match=name):
            MethodProfile.model_validate(good | {name: value})
    good["stages"][0]["method"]["parts"]["input"] = -1.0
    with pytest.raises(ValueError, match="input"):
        MethodProfile.model_validate(good)
