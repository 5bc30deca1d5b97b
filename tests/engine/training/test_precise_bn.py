"""Statistics of batch normalisation that are estimated again after the training."""

import csv
import dataclasses
import io

import pytest
import torch
from small_methods import Nothing
from small_training import RECIPE, SHAPE, SmallBatches, small_trainer, without_times

from suite.engine.cost.flops import count
from suite.method import Method, ReconfigPlan

PRECISE = dataclasses.replace(RECIPE, precise_bn=30)  # two batches of 16


class ChangesLast(Method):
    """Changes the network at the end of the last epoch, which begins a new interval of the ledger."""

    def reconfigure(self, ctx):
        return ReconfigPlan(batch_size=16) if ctx.epochs_done == ctx.epochs else None


def fitted(recipe, method):
    records = []
    trainer = small_trainer(method, recipe, on_epoch=records.append)
    trainer.fit()
    return trainer, records


def test_statistics_are_those_of_the_first_batches_of_another_epoch_under_the_final_weights():
    trainer, records = fitted(PRECISE, Nothing())
    plain, plain_records = fitted(RECIPE, Nothing())
    for one, other in zip(trainer.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)
    batches = [images for images, _ in SmallBatches(64, seed=1).epoch(3, 16)][:2]
    outputs = [trainer.model[0](images) for images in batches]
    norm = trainer.model[1]
    torch.testing.assert_close(norm.running_mean, sum(one.mean((0, 2, 3)) for one in outputs) / 2)
    torch.testing.assert_close(norm.running_var, sum(one.var((0, 2, 3)) for one in outputs) / 2)
    assert norm.momentum == plain.model[1].momentum
    assert [without_times(one) for one in records[:-1]] == [without_times(one) for one in plain_records[:-1]]
    assert records[-1]["test_loss"] != plain_records[-1]["test_loss"]
    assert records[-1]["test_loss"] == trainer.evaluation.record(trainer.splits)["test_loss"]
    assert trainer.clock.seconds["reconfigure"] > plain.clock.seconds["reconfigure"]


@pytest.mark.parametrize("method", [Nothing, ChangesLast])
def test_the_forward_passes_are_counted_in_every_table(method):
    trainer, (*_, last) = fitted(PRECISE, method())
    plain, (*_, before) = fitted(RECIPE, method())
    forward = sum(layer.flops("forward") for layer in count(plain.model, SHAPE).layers.values())
    assert forward > 0
    for variant, flops in last["train_flops"].items():
        assert flops - before["train_flops"][variant] == 32 * forward
        rows = list(csv.DictReader(io.StringIO(trainer.ledger.to_csv(3))))
        assert sum(float(row[f"{p}_{variant}"]) for row in rows for p in ("forward", "dgrad", "wgrad")) == flops
        assert all(int(row["first_epoch"]) <= int(row["last_epoch"]) for row in rows)
    assert last["step_flops"] == before["step_flops"]
