"""Reports of a suite: reads the files of its folder, and writes HTML, Markdown and figures.

The package does not import methods, tasks or the trainer. Its parts import in one direction only:
`render > content > figures > formatting > data`.
"""

from __future__ import annotations

from pathlib import Path


def write_report(folder: Path) -> list[Path]:
    """Write `report.html`, `report.md` and `figures/*.svg` into a suite's folder, each atomically.

    Args:
        folder: Path of the suite's folder. It contains `results.csv`, or otherwise `trials/*/trial.json`. The files
            `suite.json`, `trials/*/epochs.jsonl` and `trials/*/layers.csv` are used if they exist.

    Returns:
        Paths of the written files: `report.html`, `report.md`, then the figures.

    Raises:
        suite.errors.UsageError: If the folder has no results, or its table cannot be read.
    """
    # Matplotlib takes seconds to import. Code that imports this package without drawing does not wait for it.
    from reports.render.write import write_report as write

    return write(Path(folder))


__all__ = ["write_report"]
