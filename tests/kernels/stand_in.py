"""A stand-in for CuPy: lets `kernels.cuda.library` launch the emulated kernels on tensors of the CPU."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kernels.cuda import library

STATIC = 48 * 1024


class FakeKernel:
    """What CuPy's RawKernel is to its caller; refuses what the driver would."""

    def __init__(self, launch: Any) -> None:
        self.launch, self.max_dynamic_shared_size_bytes = launch, STATIC

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0):
        assert len(grid) == len(block) == 3
        assert shared_mem <= self.max_dynamic_shared_size_bytes
        assert all(isinstance(value, (np.int32, np.int64, np.uint64)) for value in args)
        values = [np.ctypeslib.as_ctypes_type(type(value))(int(value)) for value in args]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self.launch(grid[0], block[0], block[1], shared_mem, addresses)


@contextlib.contextmanager
def standing_in(monkeypatch: pytest.MonkeyPatch, launchers: Mapping[str, Any]) -> Iterator[list[str]]:
    """Gives the names of the kernels that were compiled, as they come."""
    compiled: list[str] = []

    class RawModule:
        def __init__(self, *, code: str, options: tuple[str, ...], name_expressions: tuple[str, ...]) -> None:
            name = name_expressions[0].split("<")[0].removeprefix("pdt::")
            assert f"{name}(" in code
            assert any("std=c++" in option for option in options)
            self.names = name_expressions

        def get_function(self, name: str) -> FakeKernel:
            assert name in self.names
            compiled.append(name)
            return FakeKernel(launchers[name])

    class Stream:
        @staticmethod
        def from_external(stream: Any) -> Any:
            assert stream.__cuda_stream__() == (0, 77)
            return contextlib.nullcontext()

    cupy = ModuleType("cupy")
    cupy.RawModule = RawModule
    cupy.cuda = SimpleNamespace(Device=lambda index: contextlib.nullcontext(), Stream=Stream)
    monkeypatch.setattr(library, "load", lambda: library.Loaded(cupy, "stand-in"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(shared_memory_per_block_optin=2**20)
    )
    library._compiled.cache_clear()
    library._stream.cache_clear()
    yield compiled
    library._compiled.cache_clear()
    library._stream.cache_clear()
