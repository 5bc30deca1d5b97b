"""Tests of means over seeds: p-values, their correction for many claims, and the number of seeds that a claim needs.

All tests are t-tests of one value per seed. Claims that a group makes together are corrected by Holm's method, so that
the group makes any false claim with at most the stated probability (S. Holm, Scandinavian Journal of Statistics 1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from reports.data.estimates import CONFIDENCE, Estimate, Quantity, Ratio

Side = Literal["above", "below", "either"]
MOST_SEEDS = 100


def p_value(quantity: Quantity, reference: float, side: Side) -> float:
    """Return the p-value of the hypothesis that a mean is not above, not below, or not different from a reference.

    Args:
        quantity: A mean over seeds; a `Ratio` is tested on the logarithmic scale.
        reference: The value that it is compared with.
        side: What a small p-value shows: that the mean is `above` the reference, `below` it, or `either`.

    Returns:
        1 where there is no interval: without a spread over seeds, nothing can be shown.
    """
    if not isinstance(quantity, Estimate) or quantity.half_width is None:
        return 1.0
    from scipy.special import stdtr, stdtrit  # takes half a second to import

    freedom = quantity.count - 1
    mean, half_width = quantity.mean, quantity.half_width
    if isinstance(quantity, Ratio):
        mean, reference, half_width = math.log(mean), math.log(reference), math.log(quantity.high / mean)
    error = half_width / float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
    distance = (mean - reference) / error
    if side == "either":
        return 2 * float(stdtr(freedom, -abs(distance)))
    return float(stdtr(freedom, -distance if side == "above" else distance))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values after Holm's correction, in the same order: compare them with the level of all together."""
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def seeds_needed(quantity: Estimate, reference: float, level: float) -> int | None:
    """Return with how many seeds a one-sided test would decide, if mean and spread stayed as they are.

    Args:
        quantity: A mean over seeds with an interval.
        reference: The value that it is compared with.
        level: Largest p-value that decides.

    Returns:
        A number larger than `quantity.count`; `None` if `MOST_SEEDS` would not decide.
    """
    if quantity.half_width is None:
        return None
    from scipy.special import stdtrit

    error = quantity.half_width / float(stdtrit(quantity.count - 1, (1 + CONFIDENCE) / 2))
    spread = error * math.sqrt(quantity.count)
    for count in range(quantity.count + 1, MOST_SEEDS + 1):
        if abs(quantity.mean - reference) * math.sqrt(count) / spread >= float(stdtrit(count - 1, 1 - level)):
            return count
    return None
