"""Lines of text of the measured layers, the required speeds ("bars"), and sums over a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

Row = Mapping[str, Any]
FEWEST_CHANNELS, BATCH = 64, 128

HEAD = (
    f"{'layer':38} {'ratio':>5} {'dtype':9} {'pairs':>5} | {'dense':>8} {'masked':>8} {'skip':>8} {'(least)':>9} "
    f"{'compr.':>6} | {'dense/skip [95 %]':22} {'least':>5} | {'masked/skip':>11} | {'bound ms':>8} by {'skip':>5} "
    f"{'dense':>5} | bar"
)


@dataclass(frozen=True)
class Bar:
    """A speed that is required of the data gradient of convolutions, relative to dense in the same dtype.

    It applies to convolutions with 64 or more input and output channels, at a batch of 128 images. The median decides.
    """

    ratio: tuple[int, int]
    dtype: str
    least: float

    def applies(self, row: Row) -> bool:
        shape = row["shape"]
        is_large = min(shape["in_channels"], shape["out_channels"]) >= FEWEST_CHANNELS
        is_convolution = shape["geometry"]["kind"] == "conv" and row["product"] == "dgrad"
        right = (row["n"], row["m"]) == self.ratio and self.dtype in row["dtypes"]
        return is_convolution and is_large and right and row["batch"] == BATCH

    def value(self, row: Row) -> float:
        return float(row["dtypes"][self.dtype]["times_as_fast_as_dense"]["median"])

    def passes(self, row: Row) -> bool:
        return self.value(row) >= self.least

    def __str__(self) -> str:
        return f"{self.ratio[0]}:{self.ratio[1]} in {self.dtype} at least {self.least:g} times as fast as dense"


BARS = (Bar((1, 4), "float32", 1.5), Bar((2, 16), "float32", 3.0), Bar((2, 16), "bfloat16", 1.5))


def lines(row: Row) -> Iterator[str]:
    """Yield a line for each dtype of a layer; `*` marks the dtype in which dense is faster (the headline ratio)."""
    label = row["label"] + (f" x{len(row['layers'])}" if len(row["layers"]) > 1 else "")
    for name, found in row["dtypes"].items():
        ratio, masked, limit = found["times_as_fast_as_dense"], found["times_as_fast_as_masked"], found["skip_bound"]
        bars = [bar for bar in BARS if bar.dtype == name and bar.applies(row)]
        dense_share = found["dense_bound"]["reached"]
        verdicts = "".join(f"{'pass' if bar.passes(row) else 'MISS'} {bar.least:g}" for bar in bars)
        interval = f"{ratio['median']:5.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
        yield (
            f"{label:38} {row['n']:>2}:{row['m']:<2} {name + ('*' if name == row['faster_dense'] else ''):9} "
            f"{row['pairs']:5} | {found['dense_ms']['median']:8.2f} {found['masked_ms']['median']:8.2f} "
            f"{found['skip_ms']['median']:8.2f} {found['skip_ms']['least']:9.2f} "
            f"{found['share_of_compression']:6.0%} | {interval:22} {ratio['least']:5.2f} | {masked['median']:11.2f} | "
            f"{limit['ms']:8.2f} {limit['by'][0]}  {limit['reached']:5.0%} {dense_share:5.0%} | {verdicts or '-'}"
        )


def summary(rows: Sequence[Row]) -> str:
    """Return sums over the layers, each as often as it occurs, and the verdicts of all bars with all layers that miss.

    Args:
        rows: Rows of one network and product.
    """
    text = [
        "milliseconds, with compression; *: dense is faster in this dtype; bound by m: multiply-adds, b: bytes; shares "
        "of the bound without compression; -: no bar applies"
    ]
    by_ratio = sorted(rows, key=lambda row: (row["m"], row["n"]))
    for (m, n), group in groupby(by_ratio, key=lambda row: (row["m"], row["n"])):
        times = [(len(row["layers"]), row["dtypes"][row["faster_dense"]]) for row in group]
        dense = sum(count * one["dense_ms"]["median"] for count, one in times)
        skip = sum(count * one["skip_ms"]["median"] for count, one in times)
        best = sum(count * min(one[f"{name}_ms"]["median"] for name in ("dense", "skip")) for count, one in times)
        text.append(
            f"{n}:{m}, all layers, in the dtype in which dense is faster: dense {dense:.1f} ms, skip {skip:.1f} ms, "
            f"{dense / skip:.2f} times as fast; {dense / best:.2f} with dense where it is faster"
        )
    for bar in BARS:
        judged = [row for row in rows if bar.applies(row)]
        if judged:
            misses = [f"{row['label']} ({bar.value(row):.2f})" for row in judged if not bar.passes(row)]
            passed = len(judged) - len(misses)
            text.append(
                f"bar, {bar}: {passed} of {len(judged)} layers" + (f"; MISS: {'; '.join(misses)}" if misses else "")
            )
    return "\n".join(text)
