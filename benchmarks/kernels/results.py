"""Reader of the JSON files of `bench_kernels.py`: pytest-benchmark's format with an additional key `kernel_benchmarks`.

Each benchmark has these values in `extra_info`:

    kernel, layer, layers, shape, dtype, n, m, mode, rescale, device, backend
    tensor_bytes        size of the gradient
    bytes               counted: minimum traffic, with each element read once and each result written once
    seconds, gb_per_s   measured: median time, and `bytes` divided by it
    copy                fastest of `copies_gb_per_s`; it was timed in alternation with the kernel, at `copy_gb_per_s`
    fraction_of_copy    rate of the kernel over that of the copy: `median` over the pairs, its 95 % interval `low` and
                        `high`, and `least`, the ratio from the two minimum times
    instead             by alternative: `seconds`, `same_values` (equals the reference), number of `pairs`, and
                        `times_as_long` (time over the kernel's, an interval as above); or `failed` with the reason
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.errors import UsageError
from suite.trials.folder.columns import minor_version

FORMAT = 1  # version of `kernel_benchmarks`
KEY = "kernel_benchmarks"


@dataclass(frozen=True)
class Interval:
    """Median ratio of the pairs with its 95 % interval, and the ratio of the minimum times."""

    median: float
    low: float
    high: float
    least: float


@dataclass(frozen=True)
class Alternative:
    """An alternative: its median time and its time relative to the kernel's, or the reason that it failed."""

    name: str
    seconds: float
    times_as_long: Interval | None
    same_values: bool
    failed: str


@dataclass(frozen=True)
class Row:
    """Result of one case; the docstring of the module describes the fields."""

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
        """Key of the case, which must be unique."""
        return self.kernel, self.shape, self.dtype, self.n, self.m, self.mode, self.rescale

    @property
    def pruning(self) -> str:
        """Mode in words: `magnitude`, `random`, or the scope of rescaling."""
        if self.rescale == "none":
            return self.mode
        return f"rescaled by {self.rescale}" if self.mode == "magnitude" else f"{self.mode}, rescaled by {self.rescale}"

    @property
    def size(self) -> str:
        """Shape in words, for example `512×64×32×32`."""
        return "×".join(map(str, self.shape))


@dataclass(frozen=True)
class Run:
    """Content of one file: facts of the run, and its rows."""

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
        UsageError: If a file was not written by `bench_kernels.py`, a case occurs twice, or the files come from
            different hardware.
    """
    runs = [read_file(path) for path in paths]
    seen: dict[tuple[Any, ...], Path] = {}
    for run in runs:
        if _machine(run.provenance) != _machine(runs[0].provenance):
            raise UsageError(
                f"{run.path} was measured on other hardware than {runs[0].path}; their times cannot be combined"
            )
        for row in run.rows:
            if row.case in seen:
                where = "twice" if seen[row.case] == run.path else f"also in {seen[row.case]}"
                raise UsageError(f"{run.path}: {row.size} {row.dtype} {row.n}:{row.m} {row.pruning} occurs {where}")
            seen[row.case] = run.path
    return runs


def _machine(provenance: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the facts that combined files must share; a fact that a file does not have is `None`."""
    hardware, software = provenance.get("hardware") or {}, provenance.get("software") or {}
    threads = None if hardware.get("device") == "cuda" else hardware.get("threads")
    return provenance["hardware_id"], threads, minor_version(str(software.get("torch") or ""))


def read_file(path: Path) -> Run:
    """Read one file.

    Raises:
        UsageError: If the file is invalid; the message has the path and the first error.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("benchmarks"), list):
        raise UsageError(f"{path} is not a file of pytest-benchmark: it has no list 'benchmarks'")
    facts = content.get(KEY)
    if not isinstance(facts, dict):
        raise UsageError(f"{path} was not written by benchmarks/kernels/bench_kernels.py: it has no '{KEY}'")
    if facts.get("format") != FORMAT:
        raise UsageError(f"{path} has format {facts.get('format')}; this program reads format {FORMAT}")
    if not content["benchmarks"]:
        raise UsageError(f"{path} has no benchmarks: none was selected, or none passed its check")
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
        raise UsageError(f"{where}: 'shape' is {shape!r}; expected integers")
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
        raise UsageError(f"{where}: '{key}' is {value!r}, which has the wrong type")
    return value
