"""Costs as papers count them."""

import csv
import io

import pytest

from suite.choices import build_model
from suite.cli.describe import describe_model
from suite.engine.cost.flops import LayerCost, count_layers
from suite.engine.cost.ledger import Ledger
from suite.engine.cost.paper_conventions import CONVENTIONS, prunetrain, prunetrain_training, read_intervals
from suite.method import Method
from suite.ops import apply

SHAPE = (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "mflop", "ratio"),
    [("resnet32", 138.2, 3.44), ("resnet50_cifar", 227.9, 3.41), ("vgg13", 456.5, 3.79)],
)
def test_prunetrain_8_the_published_costs_come_out(name, mflop, ratio):
    found = prunetrain(count_layers(build_model(name, SHAPE, 10), SHAPE).values())
    assert round(found["inference_flops"] / 1e6, 1) == mflop
    assert round(found["train_flops"] / found["inference_flops"], 2) == ratio


def test_prunetrain_8_one_strided_layer_by_hand():
    # 16 to 32 channels, 3x3 with stride 2, from 8x8 to 4x4 places.
    macs = 16 * 32 * 9 * 16
    cost = LayerCost("x", "conv", 16, 32, (3, 3), (8, 8), (4, 4), macs, True, 16 * 32 * 9, 16 * 64)
    found = prunetrain([cost])
    assert found["inference_flops"] == 2 * macs
    assert found["train_flops"] == 2 * (2 * macs + 10 * 10 * 32 * 9 * 16)
    assert found["norm_traffic_bytes"] == 8 * 32 * 16 * 2
    assert found["weights"] == 16 * 32 * 9 + 32
    linear = LayerCost("x", "linear", 16, 10, (1, 1), (1, 1), (1, 1), 160, True, 170, 16)
    assert prunetrain([linear]) == {
        "inference_flops": 320,
        "train_flops": 960,
        "norm_traffic_bytes": 0,
        "weights": 170,
    }


def test_describe_has_every_convention():
    described = describe_model("resnet9[width=0.0625]", "")
    assert described["conventions"].keys() == CONVENTIONS.keys()
    assert described["conventions"]["prunetrain"]["inference_flops"] == described["inference_flops"]


def layers_csv(first, second):
    """Rows as they stand in `layers.csv`: two intervals of a layer, (channels, steps), each step with 4 images."""
    rows = []
    for interval, (channels, steps) in enumerate((first, second), 1):
        macs = 16 * channels * 9 * 16
        row = {"interval": interval, "first_epoch": 2 * interval - 1, "last_epoch": 2 * interval, "steps": steps}
        row |= {"samples": 4 * steps, "layer": "x", "kind": "conv", "in_channels": 16, "out_channels": channels}
        row |= {"kernel": "3x3", "input": "4x4", "output": "4x4", "params": 16 * channels * 9}
        rows.append(row | {"forward_current": 2.0 * macs * 4 * steps, "dgrad_dense": 1.0})
    gone = rows[1] | {"layer": "gone", "in_channels": 0, "out_channels": 0, "params": 0, "forward_current": 0.0}
    return [*rows, gone]


def test_a_training_costs_what_its_intervals_cost():
    intervals = read_intervals(layers_csv((32, 10), (8, 5)))
    assert [(one.steps, one.samples) for one in intervals] == [(10, 40), (5, 20)]
    assert [[layer.out_channels for layer in one.layers] for one in intervals] == [[32], [8]]
    images = [prunetrain(one.layers) for one in intervals]
    cost = prunetrain_training(intervals)
    assert cost["train_flops"] == 40 * images[0]["train_flops"] + 20 * images[1]["train_flops"]
    assert cost["norm_traffic_bytes"] == 16 * 16 * (40 * 32 + 20 * 8)
    weights = [16 * channels * 9 + channels for channels in (32, 8)]
    assert cost["allreduce_bytes"] == 4 * (10 * weights[0] + 5 * weights[1])  # two devices send each weight once


def test_costs_read_from_a_trials_file_are_those_of_its_layers():
    model = build_model("resnet9[width=0.0625]", SHAPE, 10)
    expected = prunetrain(count_layers(model, SHAPE).values())
    hooks = apply(model, Method(), input_shape=SHAPE, num_classes=10, epochs=1, batch_size=4)
    ledger = Ledger(hooks.ctx, hooks.method, SHAPE)
    ledger.add_step(4)
    rows = csv.DictReader(io.StringIO(ledger.to_csv(1)))
    (interval,) = read_intervals(rows)
    assert prunetrain(interval.layers) == expected
    assert [layer.has_dgrad for layer in interval.layers] == [False] + [True] * (len(interval.layers) - 1)
