"""The gradient of SDGP's Fig. 5 against a step made by hand, and its loss scale from the trial to the page."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from reproduced_files import page
from small_trials import recorded, untrained
from torch import nn

from reports.data.estimates import Missing
from reports.papers import gradients
from reports.papers.contract import ReproductionData
from suite import registry
from suite.recipe import Recipe
from suite.trials.folder.records import TrialRecord

EPOCHS, STEPS, BATCH = 3, 7, 8


class Batches:
    """A split whose batch says which epoch it is of."""

    def epoch(self, epoch, batch_size):
        assert batch_size == BATCH
        generator = torch.Generator().manual_seed(epoch)
        while True:
            yield torch.randn(BATCH, 3, 6, 6, generator=generator), torch.arange(BATCH) % 4

    def steps_per_epoch(self, batch_size):
        return STEPS


class Task:
    """As much of a task as is asked for."""

    def load(self, data_copy, recipe, seed, device):
        return SimpleNamespace(train=Batches())


def spec(dtype):
    recipe = Recipe(epochs=EPOCHS, batch_size=BATCH, learning_rate=0.1, label_smoothing=0.3)
    return untrained(task="made-up", recipe=recipe.fields(), dtype=dtype)


@pytest.fixture
def model(monkeypatch):
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(16, 4))
    made = nn.Sequential(*layers).eval()
    get = registry.get
    monkeypatch.setattr(registry, "get", lambda kind, name: Task if name == "made-up" else get(kind, name))
    monkeypatch.setattr("reports.papers.gradients.load_model", lambda path: copy.deepcopy(made))
    return made


def test_it_is_the_gradient_of_the_step_that_would_come_next(model):
    captured = gradients.capture(spec("float32"), None, "cpu")
    images, labels = next(Batches().epoch(EPOCHS, BATCH))
    hand = model.train()
    inner = hand[1](hand[0](images))
    out = hand[2](inner).detach().requires_grad_()
    F.cross_entropy(hand[4](out.flatten(1)), labels, label_smoothing=0.3).backward()
    torch.testing.assert_close(captured.grad, out.grad)
    assert (captured.layer, captured.step, captured.loss_scale) == ("2", EPOCHS * STEPS, 1.0)
    assert captured.input_shape == inner.shape


def test_float16_has_the_loss_scale_of_the_trial(model):
    model[4].weight.data *= 1e-5  # its gradients are below what float16 holds without a scale
    exact = gradients.capture(spec("float32"), None, "cpu").grad
    bare = gradients.capture(spec("float16"), None, "cpu")
    scaled = gradients.capture(spec("float16"), None, "cpu", 65536.0)
    assert bare.grad.dtype == scaled.grad.dtype == torch.float16
    assert gradients.zeros(bare.grad) > 0.05
    assert gradients.zeros(scaled.grad) == 0
    assert scaled.loss_scale == 65536
    assert (scaled.grad.float() / 65536 - exact).norm() < 0.05 * exact.norm()


def test_a_scale_that_overflows_is_halved_as_in_training(model):
    captured = gradients.capture(spec("float16"), None, "cpu", 2.0**40)
    assert captured.grad.isfinite().all()
    assert 1 < captured.loss_scale < 2.0**40
    twice = gradients.capture(spec("float16"), None, "cpu", captured.loss_scale)
    assert twice.loss_scale == captured.loss_scale
    assert torch.equal(twice.grad, captured.grad)  # of one backward pass, and not the sum of those that overflowed


def trial(*records):
    return recorded(epochs=records)


def test_the_scale_is_that_of_the_last_epoch():
    records = {"epoch": 1, "loss_scale": 65536.0}, {"epoch": 2, "loss_scale": 4096.0}
    assert gradients.loss_scale(spec("float16"), trial(*records)) == 4096
    assert gradients.loss_scale(spec("bfloat16"), trial(*records)) == 1
    for without in (trial(), trial({"epoch": 1}), trial({"epoch": 1, "loss_scale": None})):
        assert isinstance(gradients.loss_scale(spec("float16"), without), Missing)


def outcome(tmp_path, dtype, *records):
    one = spec(dtype)
    folder = tmp_path / "trials" / one.trial_id
    folder.mkdir(parents=True)
    (folder / "model.pt").write_bytes(b"x")
    done = TrialRecord(spec=one, status="done", epochs=records)
    ran = ReproductionData(tmp_path, {"gradient": {"dense": (done,)}}, {one.trial_id: one}, "cpu")
    return page("sdgp-fig5").outcome(ran)


def test_a_float16_trial_without_its_scale_is_not_drawn(model, tmp_path):
    (line,) = outcome(tmp_path, "float16").comparisons
    assert "no loss scale" in line.ours.reason
