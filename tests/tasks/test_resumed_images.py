"""A trial of image files that was interrupted and resumed ends with the weights of one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from image_trials import spec, write_images
from small_trials import train

from suite.engine.network import model_files
from suite.trials.trial_run import TrialRun

EPOCHS = 2


def test_a_resumed_trial_has_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "pets")
    trial = spec(tmp_path / "pets", task="imagefolder[image_size=32]", epochs=EPOCHS)
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    epochs = train(whole, trial)

    save = TrialRun._save_checkpoint

    def save_and_stop(self: TrialRun, state: Any, epochs_done: int) -> None:
        save(self, state, epochs_done)
        if epochs_done == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrialRun, "_save_checkpoint", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train(resumed, trial)
    assert not (resumed / "model.pt").exists()
    again = train(resumed, trial)
    assert [record["train_loss"] for record in again] == [record["train_loss"] for record in epochs]
    assert len({record["train_loss"] for record in epochs}) == EPOCHS
    one, other = (model_files.load(folder / "model.pt")["tensors"] for folder in (whole, resumed))
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(other[name], tensor), name
