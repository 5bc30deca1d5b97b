"""Formatting of numbers. A number never has more digits than its interval supports.

The half-width of an interval has one significant digit, or two if these are at most 20 (`± 0.5`, `± 0.14`, `± 3`). The
mean has the same number of decimals. Each kind of number has a largest number of decimals.
"""

from __future__ import annotations

import math

from reports.data.estimates import Estimate

DASH = "–"
MINUS = "−"
_SI = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_IEC = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def signed(value: float, decimals: int) -> str:
    """Return a number with its sign: `+0.20`, `−1.3`. A number that rounds to 0 has no sign."""
    text = f"{abs(value):.{decimals}f}"
    return text if float(text) == 0 else ("+" if value > 0 else MINUS) + text


def plain(value: float, decimals: int) -> str:
    """Return a number with a typographic minus if it is negative, and no sign otherwise."""
    return signed(value, decimals).removeprefix("+")


def decimals_for(half_width: float | None, most: int) -> int:
    """Return the number of decimals that an interval supports, at most `most`."""
    if half_width is None or half_width <= 0:
        return most
    return min(most, max(0, math.floor(-math.log10(half_width / 20))))


def decimals_for_verdict(estimate: Estimate, reference: float, most: int) -> int:
    """Return `decimals_for`, or more if rounding would change whether the interval seems to cover `reference`."""
    decimals = decimals_for(estimate.half_width, most)
    if estimate.half_width is None:
        return decimals
    for finer in range(decimals, decimals + 6):
        # Rounded decimals are inexact in binary. Distances that differ by less than this count as equal.
        inexact = 10.0 ** -(finer + 2)
        if estimate.bounds is not None:
            covered = round(estimate.low, finer) - inexact <= reference <= round(estimate.high, finer) + inexact
        else:
            distance = abs(round(estimate.mean, finer) - reference)
            covered = distance <= round(estimate.half_width, finer) + inexact
        if covered == estimate.covers(reference):
            return finer
    return decimals


def interval(
    estimate: Estimate, most: int, *, sign: bool = False, exact: bool = False, reference: float | None = None
) -> str:
    """Return a mean with its interval, `91.2 ± 0.5`, or the mean alone if there is no interval.

    An interval that is not symmetric around its mean is written with its ends: `0.91 [0.86, 0.97]`.

    Args:
        estimate: Estimate to write.
        most: Largest number of decimals.
        sign: Whether a positive mean shows its sign.
        exact: Whether the number is counted. Then an interval of width 0 is left out.
        reference: Value that the rounded interval covers if, and only if, the interval itself covers it.
    """
    decimals = decimals_for(estimate.half_width, most)
    if reference is not None:
        decimals = decimals_for_verdict(estimate, reference, most)
    write = signed if sign else plain
    mean = write(estimate.mean, decimals)
    if estimate.half_width is None or (exact and f"{estimate.half_width:.{most}f}" == f"{0:.{most}f}"):
        return mean
    if estimate.bounds is not None:
        return f"{mean} [{write(estimate.low, decimals)}, {write(estimate.high, decimals)}]"
    return f"{mean} ± {estimate.half_width:.{decimals}f}"


def percent(estimate: Estimate) -> str:
    """Return a fraction in percent, without the percent sign."""
    return interval(estimate.scaled(100), 2)


def points(estimate: Estimate) -> str:
    """Return a difference in points with its sign, `+0.7 ± 0.4`. Its digits show whether the interval covers 0."""
    return interval(estimate, 2, sign=True, reference=0.0)


def ratio(estimate: Estimate, *, exact: bool = False) -> str:
    """Return a ratio with at most two decimals, and more if needed to show whether its interval covers 1."""
    return interval(estimate, 2, exact=exact, reference=None if exact else 1.0)


def duration(seconds: float, quantum: float | None = None) -> str:
    """Return a time such as `6 min 12 s`, `2 h 05 min` or `0.042 s`, rounded to `quantum` seconds or by its size."""
    if quantum is None:
        quantum = _natural_quantum(seconds)
    rounded = round(seconds / quantum) * quantum
    if rounded < 60:
        return f"{rounded:.{max(0, -math.floor(math.log10(quantum)))}f} s"
    total = round(rounded)
    hours, minutes, rest = total // 3600, total % 3600 // 60, total % 60
    parts = [f"{hours} h"] if hours else []
    parts += [f"{minutes:02d} min" if hours else f"{minutes} min"] if minutes or quantum < 3600 else []
    parts += [f"{rest:02d} s"] if quantum < 60 else []
    return " ".join(parts)


def duration_interval(estimate: Estimate) -> str:
    """Return a time with its interval: `6 min 12 s ± 4 s`."""
    if estimate.half_width is None:
        return duration(estimate.mean)
    steps = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0)  # even an interval of hours is rounded to minutes
    supported = next((step for step in steps if step >= estimate.half_width / 20), steps[-1])
    quantum = max(supported, _natural_quantum(estimate.mean))
    return f"{duration(estimate.mean, quantum)} ± {duration(estimate.half_width, quantum)}"


def _natural_quantum(seconds: float) -> float:
    for below, quantum in ((1.0, 0.001), (10.0, 0.01), (60.0, 0.1), (36000.0, 1.0)):
        if seconds < below:
            return quantum
    return 60.0


def si(value: float, unit: str) -> str:
    """Return three significant digits with an SI prefix, `1.23 TFLOPs`; a count below 1,000 is written in full."""
    divisor, prefix = si_scale(value)
    scaled_value = value / divisor
    if divisor == 1:
        return f"{scaled_value:.0f} {unit}".rstrip()
    return f"{_three_digits(scaled_value)} {prefix}{unit}"


def si_scale(largest: float) -> tuple[float, str]:
    """Return the divisor and SI prefix with which `largest`, rounded to three digits, is in [1, 1000)."""
    size = 0
    while size + 1 < len(_SI) and float(f"{abs(largest):.3g}") >= 1000 ** (size + 1):
        size += 1
    return float(1000**size), _SI[size]


def binary_bytes(value: float) -> str:
    """Return three significant digits with an IEC prefix: `1.23 GiB`."""
    size = 0
    while size + 1 < len(_IEC) and float(f"{value:.4g}") >= 1000 * 1024**size:
        size += 1
    scaled_value = value / 1024**size
    return f"{scaled_value:.0f} {_IEC[size]}" if size == 0 else f"{_three_digits(scaled_value)} {_IEC[size]}"


def time_scale(largest_seconds: float) -> tuple[float, str]:
    """Return the divisor and unit for an axis of times."""
    if largest_seconds < 180:
        return 1.0, "s"
    return (60.0, "min") if largest_seconds < 3 * 3600 else (3600.0, "h")


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
