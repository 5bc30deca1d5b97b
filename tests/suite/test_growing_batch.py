"""A batch that grows as the network shrinks, in the training loop."""

import dataclasses

from small_training import RECIPE, small_trainer

from methods.prunetrain import PruneTrain


def test_a_training_with_a_growing_batch_needs_no_more_memory_than_its_start():
    records = []
    method = PruneTrain(interval=1, threshold=0.4, dynamic_batch="start")
    trainer = small_trainer(method, dataclasses.replace(RECIPE, batch_size=32), on_epoch=records.append)
    peaks = []
    trainer.on_checkpoint = lambda state: peaks.append(trainer.progress.peak_memory_bytes)
    trainer.fit()
    assert records[-1]["params"] < records[0]["params"] or records[0]["reconfigured"]
    assert [record["batch_size"] for record in records] == [32, 64, 64]
    rates = [record["learning_rate"] for record in records]
    assert rates[1] > rates[0]  # doubled with the batch, although the schedule falls
    assert peaks[-1] == peaks[0]  # the most is what the first step needed
