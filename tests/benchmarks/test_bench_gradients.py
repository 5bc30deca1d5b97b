"""Tests of the benchmark of gradients that skip, on tiny layers with three pairs."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.gradients import bench_gradients, bounds, measure, tables
from benchmarks.gradients.bounds import bound, moved_bytes
from benchmarks.gradients.layers import Operands, dense_product, networks
from kernels import PruneRule
from kernels.compressed.dispatch import available
from suite.method import Geometry

compiled = pytest.mark.skipif(not available(torch.device("cpu")), reason="no compiled kernels that skip")
MODEL = "resnet9[width=0.0625]"
TINY = ("--model", MODEL, "--batch", "2", "--pairs", "3", "--seconds", "1", "--layers", "reduce,classifier")


@pytest.fixture(autouse=True)
def small_squares(monkeypatch):
    """The peak is that of a small matrix product, which takes a minute in bfloat16 on a CPU without such units."""
    for module in (bounds, measure, bench_gradients):
        monkeypatch.setattr(module, "SIDE", 64)


def layers(model=MODEL, wanted=()):
    (network,) = networks(model, 2, wanted)
    return network.layers


@compiled
def test_a_run_prints_and_saves_every_layer_and_continues(tmp_path, capsys):
    path = tmp_path / "gradients.json"
    typed = (*TINY, "--json", str(path))
    assert bench_gradients.main(typed) == 0
    content = json.loads(path.read_text())
    keys = [key for key in content["found"] if key != bench_gradients.PEAKS]
    assert len(keys) == 2 * 2 * 2  # layers, products, ratios
    assert content["threads"] == torch.get_num_threads()
    printed = capsys.readouterr().out
    for key in keys:
        row = content["found"][key]
        assert row["pairs"] == 3
        assert row["load"] >= 0
        dense = {name: found["dense_ms"]["median"] for name, found in row["dtypes"].items()}
        assert row["faster_dense"] == min(dense, key=dense.get)
        for name, found in row["dtypes"].items():
            assert found["relative_error"] <= measure.ERRORS[bench_gradients.DTYPES[name]]
            assert 0 < found["share_of_compression"] < 1
            assert found["skip_ms"]["least"] <= found["skip_ms"]["median"]
            assert found["skip_bound"]["ms"] > 0
        assert printed.count(f"{row['label']:38} {row['n']:>2}:{row['m']:<2} {row['faster_dense']}*") >= 1

    # An interrupted run: the same command measures what is missing, and nothing else.
    lost = content["found"].pop(keys[1])
    path.write_text(json.dumps(content))
    assert bench_gradients.main(typed) == 0
    again = json.loads(path.read_text())["found"]
    assert {key: again[key] for key in keys if key != keys[1]} == {
        key: content["found"][key] for key in keys if key != keys[1]
    }
    assert again[keys[1]]["shape"] == lost["shape"]
    with pytest.raises(SystemExit) as ended:
        bench_gradients.main((*typed, "--mode", "random"))
    assert ended.value.code == 2
    assert "holds numbers of another run (mode: 'rescaled', now 'random')" in capsys.readouterr().err


@compiled
def test_a_wrong_product_is_not_timed_or_saved(monkeypatch, tmp_path, capsys):
    right = measure.data_gradient
    monkeypatch.setattr(measure, "data_gradient", lambda *given: right(*given).mul_(1.05))
    path = tmp_path / "gradients.json"
    assert bench_gradients.main((*TINY, "--products", "dgrad", "--json", str(path))) == 1
    printed = capsys.readouterr()
    assert (
        "WRONG reduce.conv: dgrad of 32 to 16, 3x3, padding 0, 8x8, 1:4, float32: relative error 0.05 exceeds 0.0001"
        in (printed.err)
    )
    assert printed.err.count("not timed") == 2
    assert list(json.loads(path.read_text())["found"]) == [bench_gradients.PEAKS]


@compiled
@pytest.mark.parametrize("mode", list(bench_gradients.MODES))
@pytest.mark.parametrize("dtype", measure.ERRORS, ids=str)
@pytest.mark.parametrize("product", bench_gradients.PRODUCTS)
def test_the_error_of_each_mode_is_far_below_its_bound(mode, dtype, product):
    rule = PruneRule(2, 16, *bench_gradients.MODES[mode])
    for shape in layers():
        error = measure.check(product, Operands.random(shape, 2).to(dtype), shape, rule)
        assert error < measure.ERRORS[dtype] / 2


def test_layers_have_the_geometry_of_the_network():
    found = layers("resnet18")
    assert sum(map(len, found.values())) == 20  # all but the first of 20 convolutions, and the classifier
    (sampled,) = [shape for shape, names in found.items() if "layer2.0.downsample.0" in names]
    assert str(sampled) == "64 to 128, 1x1, stride 2, 56x56"
    assert sampled.geometry == Geometry("conv", stride=(2, 2))
    assert (sampled.out_size, sampled.macs_of_value) == ((28, 28), 64)
    assert [str(shape) for shape in layers("resnet9", ["reduce"])] == ["512 to 256, 3x3, padding 0, 8x8"]
    assert networks_batches("resnet9,resnet18") == [128, 32]


def networks_batches(text):
    return [network.batch for network in networks(text, None, ())]


def test_torchs_products_of_random_operands_have_the_shape_of_the_operands():
    for shape in layers():
        given = Operands.random(shape, 2)
        assert dense_product("dgrad", given.grad, given, shape.geometry).shape == given.activation.shape
        assert dense_product("wgrad", given.grad, given, shape.geometry).shape == given.weight.shape


def test_the_bound_is_the_larger_time():
    (shape,) = layers("resnet9", ["reduce"])
    values, weight, activation = 2 * 6 * 6 * 256, 512 * 256 * 9, 2 * 512 * 64
    assert moved_bytes(shape, 2, None, 4) == 4 * (values + weight + activation)
    assert moved_bytes(shape, 2, 64, 2) == 6 * values // 4 + 2 * (weight + activation)
    peaks = {"float32": 1e9, "bfloat16": 2e9}
    compute = bound(shape, 2, 64, torch.float32, peaks, 1e15)
    assert (compute.by, compute.seconds) == ("multiply-adds", pytest.approx(values / 4 * 512 * 9 / 1e9))
    assert bound(shape, 2, 64, torch.bfloat16, peaks, 1e15).seconds == pytest.approx(compute.seconds / 2)
    memory = bound(shape, 2, None, torch.float32, peaks, 1.0)
    assert (memory.by, memory.seconds) == ("bytes", moved_bytes(shape, 2, None, 4))


def made_up_row(median=1.6, batch=128, channels=64, ratio=(1, 4), dtype="float32", product="dgrad"):
    shape = {"in_channels": channels, "out_channels": 64, "geometry": {"kind": "conv"}}
    found = {"times_as_fast_as_dense": {"median": median}}
    n, m = ratio
    return {"product": product, "n": n, "m": m, "batch": batch, "shape": shape, "dtypes": {dtype: found}}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [True]),
        ({"median": 1.49}, [False]),
        ({"ratio": (2, 16), "median": 2.9}, [False]),
        ({"ratio": (2, 16), "median": 3.0}, [True]),
        ({"ratio": (2, 16), "dtype": "bfloat16"}, [True]),
        ({"ratio": (2, 16), "dtype": "bfloat16", "median": 1.4}, [False]),
        ({"dtype": "bfloat16"}, []),
        ({"batch": 64}, []),
        ({"channels": 63}, []),
        ({"product": "wgrad"}, []),
    ],
)
def test_bars(changed, expected):
    row = made_up_row(**changed)
    assert [bar.passes(row) for bar in tables.BARS if bar.applies(row)] == expected


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("--ratios", "2/4"), "--ratios 2/4: expected n:m, such as 2:16"),
        (("--ratios", "5:4"), "--ratios 5:4: PruneRule: n must be in 1..m"),
        (("--products", "forward"), "--products forward; did you mean 'wgrad'?"),
        (("--mode", "rescale"), "--mode rescale; did you mean 'rescaled'?"),
        (("--pairs", "2"), "--pairs 2: at least 3"),
        (("--model", "resnet"), "resnet"),
    ],
)
@compiled
def test_refused_options(typed, message, capsys):
    with pytest.raises(SystemExit) as ended:
        bench_gradients.main(typed)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
