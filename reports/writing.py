"""Write the files of a report: pages, tables for a paper, and figures."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from reports.content.build import build
from reports.render import html, markdown
from reports.render import latex as tables
from suite import files
from suite.trials.folder.reader import damage, read


def write(
    folder: Path, targets: Sequence[float], latex: bool, place: Path | None, brief: bool
) -> tuple[list[Path], tuple[str, ...]]:
    """Write a report as `reports.write_report` does, and return the fields of `reports.Written`."""
    # Each figure of a report is named after a group, whose slug begins with `g-`.
    earlier = {path.name for path in (folder / "figures").glob("g-*.svg")}
    with _kept_objects():
        records = read(folder)
    report = build(replace(records, folder=place or folder), earlier, targets)
    texts = {"report.html": html.render(report), "report.md": markdown.render(report)}
    if latex or (folder / "report.tex").is_file():
        texts["report.tex"] = tables.render(report)
    if brief or (folder / "brief.html").is_file():
        texts["brief.html"] = html.render(report, brief=True)
    drawn = {f"{figure.name}.svg": figure.standalone for figure in report.figures}
    contents = {folder / name: text for name, text in texts.items()}
    contents |= {folder / "figures" / name: text for name, text in drawn.items()}
    # Figures are written first, so that the Markdown file never refers to a missing one.
    files.make_folder(folder / "figures")
    for path, text in reversed(contents.items()):
        files.write(path, text)
    # Remove other figures of an earlier report, because their methods may now have other colours.
    for name in earlier - drawn.keys() - set(report.retained_figures):
        (folder / "figures" / name).unlink()
    return [*contents], damage(records)


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
