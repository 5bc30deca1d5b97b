"""The device and the number format of a command, chosen and checked by what torch finds on this machine."""

from __future__ import annotations

import torch

from suite.engine.cost.hardware import has_bfloat16_cpu
from suite.errors import UsageError
from suite.trials.ranks import in_allocation
from suite.trials.spec import read_device, read_dtype


def resolve_device(text: str) -> tuple[str, int | None]:
    """Return the kind of device, `cpu` or `cuda`, and the index of the GPU.

    Raises:
        UsageError: torch does not find the requested GPU.
    """
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
    """Return a number format. `auto` is bfloat16 if the hardware multiplies it faster than float32, otherwise float32.

    Raises:
        UsageError: The user asked for float16 on a CPU.
    """
    if read_dtype(text) == "float16" and kind != "cuda":
        raise UsageError("--dtype float16 needs a CUDA device; on the CPU use bfloat16, float32 or auto")
    if text != "auto":
        return text
    if kind == "cuda":
        return "bfloat16" if torch.cuda.get_device_capability(index) >= (8, 0) else "float32"
    return "bfloat16" if has_bfloat16_cpu() else "float32"


def check_processes(processes: int, typed: str, device: str, count: bool) -> None:
    """Check that each process of a trial has a device.

    Args:
        processes: Number of processes of each trial.
        typed: The device as typed.
        device: `cpu` or `cuda`.
        count: Whether this machine must have enough GPUs.

    Raises:
        UsageError: There are fewer GPUs than processes, or the user has named one GPU for several processes.
    """
    if processes == 1 or device == "cpu" or in_allocation():
        return
    if ":" in typed:
        raise UsageError(f"--device {typed} names one GPU; --nproc-per-trial {processes} needs --device cuda")
    if count and (gpus := torch.cuda.device_count()) < processes:
        raise UsageError(f"--nproc-per-trial {processes}: this machine has {gpus} GPU(s), and each process needs one")
