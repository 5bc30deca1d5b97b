"""Shortcuts with few channels left, where oneDNN's kernels for 1x1 convolutions with a stride write out of bounds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEPS = """
import copy, sys, torch
from suite.ops import convert
torch.manual_seed(0)
dtype, limit = {"float32": (torch.float32, 1e-4), "bfloat16": (torch.bfloat16, 2e-2)}[sys.argv[1]]
for count in (1, 4, 5, 17):
    model = torch.nn.Sequential(torch.nn.Conv2d(count, count, 1, stride=2, bias=False)).to(dtype)
    wide = copy.deepcopy(model).double()
    convert(model)
    images = torch.randn(32, count, 32, 32).to(dtype).contiguous(memory_format=torch.channels_last)
    grad = torch.randn(32, count, 16, 16).to(dtype).contiguous(memory_format=torch.channels_last)
    for network, kind in ((model, dtype), (wide, torch.float64)):
        network(images.to(kind)).backward(grad.to(kind))
    error = (model[0].weight.grad.double() - wide[0].weight.grad).norm() / wide[0].weight.grad.norm()
    assert error < limit, (count, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weight_gradients_of_few_channels_are_right(dtype):
    """In a process of its own, since oneDNN may crash: with one thread and AVX2 it would at 4 input channels."""
    settings = {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", STEPS, dtype]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
