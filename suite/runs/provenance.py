"""Where a number comes from: hardware, software, settings and source, without names of hosts or people."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite.runs.cpu import read_cpu
from suite.runs.devices import available_cores, busy_cores

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "torchvision", "numpy", "scipy", "scikit-learn", "triton", "cupy-cuda12x", "cupy-cuda13x")
FLAG_PREFIXES = (
    *("OMP_", "MKL_", "KMP_", "GOMP_", "ONEDNN_", "DNNL_", "MALLOC_", "TORCH_", "PYTORCH_", "ATEN_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "LD_PRELOAD"),
)
ROOT = Path(__file__).resolve().parents[2]
COMMIT_FILE = ".commit.json"
"""Says what `git_facts` would, in a copy of a checkout without its `.git`; `benchmarks/evidence/carry.py` writes it."""
_CPU_IDENTITY = ("cpu", "cpu_vendor", "cpu_family", "cpu_model", "cpu_stepping", "instruction_set", "cores")


def collect(device: torch.device | str) -> dict[str, Any]:
    """Everything about this process that may explain a number and is not in the trial's spec.

    Args:
        device: what is computed on; its GPU, or the CPU, makes the `hardware_id`.
    """
    import torch

    busy = busy_cores()  # first: what follows starts programs
    device = torch.device(device)
    hardware = _hardware(device)
    return {
        "hardware_id": hardware_id(hardware),
        "hardware": hardware,
        "software": _software(),
        "settings": {
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "environment": {
                name: without_home(value)
                for name, value in sorted(os.environ.items())
                if name.startswith(FLAG_PREFIXES)
            },
        },
        "busy_cores": round(busy, 2),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "git": _git(ROOT),
        "command_line": without_home(os.environ.get("PDT_COMMAND_LINE") or shlex.join(sys.argv)),
        "time_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def hardware_id(hardware: dict[str, Any]) -> str:
    """A name, 8 characters, of what decides speed and cannot be set: two ids, two kinds of machine.

    Of a CPU: its name, vendor, family, model, stepping, the instruction set that the machine offers, and the cores that
    the process may use; virtual machines give different CPUs one name. Of a GPU: its name and the driver's major
    version. The number of threads is a setting, and recorded beside. The id begins with a letter, so that no reader
    takes it for a number.
    """
    if hardware["device"] == "cuda":
        device = (hardware["gpu"], 1, str(hardware["driver"]).partition(".")[0])
    else:
        device = tuple(hardware.get(name, "") for name in _CPU_IDENTITY)
    return "h" + hashlib.sha256("\n".join(str(part) for part in device).encode()).hexdigest()[:7]


def without_home(text: str) -> str:
    """The text with the home folder, which holds the user's name, as `~`."""
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def _hardware(device: torch.device) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {
        "device": device.type,
        **read_cpu().facts(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_count": torch.cuda.device_count(),
            "gpu_memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0],
        }
    return found


def _software() -> dict[str, Any]:
    import torch

    from suite.training import onednn

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip(),
        "compiler": _output(*shlex.split(os.environ.get("CXX") or "c++"), "--version").partition("\n")[0],
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version() or "") if torch.version.cuda else "",
        **onednn.facts(),
    }
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git(root: Path) -> dict[str, Any]:
    """Commit of the checkout that this package runs from, and whether it was changed; empty outside a checkout.

    A copy of a checkout without its `.git` has them in a file.
    """
    if (root / ".git").exists():
        return git_facts(root)
    try:
        found = json.loads((root / COMMIT_FILE).read_text(encoding="utf-8"))
        return {"commit": str(found["commit"]), "dirty": bool(found["dirty"])}
    except (OSError, ValueError, TypeError, KeyError):  # no such file, or another program's
        return {}


def git_facts(root: Path) -> dict[str, Any]:
    """As `_git`, by asking git; empty where that fails."""
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    if not commit:
        return {}
    # Without optional locks, `status` does not write to the repository. An untracked method may be the one that ran.
    changed = _output("git", "--no-optional-locks", "-C", str(root), "status", "--porcelain")
    return {"commit": commit, "dirty": bool(changed)}


def _output(*command: str) -> str:
    """What a program prints; empty where there is no such program, or it fails: then the fact stays unknown."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (subprocess.SubprocessError, OSError):
        return ""
