"""Initialisation from training images: once, where weights are new."""

import math

import pytest
import torch
from small_training import SmallBatches
from small_trials import spec, train

from suite.errors import UsageError
from suite.task import Splits
from suite.trials.building import initialize
from suite.trials.trial_run import TrialRun
from tasks.models.resnet9 import ResNet9


def give(monkeypatch, method):
    monkeypatch.setattr(ResNet9, "initialize_from_images", method, raising=False)


@pytest.fixture
def calls(monkeypatch):
    found = []

    def from_images(self, images):
        found.append(images)
        self.prep.conv.weight.mul_(0.5)

    give(monkeypatch, from_images)
    return found


def test_a_new_trial_is_initialised_and_a_resumed_one_is_not(calls, tmp_path, monkeypatch):
    trial = spec("dense", model="resnet9[width=0.0625]", train_images=32, batch_size=16, epochs=2)
    save = TrialRun._save_checkpoint

    def interrupt(self, state, epochs_done):
        save(self, state, epochs_done)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrialRun, "_save_checkpoint", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "resumed", trial)
    (images,) = calls
    assert images.ndim == 4
    assert images.dtype == torch.float32
    train(tmp_path / "resumed", trial)
    assert len(calls) == 1


def test_a_training_begins_with_the_weights_that_it_sets(tmp_path, monkeypatch):
    def empty(self, images):
        self.classifier.weight.zero_()

    give(monkeypatch, empty)
    (record,) = train(tmp_path, spec("dense", train_images=32, batch_size=16, epochs=1, learning_rate=0.0))
    assert record["train_loss"] == pytest.approx(math.log(10), rel=1e-6)  # all logits are 0


def test_a_task_that_offers_no_images_is_refused(calls):
    batches = SmallBatches(8, seed=0)
    with pytest.raises(UsageError, match=r"^ResNet9 is initialised from training images, .* no method `sample`$"):
        initialize(ResNet9(8, 8, 8, 8, 3, 4), Splits(batches, batches), 0)
    assert not calls
