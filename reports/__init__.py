"""Reports of a suite: reads the files of its folder, and writes HTML, Markdown and figures.

The package does not import methods, tasks or the trainer. Its parts import in one direction only:
`render > content > figures > formatting > data`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from suite import files

_MOST_LINES = 5  # about damage


@dataclass(frozen=True)
class Written:
    """A report that was written.

    Attributes:
        paths: `report.html`, `report.md`, `report.tex` and `brief.html` if they are written, then the figures.
        damage: One line for each damaged file and value.
    """

    paths: list[Path]
    damage: tuple[str, ...]

    @property
    def shown_damage(self) -> list[str]:
        """The lines about damage that a terminal shows; the report has all of them."""
        more = len(self.damage) - _MOST_LINES
        lines = [f"damaged: {line}" for line in self.damage[:_MOST_LINES]]
        return [*lines, f"damaged: {more} more, which the report lists"] if more > 0 else lines


def write_report(
    folder: Path,
    targets: Sequence[float] = (),
    latex: bool = False,
    place: Path | None = None,
    *,
    brief: bool = False,
) -> Written:
    """Write `report.html`, `report.md` and `figures/*.svg` into a suite's folder, each atomically.

    Args:
        folder: Path of the suite's folder, which contains `results.csv`. The files `suite.json`, `trials/*/trial.json`,
            `trials/*/epochs.jsonl` and `trials/*/layers.csv` are used if they exist.
        targets: Target accuracies as fractions (default: those that a command declared, otherwise one from dense; see
            `reports.data.targets`).
        latex: Whether `report.tex`, the tables for a paper, is written too. A file that exists is always updated.
        place: Path that the folder will have, which commands in the report name (default: the one that it has).
        brief: Whether `brief.html`, the answer on one printed page, is written too. A file that exists is always
            updated.

    Raises:
        suite.errors.UsageError: If the folder has no results, or its table cannot be read.
    """
    # Matplotlib takes seconds to import. Code that imports this package without drawing does not wait for it.
    from reports.content.build import build
    from reports.render import html, markdown
    from reports.render import latex as tables
    from suite.trials.folder.reader import damage, read

    # The names of a report's figures begin with the slug of a group.
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
    # Remove other figures of an earlier report: their methods may now have other colours.
    for name in earlier - drawn.keys() - set(report.retained_figures):
        (folder / "figures" / name).unlink()
    return Written([*contents], damage(records))


@contextmanager
def _kept_objects() -> Iterator[None]:
    """Do not search the objects that are created here for garbage: records of 1,000 trials are millions of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


__all__ = ["Written", "write_report"]
