"""Subnormal numbers: reading back what torch's threads do, and finding them in weights."""

import logging
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from methods.dense import Dense
from methods.prunetrain.lasso import LassoLayer, penalty
from suite.engine.cost.torch_hardware import arithmetic_in_use, use_arithmetic
from suite.engine.training.method_runner import has_subnormal
from suite.ops import apply
from suite.recipe import FLUSH, IEEE

THREADS = """
import sys, torch
from suite.engine.cost.torch_hardware import arithmetic_in_use, use_arithmetic
if sys.argv[1] == "late":
    torch.ones(2**20).mul(2)  # starts the second thread
use_arithmetic("flush")
print(arithmetic_in_use())
"""


def test_the_arithmetic_is_read_back():
    assert arithmetic_in_use() == IEEE
    use_arithmetic(FLUSH)
    assert arithmetic_in_use() == FLUSH
    use_arithmetic(IEEE)
    assert arithmetic_in_use() == IEEE


@pytest.mark.parametrize(("when", "found"), [("early", FLUSH), ("late", IEEE)])
def test_a_thread_that_was_started_before_is_noticed(when, found):
    command = [sys.executable, "-c", THREADS, when]
    two_threads = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, env=two_threads, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found


@pytest.mark.parametrize("arithmetic", [IEEE, FLUSH])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_subnormal_values_are_found(arithmetic, dtype):
    smallest = torch.finfo(dtype).smallest_normal
    normal = torch.tensor([0.0, -0.0, 1.0, smallest, -smallest, float("inf"), float("-inf"), float("nan")], dtype=dtype)
    values = torch.tensor([smallest / 4, -smallest / 4], dtype=dtype)
    use_arithmetic(arithmetic)
    assert not has_subnormal(normal)
    assert has_subnormal(values[:1])
    assert has_subnormal(values[1:])


def loop(weight):
    """Train one epoch in a loop of one's own, with one weight of this value."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    hooks = apply(model, Dense(), input_shape=(1, 2, 2), num_classes=2, epochs=2, batch_size=1)
    hooks.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    with torch.no_grad():
        model[1].weight[0, 0] = weight
    return hooks


def test_a_loop_of_ones_own_is_warned_once(caplog):
    caplog.set_level(logging.WARNING)
    hooks = loop(1e-40)
    hooks.end_epoch()
    hooks.end_epoch()
    (message,) = caplog.messages
    assert message.startswith("1.weight has subnormal values")


@pytest.mark.parametrize(("weight", "arithmetic"), [(0.0, IEEE), (1e-40, FLUSH)])
def test_a_loop_without_slow_products_is_not_warned(caplog, weight, arithmetic):
    caplog.set_level(logging.WARNING)
    hooks = loop(weight)
    use_arithmetic(arithmetic)
    hooks.end_epoch()
    assert caplog.messages == []


@pytest.mark.parametrize("arithmetic", [IEEE, FLUSH])
def test_a_lasso_group_that_dies_is_subnormal_unless_flushed(arithmetic):
    use_arithmetic(arithmetic)
    weight = nn.Parameter(torch.full((2, 2, 3, 3), 0.01))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=1e-4)
    found = []
    for _ in range(1500):
        optimizer.zero_grad()
        (1e-3 * penalty([LassoLayer(weight, True, True)])).backward()
        optimizer.step()
        found.append(has_subnormal(weight))
    assert any(found) == (arithmetic == IEEE)
    assert weight.abs().max() < 1e-36
