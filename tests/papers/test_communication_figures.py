"""The papers' figures of communication, computed from made-up records."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.papers.clicktrain import communication as clicktrain
from reports.papers.contract import ReproductionData
from reports.papers.prunetrain.communication import PUBLISHED, Figure11, relative_to_dense
from suite.trials.folder.reader import Trial

SHRINKING = tuple(
    {"epoch": epoch, "steps": steps, "params": params}
    for epoch, (steps, params) in enumerate(((4, 60), (4, 60), (2, 30)), start=1)
)
PACKED = tuple({"steps": 5, "train_communication": {"gradients": size, "decisions": 20}} for size in (1000, 1600, 1800))


def test_an_epoch_sends_the_gradients_of_the_network_that_it_trained():
    trial = Trial({}, {"params_dense": 100}, epochs=SHRINKING)
    assert [share for _, share in relative_to_dense(trial)] == pytest.approx([1, 0.6, 0.3])
    found = Figure11().columns(trial)
    assert found == pytest.approx(
        {"communication_saved": 1 - 1.9 / 3, "last_communication": 0.3, "last_gradients": 0.6}
    )
    assert Figure11().columns(Trial({}, {}, epochs=SHRINKING)) == {}


def test_the_papers_saving_is_next_to_the_growing_batch():
    compared = {one.quantity for part in Figure11().parts for one in part.compared if one.published == PUBLISHED}
    assert compared == {
        "cifar10, growing batch: communication of gradients saved",
        "imagenet, ratio 0.25, growing batch: communication of gradients saved",
    }
    assert Figure11().published.find(PUBLISHED)[1] == 55


def test_clicktrains_gradients_are_those_that_the_ledger_counted():
    trial = Trial({}, {"train_time_s": 8.0}, epochs=PACKED)
    assert clicktrain.gradient_bytes(trial) == [1000, 600, 200]
    found = clicktrain.Figure16().columns(trial)
    assert (found["gradient_bytes"], found["last_gradients"]) == (1800, 0.2)
    # A ring of four processes sends 3/2 of each byte, and there are a quarter as many steps.
    assert found["communication_4"] == pytest.approx(1.5 * 1800 / clicktrain.LINK / 4)
    assert found[clicktrain.time_column(4)] == pytest.approx(8 / 4 + found["communication_4"])


def test_times_are_not_modelled_from_trials_of_several_processes_and_bytes_not_without_records():
    several = Trial({}, {"train_time_s": 8.0}, {"processes": 2}, epochs=PACKED)
    assert clicktrain.time_column(4) not in clicktrain.Figure15().columns(several)
    assert clicktrain.Figure15().columns(Trial({}, {}, epochs=({"steps": 5},))) == {}


@pytest.mark.parametrize("processes", [1, 2])
def test_figure_15_measures_the_time_of_several_processes_and_models_that_of_one(processes):
    labels = {"dense": 8.0, **dict.fromkeys(clicktrain.WAYS.values(), 6.0)}
    made = {
        label: (Trial({"status": "done"}, {"seed": 0, "train_time_s": time}, {"processes": processes}, epochs=PACKED),)
        for label, time in labels.items()
    }
    data = ReproductionData(Path(), {clicktrain.PART: made}, {}, "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clicktrain, "learned_nothing", lambda data, trials: [])
        found = clicktrain.Figure15().outcome(data)
    assert {one.kind for one in found.comparisons} == {"measured" if processes == 2 else "modelled"}
    assert (found.figure is None) == (processes == 2)
    assert all(one.ours.mean == pytest.approx(75, abs=1e-3) for one in found.comparisons)
