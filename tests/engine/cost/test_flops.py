"""Counted cost: FLOPs by product and column, overhead, memory; and the clock."""

import dataclasses
import io
import time

import pandas as pd
import pytest
import torch
from small_methods import ChannelTopK, Nothing, OwnBackend, RandomChannels, WeightMask
from small_training import RECIPE, fitted, small_trainer
from torch import nn

from suite.engine.cost.clock import Clock
from suite.engine.cost.flops import count_layers
from suite.method import Density, Method


def test_ledger_counts_each_product_and_none_for_the_first_data_gradient():
    trainer, _ = fitted(ChannelTopK(), dataclasses.replace(RECIPE, epochs=1))
    macs = {"0": 216 * 64, "3.branch.0": 576 * 64, "3.branch.3": 576 * 64, "4": 576 * 64, "8": 32}
    dense = 2 * 64 * sum(macs[name] * (2 if name == "0" else 3) for name in macs)
    assert trainer.ledger.train_flops["dense"] == dense
    assert trainer.ledger.train_flops["current"] == dense
    skipped = 2 * 64 * 0.75 * sum(macs[name] * (1 if name == "0" else 2) for name in macs if name != "8")
    assert trainer.ledger.train_flops["effective"] == pytest.approx(dense - skipped)
    assert trainer.ledger.train_flops["executed"] == pytest.approx(dense - skipped)
    assert trainer.ledger.inference_flops() == 2 * sum(macs.values())


def test_masked_emulation_executes_everything_while_a_backend_says_what_it_did():
    trainer, _ = fitted(OwnBackend(), dataclasses.replace(RECIPE, epochs=1))
    flops = trainer.ledger.train_flops
    assert flops["effective"] == flops["current"] == flops["dense"]
    assert flops["executed"] < flops["current"]
    # Four steps of the four layers below the first, and the check of all five layers' products before them.
    assert trainer.runner.method.backend.calls["dgrad"] == 4 * 4 + 5
    masked, _ = fitted(RandomChannels(), dataclasses.replace(RECIPE, epochs=1))
    assert masked.ledger.train_flops["executed"] == masked.ledger.train_flops["current"]


def test_peak_memory_counts_saved_tensors_parameters_gradients_and_momentum():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4, bias=False))
    trainer, _ = fitted(Nothing(), dataclasses.replace(RECIPE, epochs=1), model=model)
    # Kept for backward: the images, which the layer reads, and what the cross entropy keeps: log-probabilities, labels
    # and one number.
    kept = 16 * 192 * 4 + 16 * 4 * 4 + 16 * 8 + 4
    assert trainer.progress.peak_memory_bytes == 3 * 192 * 4 * 4 + kept


def test_overhead_is_in_the_table_by_layer_and_interval():
    class Costs(Method):
        def overhead(self, name, samples, ctx):
            return 2.0 * samples if name == "4" else 0.0

    trainer, _ = fitted(Costs(), dataclasses.replace(RECIPE, epochs=1))
    table = pd.read_csv(io.StringIO(trainer.ledger.to_csv(1))).set_index("layer")
    assert table["overhead"].to_dict() == {name: 128.0 if name == "4" else 0.0 for name in table.index}
    assert (table["steps"] == 4).all()
    assert (table["last_epoch"] == 1).all()


def test_a_change_that_fails_counts_no_interval_twice():
    trainer, _ = fitted(Nothing(), dataclasses.replace(RECIPE, epochs=1))
    trainer.ledger.close_interval(1)
    before = trainer.ledger.to_csv(1)
    trainer.ledger.close_interval(1)
    assert trainer.ledger.to_csv(1) == before
    assert before.count("\n") == 1 + 5


def test_an_evaluation_is_no_part_of_what_a_step_executed():
    trainer = small_trainer(WeightMask(), dataclasses.replace(RECIPE, epochs=1))
    trainer.evaluation.accuracy_and_loss(trainer.splits.test)
    assert trainer.ctx.layers["4"].meter.take() == Density()
    trainer.fit()
    assert trainer.ctx.layers["4"].meter.take() == Density()


def test_layers_that_are_used_twice_and_models_in_float64_are_counted():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.shared = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

        def forward(self, x):
            return self.shared(x.detach()) + self.shared(self.first(x)) + self.shared(x.detach())

    costs = count_layers(Twice().double(), (3, 4, 4))
    assert costs["shared"].macs == 3 * 9 * 16
    assert costs["shared"].has_dgrad
    assert not costs["first"].has_dgrad


def test_a_span_inside_another_is_counted_once(monkeypatch):
    moments = iter([0.0, 1.0, 3.0, 10.0])
    monkeypatch.setattr("suite.engine.cost.clock.time.perf_counter", lambda: next(moments))
    clock = Clock(torch.device("cpu"))
    with clock.span("train"), clock.span("compile"):
        pass
    assert (clock.seconds["train"], clock.seconds["compile"]) == (8.0, 2.0)


def test_clock_adds_what_an_exception_cut_short_and_training_has_reconfigurations_in_it():
    clock = Clock(torch.device("cpu"))

    def fail():
        with clock.span("train"):
            time.sleep(0.01)
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    with clock.span("reconfigure"):
        time.sleep(0.01)
    assert clock.seconds["train"] >= 0.01
    assert clock.seconds["reconfigure"] >= 0.01
    assert clock.training == clock.seconds["train"] + clock.seconds["reconfigure"]
