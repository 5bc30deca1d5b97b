"""A batch that grows as the network shrinks, in the training loop."""

import copy
import dataclasses

import pytest
import torch
from small_methods import Shrinks
from small_training import RECIPE, Checkpoints, small_net, small_trainer, without_times
from torch import nn

from methods.prunetrain import PruneTrain
from suite.method import ReconfigPlan


@pytest.mark.parametrize(("dtype", "micro_batches"), [(torch.float32, 1), (torch.bfloat16, 2)])
def test_a_training_with_a_growing_batch_needs_no_more_memory_than_its_start(dtype, micro_batches):
    records, peaks, states = [], [], Checkpoints()

    def trainer(on_epoch):
        recipe = dataclasses.replace(RECIPE, batch_size=32, micro_batches=micro_batches)
        method = PruneTrain(interval=1, threshold=0.4, dynamic_batch="start")
        return small_trainer(method, recipe, dtype=dtype, on_epoch=on_epoch)

    whole = trainer(records.append)

    def keep(state):
        states.keep(state)
        peaks.append(whole.progress.peak_memory_bytes)
        whole.progress.peak_memory_bytes = 0  # so that each epoch's own is seen

    whole.on_checkpoint = keep
    whole.fit()
    assert [record["batch_size"] for record in records] == [32, 64, 64]
    assert max(peaks[1:]) <= peaks[0]
    assert records[2]["params"] < records[0]["params"] or records[0]["params"] < 1000
    rates = [record["learning_rate"] for record in records]
    assert rates[1] > rates[0]  # doubled with the batch, although the schedule falls

    again = []
    resumed = trainer(again.append)
    resumed.load_state_dict(states[0])
    resumed.fit()
    assert [without_times(record) for record in again] == [without_times(record) for record in records[1:]]


def test_a_batch_of_all_images_is_not_said_to_be_too_small(caplog):
    recipe = dataclasses.replace(RECIPE, drop_last=False)
    small_trainer(Shrinks(), recipe, train_images=20).fit()  # batches of 16, then of 32, which is more than there are
    assert not [record for record in caplog.records if "the method asked for" in record.getMessage()]


def test_a_measurement_leaves_the_training_as_it_was():
    class Dropping(nn.Sequential):
        def __init__(self):
            super().__init__(*small_net()[:2], nn.Dropout(0.5), *small_net()[2:])

    trainer = small_trainer(PruneTrain(), model=Dropping())
    before, random = copy.deepcopy(trainer.model.state_dict()), torch.get_rng_state()
    small = trainer.ctx.memory_estimate(ReconfigPlan(batch_size=16))
    assert trainer.ctx.memory_estimate(ReconfigPlan(batch_size=32)) > small
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model.state_dict().items())
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
