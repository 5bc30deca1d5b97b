"""Reads what `bench_kernels.py` left: pytest-benchmark's JSON, with its own key `kernel_benchmarks`.

Of each benchmark's `extra_info`:

    kernel, layer, layers, shape, dtype, n, m, mode, rescale, device, backend
    tensor_bytes        of the gradient
    bytes               counted: the least that must move, each element read once and each result written once
    seconds, gb_per_s   measured: the median, and `bytes` over it
    copy                which of `copies_gb_per_s` was fastest, and so ran beside the kernel, at `copy_gb_per_s`
    fraction_of_copy    the kernel's rate over the copy's: `median` of the pairs with its 95 % interval `low`, `high`,
                        and `least`, from the two least times
    instead             by alternative: `seconds`, `same_values` as the oracle's, `pairs` measured, and `times_as_long`
                        as the kernel (an interval, as above), or `failed` with the reason
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.errors import UsageError
from suite.runs.folder.columns import minor_version

FORMAT = 1  # of `kernel_benchmarks`
KEY = "kernel_benchmarks"


@dataclass(frozen=True)
class Interval:
    """A median of pairs' quotients with its 95 % interval, and the quotient of the least times."""

    median: float
    low: float
    high: float
    least: float


@dataclass(frozen=True)
class Alternative:
    """What one would use instead: its median time and how many times that of the kernel, or why it failed."""

    name: str
    seconds: float
    times_as_long: Interval | None
    same_values: bool
    failed: str


@dataclass(frozen=True)
class Row:
    """One case; see the module's docstring."""

    kernel: str
    layer: str
    shape: tuple[int, ...]
    dtype: str
    n: int
    m: int
    mode: str
    rescale: str
    device: str
    backend: str
    tensor_bytes: int
    bytes: int
    seconds: float
    gb_per_s: float
    copy: str
    copies_gb_per_s: dict[str, float]
    copy_gb_per_s: float
    fraction: Interval
    instead: tuple[Alternative, ...]

    @property
    def case(self) -> tuple[Any, ...]:
        """What may stand only once."""
        return self.kernel, self.shape, self.dtype, self.n, self.m, self.mode, self.rescale

    @property
    def pruning(self) -> str:
        """The mode in words: `magnitude`, `random`, or what is rescaled by."""
        if self.rescale == "none":
            return self.mode
        return f"rescaled by {self.rescale}" if self.mode == "magnitude" else f"{self.mode}, rescaled by {self.rescale}"

    @property
    def size(self) -> str:
        """The shape as it is read."""
        return "×".join(map(str, self.shape))


@dataclass(frozen=True)
class Run:
    """One file: the facts of its run, and its rows."""

    path: Path
    device: str
    cache_bytes: int
    cache_known_from: str
    backend: str
    rounds: int
    provenance: Mapping[str, Any]
    rows: tuple[Row, ...]


def read(paths: Sequence[Path]) -> list[Run]:
    """Read the files of one machine.

    Raises:
        UsageError: for a file that is not what `bench_kernels.py` writes, a case that stands twice, or files of
            different hardware.
    """
    runs = [read_file(path) for path in paths]
    seen: dict[tuple[Any, ...], Path] = {}
    for run in runs:
        if _machine(run.provenance) != _machine(runs[0].provenance):
            raise UsageError(f"{run.path} is of other hardware than {runs[0].path}: their times are never put together")
        for row in run.rows:
            if row.case in seen:
                where = "twice" if seen[row.case] == run.path else f"in {seen[row.case]} too"
                raise UsageError(f"{run.path}: {row.size} {row.dtype} {row.n}:{row.m} {row.pruning} stands {where}")
            seen[row.case] = run.path
    return runs


def _machine(provenance: Mapping[str, Any]) -> tuple[Any, ...]:
    """What times that are put together have in common; a fact that a file does not have is `None`."""
    hardware, software = provenance.get("hardware") or {}, provenance.get("software") or {}
    threads = None if hardware.get("device") == "cuda" else hardware.get("threads")
    return provenance["hardware_id"], threads, minor_version(str(software.get("torch") or ""))


def read_file(path: Path) -> Run:
    """Read one file.

    Raises:
        UsageError: with the path and the first thing that is wrong.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("benchmarks"), list):
        raise UsageError(f"{path}: is not of pytest-benchmark: it has no list 'benchmarks'")
    facts = content.get(KEY)
    if not isinstance(facts, dict):
        raise UsageError(f"{path}: is of pytest-benchmark, but not of benchmarks/kernels/bench_kernels.py: no '{KEY}'")
    if facts.get("format") != FORMAT:
        raise UsageError(f"{path}: is of format {facts.get('format')}; this program reads format {FORMAT}")
    if not content["benchmarks"]:
        raise UsageError(f"{path}: holds no benchmark: none was chosen, or none passed its check")
    rows = tuple(_row(item, f"{path}: benchmark {number}") for number, item in enumerate(content["benchmarks"], 1))
    provenance = _get(facts, "provenance", dict, f"{path}: {KEY}")
    _get(provenance, "hardware_id", str, f"{path}: provenance")
    where = f"{path}: {KEY}"
    return Run(
        path,
        _get(facts, "device", str, where),
        _get(facts, "cache_bytes", int, where),
        _get(facts, "cache_known_from", str, where),
        _get(facts, "backend", str, where),
        _get(facts, "rounds", int, where),
        provenance,
        rows,
    )


def _row(item: Any, where: str) -> Row:
    found = _get(item, "extra_info", dict, where)
    texts = {key: _get(found, key, str, where) for key in ("kernel", "layer", "dtype", "mode", "rescale", "device")}
    counts = {key: _get(found, key, int, where) for key in ("n", "m", "tensor_bytes", "bytes")}
    rates = {key: _positive(found, key, where) for key in ("seconds", "gb_per_s", "copy_gb_per_s")}
    shape = _get(found, "shape", list, where)
    if not shape or not all(isinstance(size, int) for size in shape):
        raise UsageError(f"{where}: 'shape' is {shape!r}; expected whole numbers")
    copies = _get(found, "copies_gb_per_s", dict, where)
    instead = _get({"instead": {}, **found}, "instead", dict, where)
    return Row(
        **texts,
        **counts,
        **rates,
        backend=_get(found, "backend", str, where),
        shape=tuple(shape),
        copy=_get(found, "copy", str, where),
        copies_gb_per_s={name: _positive(copies, name, where) for name in copies},
        fraction=_interval(found, "fraction_of_copy", where),
        instead=tuple(_alternative(name, content, f"{where}: {name}") for name, content in instead.items()),
    )


def _alternative(name: str, content: Any, where: str) -> Alternative:
    if isinstance(content, dict) and "failed" in content:
        return Alternative(name, math.nan, None, False, _get(content, "failed", str, where))
    return Alternative(
        name,
        _positive(content, "seconds", where),
        _interval(content, "times_as_long", where),
        _get(content, "same_values", bool, where),
        "",
    )


def _interval(content: Mapping[str, Any], key: str, where: str) -> Interval:
    inner = _get(content, key, dict, where)
    return Interval(*(_positive(inner, name, f"{where}: {key}") for name in ("median", "low", "high", "least")))


def _positive(content: Any, key: str, where: str) -> float:
    value = _get(content, key, (int, float), where)
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{where}: '{key}' is {value}; expected a number above 0")
    return float(value)


def _get(content: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    if not isinstance(content, dict) or key not in content:
        raise UsageError(f"{where}: has no '{key}'")
    value = content[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{where}: '{key}' is {value!r}, which is of the wrong type")
    return value
