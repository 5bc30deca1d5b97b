"""Tests of the benchmark of gradients that skip, on tiny layers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from benchmarks import gradients
from benchmarks.measured import Results
from kernels.compressed.dispatch import available

pytestmark = pytest.mark.skipif(not available(torch.device("cpu")), reason="no compiled kernels that skip")
MODEL = "resnet9[width=0.0625]"


@pytest.fixture
def typed(monkeypatch, tmp_path):
    """Type options, and return the file of the results."""
    monkeypatch.setattr("sys.argv", ["gradients", "--models", MODEL, "--batch-size", "2", "--pairs", "2",
                                     "--json", str(tmp_path / "found.json")])  # fmt: skip
    return tmp_path / "found.json"


def test_a_run_prints_and_saves_every_layer(typed, capsys):
    gradients.main()
    found = json.loads(typed.read_text())["results"]
    assert len(found) == 6 * 2 * 2 * 2  # layers, products, ratios, types
    for one in found.values():
        assert one["compress_s"] > 0
        assert one["dense_s"] > 0
        assert 0 < one["low"] <= one["median"] <= one["high"]
    two = next(one for name, one in found.items() if "(16 to 16, 3x3, 16x16)" in name)
    assert two["layers"] == ["residual1.branch.block1.conv", "residual1.branch.block2.conv"]
    printed = capsys.readouterr().out
    assert f"{MODEL}, dgrad, down.conv (8 to 16, 5x5, stride 2, 32x32): 1:4 float32 / dense" in printed
    assert f"{MODEL}, wgrad, all layers in their fastest type, ms: dense" in printed


def test_sums_count_a_shape_as_often_as_it_occurs_in_its_fastest_type(monkeypatch, capsys):
    seconds = np.array([[[0.004, 9, 9, 0.002], [0.003, 9, 9, 0.005]]])  # of two types, with one ratio
    monkeypatch.setattr(gradients, "measure", lambda *given: seconds.repeat(2, axis=0))
    options = type(
        "Typed", (), {"ratios": [gradients.ratio("1:4")], "dtypes": gradients.DTYPES, "batch_size": 2, "pairs": 2}
    )
    gradients.measure_model(MODEL, options, Results(torch.device("cpu"), None))
    assert f"{MODEL}, dgrad, all layers in their fastest type, ms: dense 24.0, 1:4 16.0" in capsys.readouterr().out


def test_a_wrong_product_is_not_timed(monkeypatch, typed):
    right = gradients.data_gradient
    monkeypatch.setattr(gradients, "data_gradient", lambda *given: right(*given).mul_(1.05))
    monkeypatch.setattr(gradients, "interleaved_times", lambda *given: pytest.fail("it is timed"))
    with pytest.raises(gradients.WrongProduct, match=r"down.conv: dgrad at 1:4 in torch.float32: relative error 0.05"):
        gradients.main()


@pytest.mark.parametrize("dtype", gradients.ERRORS, ids=str)
@pytest.mark.parametrize("product", gradients.PRODUCTS)
def test_the_error_is_far_below_its_bound(dtype, product):
    for _, layer in gradients.layers(MODEL, 2):
        assert layer.to(dtype).check(product, gradients.ratio("2:16")) < gradients.ERRORS[dtype] / 2


def test_layers_have_the_geometry_of_the_network():
    found = dict(gradients.layers("resnet18", 1))
    assert sum(len(layer.names) for layer in found.values()) == 20  # all but the first convolution, and the classifier
    sampled = found["layer2.0.downsample.0 (64 to 128, 1x1, stride 2, 56x56)"]
    assert sampled.names == ["layer2.0.downsample.0"]
    assert (sampled.size, tuple(sampled.grad.shape)) == ((56, 56), (1, 128, 28, 28))
    assert sampled.geometry.stride == (2, 2)
    assert found["fc (512 to 1000, linear)"].activation.shape == (1, 512)
