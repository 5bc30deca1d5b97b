"""Progressive resizing: the sizes of Composer's schedule, the training by hand, and what is refused."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from small_training import SHAPE, small_net
from small_trials import planned

from methods.progressive_resizing import ProgressiveResizing
from suite.choices import build_model
from suite.cli.preparation import rehearse
from suite.engine.cost.flops import PRODUCTS, count_layers
from suite.errors import UsageError
from suite.ops import apply
from suite.recipe import Recipe
from suite.trials.building import build_trainer, load_splits
from suite.trials.controls import dense_spec
from tasks.images.splits import epoch_generator

LONG = Recipe(epochs=1000, batch_size=16, learning_rate=0.1)


def fields(side=32, recipe=LONG, **parameters):
    return ProgressiveResizing(**parameters).recipe_fields(recipe, (3, side, side))


def composers_side(share, side, start=0.5, delay=0.5, full=0.2, step=4):
    """Return the side in Composer's code, in which a ramp rises between two shares and is rounded to pixels."""
    ramp = 0.0 if share < delay else min((share - delay) / (1 - full - delay), 1)
    return round(side * (start + (1 - start) * ramp) / step) * step


@pytest.mark.parametrize("side", [32, 48, 224])
@pytest.mark.parametrize("values", [{}, {"start": 0.75}, {"start": 0.3, "delay": 0.1, "full": 0.4}, {"delay": 0.0}])
def test_sizes_are_those_of_composer(side, values):
    step = 4 if side < 100 else 32
    recipe = dataclasses.replace(LONG, **fields(side, step=step, **values))
    for epoch in range(0, 1000, 3):
        share = epoch / 1000
        near = any(math.isclose(share, milestone, abs_tol=2e-3) for milestone in recipe.growing.size_milestones)
        assert near or recipe.growing.size_at(share) == composers_side(share, side, step=step, **values)
    assert recipe.growing.train_sizes[-1] == side


@pytest.mark.parametrize(
    ("values", "sizes", "milestones"),
    [
        ({}, (16, 20, 24, 28, 32), (0.5375, 0.6125, 0.6875, 0.7625)),
        ({"step": 16}, (16, 32), (0.65,)),
        ({"step": 12}, (12, 24, 32), (0.5375, 0.725)),
        ({"step": 20, "start": 0.9}, (20, 32), (0.5,)),
        ({"start": 1.0}, (32,), ()),
        ({"step": 100}, (32,), ()),
        ({"delay": 0.5, "full": 0.5}, (16, 32), (0.5,)),
        ({"delay": 0.0, "full": 1.0}, (32,), ()),
    ],
)
def test_the_full_size_comes_last_and_sizes_without_time_are_left_out(values, sizes, milestones):
    found = fields(**values)
    assert (found["train_sizes"], found["size_milestones"]) == (sizes, pytest.approx(milestones))
    dataclasses.replace(LONG, **found)


SMALL = {"train_images": 64, "test_images": 10, "batch_size": 16, "epochs": 5}
MODEL = "resnet9[width=0.125]"


def trial(methods="progressive_resizing", model=MODEL, **overrides):
    return planned(methods, tasks="cifar10", models=model, overrides=SMALL | overrides)[-1]


def by_hand(splits, recipe, sides):
    """Train 20 steps on windows of the images of full size, in plain torch."""
    torch.manual_seed(0)
    model = build_model(MODEL, (3, 32, 32), 10).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, weight_decay=5e-4)
    step = 0
    for epoch, side in enumerate(sides):
        generator = epoch_generator("window", seed=0, epoch=epoch)
        rows, columns = (torch.randint(0, 33 - side, (64,), generator=generator) for _ in range(2))
        for number, (images, labels) in enumerate(splits.train.epoch(epoch, 16)):
            if side < 32:
                corners = [each[16 * number : 16 * number + 16].tolist() for each in (rows, columns)]
                windows = zip(images, *corners, strict=True)
                images = torch.stack([one[:, row : row + side, column : column + side] for one, row, column in windows])
                images = images.contiguous(memory_format=torch.channels_last)
            optimizer.param_groups[0]["lr"] = recipe.learning_rate_at(step / 20)
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels, label_smoothing=recipe.label_smoothing).backward()
            optimizer.step()
            step += 1
    return model


def test_a_training_is_that_by_hand_bit_for_bit_and_its_flops_those_of_its_sizes(tmp_path):
    spec = trial()
    assert (spec.recipe["train_sizes"], spec.replaced["train_sizes"]) == ((16, 20, 24, 28, 32), ())
    assert spec.prunes is False
    splits, records = load_splits(spec), []
    trainer = build_trainer(spec, tmp_path, splits, on_epoch=records.append)
    trainer.fit()
    expected = by_hand(splits, spec.make_recipe(), sides := (16, 16, 16, 20, 32)).state_dict()
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    costs = [count_layers(trainer.model, (3, side, side)).values() for side in sides]
    flops = [64 * sum(cost.flops(product) for cost in layers for product in PRODUCTS) for layers in costs]
    assert records[-1]["train_flops"]["executed"] == sum(flops)


def test_dense_training_of_the_comparison_has_images_of_full_size():
    dense, own = planned("dense,progressive_resizing", tasks="cifar10", models=MODEL, overrides=SMALL)
    assert dense_spec(own) == dense
    assert dense.hash == planned("dense", tasks="cifar10", models=MODEL, overrides=SMALL)[0].hash


@pytest.mark.parametrize(
    ("methods", "overrides", "message"),
    [
        ("progressive_resizing", {"train_sizes": (16,)}, "the recipe has sizes of its own"),
        ("progressive_resizing[delay=0.9]", {}, "delay=0.9 and full=0.2 are together more"),
        ("progressive_resizing[ignore=prep]", {}, "ignore leaves none out"),
        ("progressive_resizing[start=0.1]", {}, "recipe.train_sizes"),  # a side of 4 pixels
    ],
)
def test_what_is_impossible_is_refused_when_the_command_is_planned(methods, overrides, message):
    with pytest.raises(UsageError, match=message):
        trial(methods, **overrides)


@pytest.mark.parametrize(("model", "smallest"), [("airbench[width=0.125]", 9), ("resnet9[width=0.125]", 11)])
def test_sizes_that_a_network_cannot_take_are_refused_before_training(model, smallest):
    with pytest.raises(
        UsageError, match=rf"the smallest are {smallest}x{smallest}; progressive.* sets the training size 8$"
    ):
        rehearse([trial("progressive_resizing[start=0.25]", model)])


def test_a_loop_of_ones_own_is_refused():
    with pytest.raises(UsageError, match=r"ProgressiveResizing only sets fields of the suite's recipes"):
        apply(small_net(), ProgressiveResizing(), input_shape=SHAPE, num_classes=4, epochs=3, batch_size=16)
