"""The verb `export`: copy the files that a report is built from, to commit or share them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import reports
from suite import files
from suite.cli.folders.destination import check_destination, new_folder
from suite.cli.parser import Parser, program_name
from suite.errors import UsageError, in_words
from suite.trials.folder import packed
from suite.trials.folder.reader import NotTestedError, update_table
from suite.trials.folder.records import TrialRecord, as_text, read_record
from suite.trials.folder.store import Store

# Files of the folder.
WHOLE = ("suite.json", "results.csv", "report.md", "time.json", "profile.json", "tune.json")
FOLDERS = ("figures", "reproduce")  # subfolders whose files are copied
CARRIED = "-gain-"  # figures of the verdict are copied; the commands that drew the others can draw them from the copy
# An image of a page, unless it is such a figure.
IMAGE = re.compile(rb"^!\[(.*)\]\((?!.*-gain-).*\)$", re.MULTILINE)
IN_WORDS = rb"*Figure, which the command that writes this page draws:* \1"


def export(arguments: Sequence[str]) -> int:
    """Copy the files that a report is built from, and return the exit status."""
    parser = Parser(
        prog=f"{program_name()} export",
        description="Copy an output folder without models and logs, with a current report, to commit or share it. "
        "report DEST draws the figures that are left out, and run --out DEST continues the copy.",
    )
    parser.add_argument("folder", metavar="DIR", help="output folder of a command")
    parser.add_argument("destination", metavar="DEST", help="new or empty folder")
    namespace = parser.read(arguments)
    source, destination = files.read_path(namespace.folder, "export"), files.read_path(namespace.destination, "export")
    if not (source / "suite.json").is_file():
        raise UsageError(f"export {source}: not the folder of a suite: it has no suite.json")
    target = check_destination("export", destination, [source])

    store = Store(source)
    in_use = f"export {source}: in use by another command; try again when it has ended"
    if store.is_locked():
        raise UsageError(in_use)
    with files.errors_of(source):
        before = store.fingerprint()
        update_table(source)
        damage: tuple[str, ...] = ()
        with contextlib.suppress(NotTestedError):
            damage = reports.write_report(source).damage  # so that the copied files agree with each other
        with new_folder("export", target) as temporary:
            for name, content in contents(source):
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                files.write(temporary / name, content)
            if store.fingerprint() != before:
                raise UsageError(in_use)
    size = sum(path.stat().st_size for path in destination.rglob("*") if path.is_file())
    report = destination / "report.md"
    said = report if report.exists() else "none, since its trials were not evaluated on test images"
    print(f"export: {destination}, {size / 1e6:.1f} MB; report: {said}")
    for line in damage:
        print(f"damaged: {line}")
    return 0


def contents(source: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the relative path and content of each file that an export of a suite's folder contains.

    Raises:
        UsageError: A file of a trial cannot be read, or is a link.
    """
    for name in WHOLE:
        if (source / name).is_file():
            yield Path(name), page_contents(source / name)
    for folder in FOLDERS:
        for path in sorted((source / folder).glob("*")):
            is_whole = path.is_file() and not path.name.startswith(".")  # a killed process leaves files with a dot
            if is_whole and (path.suffix != ".svg" or CARRIED in path.name):
                yield path.relative_to(source), page_contents(path)
    for trial in Store(source).trial_folders():
        if (record := read_record(trial)) is not None:  # the report names those that are damaged
            for place, content in trial_contents(trial, record):
                yield trial.relative_to(source) / place, content


def page_contents(path: Path) -> bytes:
    """Return the content of a file; a page has the text of each figure that is not copied in its place."""
    files.refuse_link(path)  # which somebody else's folder may have to a private file
    content = path.read_bytes()
    return IMAGE.sub(IN_WORDS, content) if path.suffix == ".md" else content


def trial_contents(trial: Path, record: TrialRecord) -> Iterator[tuple[Path, bytes]]:
    """Yield the relative path and content of each file that an export of a trial's folder contains.

    Raises:
        UsageError: As `contents`.
    """
    try:
        # `~` replaces the home folder, which contains the user's name.
        yield Path("trial.json"), as_text(record.without_home().to_json()).encode()
        for name in packed.COMPRESSED:
            if held := packed.held(trial / name):
                files.refuse_link(held)
                yield Path(name + packed.SUFFIX), packed.pack(packed.read(held))
    except OSError as error:
        raise UsageError(f"export: {trial}: {in_words(error)}") from error
