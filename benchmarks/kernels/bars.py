"""Required rates of the pruning kernels ("bars"), and the rows that each bar applies to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.kernels.alternatives import TOPK
from benchmarks.kernels.results import Row, Run

LARGE_BYTES = 256e6  # on a GPU, bars apply to tensors above this size
CACHES = 4  # on a CPU, bars apply to tensors of at least this many last-level caches


@dataclass(frozen=True)
class Bar:
    """A required minimum; `of` returns the value of a row, or `None` if the bar does not apply to it."""

    name: str
    least: float
    of: Callable[[Row, Run], float | None]


@dataclass(frozen=True)
class Verdict:
    """Result of a bar for a row, decided by the median."""

    bar: Bar
    value: float

    @property
    def holds(self) -> bool:
        return self.value >= self.bar.least


def _on_gpu(row: Row, pruned: bool) -> bool:
    return row.kernel == "prune_nm" and row.device == "cuda" and row.tensor_bytes > LARGE_BYTES and pruned


def _selects(row: Row) -> bool:
    """Return whether kept values are those of the gradient: the other modes need more arithmetic."""
    return row.rescale == "none" and row.mode != "unbiased"


def _fraction_gpu(sizes: tuple[int, ...]) -> Callable[[Row, Run], float | None]:
    def of(row: Row, run: Run) -> float | None:
        judged = _on_gpu(row, _selects(row) and row.m in sizes)
        return row.fraction.median if judged else None

    return of


def _fraction_gpu_rescaled(row: Row, run: Run) -> float | None:
    return row.fraction.median if _on_gpu(row, row.rescale == "sample_channel" and row.m in (4, 8, 16, 32)) else None


def _on_cpu(row: Row, run: Run) -> bool:
    plain = _selects(row) and row.m in (4, 8, 16) and row.dtype in ("float32", "bfloat16")
    large = row.tensor_bytes >= CACHES * run.cache_bytes
    return row.kernel == "prune_nm" and row.device == "cpu" and plain and large


def _fraction_cpu(row: Row, run: Run) -> float | None:
    return row.fraction.median if _on_cpu(row, run) else None


def _topk_cpu(row: Row, run: Run) -> float | None:
    ratios = {item.name: item.times_as_long for item in row.instead}
    ratio = ratios.get(TOPK)
    return ratio.median if ratio and _on_cpu(row, run) else None


BARS = (
    Bar("GPU, over 256 MB, not rescaled, m = 4, 8, 16: fraction of a copy", 0.90, _fraction_gpu((4, 8, 16))),
    Bar("GPU, over 256 MB, not rescaled, m = 32: fraction of a copy", 0.75, _fraction_gpu((32,))),
    Bar("GPU, over 256 MB, rescaled by sample_channel, m = 4 to 32: fraction of a copy", 0.55, _fraction_gpu_rescaled),
    Bar("CPU, over four last-level caches, not rescaled, m = 4, 8, 16: fraction of a copy", 0.80, _fraction_cpu),
    Bar(
        "CPU, over four last-level caches, not rescaled, m = 4, 8, 16: speedup over topk and scatter",
        40.0,
        _topk_cpu,
    ),
)


def verdicts(row: Row, run: Run) -> Iterator[Verdict]:
    """Yield the verdict of every bar that applies to a row."""
    for bar in BARS:
        value = bar.of(row, run)
        if value is not None:
            yield Verdict(bar, value)
