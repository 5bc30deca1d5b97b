"""Channel counts of a network that is made wider or narrower by a factor."""

from __future__ import annotations


def scaled(model: str, channels: int, width: float, narrowest: int) -> int:
    """`channels` times `width`.

    Args:
        model: its name, for the message.
        channels: at width 1.
        width: the factor.
        narrowest: the network's smallest channel count at width 1, whose fractions give whole counts everywhere.

    Raises:
        ValueError: if that is no positive whole number.
    """
    found = channels * width
    if not (found >= 1 and float(found).is_integer()):
        raise ValueError(
            f"{model}: width {width} makes {found} of {channels} channels; use a multiple of 1/{narrowest}"
        )
    return int(found)
