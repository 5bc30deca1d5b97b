"""Device and number format of trials, and the load of the machine.

`read_device` and `read_dtype` check typed text; `resolve_device` and `resolve_dtype` ask the machine and import torch.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from suite.cost.hardware import CPUINFO, read_cpu
from suite.errors import UsageError, nearest

DTYPES = ("auto", "float32", "bfloat16", "float16")


def read_device(text: str) -> str:
    """Check that `text` is `auto`, `cpu`, `cuda` or `cuda:N`."""
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text) is None:
        raise UsageError(f"--device '{text}'{nearest(text, ('auto', 'cpu', 'cuda', 'cuda:0'))}")
    return text


def read_dtype(text: str) -> str:
    """Check that `text` is one of `DTYPES`."""
    if text not in DTYPES:
        raise UsageError(f"--dtype '{text}'{nearest(text, DTYPES)}")
    return text


def resolve_device(text: str) -> tuple[str, int | None]:
    """Return the kind of device, `cpu` or `cuda`, and the index of the GPU.

    Raises:
        UsageError: torch does not see the requested GPU.
    """
    import torch

    kind, _, index = read_device(text).partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return "cpu", None
    if not torch.cuda.is_available():
        reason = "sees no CUDA GPU" if torch.version.cuda else "is built without CUDA"
        raise UsageError(f"--device {text}: torch {torch.__version__} {reason}; use --device cpu")
    count = torch.cuda.device_count()
    if int(index or 0) >= count:
        raise UsageError(f"--device {text}: this machine has {count} GPU(s), cuda:0 to cuda:{count - 1}")
    return "cuda", int(index or 0)


def resolve_dtype(text: str, kind: str, index: int | None = None) -> str:
    """Return a number format. `auto` is bfloat16 if the hardware supports it natively, otherwise float32.

    Raises:
        UsageError: float16 was requested for a CPU.
    """
    if read_dtype(text) == "float16" and kind != "cuda":
        raise UsageError("--dtype float16 needs a CUDA device; on the CPU use bfloat16, float32 or auto")
    if text != "auto":
        return text
    if kind == "cuda":
        import torch

        return "bfloat16" if torch.cuda.get_device_capability(index) >= (8, 0) else "float32"
    return "bfloat16" if has_bfloat16_cpu() else "float32"


def has_bfloat16_cpu(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether this CPU has instructions that multiply bfloat16 (AVX512_BF16, AMX, Arm BF16).

    Read from `/proc/cpuinfo`: torch has no public function for it, and its private functions differ between versions.
    """
    return read_cpu(cpuinfo).bfloat16


def busy_cores(seconds: float = 0.3) -> float:
    """Return the number of cores that are busy with any program, measured over `seconds`.

    The load average would include programs that have just ended, such as the installation of this suite.
    """
    import psutil

    return psutil.cpu_percent(interval=seconds) / 100 * (psutil.cpu_count() or 1)


def competition(load: float, cores: int) -> str:
    """Return a warning about other programs; empty if the machine is idle enough to measure times.

    Threads wait for each other at the end of every operation, so that one delayed thread delays all of them. Trials
    with two threads took many times as long on a machine with two other programs per core.

    Args:
        load: Number of cores that are busy before the trials start.
        cores: Number of cores that the trials will use.
    """
    if load < 0.5 * cores:
        return ""
    return (
        f"{load:.1f} of {cores} cores are busy before the first trial: other programs are running; "
        "do not rely on measured times"
    )


def use_threads_of_environment() -> None:
    """Set torch's number of threads to OMP_NUM_THREADS. Torch itself reads the variable only when it is imported."""
    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list has one number per nesting level
    if threads.isdigit() and int(threads):
        torch.set_num_threads(int(threads))
