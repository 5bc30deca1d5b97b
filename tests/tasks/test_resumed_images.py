"""A trial of image files that was interrupted and resumed ends with the weights of one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_trials import train

from suite.choices import MethodChoice
from suite.network import model_files
from suite.runs.spec import TrialSpec
from suite.runs.trial import Trial
from tasks.imagefolder import ImageFolderTask

EPOCHS = 3


def write_images(folder: Path) -> None:
    random = np.random.RandomState(0)
    for place in ("train/cat", "train/dog", "val/cat", "val/dog"):
        (folder / place).mkdir(parents=True)
        for number in range(6):
            noise = random.randint(0, 256, (40, 48, 3)).astype(np.uint8)
            Image.fromarray(noise).save(folder / place / f"{number}.{'png' if number % 2 else 'jpg'}")


def spec(folder: Path, cache: str) -> TrialSpec:
    task = ImageFolderTask()
    changes = {"epochs": EPOCHS, "batch_size": 4, "image_size": 32, "cache": cache}
    recipe = type(task.recipe("quick"))(**task.recipe("quick").fields() | changes)
    choice = MethodChoice.read("dense")
    return TrialSpec(
        method=choice.name,
        variant=choice.variant,
        parameters=choice.parameters("imagefolder", "quick"),
        task="imagefolder",
        model="mlp[width=8,depth=1]",
        preset="quick",
        recipe=recipe.fields(),
        seed=1,
        device="cpu",
        dtype="float32",
        data_copy=vars(task.prepare(folder, "quick", recipe)),
    )


@pytest.mark.parametrize("cache", ["on", "off"])
def test_a_resumed_trial_has_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    write_images(tmp_path / "pets")
    trial = spec(tmp_path / "pets", cache)
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    epochs = train(whole, trial)

    save = Trial._save_checkpoint

    def save_and_stop(self: Trial, state: Any, epochs_done: int) -> None:
        save(self, state, epochs_done)
        if epochs_done == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trial, "_save_checkpoint", save_and_stop)
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
