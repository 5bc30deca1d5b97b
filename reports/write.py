"""A folder's report, written so that a reader never sees half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from reports import html, markdown
from reports.build import build
from reports.records import read


def write_report(folder: Path) -> list[Path]:
    """See `reports.write_report`."""
    report = build(read(folder))
    figures = [(folder / "figures" / f"{figure.name}.svg", figure.standalone) for figure in report.figures]
    texts = [(folder / "report.html", html.render(report)), (folder / "report.md", markdown.render(report)), *figures]
    # The figures first: a Markdown file never refers to one that is not there yet.
    for path, text in reversed(texts):
        write_text(path, text)
    # Figures of an earlier report, whose methods may have other colours now. Names of ours begin with a group's slug.
    for path in set((folder / "figures").glob("g-*.svg")) - {path for path, _ in figures}:
        path.unlink()
    return [path for path, _ in texts]


def write_text(path: Path, text: str) -> None:
    """Replace a file by new text atomically; its folder is made if need be."""
    path.parent.mkdir(exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        # mkstemp makes files for their owner alone; a report is to be read by whom the folder lets in.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
