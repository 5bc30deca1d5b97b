"""Tests of the GPU clock, with a replacement of CUDA events."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import torch

from benchmarks import stopwatch


def test_the_cache_is_emptied_by_reading_twice_its_size(monkeypatch):
    """Clearing the cache by writing would leave write-backs for the time of the call."""
    happened = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            happened.append("record")

        def synchronize(self):
            happened.append("wait")

        def elapsed_time(self, end):
            return 3.0

    cache = 4 * 2**20
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=cache))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: happened.append("sleep"))
    watch = stopwatch.CudaWatch(torch.device("cpu"))
    assert watch._other.nbytes == 2 * cache
    watch._other.fill_(0.5)
    version = watch._other._version
    assert watch.time(lambda: happened.append("call")) == 3e-3
    assert happened == ["sleep", "record", "call", "record", "wait"]
    assert watch._sum.item() == 0.5 * watch._other.numel()  # everything was read
    assert watch._other._version == version  # and nothing was written
