"""The class of a drawn figure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A drawn figure.

    Attributes:
        name: File name without suffix, unique in the report.
        title: Title.
        alt: Description for readers who do not see the figure.
        caption: Text below the figure.
        inline: SVG that follows the light or dark scheme of the page.
        standalone: SVG file on a light background.
        wide: Whether the figure takes the whole width of the page.
    """

    name: str
    title: str
    alt: str
    caption: str
    inline: str
    standalone: str
    wide: bool = False
