"""What torch computes on, and how: hardware, threads, arithmetic and oneDNN.

**Subnormal numbers** count as zero in the processes of a command. A weight that decays towards zero becomes subnormal
before it is zero, and Intel's cores then take 20 times as long for a product. GPUs compute with subnormal numbers at
full speed.

**oneDNN**, the library behind torch's convolutions on the CPU, reports its choice of implementation only in its verbose
output, on the process's standard output. `listening` switches that output on for a moment and reads it.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from suite.engine.cost.hardware import CORES, available_cores, program_output, read_cpu, threads_of_environment
from suite.recipe import FLUSH, IEEE

_DRIVER_QUERY = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
_SUBNORMAL = 71362  # bits of 1e-40; converted from a number, it would be flushed before any thread reads it
_OF_A_THREAD = 2**16  # elements of which torch gives each thread some: twice its least number
NOT_RECORDED = "not recorded"
_HEADER = re.compile(r"^(?:one)?dnnl?_verbose,(?:v\d+,)?info,(?P<fact>.*)$", re.MULTILINE)
_EXECUTED = re.compile(r"^(?:one)?dnnl?_verbose,(?:v\d+,)?(?:primitive,)?exec(?:ute)?,cpu,(?P<what>.*)$", re.MULTILINE)
_isa = ""  # oneDNN reports it once per process


def use_threads_of_environment() -> None:
    """Set torch's number of threads to OMP_NUM_THREADS, which torch itself reads only at its import."""
    if threads := threads_of_environment():
        torch.set_num_threads(threads)


def use_arithmetic(arithmetic: str) -> None:
    """Let this thread, and threads that it starts later, compute with `FLUSH` or `IEEE`.

    Call it at the entry of a process, before torch starts threads. Functions of the library do not call it, since it
    would change the arithmetic of the user's own program.
    """
    torch.set_flush_denormal(arithmetic == FLUSH)


def arithmetic_in_use() -> str:
    """Return the arithmetic that torch's threads compute with: `FLUSH` only if all of them flush."""
    bits = torch.full((torch.get_num_threads() * _OF_A_THREAD,), _SUBNORMAL, dtype=torch.int32)
    return IEEE if (bits.view(torch.float32) * 1).view(torch.int32).any() else FLUSH


def hardware_facts(device: torch.device) -> dict[str, Any]:
    """Return what is known about the CPU, the memory and, if `device` is a GPU, the GPU."""
    facts: dict[str, Any] = {
        "device": device.type,
        **read_cpu().facts(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": int(os.environ.get(CORES) or available_cores()),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "gpu_count": torch.cuda.device_count(),
            "gpu_memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "driver": program_output(*_DRIVER_QUERY).partition("\n")[0],
        }
    return facts


class Heard:
    """Verbose output of oneDNN that `listening` has read.

    Attributes:
        text: Lines of the output; `None` if it could not be read.
        reason: Why it could not be read; empty otherwise.
    """

    def __init__(self) -> None:
        self.text: str | None = None
        self.reason = ""

    def implementations(self) -> list[tuple[str, str]]:
        """Return (primitive, implementation) of all products in order, without changes of layout."""
        found = [match["what"].split(",")[:2] for match in _EXECUTED.finditer(self.text or "")]
        return [(kind, name) for kind, name in found if kind != "reorder"]

    def summary(self) -> str:
        """Return the implementations without repetitions; `torch` if oneDNN did not run."""
        if self.text is None:
            return NOT_RECORDED
        return " ".join(dict.fromkeys(name for _, name in self.implementations())) or "torch"


@contextmanager
def listening() -> Iterator[Heard]:
    """Collect oneDNN's verbose output from inside the block, by redirecting the standard output of the process."""
    global _isa
    heard = Heard()
    try:
        sys.stdout.flush()
        libc = ctypes.CDLL(None)
        libc.fflush(None)
        before = os.dup(1)
    except (OSError, ValueError, AttributeError) as error:  # the process has no standard output or no libc
        heard.reason = f"{type(error).__name__}: {error}"
        yield heard
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):  # type: ignore[no-untyped-call]
                yield heard
        finally:
            libc.fflush(None)
            os.dup2(before, 1)
            os.close(before)
            file.seek(0)
            heard.text = file.read().decode(errors="replace")
            for match in _HEADER.finditer(heard.text):
                if match["fact"].startswith("cpu,isa:"):
                    _isa = match["fact"].removeprefix("cpu,isa:")


def is_reference(implementation: str) -> bool:
    """Return whether a `Heard.summary` names a reference implementation: plain loops, many times slower than others."""
    return any(name.startswith("ref") for name in implementation.split())


def onednn_version() -> str:
    """Return version and commit of the oneDNN that torch was built with."""
    match = re.search(r"MKL-DNN v(\S+) \(Git Hash (\w+)\)", torch.__config__.show())
    return f"{match[1]} ({match[2][:12]})" if match else NOT_RECORDED


def instruction_set() -> str:
    """Return the widest instruction set that oneDNN uses in this process, as oneDNN names it.

    oneDNN reports it once per process, with its first verbose output. A small convolution runs if there is none yet.
    """
    if not _isa and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        with torch.no_grad(), listening():
            # torch calls oneDNN for a convolution of this size with any number of threads.
            torch.nn.functional.conv2d(torch.zeros(16, 16, 16, 16), torch.zeros(16, 16, 3, 3))
    return _isa or NOT_RECORDED


def onednn_facts() -> dict[str, str]:
    """Return version and instruction set of oneDNN, for the record."""
    return {"onednn": onednn_version(), "onednn_isa": instruction_set()}
