"""Counted cost: FLOPs by product and column, and memory."""

import dataclasses

import pytest
from small_methods import ChannelTopK, Nothing, OwnBackend, RandomChannels
from small_training import RECIPE, small_trainer


def test_ledger_counts_each_product_and_none_for_the_first_data_gradient():
    trainer = small_trainer(ChannelTopK(), dataclasses.replace(RECIPE, epochs=1))
    trainer.fit()
    macs = {"0": 216 * 64, "3.branch.0": 576 * 64, "3.branch.3": 576 * 64, "4": 576 * 64, "8": 32}
    dense = 2 * 64 * sum(macs[name] * (2 if name == "0" else 3) for name in macs)
    assert trainer.ledger.train_flops["dense"] == dense
    assert trainer.ledger.train_flops["current"] == dense
    skipped = 2 * 64 * 0.75 * sum(macs[name] * (1 if name == "0" else 2) for name in macs if name != "8")
    assert trainer.ledger.train_flops["effective"] == pytest.approx(dense - skipped)
    assert trainer.ledger.train_flops["executed"] == pytest.approx(dense - skipped)
    assert trainer.ledger.inference_flops() == 2 * sum(macs.values())


def test_masked_emulation_executes_everything_while_a_backend_says_what_it_did():
    trainer = small_trainer(OwnBackend(), dataclasses.replace(RECIPE, epochs=1))
    trainer.fit()
    flops = trainer.ledger.train_flops
    assert flops["effective"] == flops["current"] == flops["dense"]
    assert flops["executed"] < flops["current"]
    assert trainer.hooks.method.backend.calls["dgrad"] == 4 * 4  # four steps, four layers below the first
    masked = small_trainer(RandomChannels(), dataclasses.replace(RECIPE, epochs=1))
    masked.fit()
    assert masked.ledger.train_flops["executed"] == masked.ledger.train_flops["current"]


def test_peak_memory_counts_saved_tensors_parameters_gradients_and_momentum():
    trainer = small_trainer(Nothing(), dataclasses.replace(RECIPE, epochs=1))
    trainer.fit()
    parameters = sum(p.numel() for p in trainer.model.parameters()) * 4
    assert trainer.progress.peak_memory_bytes > 3 * parameters + 16 * 8 * 64 * 4 * 4
