"""Statistics of batch normalisation that are estimated again after the training."""

import csv
import dataclasses
import io

import pytest
import torch
from small_methods import Nothing, WeightMask
from small_training import RECIPE, SHAPE, SmallBatches, fitted, small_trainer, without_times
from stopwatches import FakeTime
from torch import nn

from suite.engine.cost.flops import count
from suite.errors import UsageError

RECIPE = dataclasses.replace(RECIPE, epochs=2)
PRECISE = dataclasses.replace(RECIPE, precise_bn=30)  # two batches of 16


@pytest.mark.parametrize(
    ("method", "changed", "dtype"),
    [
        (Nothing, {"micro_batches": 2}, torch.bfloat16),
        (Nothing, {"mixup": 0.4, "ema": 0.9}, torch.float32),
        (WeightMask, {}, torch.float32),
    ],
)
def test_statistics_are_those_of_batches_of_the_next_epoch_under_the_final_weights(method, changed, dtype):
    trainer, records = fitted(method(), dataclasses.replace(PRECISE, **changed), dtype=dtype)
    plain, plain_records = fitted(method(), dataclasses.replace(RECIPE, **changed), dtype=dtype)
    assert all(map(torch.equal, trainer.model.parameters(), plain.model.parameters()))
    assert records[-1]["test_loss"] == trainer.evaluation.record(trainer.splits)["test_loss"]
    trainer.model.train()
    outputs, last = [], trainer.model[3].branch[4]
    last.register_forward_pre_hook(lambda norm, inputs: outputs.append(inputs[0].float()))
    batches = [images for images, _ in SmallBatches(64, seed=1).epoch(2, 16)][:2]
    found = last.running_mean.clone(), last.running_var.clone()
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        for images in batches:
            for part in images.chunk(changed.get("micro_batches", 1)):
                trainer.model(part)
    torch.testing.assert_close(found[0], torch.stack([one.mean((0, 2, 3)) for one in outputs]).mean(0))
    torch.testing.assert_close(found[1], torch.stack([one.var((0, 2, 3)) for one in outputs]).mean(0))
    assert last.momentum == 0.1
    assert [without_times(one) for one in records[:-1]] == [without_times(one) for one in plain_records[:-1]]
    assert records[-1]["test_loss"] != plain_records[-1]["test_loss"]


def test_the_time_of_the_passes_is_that_of_a_reconfiguration(monkeypatch):
    """Only the passes take time here, by a clock that nothing else advances."""
    time = FakeTime()
    monkeypatch.setattr("suite.engine.cost.clock.time", time)
    monkeypatch.setattr("suite.engine.training.trainer.estimate_statistics", lambda *_: time.sleep(3.0))
    trainer, _ = fitted(Nothing(), dataclasses.replace(PRECISE, epochs=1))
    assert {name: seconds for name, seconds in trainer.clock.seconds.items() if seconds} == {"reconfigure": 3.0}


def test_the_passes_count_as_flops_of_the_training_and_not_of_its_steps():
    (trainer, (*_, last)), (plain, (*_, before)) = fitted(Nothing(), PRECISE), fitted(Nothing(), RECIPE)
    forward = sum(layer.flops("forward") for layer in count(plain.model, SHAPE).layers.values())
    assert forward > 0
    added = {variant: flops - before["train_flops"][variant] for variant, flops in last["train_flops"].items()}
    assert added == {"dense": 0, "current": 32 * forward, "effective": 32 * forward, "executed": 32 * forward}
    assert last["step_flops"] == before["step_flops"]
    rows, expected = (list(csv.DictReader(io.StringIO(one.ledger.to_csv(2)))) for one in (trainer, plain))
    assert [row["forward_executed"] for row in rows] == [row["forward_executed"] for row in expected]


def test_a_smaller_last_batch_is_left_out():
    whole = dataclasses.replace(RECIPE, drop_last=False, precise_bn=1000)
    first, second = (
        fitted(Nothing(), dataclasses.replace(whole, precise_bn=count), train_images=65)[0] for count in (64, 1000)
    )
    assert torch.equal(first.model[1].running_mean, second.model[1].running_mean)


def test_a_network_without_running_statistics_is_refused():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.LazyLinear(4)
    )
    model(torch.zeros(2, *SHAPE))
    with pytest.raises(UsageError, match=r"recipe\.precise_bn needs a network with batch normalisation"):
        small_trainer(Nothing(), PRECISE, model)
