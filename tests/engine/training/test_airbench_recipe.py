"""The recipe of airbench94: a training by hand, its FLOPs, phases, and epochs of which the last is a part of one."""

import dataclasses
import math
import re

import pytest
import torch
import torch.nn.functional as F
from small_methods import Nothing
from small_training import RECIPE, SHAPE, SmallBatches, assert_it_resumes, fitted

from suite.engine.cost.flops import PRODUCTS, count_layers
from suite.engine.training.trainer import Trainer, layers_by_phase
from suite.errors import UsageError
from suite.method import Method, ReconfigPlan
from suite.recipe import Phase, Recipe
from suite.task import Splits
from tasks.models.airbench import airbench

IMAGES, SIDE = 80, 12  # five steps of 16
AIRBENCH = Recipe(
    epochs=2.3, batch_size=16, eval_batch_size=32, learning_rate=0.5, lr_start=0.2, lr_end=0.07, peak_at=3 / 12,
    momentum=0.85, nesterov=True, weight_decay=0.002, relative_decay=True, norm_bias_lr=64.0, label_smoothing=0.2,
    lookahead_steps=3, lookahead_after=1.0, freeze=("whiten.bias",), freeze_after=1,
)  # fmt: skip


def batches(count, seed, **options):
    found = SmallBatches(count, seed, **options)
    found.images = F.pad(found.images, [(SIDE - SHAPE[1]) // 2] * 4).contiguous(memory_format=torch.channels_last)
    return found


def network():
    torch.manual_seed(0)
    return airbench(width=0.25, num_classes=4, input_shape=(3, SIDE, SIDE)).to(memory_format=torch.channels_last)


def airbench_trainer(method, recipe=AIRBENCH, **options):
    splits = Splits(train=batches(IMAGES, seed=1), test=batches(40, seed=2, shuffle=False))
    return Trainer(
        network(), method, recipe, splits, input_shape=(3, SIDE, SIDE), num_classes=4, seed=0,
        device=torch.device("cpu"), **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained():
    """A training by the recipe, and its records."""
    records = []
    trainer = airbench_trainer(Nothing(), on_epoch=records.append)
    trainer.fit()
    return trainer, records


def test_twelve_steps_equal_a_loop_written_by_hand(trained):
    trainer, records = trained
    model = network()
    biases = [parameter for name, parameter in model.named_parameters() if ".norm" in name and "bias" in name]
    others = [one for one in model.parameters() if one.requires_grad and all(one is not bias for bias in biases)]
    groups = [{"params": others, "weight_decay": 0.002 / 0.5}, {"params": biases, "weight_decay": 0.002 / (0.5 * 64)}]
    optimizer = torch.optim.SGD(groups, lr=1, momentum=0.85, nesterov=True)
    own = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    average, step, losses, bias = {}, 0, [], None
    for epoch in range(3):
        losses.append([])
        for images, labels in batches(IMAGES, seed=1).epoch(epoch, 16):
            if step == 12:
                break
            rate = 0.5 * (0.2 + 0.8 * (step / 12) / 0.25 if step < 3 else 1 - 0.93 * (step / 12 - 0.25) / 0.75)
            optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = rate, 64 * rate
            if step == 5:  # after one epoch
                model.whiten.bias.requires_grad_(False)
                bias = model.whiten.bias.clone()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.2)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
            step += 1
            if step == 6:
                average = {name: tensor.clone() for name, tensor in own.items()}
            elif average and step % 3 == 0:
                decay = 0.95**3 * (step / 12) ** 3
                for name, tensor in own.items():
                    tensor.copy_(average[name].lerp_(tensor, 1 - decay))
        for name, tensor in average.items():
            own[name].copy_(tensor)
    assert [record["steps"] for record in records] == [len(one) for one in losses] == [5, 5, 2]
    assert [record["train_loss"] for record in records] == pytest.approx([sum(one) / len(one) for one in losses])
    for name, tensor in own.items():
        assert torch.equal(trainer.model.state_dict()[name], tensor), name
    assert bias.abs().sum() > 0
    assert torch.equal(trainer.model.whiten.bias, bias)


@pytest.mark.parametrize(("width", "petaflops"), [(1.0, 0.336), (0.5, 0.092)])
def test_flops_are_those_that_were_counted_by_hand(width, petaflops):
    recipe = dataclasses.replace(AIRBENCH, epochs=9.9, batch_size=1024, freeze_after=3)
    model = airbench(width=width)
    built = layers_by_phase(model, recipe, (3, 32, 32))
    assert list(built) == [Phase(None, True)]
    assert model.whiten.bias.requires_grad
    assert not layers_by_phase(model, dataclasses.replace(recipe, freeze=(), freeze_after=0), (3, 32, 32))
    steps = [recipe.steps_in(epoch, 48) for epoch in range(recipe.whole_epochs)]
    assert (sum(steps[:3]), sum(steps)) == (144, 476)
    both = [
        sum(layer.flops(product) for layer in layers.values() for product in PRODUCTS)
        for layers in (count_layers(model, (3, 32, 32)), built[Phase(None, True)])
    ]
    assert round(1024 * (144 * both[0] + 332 * both[1]) / 1e15, 3) == petaflops


class Cuts(Method):
    """Removes channels after the second epoch, when the bias is frozen."""

    def reconfigure(self, ctx):
        return ReconfigPlan(kept={"groups.0.conv1": list(range(8))}) if ctx.epochs_done == 2 else None


class BeginsAgain(Method):
    """Begins the schedule again after the second epoch, so that the bias is trained once more."""

    def reconfigure(self, ctx):
        return ReconfigPlan(restart=True) if ctx.epochs_done == 2 else None


WITHOUT_LOOKAHEAD = dataclasses.replace(AIRBENCH, lookahead_steps=0)


def test_a_training_with_a_frozen_parameter_and_a_cut_resumes_bit_for_bit():
    assert_it_resumes(lambda **callbacks: airbench_trainer(Cuts(), WITHOUT_LOOKAHEAD, **callbacks), after=[1, 2])


def test_a_restart_trains_the_frozen_parameter_again_and_resumes_bit_for_bit():
    _, records, _ = assert_it_resumes(
        lambda **callbacks: airbench_trainer(BeginsAgain(), WITHOUT_LOOKAHEAD, **callbacks), after=[2, 3]
    )
    flops = [record["step_flops"]["dense"] for record in records]
    assert [record["steps"] for record in records] == [5, 5, 5, 5, 2]
    assert flops[0] == flops[2] > flops[1] == flops[3] == flops[4]


def test_freezing_begins_an_interval_with_fewer_data_gradients(trained):
    trainer, records = trained
    second = trainer.ledger.built[Phase()]["groups.0.conv1"].flops("dgrad")
    before, after, last = (record["step_flops"]["dense"] for record in records)
    assert (before - after, last) == (16 * second, after)
    assert second > 0
    intervals = {(row["first_epoch"], row["steps"]) for row in trainer.ledger._rows}
    assert intervals == {(1, 5)}
    assert trainer.model.whiten.bias.grad is None


@pytest.mark.parametrize(
    ("epochs", "steps"), [(9.9, [48] * 9 + [44]), (9.1, [48] * 9 + [5]), (1.5, [48, 24]), (7, [48] * 7)]
)
def test_the_last_epoch_may_be_a_part_of_one(epochs, steps):
    recipe = dataclasses.replace(RECIPE, epochs=epochs)
    assert [recipe.steps_in(epoch, 48) for epoch in range(recipe.whole_epochs)] == steps
    assert sum(steps) == math.ceil(round(48 * epochs, 6))
    assert recipe.length(48) == sum(steps) / 48


def test_an_integer_number_of_epochs_is_stored_as_one():
    assert repr(dataclasses.replace(RECIPE, epochs=7.0).fields()["epochs"]) == "7"
    assert dataclasses.replace(RECIPE, epochs=7.5).fields()["epochs"] == 7.5


def test_progress_ends_with_one_and_hooks_run_after_the_part_of_an_epoch():
    seen = []

    class Watches(Method):
        def on_epoch_end(self, ctx):
            seen.append((ctx.epochs_done, ctx.epochs, round(ctx.progress * 10, 6)))

    trainer, _ = fitted(Watches(), dataclasses.replace(RECIPE, epochs=2.5))
    assert seen == [(1, 3, 4.0), (2, 3, 8.0), (3, 3, 10.0)]
    assert trainer.ctx.step == 10


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("whiten.bia", "which is no trained parameter; did you mean 'whiten.bias'?"),
        ("whiten.weight", "which is no trained parameter"),
        ("classifier.weight", "the weights of a layer; only others can be frozen"),
    ],
)
def test_a_name_that_cannot_be_frozen_is_refused(name, reason):
    with pytest.raises(UsageError, match=rf"^recipe.freeze names '{name}', {re.escape(reason)}"):
        airbench_trainer(Nothing(), dataclasses.replace(AIRBENCH, freeze=(name,)))
