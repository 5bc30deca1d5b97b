"""What every trial needs, and nothing about any one method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.data.frames import Results

__version__ = "0.1.0"


def load_results(folder: str | Path) -> Results:
    """Return the results of a suite as pandas frames, with the unit and kind of each column.

    Args:
        folder: Output folder of a command, or an exported copy, with compressed records or without its trials.

    Returns:
        Frames of trials, epochs, layers and times, and their schema (`reports.data.frames.Results`).

    Raises:
        suite.errors.UsageError: The folder has no results, or its table cannot be read.
    """
    from reports.data.frames import load

    return load(folder)
