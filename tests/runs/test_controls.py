"""Tests of control trials: which ones `--controls` adds, in what order, and that they are ordinary trials."""

import torch
from small_training import small_trainer

from methods.dense import Dense
from suite.runs.planning import plan
from suite.runs.spec import SuiteSpec


def planned(methods, **changes):
    fields = {"tasks": "digits", "preset": "smoke", "seeds": (0,), "device": "cpu", "dtype": "float32", "data_root": ""}
    return plan(SuiteSpec(methods=methods, **(fields | changes)))


def test_a_repetition_of_dense_has_its_own_id_and_the_first_has_the_earlier_one():
    first, second = planned("dense,dense[repeat=1],dense[repeat=2]")
    # The parameters without `repeat` are those of trials from before it existed.
    assert (first.label, first.parameters) == ("dense", {"match": ""})
    assert (second.label, second.parameters) == ("dense[repeat=2]", {"match": "", "repeat": 2})
    assert first.hash != second.hash


def test_a_repetition_of_dense_is_the_same_training():
    trainers = [small_trainer(Dense(repeat=number)) for number in (1, 2)]
    for trainer in trainers:
        trainer.fit()
    for one, other in zip(*(trainer.ctx.model.parameters() for trainer in trainers), strict=True):
        assert torch.equal(one, other)
