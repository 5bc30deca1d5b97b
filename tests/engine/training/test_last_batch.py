"""A last batch that is smaller than the others (`recipe.drop_last=false`), in every way to run a step."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from small_methods import HashedChannels, Nothing, RandomChannels, Shrinks
from small_training import RECIPE, SmallBatches, assert_it_resumes, assert_same_weights, plain_net, small_trainer
from taped_graph import install
from test_trainer import trained

from suite.engine.training import steps

IMAGES, WHOLE = 70, 16  # an epoch is four batches of 16 and one of 6
EVERY = dataclasses.replace(RECIPE, drop_last=False)


def fitted(method, recipe, **options):
    records = []
    trainer = small_trainer(method(), recipe, train_images=IMAGES, on_epoch=records.append, **options)
    trainer.fit()
    return trainer, [trained(record) for record in records]


def assert_alike(one, other):
    assert_same_weights(one, other)
    assert one.ledger.to_csv(3) == other.ledger.to_csv(3)


def test_every_image_is_trained_on_and_counted_once():
    trainer, records = fitted(Nothing, EVERY)
    assert [record["steps"] for record in records] == [5, 5, 5]
    assert trainer.progress.samples == 3 * IMAGES
    dropped, less = fitted(Nothing, RECIPE)
    assert [record["steps"] for record in less] == [4, 4, 4]
    flops = [one.ledger.train_flops["current"] for one in (trainer, dropped)]
    assert flops[0] / flops[1] == pytest.approx(IMAGES / (4 * WHOLE))
    # What a step costs is said of a whole batch, whichever came last.
    assert [record["step_flops"] for record in records] == [record["step_flops"] for record in less]


def test_the_loss_of_an_epoch_is_the_mean_over_its_images():
    still = dataclasses.replace(EVERY, learning_rate=0.0, epochs=1)
    _, (record,) = fitted(Nothing, still)
    fresh = small_trainer(Nothing(), still, train_images=IMAGES)
    fresh.model.train()
    losses = [
        F.cross_entropy(fresh.model(images), labels, reduction="sum").item()
        for images, labels in SmallBatches(IMAGES, seed=1, drop_last=False).epoch(0, WHOLE)
    ]
    assert record["train_loss"] == pytest.approx(sum(losses) / IMAGES, rel=1e-6)


@pytest.mark.parametrize("parts", [4, 8])
def test_micro_batches_of_uneven_size_give_the_gradient_of_the_whole_batch(parts):
    """Six images in four parts are 2, 2, 1, 1; in eight they are six parts, and the term is added once."""
    gradients = []
    for count in (1, parts):
        trainer = small_trainer(WithTerm(), dataclasses.replace(EVERY, micro_batches=count))
        trainer.model.eval()  # normalisation by a micro-batch's own statistics would differ
        images, labels = next(iter(SmallBatches(6, seed=3).epoch(0, 6)))
        loss, term = trainer.step.gradients(images, labels)
        gradients.append([loss, term, *(parameter.grad for parameter in trainer.model.parameters())])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


class WithTerm(Nothing):
    def regularization(self, model, ctx):
        return 1e-2 * sum(parameter.square().sum() for parameter in model.parameters())


def test_a_resumed_training_goes_on_bit_for_bit():
    assert_it_resumes(lambda **callbacks: small_trainer(Shrinks(), EVERY, train_images=IMAGES, **callbacks), after=[1])


def test_a_replayed_training_runs_its_last_batches_eagerly_bit_for_bit(monkeypatch):
    install(monkeypatch)
    recipe = dataclasses.replace(EVERY, epochs=2, micro_batches=2, clip_norm=1.0)
    eager, expected = fitted(HashedChannels, recipe)
    replayed, records = fitted(HashedChannels, dataclasses.replace(recipe, execution="cuda_graph"))
    assert records == expected
    assert_alike(eager, replayed)
    assert replayed.step._graph.replays == 8  # the whole batches of two epochs, captured once


def test_a_compiled_training_compiles_each_size_once_and_ahead(caplog, monkeypatch):
    monkeypatch.setattr(steps, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    recipe = dataclasses.replace(EVERY, micro_batches=2, epochs=2)
    eager, expected = fitted(RandomChannels, recipe, model=plain_net())
    compiled = dataclasses.replace(recipe, execution="compile")
    trainer, records = fitted(RandomChannels, compiled, model=plain_net())
    assert not [record for record in caplog.records if record.name.startswith("suite")]  # none in training time
    assert records == expected
    assert_alike(eager, trainer)
    assert len(trainer.step._prepared) == 2
