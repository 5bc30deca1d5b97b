"""PruneTrain's figures, computed from made-up records and from a small network."""

from __future__ import annotations

import pytest
import torch
from small_trials import recorded

from reports.papers.networks import cut_again
from reports.papers.over_epochs import communication, communication_saved, lost_in_first_half
from suite.choices import build_model
from suite.engine.cost.flops import count_model
from suite.engine.network.model_files import save_model
from suite.measure.calls import call_in_subprocess

SHAPE = (3, 32, 32)


def test_figure_2_knows_when_flops_were_lost():
    def trial(*shares):
        epochs = tuple({"epoch": 1 + at, "step_flops": {"current": one, "dense": 1.0}} for at, one in enumerate(shares))
        return recorded(epochs=epochs)

    assert lost_in_first_half(trial(1.0, 0.9, 0.7, 0.6)) == {"lost_in_first_half": pytest.approx(0.75)}
    assert lost_in_first_half(trial(1.0, 1.0)) == {}


def test_gates_cut_what_the_union_keeps(tmp_path):
    torch.manual_seed(0)
    model = build_model("resnet9[width=0.0625]", SHAPE, 10)
    (dead,) = (layer for name, layer in model.named_modules() if name == "residual2.branch.block2.conv")
    dead.weight.data[:2] = 0.0  # outputs at a node, which other layers still give
    path = tmp_path / "model.pt"
    save_model(path, model, name="resnet9[width=0.0625]", num_classes=10, input_shape=SHAPE, reconfigurations=[])
    union, gated = (cut_again(str(path), 1e-4, gating, SHAPE, 10) for gating in (False, True))
    costs = [count_model(one, SHAPE)["inference_flops"] for one in (model, union, gated)]
    assert costs[2] < costs[1] == costs[0]
    assert [any("scatter_index" in name for name, _ in one.named_buffers()) for one in (union, gated)] == [False, True]
    images = torch.randn(2, *SHAPE)
    torch.testing.assert_close(gated(images), model.eval()(images), rtol=1e-4, atol=1e-5)


def test_what_is_timed_apart_says_where_and_fails_by_its_last_line(tmp_path):
    arguments = {"files": [str(tmp_path / "model.pt")], "dtype": "float32", "shape": SHAPE, "batch": 2, "device": "cpu"}
    with pytest.raises(RuntimeError, match=r"images_per_second failed: .*no such file"):
        call_in_subprocess("reports.papers.timed_calls:images_per_second", arguments, "cpu")


def test_an_epoch_sends_the_gradients_of_the_network_that_it_trained():
    epochs = tuple(
        {"epoch": epoch, "steps": steps, "params": params}
        for epoch, (steps, params) in enumerate(((4, 60), (4, 60), (2, 30)), start=1)
    )
    trial = recorded({"params_dense": 100}, epochs=epochs)
    assert [share for _, share in communication(trial)] == pytest.approx([100, 60, 30])
    assert communication_saved(trial) == pytest.approx(
        {"communication_saved": 1 - 1.9 / 3, "last_communication": 0.3, "last_gradients": 0.6}
    )
    assert communication_saved(recorded(epochs=epochs)) == {}
