"""Loads the CUDA kernels through CuPy and launches them on torch's current stream.

A kernel is compiled at its first use, in less than a second, and kept on disk (`kernels.cuda.compiler`). Launches
allocate through torch, never wait for the device, and read the key of random masks from device memory where they are
given a tensor: they may be captured in a CUDA graph once each kernel has run.
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
STATIC_SHARED_BYTES = 48 * 1024  # more has to be asked for, kernel by kernel
PROBE = ("prune_nm.cu", "pdt::finish_channels")  # a small kernel, which shows whether compilation works
INTEGERS = {"int32": np.int32, "int64": np.int64}


@dataclass(frozen=True)
class Loaded:
    """The outcome of looking for CuPy: the module, or the reason why plain torch runs."""

    cupy: ModuleType | None
    description: str

    @property
    def available(self) -> bool:
        return self.cupy is not None


@functools.cache
def load() -> Loaded:
    """Looks for CuPy and compiles a first kernel, once per process, and logs in one line which path runs and why."""
    if os.environ.get("PDT_CUDA_KERNEL") == "0":
        return _absent("it is turned off by PDT_CUDA_KERNEL=0")
    if torch.version.cuda is None:
        return _absent(f"torch {torch.__version__} is not built for CUDA")
    try:
        import cupy
    except ImportError as error:
        extra = f"cuda{torch.version.cuda.split('.')[0]}"
        return _absent(f"CuPy cannot be imported ({_line(error)}); pip install 'pruning-during-training[{extra}]'")
    try:
        _compiled(cupy, *PROBE, torch.cuda.current_device())
    except Exception as error:  # CuPy's compile and driver errors have no common base; the reason is reported
        return _absent(f"CuPy {cupy.__version__} cannot compile or load a kernel: {_line(error)}")
    compiler = ".".join(map(str, cupy.cuda.nvrtc.getVersion()))
    target = architecture(torch.cuda.get_device_capability())
    description = f"prune_nm: CUDA kernels (CuPy {cupy.__version__}; NVRTC {compiler}; {target})"
    log.info(description)
    return Loaded(cupy, description)


def carry_out(launch: Launch, tensors: dict[str, Tensor], seed: int = 0, key: Tensor | None = None) -> None:
    """Launches a kernel on the current stream of the device of `tensors`; it ends some time later."""
    cupy = load().cupy
    assert cupy is not None, "a kernel was launched although CuPy is not there"
    device = next(iter(tensors.values())).device.index
    values: list[Any] = [
        np.uint64(tensors[str(value)].data_ptr()) if kind == "pointer" else INTEGERS[kind](value)
        for value, kind in launch.arguments
    ]
    if launch.seeded:
        values += [np.uint64(0 if key is None else key.data_ptr()), np.uint64(seed)]
    kernel = _compiled(cupy, launch.source, launch.kernel, device)
    # A stream belongs to the device that is current when CuPy first sees it, and a kernel starts on the current one.
    with cupy.cuda.Device(device):
        stream = _stream(cupy, torch.cuda.current_stream(device).cuda_stream, device)
        if launch.shared_bytes > kernel.shared_bytes:
            kernel.raw.max_dynamic_shared_size_bytes = kernel.shared_bytes = launch.shared_bytes
        with stream:
            kernel.raw((launch.blocks, 1, 1), (*launch.threads, 1), tuple(values), shared_mem=launch.shared_bytes)


@dataclass
class _Kernel:
    """A loaded kernel, and the dynamic shared memory that a block may have; a captured graph relies on that: it only
    ever grows.
    """

    raw: Any
    shared_bytes: int = STATIC_SHARED_BYTES


class _TorchStream:
    """A stream of torch's, as CuPy asks for a foreign one."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer  # version of the protocol, address


@functools.cache  # torch has a few dozen streams; CuPy's view of one, where it is dropped, may destroy the stream
def _stream(cupy: ModuleType, pointer: int, device: int) -> Any:
    """CuPy's view of a stream of the current device; older versions of CuPy have another name for it."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_TorchStream(pointer))
    return cupy.cuda.ExternalStream(pointer, device)


@functools.cache
def _compiled(cupy: ModuleType, file: str, kernel: str, device: int) -> _Kernel:
    """One module for each kernel: a trial needs a handful of the thousands that the templates allow."""
    found = cubin(cupy.cuda.nvrtc, file, kernel, architecture(torch.cuda.get_device_capability(device)))
    with cupy.cuda.Device(device):
        return _Kernel(cupy.RawModule(path=str(found.path)).get_function(found.function))


def _line(error: Exception) -> str:
    """What an error says, in one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def _absent(reason: str) -> Loaded:
    description = f"prune_nm: plain torch instead of the CUDA kernels, much slower, because {reason}"
    log.warning(description)
    return Loaded(None, description)
