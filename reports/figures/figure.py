"""A drawn figure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A figure: `inline` follows the page's light or dark scheme, `standalone` is a file on a light ground."""

    name: str
    title: str
    alt: str
    caption: str
    inline: str
    standalone: str
    wide: bool = False
