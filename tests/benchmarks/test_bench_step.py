"""Tests of the options of `bench_step.py` and of its use of the device."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from benchmarks.steps import bench_step
from suite.choices import build_model


@pytest.mark.parametrize("pairs", ["1", "0", "-3"])
def test_too_few_pairs_for_an_interval_are_refused_in_one_line(pairs, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_step.py", "--device", "cpu", f"--pairs={pairs}"])
    with pytest.raises(SystemExit, match="2"):
        bench_step.main()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith(f"error: --pairs {pairs}: an interval needs at least 2\n")


def test_events_are_of_the_device_that_was_typed(monkeypatch):
    class Reached(Exception):
        pass

    current = []

    def clock(device):
        raise Reached(device, *current)

    device = torch.device("cuda", 1)
    monkeypatch.setattr(bench_step, "read_setting", lambda chosen: SimpleNamespace(recipe=None, device=device))
    monkeypatch.setattr(bench_step, "read_executions", lambda text, device: ["eager"])
    monkeypatch.setattr(bench_step, "stamps_of", clock)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "argv", ["bench_step.py", "--device", "cuda:1"])
    with pytest.raises(Reached) as reached:
        bench_step.main()
    assert reached.value.args == (device, device)


def test_each_convolution_is_measured_once():
    """Two numbers with the same name would overwrite each other in the file."""
    found = bench_step.convolutions(build_model("resnet9[width=0.25]", (3, 32, 32), 10))
    assert list(found) == [
        "3->32 3x3 at 32x32",
        "32->64 5x5 at 32x32",
        "64->64 3x3 at 16x16",
        "64->128 3x3 at 16x16",
        "128->128 3x3 at 8x8",
        "128->64 3x3 at 8x8",
    ]
    assert [side for _, side in found.values()] == [32, 32, 16, 16, 8, 8]
