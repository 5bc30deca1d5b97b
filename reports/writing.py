"""Write the files of a report: pages, tables for a paper, and figures."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from reports.content.build import build
from reports.data.records import read
from reports.render import html, markdown
from reports.render import latex as tables
from suite import files


def write(
    folder: Path, targets: Sequence[float], latex: bool, place: Path | None, none_runs: bool = False
) -> tuple[list[Path], tuple[str, ...]]:
    """Write a report as `reports.write_report` does, and return the fields of `reports.Written`."""
    with _kept_objects():
        records = read(folder, none_runs)
    report = build(replace(records, folder=place or folder), targets)
    figures = folder / "figures"
    # Figures are written first, so that the Markdown file never refers to a missing one.
    contents = {figures / f"{figure.name}.svg": figure.standalone for figure in report.figures}
    pages = {folder / "report.html": html.render(report), folder / "report.md": markdown.render(report)}
    if latex or (folder / "report.tex").is_file():
        pages[folder / "report.tex"] = tables.render(report)
    # Those of an earlier report go, unless files are missing from which they were drawn. Each is named after a group,
    # whose slug begins with `g-`.
    incomplete = any(trial.missing_files for trial in records.trials if trial.done)
    earlier = set() if incomplete else set(figures.glob("g-*.svg"))
    figures.mkdir(parents=True, exist_ok=True)
    for path, text in (contents | pages).items():
        files.write(path, text)
    for path in earlier - contents.keys():
        path.unlink()
    return [*pages, *contents], records.all_damage()


@contextmanager
def _kept_objects() -> Iterator[None]:
    """Exempt the objects that are created here from garbage collection: 1,000 trials have millions of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()
