"""The number of forward passes that the inference speed is measured with, on a clock of the test's own."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from suite.engine.cost import clock


@pytest.mark.parametrize(("seconds", "passes"), [(0.001, 6), (0.3, 5), (0.6, 4)])
def test_slow_models_are_timed_in_fewer_passes(monkeypatch, seconds, passes):
    now, images = [0.0], torch.zeros(8, 1, 2, 2)
    model, called = nn.Identity(), []

    def predict(batch):
        assert not model.training
        assert not torch.is_grad_enabled()
        called.append(batch)
        now[0] += seconds if called[1:] else 100.0  # the pass that warms up is not timed

    trainer = SimpleNamespace(
        splits=SimpleNamespace(test=SimpleNamespace(epoch=lambda seed, size: [(images, None)])),
        recipe=SimpleNamespace(evaluation=SimpleNamespace(eval_batch_size=8)),
        model=model.train(),
        evaluation=SimpleNamespace(predict=predict),
        device=torch.device("cpu"),
    )
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    assert clock.images_per_second(trainer) == pytest.approx(8 / seconds)
    assert len(called) == passes
