"""A recipe's schedule, and what it refuses."""

import dataclasses

import pytest
import torch
from small_training import RECIPE
from torch.optim import lr_scheduler

from suite.cli.run import recipe_lines
from suite.errors import UsageError
from suite.recipe import Augmentation, Recipe
from suite.task import PaperRecipe
from suite.trials.planning import plan
from suite.trials.spec import SuiteSpec
from tasks.digits import RECIPES, Digits


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


@pytest.mark.parametrize("schedule", ["linear", "cosine", "step", "constant"])
def test_schedules_with_a_warm_up_are_those_of_torch(schedule):
    recipe = Recipe(
        epochs=12, batch_size=1, learning_rate=0.5, schedule=schedule, warmup_epochs=3, lr_start=0.1, lr_end=0.02,
        milestones=(7 / 12, 10 / 12),
    )  # fmt: skip
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    warm_up = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=3)
    then = {
        "linear": lambda: lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.02, total_iters=9),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, T_max=9, eta_min=0.01),
        "step": lambda: lr_scheduler.MultiStepLR(optimizer, [4, 7], gamma=0.1),
        "constant": lambda: lr_scheduler.ConstantLR(optimizer, factor=1.0),
    }[schedule]()
    scheduler = lr_scheduler.SequentialLR(optimizer, [warm_up, then], [3])
    for epoch in range(13):
        assert recipe.learning_rate_at(epoch / 12) == pytest.approx(optimizer.param_groups[0]["lr"]), epoch
        optimizer.step()
        scheduler.step()


def test_warm_up_as_a_number_of_epochs_equals_one_as_a_share():
    share = dataclasses.replace(RECIPE, epochs=8, schedule="cosine", peak_at=0.25)
    epochs = dataclasses.replace(share, peak_at=0.0, warmup_epochs=2.0)
    assert [share.learning_rate_at(p / 40) for p in range(41)] == [epochs.learning_rate_at(p / 40) for p in range(41)]


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
        {"alternating_flip": True, "flip": False},
        {"warmup_epochs": 3.0},
        {"warmup_epochs": 1.0, "peak_at": 0.5},
        {"ema": 1.0},
        {"lookahead_steps": 5, "ema": 0.9},
        {"freeze": ("0.bias",)},
        {"freeze_after": 1},
        {"relative_decay": True, "learning_rate": 0.0},
        {"mixup": -0.1},
        {"cutmix": float("inf")},
        {"shrink_by": "squeeze"},
        {"train_sizes": (4,)},
        {"train_sizes": (32, 64)},
        {"size_milestones": (0.5,)},
        {"size_milestones": (0.5, 0.5), "train_sizes": (32, 48, 64)},
    ],
)
def test_recipe_names_the_field_that_is_wrong(wrong):
    field = "nesterov" if "nesterov" in wrong else next(iter(wrong))
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(RECIPE, **wrong)


def test_a_last_evaluation_of_six_views_counts_as_several():
    counts = [
        dataclasses.replace(RECIPE, eval_every=2, six_views=six, flip_tta=flip).evaluation.count(5)
        for six in (False, True) for flip in (False, True)
    ]  # fmt: skip
    assert counts == [3, 3, 9, 6]


def test_sizes_of_training_images_follow_each_other_at_the_milestones():
    recipe = dataclasses.replace(RECIPE, epochs=88, train_sizes=(160, 176, 192), size_milestones=(65 / 88, 76 / 88))
    sizes = [recipe.growing.size_at(epoch / 88) for epoch in range(88)]
    assert sizes == [160] * 65 + [176] * 11 + [192] * 12
    assert dataclasses.replace(RECIPE, train_sizes=(160,)).growing.size_at(0.0) == 160
    assert RECIPE.growing.size_at(0.5) is None


def test_a_papers_recipe_is_chosen_by_name_and_named_in_the_trial(tmp_path, monkeypatch):
    theirs = dataclasses.replace(RECIPES["paper"], batch_size=32, drop_last=False)
    papers = {"ours": ("Ours (2020)", RECIPES["paper"]), "prunetrain": ("PruneTrain (2019)", theirs)}
    monkeypatch.setattr(Digits, "paper_recipes", {name: PaperRecipe(*paper) for name, paper in papers.items()})
    fields = {"methods": "dense,prunetrain", "tasks": "digits", "preset": "paper", "seeds": (0,), "device": "cpu"}
    suite = SuiteSpec(**fields, dtype="float32", data_root=str(tmp_path), models="resnet9[width=0.125]")
    assert {trial.recipe_source for trial in plan(suite)} == {"Ours (2020)"}
    (line,) = recipe_lines(plan(suite))
    assert line == (
        "digits: every method uses the recipe of Ours (2020); --recipe prunetrain selects that of another method's "
        "paper, for all methods"
    )
    chosen = dataclasses.replace(suite, recipe="prunetrain", overrides={"epochs": 3, "batch_size": 32})
    trials = plan(chosen)
    assert {trial.recipe_source for trial in trials} == {"PruneTrain (2019); changed: epochs=3"}
    assert {trial.recipe["drop_last"] for trial in trials} == {False}
    assert {repr(trial.recipe["epochs"]) for trial in trials} == {"3"}  # an integer stays one, with the id that it had
    assert recipe_lines(trials) == ["digits: every method uses the recipe of PruneTrain (2019); changed: epochs=3"]
    assert not {trial.hash for trial in trials} & {trial.hash for trial in plan(suite)}
    with pytest.raises(UsageError, match=r"--recipe 'prunetrian': task digits has no such recipe; did you mean"):
        plan(dataclasses.replace(suite, recipe="prunetrian"))
    with pytest.raises(UsageError, match="belongs to preset paper, not quick; use --preset paper"):
        plan(dataclasses.replace(suite, recipe="prunetrain", preset="quick"))
    assert {trial.recipe_source for trial in plan(dataclasses.replace(suite, preset="quick"))} == {""}


def test_another_optimizer_switches_the_momentum_of_sgd_off():
    nesterov = dataclasses.replace(RECIPE, nesterov=True)
    assert nesterov.changed(optimizer="adamw") == dataclasses.replace(RECIPE, nesterov=False, optimizer="adamw")
    assert nesterov.changed(epochs=5).nesterov
    with pytest.raises(ValueError, match=r"recipe\.nesterov is of SGD; with recipe\.optimizer=adamw set it to false"):
        nesterov.changed(optimizer="adamw", nesterov=True)


def test_a_reader_sees_at_most_30_fields_at_once_and_sets_each_by_its_own_name():
    assert len(dataclasses.fields(Recipe)) <= 30
    assert RECIPE.changed(flip=False, translate=2).augmentation == Augmentation(flip=False, translate=2)
    assert RECIPE.changed(translate=2).changed(flip=False).augmentation.translate == 2
    with pytest.raises(TypeError, match="unexpected keyword argument 'flips'"):
        RECIPE.changed(flips=False)
