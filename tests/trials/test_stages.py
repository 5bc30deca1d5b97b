"""Stages of a trial: kept where the cost of a step changes, and nowhere else."""

import itertools
import os

import pytest
from small_trials import put_export, spec, train

from suite import files
from suite.engine.network import model_files
from suite.trials import stages as stages_module
from suite.trials.stages import MOST_STAGES, Cost, StageKeeper, StageList, end_file, stage_file
from suite.trials.trial_run import TrialRun

SMALL = {"model": "resnet9[width=0.0625]", "train_images": 72, "batch_size": 32, "epochs": 1}
SHRINKING = spec("prunetrain[ratio=0.8]", **(SMALL | {"train_images": 96, "epochs": 4}))


def record(epoch, executed=100.0, **changes):
    flops = {"dense": 100.0, "current": 100.0, "effective": 100.0, "executed": executed}
    return {
        "epoch": epoch,
        "steps": 5,
        "batch_size": 32,
        "step_flops": flops,
        "step_overhead": 0.0,
        "backends": {"0": "torch"},
    } | changes


def found(records):
    return [(stage.epoch, stage.steps) for stage in StageList(records).stages()]


def test_a_stage_lasts_as_long_as_its_steps_cost_the_same():
    records = [record(1), record(2, 100.05), record(3, 90.0), record(4, 90.0), record(5)]
    assert found(records) == [(1, 10), (3, 10), (5, 5)]


@pytest.mark.parametrize(
    "change",
    [{"batch_size": 64}, {"backends": {"0": "skip"}}, {"backends": {}}, {"step_overhead": 3.0}, {"executed": 99.0}],
)
def test_everything_that_a_step_costs_begins_a_stage(change):
    assert found([record(1), record(2)]) == [(1, 10)]
    assert found([record(1), record(2, **change)]) == [(1, 5), (2, 5)]


def test_small_changes_that_add_up_begin_a_stage():
    assert len(found([record(epoch, 100 * 0.9996**epoch) for epoch in range(1, 11)])) == 4


def test_stages_that_are_given_up_leave_the_others_spread_over_the_cost():
    """Costs fall by 10 in each of 20 epochs, except for a group of epochs with nearly the same cost."""
    costs = [300.0 - 10 * index for index in range(16)] + [150.0 - index / 4 for index in range(1, 11)]
    stages = StageList(record(epoch, cost) for epoch, cost in enumerate(costs, 1)).stages()
    assert len(stages) == MOST_STAGES
    assert (stages[0].epoch, stages[-1].epoch) == (1, len(costs))
    assert sum(stage.steps for stage in stages) == 5 * len(costs)
    kept = [stage.cost.executed for stage in stages]
    assert max(before - after for before, after in itertools.pairwise(kept)) <= 30
    # Each step counts for the stage that is nearest in cost.
    exact = sum(costs) * 5
    assert sum(stage.steps * stage.cost.executed for stage in stages) == pytest.approx(exact, rel=0.02)


def test_a_size_of_images_keeps_a_stage_and_its_own_steps():
    """Costs fall in small steps, and four epochs in the middle have larger images that cost nearly as much."""

    def of(epoch, executed, dense):
        flops = {"dense": dense, "current": dense, "effective": dense, "executed": executed}
        return record(epoch, step_flops=flops)

    small = [300.0 - 5 * index for index in range(30)]
    large = [small[14] - 1, small[14] - 2, small[14] - 1, small[14] - 2]
    costs = [(cost, 300.0) for cost in small[:15]] + [(cost, 700.0) for cost in large]
    costs += [(cost, 300.0) for cost in small[15:]]
    stages = StageList(of(epoch, *cost) for epoch, cost in enumerate(costs, 1)).stages()
    assert len(stages) == MOST_STAGES
    found = {dense: sum(stage.steps for stage in stages if stage.cost.flops[0] == dense) for dense in (300.0, 700.0)}
    assert found == {300.0: 5 * len(small), 700.0: 5 * len(large)}


@pytest.mark.parametrize("wrong", ["step_flops", "steps", "batch_size", "step_overhead"])
def test_records_without_a_cost_are_named(wrong):
    with pytest.raises(ValueError, match=f"epoch 1 has no '{wrong}'"):
        StageList([{name: value for name, value in record(1).items() if name != wrong}])


def test_files_are_kept_for_stages_and_removed_with_them(tmp_path):
    keeper, costs = StageKeeper(tmp_path), [100.0 - index for index in range(MOST_STAGES + 3)]
    for epoch, cost in enumerate(costs, 1):
        keeper.add(record(epoch, cost))
        files.write(tmp_path / "checkpoint.pt", f"after {epoch}")
    stages = StageList(record(epoch, cost) for epoch, cost in enumerate(costs, 1)).stages()
    held = {int(path.stem): path.read_text() for path in (tmp_path / "stages").iterdir()}
    assert held == {stage.epoch: f"after {stage.epoch - 1}" for stage in stages[1:]}
    # A training that resumes earlier removes what follows; one that starts again removes all.
    second = stages[1]
    StageKeeper(tmp_path, [record(1), record(second.epoch, 99.0)])
    assert [path.name for path in (tmp_path / "stages").iterdir()] == [f"{second.epoch}.pt"]
    StageKeeper(tmp_path)
    assert not list((tmp_path / "stages").iterdir())


def test_the_state_of_the_last_epoch_of_each_stage_is_kept(tmp_path):
    keeper = StageKeeper(tmp_path)

    def ends():
        return sorted(path.name for path in (tmp_path / "stages").glob("*-end.pt"))

    files.write(tmp_path / "checkpoint.pt", "any")
    for epoch, executed in enumerate((100.0, 100.0, 90.0, 90.0, 80.0), 1):
        keeper.keep_end(epoch, lambda path, text=f"after {epoch}": files.write(path, text))
        keeper.add(record(epoch, executed))
    assert ends() == ["2-end.pt", "4-end.pt", "5-end.pt"]
    assert end_file(tmp_path, 4).read_text() == "after 4"
    # A training that resumes after the third epoch keeps the end of its first stage.
    StageKeeper(tmp_path, [record(1), record(2), record(3, 90.0)])
    assert ends() == ["2-end.pt"]


def test_ends_that_are_too_large_together_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(stages_module, "MOST_BYTES", 9)
    keeper = StageKeeper(tmp_path)
    files.write(tmp_path / "checkpoint.pt", "any")
    for epoch, executed in enumerate((100.0, 100.0, 90.0), 1):
        keeper.keep_end(epoch, lambda path: files.write(path, "5 byt"))
        keeper.add(record(epoch, executed))
    assert sorted(path.name for path in (tmp_path / "stages").iterdir()) == ["2-end.pt", "3.pt"]
    keeper.keep_end(4, lambda path: pytest.fail("another would not fit either"))


def test_a_file_system_without_links_gets_copies(tmp_path, monkeypatch):
    def refuse(*names):
        raise OSError(files.errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "source").write_text("state")
    files.keep_copy(tmp_path / "source", tmp_path / "copy")
    (tmp_path / "source").unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
    assert (tmp_path / "copy").read_text() == "state"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Folder and records of a trial whose network shrinks."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, train(folder, SHRINKING)


def test_a_trial_keeps_the_state_before_each_change(whole):
    folder, records = whole
    assert any(line["reconfigured"] for line in records[:-1]), "the test needs a network that shrinks"
    stages = StageList(records).stages()
    assert len(stages) > 1
    expected = {f"{stage.epoch}.pt" for stage in stages[1:]} | {f"{stage.last}-end.pt" for stage in stages}
    assert {path.name for path in (folder / "stages").iterdir()} == expected
    for before, stage in itertools.pairwise(stages):
        assert before.last == stage.epoch - 1
        ended = model_files.load(end_file(folder, before.last))["trainer"]
        assert ended["hooks"]["epochs_done"] == before.last - 1  # the epoch is not closed
        sizes = [sum(value.numel() for value in state["model"].values())
                 for state in (ended, model_files.load(stage_file(folder, stage.epoch))["trainer"])]  # fmt: skip
        assert sizes[0] > sizes[1]
        state = model_files.load(stage_file(folder, stage.epoch))
        assert state["trial"] == SHRINKING.hash
        assert state["trainer"]["hooks"]["epochs_done"] == stage.epoch - 1


def test_a_resumed_trial_ends_with_the_same_stages(whole, tmp_path, monkeypatch):
    """It is interrupted after the record of an epoch that begins a stage, before the epoch's checkpoint."""
    folder, records = whole
    stages = [stage.epoch for stage in StageList(records).stages()]
    save = TrialRun._save_checkpoint

    def interrupt(self, state, epochs_done):
        if epochs_done == stages[1]:
            raise KeyboardInterrupt
        save(self, state, epochs_done)

    with monkeypatch.context() as patch:
        patch.setattr(TrialRun, "_save_checkpoint", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, SHRINKING)
    assert stage_file(tmp_path, stages[1]).is_file()
    train(tmp_path, SHRINKING)
    for epoch in stages[1:]:
        one, other = (model_files.load(stage_file(place, epoch)) for place in (folder, tmp_path))
        for name, weight in one["trainer"]["model"].items():
            assert weight.equal(other["trainer"]["model"][name])


def test_a_trial_whose_steps_never_change_keeps_its_end_and_nothing_of_an_export(tmp_path):
    trial = spec("sdgp[backend=masked]", **(SMALL | {"epochs": 2}))
    folder = put_export(tmp_path, trial)
    records = train(folder, trial)
    assert len(StageList(records).stages()) == 1
    assert [path.name for path in (folder / "stages").iterdir()] == ["2-end.pt"]
    assert not [*folder.glob("*.gz")]


def test_an_overhead_is_recorded_for_a_full_batch(tmp_path):
    dense = train(tmp_path / "dense", spec("dense", **SMALL, drop_last=False))
    lasso = train(tmp_path / "lasso", spec("ssl", **SMALL, drop_last=False))
    assert dense[0]["step_overhead"] == 0 < lasso[0]["step_overhead"]
    assert Cost.of(lasso[0]).overhead == lasso[0]["step_overhead"]
