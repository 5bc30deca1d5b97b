"""The time pass with clocks that the tests move: what it measures, and what it refuses."""

import dataclasses
import gc
import json
import re
import shutil
from functools import partial
from typing import ClassVar

import pytest
import torch
from small_trials import flushed as spec
from small_trials import planned, recorded, train_in_suite
from stopwatches import FakeTime
from time_passes import pairs as pairs_of
from tiny_net import TINY
from toy_suite import assert_one_line

from reports.content.build import build
from reports.data.records import read
from suite.choices import MethodChoice
from suite.cli import main as cli
from suite.cli.folders import contents
from suite.engine.cost import clock
from suite.engine.cost.interleaved import interleaved_times
from suite.engine.cost.ledger import Ledger
from suite.engine.training.method_runner import MethodRunner
from suite.errors import UsageError
from suite.measure import candidates, running, time_pass
from suite.measure import time_steps as steps
from suite.measure.candidates import Candidate, find_candidates
from suite.measure.steps import WARM_UPS
from suite.measure.time_pass import TimePass
from suite.measure.times import TIMES, PassTime
from suite.method import Method
from suite.registry import register
from suite.task import DataCopy
from suite.trials.building import build_trainer, load_splits, with_data_here
from suite.trials.controls import dense_spec
from suite.trials.folder import store
from suite.trials.folder.records import write_record
from suite.trials.groups import KEY, TrialGroup
from tasks.digits import Digits

SMALL = {"model": TINY, "train_images": 64, "test_images": 16, "batch_size": 16, "epochs": 2}
METHOD = "prunetrain[threshold=0.3]"  # which cuts this network after its first epoch
TRIAL = spec(METHOD, **SMALL)
PLAIN = spec("dense[repeat=2]", **SMALL | {"epochs": 1})


@register("method", "sleeps_in_steps")
class SleepsInSteps(Method):
    """Takes half a dense step longer by its nature, and far longer in the first epoch of a trial that is disturbed."""

    disturbed: ClassVar[bool] = False

    def after_optimizer_step(self, ctx):
        clock.time.sleep(0.5)
        if SleepsInSteps.disturbed and ctx.epochs_done == 0:
            clock.time.sleep(50.0)


def in_this_process(candidate, arguments, threads):
    return json.loads(json.dumps(steps.measure(**arguments)))  # as from another process


def invented(candidate, arguments, threads, ratio=0.75, load=0.1):
    """Return a measurement without any training."""
    stage = {"image_size": None, "start": pairs_of(ratio), "end": None, "reconfigure_s": None}
    return {
        "stages": [stage] * len(arguments["stages"]),
        "twice": pairs_of(1.0),
        "dense": [((None, False), 32)],
        "dense_reconfigure_s": 0.0,
        "load": load,
        "provenance": {"busy_cores": 0.1},
    }


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    monkeypatch.setattr(running, "busy_cores", lambda seconds: 0.1)
    monkeypatch.setattr(steps, "collect", lambda device: {"busy_cores": 0.1})
    monkeypatch.setattr(steps, "busy_cores", lambda: 0.2)
    monkeypatch.setattr(store, "LOCK_TIMEOUT", 0.05)
    gc.freeze()  # what the other tests of this process left is not searched again before each state that is measured
    yield
    gc.unfreeze()
    torch.set_flush_denormal(False)


@pytest.fixture
def lines():
    return []


@pytest.fixture
def measured(lines):
    """Function that runs one pass on a folder and returns it, which is the only one of its file."""

    def run(out, **options):
        assert TimePass(
            out, **{"pairs": 6, "measure": in_this_process, "show": lines.append, "passes": 1} | options
        ).run()
        (group,) = TIMES.read(out)
        (method,) = group.methods.values()
        (time,) = method.passes
        return time

    return run


@pytest.fixture
def seconds_of_step(monkeypatch):
    """Function that replaces the machine's time: a step takes what a function of its ledger returns."""
    count = Ledger.add_step

    def replace(seconds):
        def take_time(self, samples):
            count(self, samples)
            clock.time.sleep(seconds(self))

        monkeypatch.setattr(clock, "time", FakeTime())
        monkeypatch.setattr(clock, "seconds_of", lambda call, device: 1.0)  # of an inference
        monkeypatch.setattr(Ledger, "add_step", take_time)

    return replace


@pytest.fixture
def seconds_are_flops(seconds_of_step):
    """Each step takes a second per executed MFLOP."""
    seconds_of_step(lambda ledger: 1e-6 * ledger.step_flops["executed"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("shrinking")
    train_in_suite(out, TRIAL)
    return out


@pytest.fixture
def shrinking(trained):
    """Folder with a trial whose network shrinks, and without times."""
    (trained / "time.json").unlink(missing_ok=True)
    return trained


def drop_ends(place):
    """Remove the states in which the stages of a trial ended."""
    for path in place.glob("stages/*-end.pt"):
        path.unlink()


@pytest.fixture
def without_ends(shrinking, tmp_path):
    """A copy of the folder without the states in which stages ended."""
    drop_ends(put(shrinking / "trials" / TRIAL.trial_id, tmp_path, TRIAL))
    return tmp_path


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Folder of a finished trial of dense."""
    return train_in_suite(tmp_path_factory.mktemp("plain"), PLAIN)


def put(source, out, trial):
    """Copy the folder of a finished trial as that of another trial of the suite in a folder, and return the copy."""
    found = json.loads((source / "trial.json").read_text())
    place = out / "trials" / trial.trial_id
    shutil.copytree(source, place)
    write_record(place, trial, "done", result=found["result"], provenance=found["provenance"])
    return place


def noted(notes, name, function):
    """Return a function that notes a name and calls another one."""

    def call(*arguments, **options):
        notes.append(name)
        return function(*arguments, **options)

    return call


@pytest.fixture
def orders(monkeypatch):
    """What each state of a pass builds, in order, and whether its first trainer has the first turn."""
    built, begins = [], []

    def in_turn(calls, pairs, stamps, last_begins):
        begins.append(not last_begins)
        return interleaved_times(calls, pairs, stamps, last_begins)

    monkeypatch.setattr(steps, "trainer_of_stage", noted(built, "method", steps.trainer_of_stage))
    monkeypatch.setattr(steps, "build_trainer", noted(built, "dense", steps.build_trainer))
    monkeypatch.setattr(steps, "interleaved_times", in_turn)
    return built, begins


def test_a_disturbed_trial_gets_the_ratio_of_an_undisturbed_one(tmp_path, monkeypatch, measured, seconds_of_step):
    seconds_of_step(lambda ledger: 1.0)
    monkeypatch.setattr(SleepsInSteps, "disturbed", True)
    folder = train_in_suite(tmp_path, spec("sleeps_in_steps", **SMALL))
    recorded = json.loads((folder / "trial.json").read_text())["result"]
    monkeypatch.setattr(SleepsInSteps, "disturbed", False)  # the machine is quiet again
    drop_ends(folder)
    time = measured(tmp_path)
    count = 2 * 64 // 16
    assert recorded["train_time_s"] > 5 * 1.5 * count
    assert time.ratio == pytest.approx(1.5 + recorded["reconfigure_time_s"] / count)
    assert (time.dense_steps, [stage.steps for stage in time.stages]) == (count, [count])
    assert (time.stages[0].ratio, time.dense_twice) == pytest.approx((1.5, 1.0))


def test_stages_run_again_at_the_cost_that_they_had_in_the_trial(
    shrinking, monkeypatch, seconds_are_flops, measured, lines, orders
):
    """The ratio of the run is that of the recorded FLOPs; which trainer is built first alternates."""
    monkeypatch.setattr(time_pass, "drawn", lambda label, number: (False, True))
    folder = shrinking / "trials" / TRIAL.trial_id
    result = json.loads((folder / "trial.json").read_text())["result"]
    time = measured(shrinking, pairs=20)
    assert 2 * len(time.stages) == 1 + len(list((folder / "stages").iterdir())) > 2
    total = sum(stage.steps for stage in time.stages)
    for stage in time.stages:  # the states share the pairs by their steps
        assert len(stage.start) == len(stage.end) == max(3, round(20 * stage.steps / total / 2))
    assert len(time.twice) == 20
    expected = result["train_flops_executed"] / result["train_flops_dense"] + time.reconfiguration
    assert time.ratio == pytest.approx(expected, rel=1e-3)
    assert time.stages[-1].ratio < time.stages[0].ratio == pytest.approx(1.0)
    assert (time.trial, time.load) == (TRIAL.trial_id, 0.2)
    assert lines[0].startswith(f"pass 1, {METHOD}: {time.ratio:.3f} of the training time of dense; dense twice 1.000")
    assert (shrinking / "time.json").read_bytes() in [content for _, content in contents(shrinking)]
    built, begins = orders
    assert built[: 4 * len(time.stages)] == ["dense", "method", "method", "dense"] * len(time.stages)
    assert begins == [True] * (2 * len(time.stages) + 2)
    assert (time.order.built_first, time.order.steps_first) == ("dense", "method")


def test_dense_steps_have_images_of_the_size_of_the_stage(tmp_path, seconds_are_flops, measured):
    """The sizes have different numbers of FLOPs, and pruning begins after the first two, of which one comes again."""
    sizes = {"train_sizes": (16, 32, 16), "size_milestones": (0.3, 0.6), "batch_size": 32, "epochs": 3}
    trial = spec("prunetrain[interval=2,threshold=0.5]", task="imagenette", **SMALL | sizes)
    folder = train_in_suite(tmp_path, trial)
    result = json.loads((folder / "trial.json").read_text())["result"]
    assert result["train_flops_executed"] < 0.99 * result["train_flops_dense"], "the test needs a network that shrinks"
    drop_ends(folder)
    time = measured(tmp_path)
    assert [stage.image_size for stage in time.stages] == [16, 32, 16]
    assert [(one.image_size, one.steps) for one in time.dense] == [(16, 2), (32, 2), (16, 2)]
    expected = result["train_flops_executed"] / result["train_flops_dense"] + time.reconfiguration
    assert time.ratio == pytest.approx(expected, rel=1e-3)
    epochs = [json.loads(line)["step_flops"]["dense"] for line in (folder / "epochs.jsonl").read_text().splitlines()]
    small, large, again = (time.relative_step(one.phase) for one in time.dense)
    assert large / small == pytest.approx(epochs[1] / epochs[0], rel=1e-3)
    assert (again, small + large + again) == pytest.approx((small, 3.0))
    assert time.dense_share(2 / 3) == pytest.approx((small + large) / 3)
    assert time.dense_share(1.0) == pytest.approx(1.0)


def test_dense_steps_have_frozen_parameters_where_those_of_the_stage_have(tmp_path, seconds_are_flops, measured):
    recipe = {"epochs": 2.5, "freeze": ("1.bias",), "freeze_after": 1}  # of the first normalisation
    drop_ends(train_in_suite(tmp_path, spec("sdgp[n=1,m=4,backend=masked]", **SMALL | recipe)))
    time = measured(tmp_path)
    assert [(one.frozen, one.steps) for one in time.stages] == [(False, 4), (True, 6)]
    assert [(one.frozen, one.steps) for one in time.dense] == [(False, 4), (True, 6)]
    assert time.ratio == pytest.approx(1.0)  # the masked products execute all FLOPs
    assert [time.relative_step(one.phase) for one in time.dense] == pytest.approx([1.0, 1.0])  # FLOPs stay the same


def other_backends(candidate, arguments, threads, again):
    """Measure as if the layers of the trial had had other backends."""
    for stage in arguments["stages"]:
        cost = stage["cost"]
        cost["flops"] = (*cost["flops"][:3], 1.5 * cost["flops"][3])
        cost["backends"] = dict.fromkeys(cost["backends"], "another")
    return in_this_process(candidate, arguments | {"choose_again": again}, threads)


def test_other_backends_are_not_measured(without_ends, lines):
    measure = partial(other_backends, again=False)
    assert not TimePass(without_ends, pairs=3, measure=measure, show=lines.append, passes=1).run()
    assert f"{METHOD}: not measured: layers have other backends than in the trial" in lines[0]


def test_a_stage_without_its_end_is_measured_at_its_start_with_backends_that_are_chosen_again(
    without_ends, monkeypatch, seconds_are_flops, measured, orders
):
    called = []
    monkeypatch.setattr(MethodRunner, "choose_again", lambda self: called.append(self))
    monkeypatch.setattr(time_pass, "drawn", lambda label, number: (True, False))
    time = measured(without_ends, pairs=3, measure=partial(other_backends, again=True))
    assert len(called) == len(time.stages) - 1  # the new network of the first stage has chosen for these threads
    assert [stage.end for stage in time.stages] == [None, None]
    assert time.ratio < 1
    built, begins = orders
    assert built[:4] == ["method", "dense", "dense", "method"]
    assert not any(begins)
    assert (time.order.built_first, time.order.steps_first) == ("method", "dense")


def test_short_steps_take_turns_of_several(tmp_path, monkeypatch, seconds_of_step):
    """A step of 20 ms is measured in threes, and one of a second alone."""
    monkeypatch.setattr(steps, "MOST_STEPS", 4)
    counted = []
    monkeypatch.setattr(steps.Steps, "__call__", noted(counted, "step", steps.Steps.__call__))
    both = [build_trainer(PLAIN, tmp_path, load_splits(PLAIN)) for _ in range(2)]
    for seconds, length in ((1.0, 1), (0.02, 3), (1e-4, 4)):
        seconds_of_step(lambda ledger, seconds=seconds: seconds)
        counted.clear()
        times, _ = steps.in_turn(tuple(lambda one=one: one for one in both), 3, True, True)
        assert len(counted) == 2 * (WARM_UPS + length * (3 + 1))  # the first turns do not count
        assert times == [pytest.approx((seconds, seconds))] * 3


def test_what_runs_first_is_drawn_and_turned_round():
    for label in ("a", "b", "c"):
        for number in range(0, 12, 4):
            four = [time_pass.drawn(label, number + more) for more in range(4)]
            assert [not one for one in four[0]] == list(four[1])
            assert len(set(four)) == 4
    assert len({time_pass.drawn(f"{label}", 4 * number) for label in range(9) for number in range(3)}) == 4


def test_a_state_of_another_cost_is_not_measured(shrinking, monkeypatch, lines):
    """The records then do not describe the steps that would be timed."""

    def other(candidate, arguments, threads):
        stages = arguments["stages"]
        stages[0]["cost"]["batch_size"] *= 2
        return in_this_process(candidate, arguments, threads)

    assert not TimePass(shrinking, pairs=3, measure=other, show=lines.append).run()
    assert f"{METHOD}: not measured: a step executes" in lines[0]


def test_trials_of_another_machine_are_measured_as_those_of_this_one(plain, tmp_path, monkeypatch, lines):
    here, other = candidates.this_machine("cpu"), {"hardware_id": "h0000000", "torch": "1.13"}
    put(plain, tmp_path, PLAIN)
    monkeypatch.setattr(candidates, "this_machine", lambda device: {**here, **other})
    own = here["hardware_id"], here["torch"]
    asked = []

    def measure(candidate, arguments, threads):
        asked.append(arguments["choose_again"])
        return invented(candidate, arguments, threads)

    assert TimePass(tmp_path, measure=measure, passes=1, show=lines.append).run()
    (group,) = TIMES.read(tmp_path)
    assert {**group.key, **other} == dict(group.key)
    assert asked == [True]  # backends are chosen for this machine
    (page,) = build(read(tmp_path)).groups
    assert all(value in page.subtitle for value in other.values())
    assert f"executed FLOPs are those of hardware {own[0]} (threads" in "".join(page.remarks)
    # The trial of this machine is measured once there is one.
    monkeypatch.setattr(candidates, "this_machine", lambda device: here)
    put(plain, tmp_path, dataclasses.replace(PLAIN, seed=1))
    assert TimePass(tmp_path, measure=measure, passes=2).run()
    machines = {(one.key["hardware_id"], one.key["torch"]) for one in TIMES.read(tmp_path)}
    assert machines == {own, tuple(other.values())}


def test_passes_stay_together_when_most_trials_have_other_threads(monkeypatch):
    here = {"hardware_id": "h0000000", "torch": "2.15"}
    done = recorded()
    groups = [TrialGroup({**dict.fromkeys(KEY, "x"), **here, "threads": one}, (done,) * (3 - int(one))) for one in "12"]
    monkeypatch.setattr(candidates, "this_machine", lambda device: here)
    assert [one.key["threads"] for one in candidates._on_this_machine(groups, [])] == ["1"]
    assert [one.key["threads"] for one in candidates._on_this_machine(groups, [groups[1].key])] == ["2"]


@pytest.fixture
def here(monkeypatch, trained):
    """The ids of the trials that a time pass trains, in whose place it finds copies of a finished one."""
    names = []

    class Engine:
        def __init__(self, variables):
            assert int(variables["OMP_NUM_THREADS"])

        def run(self, trials, progress):
            for trial, folder in trials:
                names.append(trial.trial_id)
                shutil.rmtree(folder, ignore_errors=True)
                put(trained / "trials" / TRIAL.trial_id, folder.parents[1], trial)
                records = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
                records[-1]["reconfigure_time_s"] = 7.0
                (folder / "epochs.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
                record = json.loads((folder / "trial.json").read_text())
                machine = {"hardware_id": candidates.this_machine("cpu")["hardware_id"]}
                write_record(folder, trial, "done", result=record["result"], provenance=record["provenance"] | machine)

    monkeypatch.setattr(time_pass, "LocalEngine", Engine)
    return names


def without_states(source, out):
    """Copy a trial as `export` does."""
    place = out / "trials" / TRIAL.trial_id
    place.mkdir(parents=True)
    for name in ("trial.json", "epochs.jsonl", "layers.csv"):
        (place / name).write_bytes((source / "trials" / TRIAL.trial_id / name).read_bytes())
    return out


@pytest.mark.parametrize(
    ("machine", "reason"),
    [("", "no stages: its steps changed in epoch"), ("h0000000", "its reconfigurations were timed on another machine")],
)
def test_a_seed_whose_states_are_not_here_is_trained_once(
    shrinking, tmp_path, monkeypatch, lines, here, machine, reason
):
    own = candidates.this_machine("cpu")
    monkeypatch.setattr(
        candidates, "this_machine", lambda device: {**own, "hardware_id": machine or own["hardware_id"]}
    )
    out = without_states(shrinking, tmp_path / "out")
    recorded = (out / "trials" / TRIAL.trial_id / "trial.json").read_bytes()
    measured_in = []

    def measure(candidate, arguments, threads):
        measured_in.append(arguments["trials"])
        return invented(candidate, arguments, threads)

    for passes in (2, 3):
        assert TimePass(out, measure=measure, show=lines.append, passes=passes).run()
    assert lines[0].startswith(f"{METHOD}: {reason}")
    assert lines[0].endswith(f"; {TRIAL.trial_id} is trained here first, into {out / 'timed'}")
    assert here == [TRIAL.trial_id]
    assert measured_in == [str(out / "timed" / "trials")] * 3
    assert (out / "trials" / TRIAL.trial_id / "trial.json").read_bytes() == recorded
    assert last_entry(out).passes[0].reconfigure_s == pytest.approx(7.0)  # of the trial that was trained here


def test_a_training_of_another_machine_is_repeated_here(shrinking, tmp_path, monkeypatch, here):
    out = without_states(shrinking, tmp_path / "out")
    own = candidates.this_machine("cpu")
    for count, hardware in enumerate((own["hardware_id"], own["hardware_id"], "h0000000"), 1):
        monkeypatch.setattr(
            candidates, "this_machine", lambda device, own=own, name=hardware: {**own, "hardware_id": name}
        )
        (found,) = find_candidates(out, "time", timed=lambda *_: ())
        assert (found.lacking is None) == (count == 2)
        TimePass(out, measure=invented, passes=1).run()
    assert here == [TRIAL.trial_id] * 2


def test_a_complete_folder_without_states_trains_nothing(shrinking, tmp_path, here):
    assert TimePass(shrinking, measure=invented, passes=1).run()
    out = without_states(shrinking, tmp_path / "out")
    shutil.copy(shrinking / "time.json", out)
    assert not TimePass(out, measure=invented, passes=1).run()
    assert here == []
    with pytest.raises(UsageError, match="type --threads"):
        TimePass(out, measure=invented, passes=2, threads=7).run()
    assert here == []


def test_a_seed_with_its_states_is_measured_in_place_of_one_without(shrinking, tmp_path, here):
    other = dataclasses.replace(TRIAL, seed=1)
    out = without_states(shrinking, tmp_path / "out")
    put(shrinking / "trials" / TRIAL.trial_id, out, other)
    assert TimePass(out, measure=invented).run()
    assert {one.trial for one in last_entry(out).passes} == {other.trial_id}


def test_a_method_whose_other_trial_has_no_network_is_trained_with_it(plain, tmp_path, lines, here):
    scratch = spec("scratch[of=ssl]", **SMALL)
    (text,) = MethodChoice.read("scratch[of=ssl]").build().depends_on()
    other = spec(text, **SMALL)
    scratch = dataclasses.replace(scratch, depends_on={text: other.trial_id})
    for one in (other, scratch):
        folder = put(plain, tmp_path, one)
    (folder.parent / other.trial_id / "model.pt").unlink()
    assert TimePass(tmp_path, "scratch", measure=invented, show=lines.append, passes=1).run()
    assert lines[0].startswith("scratch[of=ssl]: a trial that it depends on has no model.pt here")
    assert here == [other.trial_id, scratch.trial_id]


def test_data_of_another_machine_is_looked_for_here(monkeypatch, tmp_path):
    copy = {"kind": "original", "checksum": "a" * 64, "path": str(tmp_path / "gone")}
    trial = dataclasses.replace(TRIAL, data_copy=copy)
    asked = []

    def prepare(self, root, preset, recipe=None):
        asked.append(root)
        return DataCopy("original", "a" * 64, str(tmp_path))

    monkeypatch.setattr(Digits, "prepare", prepare)
    monkeypatch.setenv("PDT_DATA", str(tmp_path / "data"))
    assert with_data_here(trial).data_copy["path"] == str(tmp_path)
    assert asked == [tmp_path / "data"]
    other = dataclasses.replace(trial, data_copy={**copy, "checksum": "b" * 64})
    with pytest.raises(
        UsageError, match=r"its data is the copy original-bbbbbbbb, and .* has original-aaaaaaaa; set PDT_"
    ):
        with_data_here(other)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").touch()
    mine = dataclasses.replace(trial, data_copy={**copy, "path": "~/mine"})
    assert with_data_here(mine).data_copy["path"] == str(tmp_path / "mine")


def test_a_busy_machine_is_refused_unless_the_user_insists(shrinking, monkeypatch):
    monkeypatch.setattr(running, "busy_cores", lambda seconds: 8.0)
    with pytest.raises(UsageError, match=r"8\.0 cores are busy with other programs.*--busy"):
        TimePass(shrinking, measure=None).run()
    assert TimePass(shrinking, busy=True, measure=invented).run()


def test_entries_that_are_not_measured_again_stay(shrinking, measured):
    time = measured(shrinking, measure=invented)
    stored = json.loads((shrinking / "time.json").read_text())
    stored["groups"][0]["methods"]["other"] = {"passes": [time.model_dump(mode="json")]}
    stored["groups"].append({"key": {"task": "other"}, "methods": {}})
    (shrinking / "time.json").write_text(json.dumps(stored))
    assert TimePass(shrinking, "prunetrain", measure=partial(invented, ratio=0.5), passes=2).run()
    first, second = TIMES.read(shrinking)
    assert first.methods["other"].passes == (time,)
    assert [one.stages[0].ratio for one in first.methods[METHOD].passes] == pytest.approx([0.75, 0.5])
    assert second.key == {"task": "other"}


def test_passes_take_the_seeds_in_turn_and_continue(plain, tmp_path, lines, capsys):
    trials = [dataclasses.replace(PLAIN, seed=seed) for seed in (3, 1)]
    for trial in trials:
        put(plain, tmp_path, trial)
    for passes in (1, 3, 2):
        assert TimePass(tmp_path, measure=invented, show=lines.append, passes=passes).run()
    (time,) = TIMES.read(tmp_path)[0].methods.values()
    assert [one.trial for one in time.passes] == [trials[index].trial_id for index in (1, 0, 1)]
    assert [one.number for one in time.passes] == [0, 1, 2]
    assert time.pass_of(trials[0].trial_id) == time.passes[1]
    assert [line.split(",")[0] for line in lines if line.startswith("pass")] == ["pass 1", "pass 2", "pass 3"]
    said = [line.split(", dense")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["measurement 1/1: pass 1", "measurement 1/2: pass 2", "measurement 2/2: pass 3"]


def test_passes_with_other_threads_are_refused(shrinking, lines):
    assert TimePass(shrinking, measure=invented, threads=1, passes=1).run()
    assert not TimePass(shrinking, measure=invented, threads=3, passes=2, show=lines.append).run()
    message = "passes of this folder were measured with 1 thread, and these would have 3; type --threads 1"
    assert message in lines[0]
    assert not TimePass(shrinking, measure=invented, threads=3, passes=1, show=lines.append).run()  # nothing is missing
    assert message in lines[1]


@pytest.mark.parametrize(
    ("of_trial", "typed", "used", "again"),
    [(0, None, 1, True), (1, None, 1, False), (5, None, 1, True), (5, 2, 2, True)],
)
def test_threads_are_those_of_the_trial_and_backends_are_chosen_for_others(
    shrinking, monkeypatch, of_trial, typed, used, again
):
    asked = []

    def measure(candidate, arguments, threads):
        asked.append((threads, arguments["choose_again"]))
        return invented(candidate, arguments, threads)

    def with_threads(*arguments, **options):
        return [dataclasses.replace(one, threads=of_trial) for one in find_candidates(*arguments, **options)]

    monkeypatch.setattr(time_pass, "find_candidates", with_threads)
    assert TimePass(shrinking, measure=measure, threads=typed, passes=1).run()
    assert asked == [(used, again)]
    assert last_entry(shrinking).threads == used


def last_entry(folder):
    (entry,) = TIMES.read(folder)[0].methods.values()
    return entry


def test_a_pass_that_is_disturbed_is_kept_until_another_replaces_it(shrinking, lines):
    """The second of three; its number is that of the pass which is measured again."""

    def measure(candidate, arguments, threads, disturbed):
        return invented(candidate, arguments, threads, load=5.0 if candidate.number == disturbed else 0.1)

    options = {"threads": 1, "show": lines.append, "passes": 3}
    assert not TimePass(shrinking, measure=partial(measure, disturbed=1), **options).run()
    assert lines[-1] == f"time: {METHOD} has 2 undisturbed of 3 passes; the same command measures the others"
    assert [(one.number, one.is_disturbed) for one in last_entry(shrinking).passes] == [
        (0, False), (1, True), (2, False)
    ]  # fmt: skip
    assert TimePass(shrinking, measure=partial(measure, disturbed=None), **options).run()
    assert [(one.number, one.is_disturbed) for one in last_entry(shrinking).passes] == [
        (0, False), (2, False), (1, False)
    ]  # fmt: skip
    lines.clear()
    assert TimePass(shrinking, measure=invented, **options).run()
    assert lines == ["time: every method has its passes; --passes measures more"]


def test_the_order_of_the_methods_is_drawn_by_the_number_of_the_pass(plain, tmp_path, lines):
    names = [f"dense[repeat={number}]" for number in range(2, 6)]
    for name in names:
        put(plain, tmp_path, spec(name, **SMALL | {"epochs": 1}))
    assert TimePass(tmp_path, measure=invented, show=lines.append, passes=3).run()
    orders = [
        [line.split(", ")[1].partition(":")[0] for line in lines if f"pass {number}" in line] for number in (1, 2, 3)
    ]
    assert all(sorted(order) == names for order in orders)
    assert orders[1] == orders[0][::-1] != orders[2]
    (group,) = TIMES.read(tmp_path)
    for number, order in enumerate(orders):
        assert [group.methods[name].passes[number].order.place for name in order] == [1, 2, 3, 4]


def test_what_follows_a_stage_replaces_what_its_last_epoch_recorded(tmp_path):
    trial = spec("dense[repeat=2]", **SMALL | {"epochs": 3})
    place = train_in_suite(tmp_path, trial)
    found = json.loads((place / "trial.json").read_text())
    records = [json.loads(line) for line in (place / "epochs.jsonl").read_text().splitlines()]
    for record, total in zip(records, (1.0, 3.0, 8.0), strict=True):
        record["reconfigure_time_s"] = total
    (place / "epochs.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    write_record(place, trial, "done", result=found["result"], provenance=found["provenance"])

    def measure(candidate, arguments, threads):
        found = invented(candidate, arguments, threads)
        return {**found, "stages": [{**one, "reconfigure_s": 0.25} for one in found["stages"]]}

    assert TimePass(tmp_path, measure=measure, passes=1).run()
    assert last_entry(tmp_path).passes[0].reconfigure_s == pytest.approx(1 + 2 + 0.25)


@pytest.mark.parametrize(("seeds", "passes"), [(1, 5), (3, 6), (6, 6)])
def test_there_are_at_least_five_passes_and_equally_many_of_each_seed(plain, tmp_path, seeds, passes):
    trials = [dataclasses.replace(PLAIN, seed=seed) for seed in range(seeds)]
    for trial in trials:
        put(plain, tmp_path, trial)
    assert TimePass(tmp_path, measure=invented).run()
    timed = [one.trial for one in last_entry(tmp_path).passes]
    assert [timed.count(trial.trial_id) for trial in trials] == [passes // seeds] * seeds


def test_busy_passes_take_the_seeds_in_turn_and_a_disturbed_one_is_that_of_its_seed_again(plain, tmp_path):
    trials = [dataclasses.replace(PLAIN, seed=seed) for seed in range(3)]
    for trial in trials:
        put(plain, tmp_path, trial)
    assert TimePass(tmp_path, measure=partial(invented, load=5.0), busy=True, passes=3).run()
    assert [one.trial for one in last_entry(tmp_path).passes] == [one.trial_id for one in trials]
    assert TimePass(tmp_path, measure=invented, passes=3).run()
    assert sorted(one.trial for one in last_entry(tmp_path).sound) == sorted(one.trial_id for one in trials)


def test_seeds_that_come_later_are_timed_as_often(plain, tmp_path):
    trials = [dataclasses.replace(PLAIN, seed=seed) for seed in range(5)]
    for some in (trials[:2], trials[2:]):
        for trial in some:
            put(plain, tmp_path, trial)
        assert TimePass(tmp_path, measure=invented, passes=2 if some[0] is trials[0] else 0).run()
    assert sorted(one.trial for one in last_entry(tmp_path).passes) == sorted(one.trial_id for one in trials)


def test_all_methods_of_a_group_have_one_number_of_threads_and_no_more_than_there_are_cores(
    plain, tmp_path, monkeypatch
):
    for name in ("dense[repeat=2]", "dense[repeat=3]"):
        put(plain, tmp_path, spec(name, **SMALL | {"epochs": 1}))
    threads, asked = {"dense[repeat=2]": 1, "dense[repeat=3]": 4}, []

    def found(*arguments, **options):
        many = [dataclasses.replace(one, threads=threads[one.label]) for one in find_candidates(*arguments, **options)]
        return [dataclasses.replace(one, key={**one.key, "threads": "64"}) for one in many]

    monkeypatch.setattr(time_pass, "find_candidates", found)
    monkeypatch.setattr(running, "available_cores", lambda: 2)
    measure = lambda one, arguments, count: asked.append(count) or invented(one, arguments, count)  # noqa: E731
    assert TimePass(tmp_path, measure=measure, passes=1).run()
    assert asked == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["progressive_resizing[start=0.4]", "dense[width=0.5,recipe.epochs=3]"])
def test_a_method_with_its_own_images_or_epochs_is_measured_against_dense_of_the_command(
    tmp_path, seconds_are_flops, measured, method
):
    """The command freezes a parameter of the recipe after an epoch, so that dense has two phases."""
    small = {"train_images": 64, "test_images": 20, "batch_size": 32, "epochs": 4}
    overrides = small | {"freeze": ("prep.norm.bias",), "freeze_after": 1}
    dense, own = planned(f"dense,{method}", tasks="cifar10", models="resnet9[width=0.125]", overrides=overrides)
    flops = [
        json.loads((train_in_suite(tmp_path, trial) / "trial.json").read_text())["result"]["train_flops_executed"]
        for trial in (dense, own)
    ]
    time = measured(tmp_path)
    assert [(one.image_size, one.frozen, one.steps) for one in time.dense] == [(None, False, 2), (None, True, 6)]
    assert {stage.image_size for stage in time.stages} == {None}
    assert time.ratio == pytest.approx(flops[1] / flops[0] + time.reconfiguration, rel=1e-3)


def test_statistics_of_dense_are_estimated_from_images_of_the_last_size(
    tmp_path, monkeypatch, seconds_of_step, measured
):
    """As those of the trial: here, their time is the side of the images."""
    seconds_of_step(lambda ledger: 1.0)
    take = lambda model, images, keeping: clock.time.sleep(sum(one.shape[-1] for one in images) / 16)  # noqa: E731
    monkeypatch.setattr("suite.engine.training.trainer.estimate_statistics", take)
    sizes = {"train_sizes": (16, 32), "size_milestones": (0.5,), "batch_size": 32, "epochs": 2, "precise_bn": 32}
    train_in_suite(tmp_path, spec("dense[repeat=2]", task="imagenette", **SMALL | sizes))
    time = measured(tmp_path)
    assert time.dense_reconfigure_s == pytest.approx(time.reconfigure_s)
    assert time.ratio == pytest.approx(1.0)


def test_statistics_and_reconfigurations_are_timed_in_the_pass(tmp_path, monkeypatch, seconds_of_step, measured):
    """A step takes a second, a reconfiguration 2, and estimating statistics 3, of dense too if the recipe says it.

    The trial ran while the machine was four times slower.
    """
    slow = 4.0

    def take(call, seconds):
        def timed(*arguments, **options):
            clock.time.sleep(slow * seconds)
            return call(*arguments, **options)

        return timed

    seconds_of_step(lambda ledger: slow)
    monkeypatch.setattr(MethodRunner, "apply_plan", take(MethodRunner.apply_plan, 2.0))
    monkeypatch.setattr("suite.engine.training.trainer.estimate_statistics", take(lambda *_: None, 3.0))
    records = (train_in_suite(tmp_path, spec(METHOD, **SMALL | {"precise_bn": 32})) / "epochs.jsonl").read_text()
    own = 3.0 + 2.0 * sum(json.loads(line)["reconfigured"] for line in records.splitlines())
    assert own > 3.0
    slow = 1.0
    time = measured(tmp_path)
    assert (time.reconfigure_s, time.dense_reconfigure_s) == pytest.approx((own, 3.0), rel=1e-3)
    assert time.ratio == pytest.approx((8 + own) / (8 + 3), rel=1e-3)
    (found,) = find_candidates(tmp_path, "time")
    assert dense_spec(found.spec).recipe == found.spec.recipe
    alone = dataclasses.replace(found.spec, replaced={"precise_bn": 0})  # only the method has it
    assert dense_spec(alone).recipe["precise_bn"] == 0


def test_a_trial_without_states_that_cannot_be_trained_is_named(shrinking, tmp_path, monkeypatch, lines, here):
    out = without_states(shrinking, tmp_path / "out")
    monkeypatch.setattr(time_pass.LocalEngine, "run", lambda self, trials, progress: None)
    assert not TimePass(out, measure=invented, show=lines.append).run()
    assert lines[1] == f"{TRIAL.trial_id}: not trained"
    assert f"{METHOD}: not measured: no stages: " in lines[2]
    assert TIMES.read(out) == []


def test_a_trial_with_one_other_size_of_training_images_is_measured(shrinking, tmp_path, lines):
    trial = dataclasses.replace(TRIAL, recipe={**TRIAL.recipe, "train_sizes": (8,)})
    put(shrinking / "trials" / TRIAL.trial_id, tmp_path, trial)
    assert TimePass(tmp_path, measure=invented, show=lines.append).run()


@pytest.mark.parametrize(("verb", "options", "expected"), [
    ("time", ["--methods", "prunetrian"], "did you mean 'prunetrain'?"),
    ("time", ["--methods", "dense"], "the other methods are measured next to it; name one of them"),
    ("time", ["--pairs", "2"], "integer from 3"),
    ("time", ["--threads", "0"], "integer from 1"),
    ("time", ["--passes", "0"], "integer from 1"),
    ("time", ["--pair", "30"], "did you mean '--pairs'?"),
    ("profile", ["--rounds", "5"], "integer from 6"),
    ("profile", ["--threads", "0"], "integer from 1"),
])  # fmt: skip
def test_unknown_methods_and_wrong_options_are_one_line(shrinking, tmp_path, capsys, verb, options, expected):
    assert cli.main([verb, str(shrinking), *options]) == 2
    assert_one_line(capsys.readouterr().err, expected)
    assert cli.main([verb, str(tmp_path)]) == 2
    assert "not the folder of a suite" in capsys.readouterr().err


def test_a_folder_in_use_is_refused(shrinking):
    with store.Store(shrinking).lock(), pytest.raises(UsageError, match="is in use"):
        TimePass(shrinking, measure=invented).run()


@pytest.mark.parametrize(("content", "reason"), [
    ("{", "is damaged"),
    ("[" * 100_000, "is damaged"),
    ('{"version": 2, "groups": []}', "version: Input should be 1"),
    ('{"version": 1, "groups": [], "more": 1}', "more: Extra inputs"),
])  # fmt: skip
def test_a_damaged_file_is_one_line(content, reason, tmp_path):
    (tmp_path / "time.json").write_text(content)
    with pytest.raises(UsageError, match=reason) as caught:
        TIMES.read(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'time.json'} is damaged: ")
    assert str(caught.value).endswith(f"; delete it, and measure again: python run_suite.py time {tmp_path}")


def test_numbers_in_a_file_are_in_their_range(shrinking, measured):
    good = measured(shrinking, measure=invented).model_dump(mode="json")
    wrong = (("reconfigure_s", float("inf")), ("twice", "1 2"), ("stages", []), ("load", float("nan")), ("dense", []))
    for name, value in wrong:
        with pytest.raises(ValueError, match=name):
            PassTime.model_validate(good | {name: value})


def test_methods_are_chosen_by_name_or_with_parameters_in_any_order():
    found = [Candidate({}, label, "trial") for label in ("sdgp[n=2,m=4]", "sdgp[n=1,m=4]", "ssprop")]

    def labels(*typed):
        return [one.label for one in candidates._chosen(found, typed)]

    assert labels("ssprop", "sdgp[m=4,n=2]") == ["sdgp[n=2,m=4]", "ssprop"]
    assert labels("sdgp") == ["sdgp[n=2,m=4]", "sdgp[n=1,m=4]"]
    with pytest.raises(UsageError, match=re.escape("--methods 'sdgp[n=2]': the folder has no finished trial of it")):
        labels("sdgp[n=2]")
    with pytest.raises(UsageError, match="the other methods are measured next to it"):
        labels("dense")
