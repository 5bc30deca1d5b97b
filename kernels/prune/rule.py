"""Which channels of a gradient are kept, and how the remaining ones are rescaled."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal, get_args

Mode = Literal["magnitude", "random", "unbiased"]
Scope = Literal["none", "group", "sample_channel", "channel"]

# A kernel receives a mode or a scope as its position in these tuples.
MODES: tuple[Mode, ...] = get_args(Mode)
SCOPES: tuple[Scope, ...] = get_args(Scope)
GROUP_SIZES = range(2, 33)


@dataclass(frozen=True)
class PruneRule:
    """Keep n of every m consecutive channels of each pixel.

    If m does not divide the number of channels, the last group of a pixel is short and keeps min(n, its size).

    Attributes:
        n: Channels kept in each group, 1 to m.
        m: Channels in a group, 2 to 32.
        mode: Selection of the kept channels. `magnitude` keeps the largest |g|; ties keep the lower channel, and NaN
            ranks above infinity. `random` keeps a uniformly random subset, which depends on the seed alone. `unbiased`
            keeps a random subset, larger |g| more probably, and divides each value by its probability. The expectation
            is then the gradient, with the smallest possible variance (`kernels.prune.unbiased`). `magnitude` replaces
            it for a group with NaN, infinity or a sum of magnitudes beyond fp32.
        rescale: Scope over which the remaining values are multiplied by sum |G| / sum |G^|, summed in fp32, or by 0 if
            nothing remains: `none`; `group`; `sample_channel`, over P and Q (in a matrix: over each row); `channel`,
            over N, P and Q (in a matrix: over the rows). `unbiased` requires `none`.

    Raises:
        ValueError: n, m, mode or rescale is out of range, or `unbiased` is combined with a rescaling.
        TypeError: n or m is not an integer.
    """

    n: int
    m: int
    mode: Mode = "magnitude"
    rescale: Scope = "none"

    def __post_init__(self) -> None:
        for name in ("n", "m"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        if self.m not in GROUP_SIZES:
            raise ValueError(f"PruneRule: m must be in 2..32, got m={self.m}")
        if not 1 <= self.n <= self.m:
            raise ValueError(f"PruneRule: n must be in 1..m, got n={self.n} with m={self.m}")
        if self.mode not in MODES:
            raise ValueError(f"PruneRule: mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.rescale not in SCOPES:
            raise ValueError(f"PruneRule: rescale must be one of {', '.join(SCOPES)}, got {self.rescale!r}")
        if self.mode == "unbiased" and self.rescale != "none":
            raise ValueError(
                "PruneRule: mode 'unbiased' keeps the expectation, which rescaling would change; rescale must be "
                f"'none', got {self.rescale!r}"
            )

    def kept(self, channels: int) -> int:
        """Return how many of the channels of a pixel are kept."""
        return channels // self.m * self.n + min(channels % self.m, self.n)
