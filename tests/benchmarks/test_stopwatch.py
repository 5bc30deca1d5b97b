"""Tests of the GPU clock, with a replacement of CUDA events, and of the copies."""

from __future__ import annotations

import contextlib
import weakref
from types import SimpleNamespace

import pytest
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


@pytest.mark.parametrize("threads", [1, 2])
def test_each_way_to_copy_keeps_the_memory_that_it_reads(monkeypatch, threads):
    """A way may be used alone, after the tensor and the other ways are gone."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    names = list(stopwatch.copies(torch.ones(10)))
    assert len(names) == 2 + threads
    for name in names:
        source = torch.ones(10)
        way, kept = stopwatch.copies(source)[name], weakref.ref(source)
        del source
        way()
        # numpy keeps the memory by another tensor.
        assert name == "numpy.copyto" or kept() is not None
