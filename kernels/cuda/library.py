"""Load CUDA kernels through CuPy and launch them on torch's current stream.

A kernel is compiled at its first use, in less than a second, and cached on disk (`kernels.cuda.compiler`). Launches
allocate through torch, never wait for the device, and can read the key of random masks from device memory. A CUDA graph
may capture them after each kernel has run once.
"""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.cuda.compiler import architecture, cubin
from kernels.cuda.plan import Launch

log = logging.getLogger("pdt.kernels")

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
STATIC_SHARED_BYTES = 48 * 1024  # a kernel must explicitly request more
PROBE = ("prune_nm.cu", "pdt::finish_channels")  # a small kernel that tests the compilation
INTEGERS = {"int32": np.int32, "int64": np.int64}


@dataclass(frozen=True)
class Loaded:
    """CuPy, or the reason why plain torch is used."""

    cupy: ModuleType | None
    description: str

    @property
    def available(self) -> bool:
        return self.cupy is not None


@functools.cache
def load() -> Loaded:
    """Import CuPy and compile a first kernel, once per process; log one line with the backend and the reason."""
    if os.environ.get("PDT_CUDA_KERNEL") == "0":
        return _absent("it is turned off by PDT_CUDA_KERNEL=0")
    if torch.version.cuda is None:
        return _absent(f"torch {torch.__version__} is not built for CUDA")
    try:
        import cupy  # an optional package
    except ImportError as error:
        extra = f"cuda{torch.version.cuda.split('.')[0]}"
        return _absent(f"CuPy cannot be imported ({_line(error)}); pip install -e '.[{extra}]'")
    try:
        _compiled(cupy, *PROBE, torch.cuda.current_device())
    except Exception as error:  # CuPy's compiler and driver errors have no common base class
        return _absent(f"CuPy {cupy.__version__} cannot compile or load a kernel: {_line(error)}")
    compiler = ".".join(map(str, cupy.cuda.nvrtc.getVersion()))
    target = architecture(torch.cuda.get_device_capability())
    description = f"prune_nm: CUDA kernels (CuPy {cupy.__version__}; NVRTC {compiler}; {target})"
    log.info(description)
    return Loaded(cupy, description)


def launch_kernel(launch: Launch, tensors: dict[str, Tensor], seed: int = 0, key: Tensor | None = None) -> None:
    """Launch a kernel on the current stream of the device of `tensors`, without waiting for it."""
    cupy = load().cupy
    assert cupy is not None, "a kernel was launched without CuPy"
    device = next(iter(tensors.values())).device.index
    values: list[Any] = [
        np.uint64(tensors[str(value)].data_ptr()) if kind == "pointer" else INTEGERS[kind](value)
        for value, kind in launch.arguments
    ]
    if launch.seeded:
        values += [np.uint64(0 if key is None else key.data_ptr()), np.uint64(seed)]
    kernel = _compiled(cupy, launch.source, launch.kernel, device)
    # CuPy assigns a stream to the device that is current at its first use, and starts a kernel on the current device.
    with cupy.cuda.Device(device):
        stream = _stream(cupy, torch.cuda.current_stream(device).cuda_stream, device)
        if launch.shared_bytes > kernel.shared_bytes:
            kernel.raw.max_dynamic_shared_size_bytes = kernel.shared_bytes = launch.shared_bytes
        with stream:
            kernel.raw((launch.blocks, 1, 1), (*launch.threads, 1), tuple(values), shared_mem=launch.shared_bytes)


@dataclass
class _Kernel:
    """A loaded kernel and its limit of dynamic shared memory, which only grows, because captured graphs rely on it."""

    raw: Any
    shared_bytes: int = STATIC_SHARED_BYTES


class _TorchStream:
    """A torch stream in the protocol that CuPy requires of foreign streams."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer  # protocol version, address


@functools.cache  # torch has a few dozen streams; dropping CuPy's view of one may destroy the stream
def _stream(cupy: ModuleType, pointer: int, device: int) -> Any:
    """Return CuPy's view of a stream of the current device. Older versions of CuPy use another name for it."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_TorchStream(pointer))
    return cupy.cuda.ExternalStream(pointer, device)


@functools.cache
def _compiled(cupy: ModuleType, file: str, kernel: str, device: int) -> _Kernel:
    """Load one module per kernel, because a trial needs only a few of the thousands that the templates allow."""
    compiled = cubin(cupy.cuda.nvrtc, file, kernel, architecture(torch.cuda.get_device_capability(device)))
    with cupy.cuda.Device(device):
        return _Kernel(cupy.RawModule(path=str(compiled.path)).get_function(compiled.function))


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def _absent(reason: str) -> Loaded:
    description = f"prune_nm: plain torch instead of the CUDA kernels, much slower, because {reason}"
    log.warning(description)
    return Loaded(None, description)
