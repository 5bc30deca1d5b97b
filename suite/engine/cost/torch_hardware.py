"""The hardware that torch computes on, and its number of threads."""

from __future__ import annotations

import os
from typing import Any

import torch

from suite.engine.cost.hardware import CORES, available_cores, program_output, read_cpu, threads_of_environment

_DRIVER_QUERY = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def use_threads_of_environment() -> None:
    """Set torch's number of threads to OMP_NUM_THREADS, which torch itself reads only at its import."""
    if threads := threads_of_environment():
        torch.set_num_threads(threads)


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
