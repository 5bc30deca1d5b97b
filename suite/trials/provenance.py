"""Provenance of results: hardware, software, settings and source, without names of hosts or users."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from suite.engine.cost.hardware import busy_cores, hardware_id, program_output
from suite.engine.cost.torch_hardware import arithmetic_in_use, hardware_facts, onednn_facts
from suite.files import clean, without_home
from suite.registry import ROOT
from suite.trials.process import FLAG_PREFIXES, command_line

PACKAGES = ("torch", "torchvision", "numpy", "scipy", "triton", "cupy-cuda12x", "cupy-cuda13x")


def collect(device: torch.device | str) -> dict[str, Any]:
    """Return what may explain a result and is not in the trial's spec.

    Args:
        device: Device of the computation. Its GPU, or the CPU, determines the `hardware_id`.
    """
    busy = busy_cores()  # measured first, before this function starts programs
    device = torch.device(device)
    hardware = hardware_facts(device)
    return {
        "hardware_id": hardware_id(hardware),
        "hardware": hardware,
        "software": _software(),
        "settings": {
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "arithmetic": arithmetic_in_use(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "environment": {
                name: clean(without_home(value))
                for name, value in sorted(os.environ.items())
                if name.startswith(FLAG_PREFIXES)
            },
        },
        "busy_cores": round(busy, 2),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "git": git_facts(ROOT),
        "command_line": clean(without_home(os.environ.get("PDT_COMMAND_LINE") or command_line())),
        "time_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _software() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip(),
        "compiler": program_output(*shlex.split(os.environ.get("CXX") or "c++"), "--version").partition("\n")[0],
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version() or "") if torch.version.cuda else "",
        **onednn_facts(),
    }
    for name in PACKAGES:
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return facts


def git_facts(root: Path) -> dict[str, Any]:
    """Return the commit of a checkout and whether it was changed; empty outside a checkout, or if git fails."""
    if not (root / ".git").exists():
        return {}
    commit = program_output("git", "-C", str(root), "rev-parse", "HEAD")
    if not commit:
        return {}
    # Optional locks would let `status` write to the repository. Untracked files count, because a method may be one.
    changed = program_output("git", "--no-optional-locks", "-C", str(root), "status", "--porcelain")
    return {"commit": commit, "dirty": bool(changed)}


def tuning(definition: Any, preset: str) -> list[str]:
    """Return in words how the defaults of a method, or the recipes of a task, were chosen for a preset."""
    return [item.in_words() for item in definition.tuning if preset in item.presets or not item.presets]
