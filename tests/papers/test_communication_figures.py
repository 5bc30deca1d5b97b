"""The papers' figures of communication, computed from made-up records."""

from __future__ import annotations

import pytest

from reports.papers.prunetrain.communication import PUBLISHED, Figure11, relative_to_dense
from suite.trials.folder.reader import Trial

SHRINKING = tuple(
    {"epoch": epoch, "steps": steps, "params": params}
    for epoch, (steps, params) in enumerate(((4, 60), (4, 60), (2, 30)), start=1)
)


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
