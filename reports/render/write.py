"""Writes the report of a folder, so that a reader never sees an incomplete one."""

from __future__ import annotations

from pathlib import Path

from reports.content.build import build
from reports.data.records import read
from reports.render import html, markdown
from suite import files


def write_report(folder: Path) -> list[Path]:
    """See `reports.write_report`."""
    # The names of a report's figures begin with the slug of a group.
    earlier = {path.name for path in (folder / "figures").glob("g-*.svg")}
    report = build(read(folder), earlier)
    figures = [(folder / "figures" / f"{figure.name}.svg", figure.standalone) for figure in report.figures]
    texts = [(folder / "report.html", html.render(report)), (folder / "report.md", markdown.render(report)), *figures]
    # Figures are written first, so that the Markdown file never refers to a missing one.
    files.make_folder(folder / "figures")
    for path, text in reversed(texts):
        files.write(path, text)
    # Remove other figures of an earlier report: their methods may now have other colours.
    for name in earlier - {path.name for path, _ in figures} - set(report.retained_figures):
        (folder / "figures" / name).unlink()
    return [path for path, _ in texts]
