"""The verb `export`: what a report is built from, without models and logs, to be committed or shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from suite import files
from suite.command.options import Parser, program_name
from suite.errors import UsageError
from suite.runs.folder import packed

WHOLE = ("suite.json", "results.csv", "report.md")  # of the folder, copied as they are
FOLDERS = ("figures", "reproduce")  # of the folder, whose files are copied as they are
RECORDS = ("trial.json",)  # of a trial, copied as they are: short, and read by people
PACKED = ("epochs.jsonl", "layers.csv")  # of a trial, compressed


def export(arguments: Sequence[str]) -> int:
    """Copy what a report is built from, and build it there."""
    parser = Parser(
        prog=f"{program_name()} export",
        description="Copy what a report is built from, compressed and without models and logs, and build it there.",
    )
    parser.add_argument("folder", metavar="DIR", help="a suite's folder: what --out named")
    parser.add_argument("destination", metavar="DEST", help="a folder that does not exist or is empty")
    namespace = parser.read(arguments)
    source, destination = files.read_path(namespace.folder, "export"), files.read_path(namespace.destination, "export")
    if not (source / "suite.json").is_file():
        raise UsageError(f"export {source}: no suite's folder; it has no suite.json")
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UsageError(f"export: {destination} exists and is not an empty folder")
    if destination.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"export: {destination} is in the folder that is to be copied; name another place")

    from reports import write_report
    from suite.runs.folder.results import write_results
    from suite.runs.folder.store import Store

    store = Store(source)
    if store.is_locked():
        raise UsageError(f"export: a command works in {source}; export it when that has ended")
    write_results(store)
    write_report(source)  # so that what is copied is of one time
    for name, content in contents(source):
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        files.write(destination / name, content)
    size = sum(path.stat().st_size for path in destination.rglob("*") if path.is_file())
    print(f"export: {destination}, {size / 1e6:.1f} MB; the report: {destination / 'report.md'}")
    return 0


def contents(source: Path) -> Iterator[tuple[Path, bytes]]:
    """What an export of a suite's folder holds: relative paths with their contents, of what there is.

    Raises:
        UsageError: for a file of a trial that cannot be read.
    """
    from suite.runs.folder.store import Store

    for name in WHOLE:
        if (source / name).is_file():
            yield Path(name), (source / name).read_bytes()
    for folder in FOLDERS:
        for path in sorted((source / folder).glob("*")):
            if path.is_file() and not path.name.startswith("."):  # a dot: what a killed writer left
                yield path.relative_to(source), path.read_bytes()
    for trial in Store(source).trial_folders():
        for name in (*RECORDS, *PACKED):
            found = packed.held(trial / name)
            if found is None:
                continue
            try:
                content = packed.read(found)
            except OSError as error:
                raise UsageError(f"export: {found} cannot be read: {error.strerror or error}") from error
            place = trial.relative_to(source) / name
            if name in PACKED:
                yield place.with_name(name + packed.SUFFIX), packed.pack(content)
            else:
                yield place, content
