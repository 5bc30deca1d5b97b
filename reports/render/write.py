"""A folder's report, written so that a reader never sees half of one."""

from __future__ import annotations

from pathlib import Path

from reports.content.build import build
from reports.data.records import read
from reports.render import html, markdown
from suite import files


def write_report(folder: Path) -> list[Path]:
    """See `reports.write_report`."""
    # Names of ours begin with a group's slug.
    earlier = {path.name for path in (folder / "figures").glob("g-*.svg")}
    report = build(read(folder), earlier)
    figures = [(folder / "figures" / f"{figure.name}.svg", figure.standalone) for figure in report.figures]
    texts = [(folder / "report.html", html.render(report)), (folder / "report.md", markdown.render(report)), *figures]
    # The figures first: a Markdown file never refers to one that is not there yet.
    files.make_folder(folder / "figures")
    for path, text in reversed(texts):
        files.write(path, text)
    # Figures of an earlier report, whose methods may have other colours now; those it names as kept stay.
    for name in earlier - {path.name for path, _ in figures} - set(report.kept):
        (folder / "figures" / name).unlink()
    return [path for path, _ in texts]
