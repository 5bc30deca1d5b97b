"""Cases that `bench_kernels.py` measures, derived from its options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from benchmarks.kernels.gradient_shapes import Gradient, gradients
from benchmarks.stopwatch import cache_bytes
from kernels import PruneRule
from kernels.prune.rule import Mode, Scope
from suite.errors import UsageError, nearest
from suite.trials.devices import resolve_device

DTYPES = ("float32", "bfloat16", "float16")
# `mode` and `rescale` of the `PruneRule` by name.
MODES: dict[str, tuple[Mode, Scope]] = {
    "magnitude": ("magnitude", "none"),
    "random": ("random", "none"),
    "unbiased": ("unbiased", "none"),
    "sample_channel": ("magnitude", "sample_channel"),
    "group": ("magnitude", "group"),
    "channel": ("magnitude", "channel"),
}
LARGE_ON_GPU_BYTES = 256 * 2**20 + 1
LARGE_CACHES = 4  # on a CPU, a tensor of this many last-level caches does not fit into them
ORACLE_SHARE = 64  # memory that the reference needs for a random mask, in multiples of a 16-bit tensor
# Defaults by kind of device. Those for a CPU take some minutes on two cores.
SHAPES = {"cpu": "resnet9[width=0.25],large", "cuda": "large,resnet9,resnet18,resnet50"}
TYPES = {"cpu": "float32,bfloat16", "cuda": "float32,bfloat16,float16"}
GROUPS = {"cpu": "2:4,4:8,8:16", "cuda": "1:2,2:4,4:8,8:16,16:32,2:8,2:16"}
CHOSEN_MODES: dict[str, tuple[Mode, Scope]] = {
    "cpu": "magnitude,random,unbiased,sample_channel",
    "cuda": ",".join(MODES),
}
ROUNDS = {"cpu": 30, "cuda": 100}
SLOW_ROUNDS = {"cpu": 3, "cuda": 20}
QUICK_ROUNDS, QUICK_SLOW_ROUNDS = 5, 2
LEAST_ROUNDS = 2  # an interval needs two rounds


@dataclass(frozen=True)
class Case:
    """One row of the table: a kernel on one gradient; `mode` is a key of `MODES`."""

    kernel: str
    gradient: Gradient
    dtype: str
    n: int
    m: int
    mode: str

    @property
    def rule(self) -> PruneRule:
        return PruneRule(self.n, self.m, *MODES[self.mode])

    @property
    def name(self) -> str:
        shape = "x".join(map(str, self.gradient.shape))
        return f"{shape}-{self.dtype}-{self.n}:{self.m}-{self.mode}"


@dataclass(frozen=True)
class Plan:
    """Cases and settings of a run.

    Attributes:
        device: Device of the tensors.
        cases: Cases in the order in which they run; cases of the same tensor are adjacent.
        rounds: Number of interleaved measurements of kernel and copy.
        slow_rounds: Number of interleaved measurements with each alternative; 0 for none.
        compiled: Whether `torch.compile` of the reference is an alternative.
        slow_modes: Modes for which alternatives are measured.
    """

    device: torch.device
    cases: tuple[Case, ...]
    rounds: int
    slow_rounds: int
    compiled: bool
    slow_modes: tuple[str, ...]


def read(typed: Mapping[str, Any]) -> Plan:
    """Return the plan for the given options; an option that was not given is `None`.

    Raises:
        UsageError: If an option has an invalid value.
    """
    kind, index = resolve_device(typed["device"])
    device = torch.device(kind, index)
    quick = bool(typed["quick"])
    rounds = _at_least("--rounds", typed["rounds"], QUICK_ROUNDS if quick else ROUNDS[kind], LEAST_ROUNDS)
    slow = _at_least("--slow-rounds", typed["slow_rounds"], QUICK_SLOW_ROUNDS if quick else SLOW_ROUNDS[kind], 0)
    if slow == 1:
        raise UsageError("--slow-rounds 1: an interval needs two rounds; 0 omits the alternatives")
    batch = None if typed["batch_size"] is None else _at_least("--batch-size", typed["batch_size"], 1, 1)
    found = gradients(typed["shapes"] or SHAPES[kind], batch, large_bytes(device))
    dtypes = _names("--dtypes", typed["dtypes"] or TYPES[kind], DTYPES)
    groups = [_group(text) for text in (typed["groups"] or GROUPS[kind]).split(",")]
    modes = _names("--modes", typed["modes"] or CHOSEN_MODES[kind], tuple(MODES))
    if quick:
        found, dtypes, groups = found[:1], dtypes[:1], groups[:1]
    cases = [
        Case(kernel, gradient, dtype, n, m, mode)
        for gradient in found
        for dtype in dtypes
        for n, m in groups
        for mode in modes
        for kernel in ("prune_nm", "compress_nm")
        if kernel == "prune_nm" or kind == "cpu"
    ]
    # On a CPU an alternative takes about fifty times as long as the kernel, so one mode must suffice.
    slow_modes = ("magnitude",) if kind == "cpu" else tuple(MODES)
    return Plan(device, tuple(cases), rounds, slow, bool(typed["compile"]), slow_modes)


def large_bytes(device: torch.device) -> int:
    """Return the minimum size of a 16-bit tensor of `large`: the bars' minimum, or less if memory is small."""
    if device.type == "cuda":
        wanted, memory = LARGE_ON_GPU_BYTES, torch.cuda.get_device_properties(device).total_memory
    else:
        wanted, memory = LARGE_CACHES * cache_bytes(device)[0], psutil.virtual_memory().total
    return min(wanted, memory // ORACLE_SHARE)


def _at_least(option: str, value: int | None, default: int, least: int) -> int:
    if value is not None and value < least:
        raise UsageError(f"{option} {value}: the smallest is {least}")
    return default if value is None else value


def _names(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise UsageError(f"{option} '{name}'{nearest(name, known)}")
    return names


def _group(text: str) -> tuple[int, int]:
    matched = re.fullmatch(r"\s*([0-9]+):([0-9]+)\s*", text)
    if matched:
        n, m = map(int, matched.groups())
        if 1 <= n <= m and 2 <= m <= 32:
            return n, m
    raise UsageError(f"--groups '{text}': expected n:m with 1 <= n <= m and 2 <= m <= 32, such as 2:4")
