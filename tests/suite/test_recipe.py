"""A recipe's schedule, and what it refuses."""

import dataclasses

import pytest
from small_training import RECIPE

from suite.recipe import ADDED, Recipe
from suite.spec import TrialSpec


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [0.1, 0.55, 1.0, 0.5, 0.0]),
        ("cosine", [0.1, 0.55, 1.0, 0.5, 0.0]),
        ("step", [1.0, 1.0, 1.0, 0.1, 0.01]),
    ],
)
def test_learning_rate_schedules(schedule, expected):
    recipe = Recipe(
        epochs=1, batch_size=1, learning_rate=1.0, schedule=schedule, lr_start=0.1, peak_at=0.5, milestones=(0.75, 1.0)
    )
    assert [recipe.learning_rate_at(p) for p in (0, 0.25, 0.5, 0.75, 1.0)] == pytest.approx(expected)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": float("nan")},
        {"weight_decay": -1.0},
        {"clip_norm": 0.0},
        {"label_smoothing": 1.0},
        {"peak_at": 1.5},
        {"milestones": (0.5, 1.5)},
        {"validation_images": -1},
        {"train_images": 0},
        {"test_images": 0},
        {"split_seed": -1},
        {"micro_batches": 3},
        {"momentum": 0.0, "nesterov": True},
        {"schedule": "wavy"},
        {"execution": "fast"},
        {"momentum": 1.0},
        {"step_factor": -1.0},
        {"crop_padding": "white"},
    ],
)
def test_recipe_names_the_field_that_is_wrong(wrong):
    field = "nesterov" if "nesterov" in wrong else next(iter(wrong))
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(RECIPE, **wrong)


def test_fields_that_came_later_name_a_trial_only_where_they_differ_from_what_was_before():
    def digest(recipe):
        given = {"method": "dense", "task": "t", "model": "m", "preset": "quick", "seed": 0, "device": "cpu"}
        return TrialSpec(**given, dtype="float32", recipe=recipe, data_copy={"checksum": "0"}).hash

    now = vars(RECIPE)
    before = {name: value for name, value in now.items() if name not in ADDED}
    assert len(before) == len(now) - 2
    assert digest(now) == digest(before)
    others = [{**now, "crop_padding": "black"}, {**now, "drop_last": False}, {**now, "flip": False}]
    assert len({digest(now), *map(digest, others)}) == 4
