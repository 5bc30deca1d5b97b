"""The papers' figures of communication, computed from made-up records."""

from __future__ import annotations

import pytest
from reproduced_files import page, parts_of

from reports.papers.over_epochs import communication, communication_saved
from suite.trials.folder.reader import Trial

PUBLISHED = "prunetrain-imagenet-allreduce-saved/mean"
SHRINKING = tuple(
    {"epoch": epoch, "steps": steps, "params": params}
    for epoch, (steps, params) in enumerate(((4, 60), (4, 60), (2, 30)), start=1)
)


def test_an_epoch_sends_the_gradients_of_the_network_that_it_trained():
    trial = Trial({}, {"params_dense": 100}, epochs=SHRINKING)
    assert [share for _, share in communication(trial)] == pytest.approx([100, 60, 30])
    assert communication_saved(trial) == pytest.approx(
        {"communication_saved": 1 - 1.9 / 3, "last_communication": 0.3, "last_gradients": 0.6}
    )
    assert communication_saved(Trial({}, {}, epochs=SHRINKING)) == {}


def test_the_papers_saving_is_next_to_the_growing_batch():
    rows = [one for part in parts_of("prunetrain-fig11") for one in part.compared]
    assert {one.quantity for one in rows if one.published == PUBLISHED} == {
        "cifar10, growing batch: communication of gradients saved",
        "imagenet, ratio 0.25, growing batch: communication of gradients saved",
    }
    assert page("prunetrain-fig11").paper.find(PUBLISHED).value == 55
