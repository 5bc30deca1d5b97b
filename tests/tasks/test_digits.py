from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from suite import registry
from suite.errors import MissingData, UsageError
from tasks.digits import FILE, Digits, load_digits
from tasks.models.resnet9 import resnet9

CPU = torch.device("cpu")
DIGITS = Digits()


def test_digits_is_registered_as_a_task() -> None:
    assert registry.get("task", "digits") is Digits


def test_split_is_1437_and_360_stratified_and_holds_every_digit_once() -> None:
    data = load_digits()
    assert data.train_images.shape == (1437, 16, 16, 1)
    assert data.test_images.shape == (360, 16, 16, 1)
    shares = np.bincount(data.train_labels) / np.bincount(np.concatenate([data.train_labels, data.test_labels]))
    assert np.abs(shares - 1437 / 1797).max() < 0.01
    table = np.loadtxt(FILE, delimiter=",")
    original = np.rint(table[:, :-1].reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    counts = np.concatenate([data.train_images, data.test_images])[:, ::2, ::2, 0]
    assert sorted(image.tobytes() for image in counts) == sorted(image.tobytes() for image in original)


def test_each_pixel_is_doubled_and_16_strokes_are_white() -> None:
    images = load_digits().train_images[..., 0]
    for row, column in ((0, 1), (1, 0), (1, 1)):
        np.testing.assert_array_equal(images[:, ::2, ::2], images[:, row::2, column::2])
    assert set(np.unique(images).tolist()) <= {round(count * 255 / 16) for count in range(17)}
    assert (images.min(), images.max()) == (0, 255)


def test_the_split_is_the_same_every_time_and_for_every_preset_and_seed(tmp_path: Path) -> None:
    copies = [DIGITS.prepare(tmp_path / "nowhere", preset) for preset in ("smoke", "quick", "paper")]
    assert len(set(copies)) == 1
    # The split names published results: a change of it must not pass unnoticed.
    assert copies[0].checksum == "93af86e545ada71f26cbae9b21aef4bec88cea5721ec76ff760f6519320ee69a"
    tests = [
        torch.cat([images for images, _ in DIGITS.load(copies[0], DIGITS.recipe("quick"), seed, CPU).test.epoch(0, 90)])
        for seed in (0, 1)
    ]
    assert torch.equal(tests[0], tests[1])
    assert list(tmp_path.iterdir()) == []


def test_normalisation_is_that_of_the_images() -> None:
    data = load_digits()
    images = np.concatenate([data.train_images, data.test_images])
    assert abs(images.mean() - Digits.normalization.mean[0]) < 0.1
    assert abs(images.std() - Digits.normalization.std[0]) < 0.1


def test_digits_are_never_mirrored() -> None:
    assert not any(
        DIGITS.recipe(preset).flip or DIGITS.recipe(preset).flip_tta for preset in ("smoke", "quick", "paper")
    )


def test_unknown_preset_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'smoke'"):
        DIGITS.recipe("smok")


def test_other_images_than_planned_are_one_line(tmp_path: Path) -> None:
    copy = dataclasses.replace(DIGITS.prepare(tmp_path, "quick"), checksum="0" * 64)
    with pytest.raises(MissingData, match="have changed"):
        DIGITS.load(copy, DIGITS.recipe("quick"), 0, CPU)


def test_three_epochs_of_the_quick_recipe_learn_most_digits(tmp_path: Path) -> None:
    assert DIGITS.default_model("quick") == "resnet9[width=0.125]"
    recipe = dataclasses.replace(DIGITS.recipe("quick"), epochs=3)
    splits = DIGITS.load(DIGITS.prepare(tmp_path, "quick"), recipe, 0, CPU)
    torch.manual_seed(0)
    model = resnet9(width=0.125, input_shape=DIGITS.input_shape).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum, nesterov=recipe.nesterov
    )
    steps = splits.train.steps_per_epoch(recipe.batch_size)
    for epoch in range(recipe.epochs):
        for step, (images, labels) in enumerate(splits.train.epoch(epoch, recipe.batch_size)):
            progress = (epoch * steps + step) / (recipe.epochs * steps)
            optimizer.param_groups[0]["lr"] = recipe.learning_rate_at(progress)
            loss = functional.cross_entropy(model(images), labels, label_smoothing=recipe.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in splits.test.epoch(0, 180))
    assert right / splits.test.num_samples > 0.9
