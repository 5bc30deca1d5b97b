"""The suite's training of a vision transformer equals a loop that shares no training code with it."""

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.evidence.plain_vit import Images, PlainLoop, PlainViT, recipe_of, summary, train
from methods.dense import Dense
from suite.choices import build_model
from suite.recipe import Recipe
from suite.task import Splits
from suite.training.trainer import Trainer

SHAPE, CLASSES, PATCH = (3, 16, 16), 10, 8
RECIPE = Recipe(
    epochs=4,
    batch_size=8,
    learning_rate=1e-3,
    optimizer="adamw",
    schedule="cosine",
    warmup_epochs=1,
    weight_decay=0.05,
    decay_norm_and_bias=False,
    label_smoothing=0.1,
    clip_norm=1.0,
)
STEPS = 4


class FixedBatches:
    """The same four batches in every epoch."""

    num_samples = STEPS * RECIPE.batch_size

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(self.num_samples, *SHAPE, generator=generator)
        self.labels = torch.arange(self.num_samples) % CLASSES

    def steps_per_epoch(self, batch_size):
        return STEPS

    def epoch(self, epoch, batch_size):
        return zip(self.images.split(batch_size), self.labels.split(batch_size), strict=True)


def same_weights(model, plain):
    """Return pairs of names: a parameter of the suite's network, and the part of the plain one that it equals."""
    layers = dict(plain.named_parameters())
    found = {
        "class_token": layers["class_token"],
        "positions": layers["positions"],
        "patches.weight": layers["embedding.weight"].view(192, 3, PATCH, PATCH),
        "patches.bias": layers["embedding.bias"],
    }
    names = {"norm1": "norm1", "norm2": "norm2", "attention.projection": "self_attn.out_proj"}
    names |= {"mlp.expand": "linear1", "mlp.reduce": "linear2"}
    for kind in ("weight", "bias"):
        for number in range(12):
            ours, theirs = f"blocks.{number}.", f"encoder.layers.{number}."
            for name, other in names.items():
                found[f"{ours}{name}.{kind}"] = layers[f"{theirs}{other}.{kind}"]
            parts = layers[f"{theirs}self_attn.in_proj_{kind}"].chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                found[f"{ours}attention.{name}.{kind}"] = part
        found[f"norm.{kind}"] = layers[f"encoder.norm.{kind}"]
        found[f"classifier.{kind}"] = layers[f"head.{kind}"]
    assert found.keys() == dict(model.named_parameters()).keys()
    return found


@pytest.fixture(scope="module")
def both():
    """Both trainings, with losses and learning rates by step, and the weights before them."""
    torch.manual_seed(0)
    model = build_model(f"vit_tiny[patch={PATCH}]", SHAPE, CLASSES).to(memory_format=torch.channels_last)
    plain, data = PlainViT(PATCH, SHAPE[1], CLASSES), FixedBatches()
    with torch.no_grad():
        for name, part in same_weights(model, plain).items():
            part.copy_(model.get_parameter(name))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    steps = []
    trainer = Trainer(
        model, Dense(), RECIPE, Splits(train=data, test=data), input_shape=SHAPE, num_classes=CLASSES, seed=0,
        device=torch.device("cpu"),
    )  # fmt: skip
    gradients = trainer.step.gradients

    def noted(*arguments):
        loss, term = gradients(*arguments)
        steps.append((loss.item(), trainer.optimizer.param_groups[0]["lr"]))
        return loss, term

    trainer.step.gradients = noted
    trainer.fit()

    loop = PlainLoop(plain, RECIPE, STEPS)
    plain_steps = [loop.step(*batch) for epoch in range(RECIPE.epochs) for batch in data.epoch(epoch, 8)]
    return trainer, steps, loop, plain_steps, before


def test_losses_and_learning_rates_of_all_steps_are_equal(both):
    _, steps, _, plain_steps, _ = both
    losses, rates = zip(*steps, strict=True)
    plain_losses, plain_rates = zip(*plain_steps, strict=True)
    assert rates == pytest.approx(plain_rates, rel=1e-12, abs=1e-15)
    assert len(rates) == 16
    assert rates[0] == 0.0 < rates[1] < max(rates) == rates[STEPS] == 1e-3
    assert losses == pytest.approx(plain_losses, rel=5e-6)
    assert losses[-1] < losses[0] - 0.5


def test_weights_are_equal_after_all_steps(both):
    trainer, _, loop, _, before = both
    worst = {}
    for name, part in same_weights(trainer.model, loop.model).items():
        if name.endswith("attention.key.bias"):
            continue  # it changes no output, so that its gradient, and its step of AdamW, consists of rounding errors
        ours = trainer.model.get_parameter(name).detach()
        worst[name] = float((ours - part.detach()).norm() / (ours - before[name]).norm())
    assert max(worst.values()) < 3e-4, max(worst, key=worst.get)  # of what training changed; rounding: about 2e-5


def test_the_same_weights_decay(both):
    trainer, _, loop, _, _ = both
    model = trainer.model
    decays = {id(p): group["weight_decay"] for group in trainer.optimizer.param_groups for p in group["params"]}
    plain = {p.data_ptr(): group["weight_decay"] for group in loop.optimizer.param_groups for p in group["params"]}
    for name, part in same_weights(model, loop.model).items():
        base = part._base if part._base is not None else part
        assert decays[id(model.get_parameter(name))] == plain[base.data_ptr()], name
    assert set(decays.values()) == {0.0, 0.05}


def test_a_training_draws_shifted_and_mirrored_images_and_learns():
    labels = torch.arange(32) % 2
    images = torch.randn(32, *SHAPE, generator=torch.Generator().manual_seed(0)) + labels.view(-1, 1, 1, 1)
    both = Images(images, labels, images, labels)
    recipe = dataclasses.replace(RECIPE, translate=2, epochs=2, warmup_epochs=0)
    batches = list(both.batches(recipe, torch.Generator().manual_seed(0)))
    assert [len(batch) for batch, _ in batches] == [8] * 4
    padded = torch.nn.functional.pad(images, (2,) * 4)
    places = [(top, left, flip) for top in range(5) for left in range(5) for flip in (False, True)]
    seen = set()
    for image, label in ((image, label) for some, its in batches for image, label in zip(some, its, strict=True)):
        crops = {
            place: padded[:, :, place[0] : place[0] + 16, place[1] : place[1] + 16].flip((3,) if place[2] else ())
            for place in places
        }
        found = [
            (place, int(index))
            for place, crop in crops.items()
            for index in (crop == image).flatten(1).all(1).nonzero()
        ]
        assert len(found) == 1
        assert labels[found[0][1]] == label
        seen.add(found[0])
    assert {index for _, index in seen} == set(range(32))
    assert len({place for place, _ in seen}) > 15
    assert train(recipe, both, PATCH, 2, seed=0)["test_accuracy"] > 0.7


@pytest.mark.parametrize(("field", "value"), [("mixup", 0.2), ("optimizer", "sgd"), ("flip_tta", True), ("ema", 0.9)])
def test_a_recipe_that_the_plain_loop_does_not_follow_is_refused(field, value):
    assert recipe_of(SimpleNamespace(spec={"recipe": RECIPE.fields()})) == RECIPE
    with pytest.raises(ValueError, match=rf"recipe\.{field} is {value}; the plain loop has"):
        recipe_of(SimpleNamespace(spec={"recipe": RECIPE.fields() | {field: value}}))


def test_the_summary_has_the_difference_of_means_with_welchs_interval():
    suite = {"0": {"test_accuracy": 0.30, "train_loss": 2.0}, "1": {"test_accuracy": 0.34, "train_loss": 2.2}}
    plain = {"0": {"test_accuracy": 0.32, "train_loss": 2.1}, "1": {"test_accuracy": 0.36, "train_loss": 2.3}}
    last = summary(suite, plain, "what").splitlines()[-1]
    # Both standard deviations are 2.83 points, and t of 2 degrees of freedom is 4.303: 4.303 * 2.83 = 12.17.
    assert last == "suite - plain  accuracy -2.00 [-14.17, +10.17] points, loss -0.1000 [-0.7085, +0.5085]"
    assert "seed 0                30.00         32.00" in summary(suite, plain, "what")


TABLES = sorted((Path(__file__).parents[2] / "results").glob("*/plain_vit.txt"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name)
def test_the_committed_table_is_that_of_its_results_and_the_interval_covers_zero(path):
    text = path.read_text("utf-8")
    results = json.loads(path.with_suffix(".json").read_text("utf-8"))["results"]
    assert summary(results["suite"], results["plain"], text.splitlines()[0]) == text
    low, high = map(float, re.findall(r"accuracy \S+ \[(\S+), (\S+)\] points", text)[0])
    assert low < 0 < high
