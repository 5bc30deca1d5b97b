"""Reports of a suite: read the files of its folder, and write HTML, Markdown and figures.

The package does not import methods, tasks or the trainer. Its parts import in one direction only:
`render > content > figures > formatting > data`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Written:
    """A report that was written.

    Attributes:
        paths: `report.html`, `report.md`, `report.tex` if it is written, then the figures.
        damage: One line for each damaged file and value.
    """

    paths: list[Path]
    damage: tuple[str, ...]


def write_report(
    folder: Path,
    targets: Sequence[float] = (),
    latex: bool = False,
    place: Path | None = None,
    none_runs: bool = False,
) -> Written:
    """Write `report.html`, `report.md` and `figures/*.svg` into a suite's folder, each atomically.

    Args:
        folder: Path of the suite's folder.
        targets: Target accuracies as fractions (default: those that a command declared, otherwise one from dense; see
            `reports.data.targets`).
        latex: Whether `report.tex`, the first tables for a paper, is written too. A file that exists is always updated.
        place: Path that the folder will have, which commands in the report name (default: its present path).
        none_runs: As for `suite.trials.folder.reader.read_trials`.

    Raises:
        suite.errors.UsageError: If the folder has no results.
    """
    # Matplotlib takes seconds to import, which importing this package should not cost.
    from reports.writing import write

    return Written(*write(folder, targets, latex, place, none_runs))


__all__ = ["Written", "write_report"]
