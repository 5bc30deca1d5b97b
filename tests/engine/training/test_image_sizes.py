"""Training images whose size changes between epochs: sizes, counted FLOPs, and resumption."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io

import numpy as np
import pytest
import torch
from small_training import (
    CLASSES,
    RECIPE,
    Checkpoints,
    SmallBatches,
    assert_it_resumes,
    assert_same_weights,
    small_net,
    small_trainer,
)
from torch import nn

from methods.dense import Dense
from methods.prunetrain import PruneTrain
from methods.sdgp import SDGP
from suite.engine.cost.flops import PRODUCTS, count_layers
from suite.engine.training import method_runner
from suite.measure.steps import Steps
from suite.method import Method, OpPlan, ReconfigPlan
from suite.task import Splits
from tasks.images.augmentation import Normalization
from tasks.images.splits import DecodedImages
from tasks.pipeline import make_splits

SHAPE = (3, 16, 16)
GROWING = dataclasses.replace(RECIPE, epochs=4, train_sizes=(8, 16), size_milestones=(0.5,))


class Resized(SmallBatches):
    """`SmallBatches` at another size, which notes the size of each epoch."""

    def __init__(self, count, size, sizes, **options):
        super().__init__(count, seed=1, **options)
        self.size, self.sizes = size, sizes

    def epoch(self, epoch, batch_size):
        self.sizes.append(self.size)
        for images, labels in super().epoch(epoch, batch_size):
            yield nn.functional.interpolate(images, size=self.size), labels


def growing_trainer(method, recipe=GROWING, **options):
    trainer = small_trainer(method, recipe, input_shape=SHAPE, **options)
    sizes = []
    by_size = {size: Resized(64, size, sizes) for size in recipe.growing.train_sizes}
    test = Resized(40, SHAPE[1], [], shuffle=False)
    trainer.splits = Splits(Resized(64, SHAPE[1], sizes), test, train_by_size=by_size)
    return trainer, sizes


class Noted:
    """A split that notes the size of the images of each epoch."""

    def __init__(self, split, sizes):
        self.split, self.sizes = split, sizes
        self.num_samples, self.steps_per_epoch = split.num_samples, split.steps_per_epoch

    def epoch(self, epoch, batch_size):
        batches = list(self.split.epoch(epoch, batch_size))
        self.sizes.extend({images.shape[2] for images, _ in batches})
        return iter(batches)


def growing_trainer_of_images_in_memory(method, shrink_by, **options):
    """Return a trainer on the splits of an `ImageTask`, and the sizes of its training images."""
    random, sizes = np.random.RandomState(0), []
    arrays = [random.randint(0, 256, (count, SHAPE[1], SHAPE[2], 3)).astype(np.uint8) for count in (64, 40)]
    data = DecodedImages(arrays[0], np.arange(64) % CLASSES, arrays[1], np.arange(40) % CLASSES)
    recipe = dataclasses.replace(GROWING, shrink_by=shrink_by, translate=1, cutout=4)
    splits = make_splits(data, recipe, 0, torch.device("cpu"), Normalization.of(arrays[0]))
    by_size = {size: Noted(split, sizes) for size, split in splits.train_by_size.items()}
    trainer = small_trainer(method, recipe, input_shape=SHAPE, **options)
    trainer.splits = dataclasses.replace(splits, train_by_size=by_size)
    return trainer, sizes


def rows_of(trainer):
    return list(csv.DictReader(io.StringIO(trainer.ledger.to_csv(trainer.recipe.epochs))))


def training_flops(model, size):
    """Return the FLOPs of one training image."""
    return sum(cost.flops(product) for cost in count_layers(model, (3, size, size)).values() for product in PRODUCTS)


@pytest.mark.parametrize(
    "build",
    [
        growing_trainer,
        *(functools.partial(growing_trainer_of_images_in_memory, shrink_by=way) for way in ("resize", "crop")),
    ],
    ids=["batches", "resize", "crop"],
)
def test_flops_are_those_of_each_size(build):
    records = []
    trainer, sizes = build(Dense(), on_epoch=records.append)
    small, large = (training_flops(trainer.model, size) for size in GROWING.growing.train_sizes)
    trainer.fit()
    assert sizes == [8, 8, 16, 16]
    for epoch, expected in enumerate((small, 2 * small, 2 * small + large, 2 * small + 2 * large)):
        assert set(records[epoch]["train_flops"].values()) == {64 * expected}
    inference = sum(cost.flops("forward") for cost in count_layers(trainer.model, SHAPE).values())
    assert {record["inference_flops"] for record in records} == {inference}
    assert trainer.ledger.inference_flops_dense == inference
    rows = [row for row in rows_of(trainer) if row["layer"] == "0"]
    assert [(row["first_epoch"], row["last_epoch"], row["input"]) for row in rows] == [
        ("1", "2", "8x8"),
        ("3", "4", "16x16"),
    ]


def test_the_passes_measure_steps_of_a_single_size():
    recipe = dataclasses.replace(GROWING, epochs=2, train_sizes=(8,), size_milestones=())
    states = Checkpoints()
    trainer, _ = growing_trainer(Dense(), recipe, on_checkpoint=states.keep)
    trainer.fit()
    expected = recipe.batch_size * training_flops(trainer.model, 8)
    for state in (None, states[0]):
        again, sizes = growing_trainer(Dense(), recipe)
        if state is not None:
            again.load_state_dict(state)
        steps = Steps(again)
        for _ in range(2):
            steps()
        assert sizes == [8]
        assert steps.cost.executed == expected


def test_a_method_is_set_up_for_the_first_training_images():
    class Looking(Method):
        def setup(self, ctx):
            self.sizes = dict(ctx.spaces.input_sizes)

    method = Looking()
    growing_trainer(method)
    assert method.sizes["0"] == (8, 8)


class ReadsSpaces(Method):
    """Reads the index spaces in `setup`, or in its second step, when a layer follows a plan."""

    late: bool = False

    def setup(self, ctx):
        if not self.late:
            self.sizes = dict(ctx.spaces.input_sizes)

    def plan(self, name, layer):
        return OpPlan(weight_forward=lambda weight, site: weight * 0.5) if name == "0" else None

    def after_optimizer_step(self, ctx):
        if self.late and ctx.step == 1:
            random, plan = torch.get_rng_state(), ctx.layers["0"].op_plan
            self.sizes = dict(ctx.spaces.input_sizes)
            assert torch.equal(torch.get_rng_state(), random)
            assert ctx.layers["0"].op_plan is plan


def test_a_model_is_traced_when_its_index_spaces_are_first_read_and_trains_the_same(monkeypatch):
    traced, find = [], method_runner.find_index_spaces
    monkeypatch.setattr(method_runner, "find_index_spaces", lambda *args: traced.append(1) or find(*args))
    trainers = []
    for number, method in enumerate((Dense(), ReadsSpaces(), ReadsSpaces(late=True))):
        trainer, _ = growing_trainer(method)
        trainer.fit()
        assert len(traced) == number
        trainers.append(trainer)
    early, late = trainers[1:]
    assert dict(late.ctx.spaces) == dict(early.ctx.spaces)
    assert late.ctx.spaces.input_sizes == early.ctx.spaces.input_sizes != early.runner.method.sizes
    assert late.runner.method.sizes == early.runner.method.sizes
    assert_same_weights(late, early)


def test_operations_of_a_method_are_those_of_each_size():
    records = []
    trainer, _ = growing_trainer(
        SDGP(n=1, m=4, mode="magnitude"), dataclasses.replace(GROWING, epochs=2), on_epoch=records.append
    )
    trainer.fit()
    small, large = (record["step_overhead"] for record in records)
    assert large == 4 * small > 0


def test_a_reduced_network_is_counted_at_each_size_and_a_resumed_training_is_the_same():
    trained = []

    def build(**callbacks):
        trainer, sizes = growing_trainer(PruneTrain(interval=1, threshold=0.4), **callbacks)
        trained.append(sizes)
        return trainer

    trainer, *_ = assert_it_resumes(build, after=[1, 2, 3])
    assert trained == [[8, 8, 16, 16], [8, 16, 16], [16, 16], [16]]
    dense = training_flops(small_net(), 16)
    assert trainer.ledger.current == count_layers(trainer.model, SHAPE)
    last = [row for row in rows_of(trainer) if row["last_epoch"] == "4"]
    columns = {name: sum(float(row[f"{p}_{name}"]) for row in last for p in PRODUCTS) for name in ("dense", "current")}
    images = int(last[0]["samples"])
    assert columns["dense"] == images * dense
    assert columns["current"] < columns["dense"]


def test_a_training_that_starts_again_starts_with_the_first_size():
    class Restarting(Method):
        def reconfigure(self, ctx):
            return ReconfigPlan(restart=True) if ctx.epochs_done == 2 else None

    trainer, sizes = growing_trainer(Restarting(), dataclasses.replace(GROWING, epochs=2))
    trainer.fit()
    assert sizes == [8, 16, 8, 16]
