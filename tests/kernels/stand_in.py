"""Replacement of CuPy that lets `kernels.cuda.library` launch the emulated kernels on CPU tensors."""

from __future__ import annotations

import contextlib
import ctypes
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kernels import cache
from kernels.cuda import compiler, library

STATIC = 48 * 1024


class FakeKernel:
    """Interface of CuPy's RawKernel; refuses arguments that the driver would refuse."""

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
    """Provide the list of names of loaded kernels; cubins are in a temporary folder."""
    loaded: list[str] = []
    entered: list[Any] = []  # devices, the current one last

    class Device(contextlib.AbstractContextManager):
        def __init__(self, index: Any) -> None:
            self.index = index

        def __enter__(self) -> None:
            entered.append(self.index)

        def __exit__(self, *exception: object) -> None:
            entered.pop()

    class NVRTC:
        """A cubin is an empty ELF file followed by the kernel's name; the name of its function differs."""

        kernel = ""

        def getVersion(self) -> tuple[int, int]:
            return 13, 0

        def createProgram(self, text: str, name: str, headers: tuple[str, ...], names: tuple[str, ...]) -> str:
            return text

        def addNameExpression(self, program: str, name: str) -> None:
            assert f"{name.split('<')[0].removeprefix('pdt::')}(" in program
            self.kernel = name

        def compileProgram(self, program: str, options: tuple[str, ...]) -> None:
            assert {"--gpu-architecture=sm_90a", "--ftz=false", "--std=c++17"} <= set(options)

        def getCUBIN(self, program: str) -> bytes:
            return bytes(64) + self.kernel.encode()

        def getLoweredName(self, program: str, name: str) -> str:
            return f"_Z{name}"

        def destroyProgram(self, program: str) -> None:
            self.kernel = ""

    class RawModule:
        def __init__(self, *, path: str) -> None:
            assert path.endswith(".cubin")
            self.kernel = Path(path).read_text().strip("\0")

        def get_function(self, name: str) -> FakeKernel:
            assert entered, "a module is loaded for the current device"
            assert name == f"_Z{self.kernel}"
            loaded.append(self.kernel)
            return FakeKernel(launchers[self.kernel])

    class ForeignStream(contextlib.AbstractContextManager):
        def __init__(self) -> None:
            assert entered, "a stream belongs to the device that is current when it is first seen"
            self.device = entered[-1]

        def __enter__(self) -> None:
            assert entered[-1:] == [self.device]

        def __exit__(self, *exception: object) -> None:
            pass

    class Stream:
        @staticmethod
        def from_external(stream: Any) -> Any:
            assert stream.__cuda_stream__() == (0, 77)
            return ForeignStream()

    cupy = ModuleType("cupy")
    cupy.RawModule = RawModule
    cupy.cuda = SimpleNamespace(Device=Device, Stream=Stream, nvrtc=NVRTC())
    monkeypatch.setattr(library, "load", lambda: library.Loaded(cupy, "stand-in"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(shared_memory_per_block_optin=2**20)
    )
    library._compiled.cache_clear()
    library._stream.cache_clear()
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(compiler, "cache", SimpleNamespace(**vars(cache) | {"folder": lambda: Path(folder)}))
        yield loaded
    library._compiled.cache_clear()
    library._stream.cache_clear()
