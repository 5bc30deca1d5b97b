"""Results in, one report model out; HTML, Markdown and figures.

This room reads the files of a suite's folder and imports nothing of methods, tasks or the trainer.
"""

from __future__ import annotations

from pathlib import Path


def write_report(folder: Path) -> list[Path]:
    """Write `report.html`, `report.md` and `figures/*.svg` of a suite's folder, each atomically.

    Args:
        folder: a suite's folder: `results.csv` (or, where it is absent, `trials/*/trial.json`), and, where they are
            there, `suite.json`, `trials/*/epochs.jsonl` and `trials/*/layers.csv`.

    Returns:
        The files written: `report.html` first, then `report.md`, then the figures.

    Raises:
        suite.errors.UsageError: if the folder has no results, or its table cannot be read.
    """
    # Figures need matplotlib and seaborn, which take seconds to import: what draws nothing must not wait for them.
    from reports.render.write import write_report as write

    return write(Path(folder))


__all__ = ["write_report"]
