"""Fixtures with invented results of the kernel benchmarks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def made_up_case(**changes: Any) -> dict[str, Any]:
    """Return `extra_info` of one case: magnitude 2:4 of a large bf16 tensor on a GPU, at 0.93 of a copy's rate."""
    found: dict[str, Any] = {
        "kernel": "prune_nm",
        "layers": ["net a", "net b"],
        "layer": "net a and 1 more",
        "shape": [512, 1024, 16, 16],
        "dtype": "bfloat16",
        "n": 2,
        "m": 4,
        "mode": "magnitude",
        "rescale": "none",
        "device": "cuda",
        "backend": "cuda",
        "copy": "Tensor.copy_",
        "copies_gb_per_s": {"Tensor.copy_": 4000.0},
        "copy_gb_per_s": 4000.0,
        "fraction": 0.93,
        **changes,
    }
    fraction = found.pop("fraction")
    size = math.prod(found["shape"]) * {"float32": 4}.get(found["dtype"], 2)
    rate = fraction * found["copy_gb_per_s"]
    return {
        "tensor_bytes": size,
        "bytes": 2 * size,
        "seconds": 2 * size / rate / 1e9,
        "gb_per_s": rate,
        "fraction_of_copy": {
            "median": fraction,
            "low": fraction - 0.01,
            "high": fraction + 0.01,
            "least": fraction + 0.02,
        },
        **found,
    }


def made_up_file(*cases: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Return the content of a JSON file of pytest-benchmark with these cases."""
    provenance = {
        "hardware_id": "h1234567",
        "hardware": {"device": "cuda", "gpu": "Some GPU", "driver": "580.1"},
        "software": {"torch": "2.11.0", "cuda": "13.0"},
        "git": {"commit": "0123456789abcdef", "dirty": False},
        "command_line": "python -m pytest benchmarks/kernels/bench_kernels.py",
        "time_utc": "2026-01-02T03:04:05Z",
    }
    return {
        "benchmarks": [{"name": f"case {index}", "extra_info": case} for index, case in enumerate(cases)],
        "kernel_benchmarks": {
            "format": 1,
            "device": "cuda",
            "cache_bytes": 60 * 2**20,
            "cache_known_from": "L2, device properties",
            "backend": "prune_nm: <compiled>",
            "rounds": 100,
            "slow_rounds": 20,
            "provenance": provenance,
            **facts,
        },
    }


@pytest.fixture
def results(tmp_path: Path) -> Callable[..., Path]:
    """Function that writes an invented file and returns its path."""

    def write(*cases: dict[str, Any], name: str = "results.json", **facts: Any) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(made_up_file(*cases, **facts)), encoding="utf-8")
        return path

    return write


@pytest.fixture
def case() -> Callable[..., dict[str, Any]]:
    """Function that returns an invented case."""
    return made_up_case
