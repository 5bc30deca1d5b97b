"""Costs as papers count them."""

import pytest

from suite.conventions import CONVENTIONS, prunetrain
from suite.describe import describe_model
from suite.ledger import LayerCost, count_layers
from suite.parameters import build_model

SHAPE = (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "mflop", "ratio"),
    [("resnet32", 138.2, 3.44), ("resnet50_cifar", 227.9, 3.41), ("vgg11", 305.5, 4.08), ("vgg13", 456.5, 3.79)],
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
    described = describe_model("resnet32", "")
    assert described["conventions"].keys() == CONVENTIONS.keys()
    assert described["conventions"]["prunetrain"]["inference_flops"] == described["inference_flops"]
