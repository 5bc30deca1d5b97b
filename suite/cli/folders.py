"""The verbs about output folders: `report`, `time`, `profile`, `compare`, `export` and `merge`.

`export` and `merge` write into a temporary folder next to the new one, and rename it when it is complete. If they are
killed, there is no half-written folder, and the same command can be started again.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import logging
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.markdown import Markdown

import reports
from reports.data.records import NotTestedError, read
from suite import files
from suite.cli.options import Parser, whole
from suite.cli.run import console
from suite.errors import UsageError, in_words, validate
from suite.measure.profiles import PROFILES, MethodProfile
from suite.measure.times import TIMES, Entry, EntryFile, MethodTime
from suite.trials.folder.reader import read_trials, update_table
from suite.trials.folder.records import COMPRESSED, TrialRecord, as_text, held, load_record, pack, read_record, unpacked
from suite.trials.folder.store import Store, read_suite
from suite.trials.folder.targets import read_targets, refuse_guesses
from suite.trials.search import read_tuned, write_tuned

log = logging.getLogger(__name__)

IN_USE = "in use by another command; try again when it has ended"
EXPORTED = (
    *("suite.json", "results.csv", "report.md", "time.json", "profile.json", "tune.json"),
    "figures/*-gain-*.svg",  # of the verdict; the commands that drew the others can draw them from the copy
    *("reproduce/*.md", "reproduce/*.csv"),
)
"""Files of a folder that `export` copies. Those of its trials are in `trial_contents`."""
# An image of a page, unless it is a figure that is copied.
IMAGE = re.compile(rb"^!\[(.*)\]\((?!.*-gain-).*\)$", re.MULTILINE)
IN_WORDS = rb"*Figure, which the command that writes this page draws:* \1"


def report(arguments: Sequence[str]) -> int:
    """Update the table and the report of a suite from the files in its folder, and return the exit status."""
    parser = Parser("report", description="Update results.csv and the report of an output folder.")
    parser.add_argument("folder", metavar="DIR", help="output folder of a command, or an exported copy")
    about = (
        "accuracies for which the report says what reaching them took: 90 or 88,90 (default: those of run --target, "
        "otherwise dense's mean accuracy minus the margin)"
    )
    parser.add_argument("--target", metavar="PERCENT", type=read_targets, default=(), help=about)
    parser.add_argument("--latex", action="store_true", help="also write the first tables for a paper, report.tex")
    namespace = parser.read(arguments)
    folder = _suite_folder(namespace.folder, "report")
    for trial in read_trials(folder, whole=False)[0] if namespace.target else ():
        if classes := trial.provenance.get("data", {}).get("classes"):
            refuse_guesses(namespace.target, classes)
    update(folder, namespace.target, namespace.latex)
    if namespace.latex:
        print(f"tables: {folder / 'report.tex'}")
    return 0


def _suite_folder(text: str, verb: str) -> Path:
    folder = files.read_path(text, verb)
    if not any((folder / name).exists() for name in ("suite.json", "results.csv", "trials")):
        raise UsageError(f"{verb} {folder}: not the folder of a suite: no suite.json, results.csv or trials")
    return folder


def update(folder: Path, targets: Sequence[float] = (), latex: bool = False) -> None:
    """Write the table of results and the report of a folder, and print where the report is."""
    store, is_current = Store(folder), False
    with files.errors_of(folder):
        while not is_current:
            before = store.fingerprint()
            written = reports.write_report(folder, targets, latex)
            update_table(folder, targets=targets)
            # Another command may have changed the folder since. If one still runs, it will write the report at its end.
            is_current = store.is_locked() or store.fingerprint() == before
    print(f"report: {written.paths[0]}", *written.damage, sep="\ndamaged: ")


def time(arguments: Sequence[str]) -> int:
    """Measure training times relative to dense after the trials, and update the report with them.

    Returns:
        1 if a method could not be measured, otherwise 0.
    """
    about = "Measure the training time of each method relative to dense, by steps of both that run in turn."
    parser = Parser("time", description=about)
    about = (
        "pairs of steps in a pass, one step of the method and one of dense (default: 45); each stage of a trial gets "
        "at least 3 pairs at its start and 3 at its end"
    )
    parser.add_argument("--pairs", metavar="N", type=whole(3, 100_000), help=about)
    about = (
        "passes of each method that the folder has when the command ends, each in a new process; a verdict about time "
        "needs three (default: at least 5, and equally many of each seed)"
    )
    parser.add_argument("--passes", metavar="N", type=whole(1, 100), help=about)
    return _measure("time", parser, arguments)


def profile(arguments: Sequence[str]) -> int:
    """Measure where the time of a training step goes, and update the report with it.

    Returns:
        1 if a method could not be measured, otherwise 0.
    """
    about = "Measure where the time of a step goes, by part, layer and product, for each method and for dense training."
    parser = Parser("profile", description=about)
    about = "steps to measure in each stage, with clocks and as many without (default: 20, fewer if steps take long)"
    parser.add_argument("--rounds", metavar="N", type=whole(6, 100_000), help=about)
    parser.add_argument("--all-stages", action="store_true", help="measure every stage, not only the first and last")
    return _measure("profile", parser, arguments)


def _measure(verb: str, parser: Parser, arguments: Sequence[str]) -> int:
    """Add what all passes take, run the one that is typed, and return the exit status."""
    parser.add_argument("folder", metavar="DIR", help="output folder of a command")
    parser.add_argument("--methods", metavar="LIST", help="methods to measure (default: all of the folder)")
    parser.add_argument("--threads", metavar="N", type=whole(1, 1000), help="threads of torch (default: as the trials)")
    parser.add_argument("--busy", action="store_true", help="measure even while other programs use the machine")
    parser.add_plugins(
        "Python file that defines what the folder trained; a file that is not typed here is not run", str
    )
    typed = {name: value for name, value in vars(parser.read(arguments)).items() if value is not None}
    folder = _suite_folder(typed.pop("folder"), verb)

    # These import torch.
    from suite.measure.profile_pass import ProfilePass
    from suite.measure.time_pass import TimePass

    chosen = TimePass if verb == "time" else ProfilePass
    with files.errors_of(folder):
        complete = chosen(folder, plugins=typed.pop("plugin"), **typed).run()
    update(folder)
    return 0 if complete else 1


def compare(arguments: Sequence[str]) -> int:
    """Compare two folders, print or write the result, and return the exit status."""
    parser = Parser(
        "compare",
        description="Compare the finished trials of two folders by method, paired by seed: accuracy, time, FLOPs, and "
        "what differs in settings and provenance. Neither folder changes.",
    )
    parser.add_argument("first", metavar="A", help="output folder of a command, or an exported copy")
    parser.add_argument("second", metavar="B", help="the folder that is compared with it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--out", metavar="FILE.md", help="write the tables as Markdown")
    typed = parser.read(arguments)
    paths = [files.read_path(text, "compare") for text in (typed.first, typed.second)]
    page = files.read_path(typed.out, "--out") if typed.out is not None else None

    from reports import comparison  # imports numpy and pandas, which take time that wrong options should not cost

    both = [read(path) for path in paths]
    for path, records in zip(paths, both, strict=True):
        for line in records.all_damage():
            log.warning("%s: damaged: %s", path, line)
    difference = comparison.compare(*both)
    if not difference.differences:
        log.warning("compare: no finished trial of one folder has a counterpart in the other")
    text = comparison.as_markdown(comparison.tables(difference), *paths)
    if page is not None:
        with files.errors_of(page.parent):
            files.write(page, text)
    if typed.json:
        print(json.dumps(comparison.as_json(difference), indent=2, ensure_ascii=False, allow_nan=False))
        return 0
    console().print(Markdown(re.sub("<sup>(.*?)</sup>", r" ^\1", text)))
    if page is not None:
        print(f"compare: {page}")
    return 0


@contextmanager
def new_folder(verb: str, destination: Path, sources: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield an empty folder, which gets the name of the destination if the block ends without an error.

    Args:
        verb: Verb of the command, for messages and for the name of the temporary folder.
        destination: Path of the new folder, or of an empty one.
        sources: Folders of suites that are read. No other command may use or change them until the block ends.

    Raises:
        UsageError: The destination is not empty or inside a source, it or a file cannot be written, or a source is in
            use.
    """
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UsageError(f"{verb}: {destination} is not an empty folder")
    target = destination.resolve()
    before = {source: Store(source).fingerprint() for source in sources}
    for source in sources:
        if target.is_relative_to(source.resolve()):
            raise UsageError(f"{verb}: {destination} is inside {source}; choose another destination")
        if Store(source).is_locked():
            raise UsageError(f"{verb} {source}: {IN_USE}")
    above = next(folder for folder in target.parents if folder.exists())
    temporary = above / f".{verb}-{secrets.token_hex(8)}"
    with files.errors_of(above):
        temporary.mkdir()
        try:
            yield temporary
            for source in sources:
                if Store(source).fingerprint() != before[source]:
                    raise UsageError(f"{verb} {source}: {IN_USE}")
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.rename(target)
        finally:
            if temporary.exists():
                shutil.rmtree(temporary)


def export(arguments: Sequence[str]) -> int:
    """Copy the files that a report is built from, and return the exit status."""
    parser = Parser(
        "export",
        description="Copy an output folder without models and logs, with a current report, to commit or share it. "
        "report DEST draws the figures that are left out, and run --out DEST continues the copy.",
    )
    parser.add_argument("folder", metavar="DIR", help="output folder of a command")
    parser.add_argument("destination", metavar="DEST", help="new or empty folder")
    namespace = parser.read(arguments)
    source = _suite_folder(namespace.folder, "export")
    destination = files.read_path(namespace.destination, "export")
    damage: tuple[str, ...] = ()
    with new_folder("export", destination, [source]) as temporary, files.errors_of(source):
        update_table(source)
        with contextlib.suppress(NotTestedError):
            damage = reports.write_report(source).damage  # so that the copied files agree with each other
        for name, content in contents(source):
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            files.write(temporary / name, content)
    size = sum(path.stat().st_size for path in destination.rglob("*") if path.is_file())
    page = destination / "report.md"
    said = page if page.exists() else "none, since its trials were not evaluated on test images"
    print(f"export: {destination}, {size / 1e6:.1f} MB; report: {said}", *damage, sep="\ndamaged: ")
    return 0


def contents(source: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the relative path and content of each file that an export of a suite's folder contains.

    Raises:
        UsageError: A file of a trial cannot be read, or is a link.
    """
    for pattern in EXPORTED:
        for path in sorted(source.glob(pattern)):
            yield path.relative_to(source), page_contents(path)
    for trial in Store(source).trial_folders():
        if record := read_record(trial):  # the report names those that are damaged
            for name, content in trial_contents(trial, record):
                yield trial.relative_to(source) / name, content


def page_contents(path: Path) -> bytes:
    """Return the content of a file; a page has the text of each figure that is not copied in its place."""
    refuse_link(path)
    content = path.read_bytes()
    return IMAGE.sub(IN_WORDS, content) if path.suffix == ".md" else content


def trial_contents(trial: Path, record: TrialRecord) -> Iterator[tuple[Path, bytes]]:
    """Yield the relative path and content of each file that an export of a trial's folder contains.

    Raises:
        UsageError: As `contents`.
    """
    # `~` replaces the home folder, which contains the user's name.
    yield Path("trial.json"), as_text(record.without_home().to_json()).encode()
    for name in COMPRESSED:
        if path := held(trial / name):
            refuse_link(path)
            try:
                yield Path(f"{name}.gz"), pack(unpacked(path))
            except OSError as error:
                raise UsageError(f"export: {trial}: {in_words(error)}") from error


def refuse_link(path: Path) -> None:
    """Refuse to copy the target of a symbolic link, which may be a file of this user in somebody else's folder.

    Raises:
        UsageError: The path is a symbolic link.
    """
    if path.is_symlink():
        raise UsageError(f"export: {path} is a symbolic link; replace it by its target")


class Copy(NamedTuple):
    """A trial in one of the folders that are merged: that folder, its own, and its status or damage."""

    source: Path
    folder: Path
    state: str


def merge(arguments: Sequence[str]) -> int:
    """Merge folders of trials into a new one, write its table and report, and return the exit status."""
    parser = Parser(
        "merge",
        description="Collect the trials of several folders in a new one, with a report about all of them. A trial that "
        "several folders have must be the same in all of them; a finished trial replaces an unfinished one.",
    )
    parser.add_argument("folders", metavar="DIR", nargs="+", help="output folders of commands, or exported copies")
    parser.add_argument("-o", "--out", metavar="DIR", help="new or empty folder", required=True)
    typed = parser.read(arguments)
    sources = [_suite_folder(text, "merge") for text in typed.folders]
    destination = files.read_path(typed.out, "--out")
    if len({path.resolve() for path in sources}) < max(2, len(sources)):
        raise UsageError("merge: expected at least two different folders, and -o DIR for the new one")
    said = str(destination / "report.html")
    with new_folder("merge", destination, sources) as temporary:
        files.write(temporary / "suite.json", as_text(combine_commands(sources)))
        chosen, notes = choose(sources)
        for name, trial in chosen.items():
            copy_trial(trial.folder, Store(temporary).trial_folder(name))
        notes += combine(TIMES, sources, temporary, join_passes)
        notes += combine(PROFILES, sources, temporary, later_profile)
        notes += copy_tuned(sources, temporary)
        update_table(temporary, none_runs=True)
        try:
            written = reports.write_report(temporary, place=destination.resolve())
            notes += [f"damaged: {line}" for line in written.damage]
        except NotTestedError as error:
            said = f"none, since {str(error).replace(str(temporary), str(destination))}"
    for line in notes:
        print(f"merge: {line}")
    done = sum(trial.state == "done" for trial in chosen.values())
    print(f"merge: {destination}, {len(chosen)} trials, {done} of them done; report: {said}")
    return 0


def choose(sources: Sequence[Path]) -> tuple[dict[str, Copy], list[str]]:
    """Choose the folder of each trial.

    Returns:
        The trials by id, and a line for each trial that is not done in some folders that have it.

    Raises:
        UsageError: A trial is done in two folders with different records.
    """
    copies: dict[str, list[Copy]] = {}
    for source in sources:
        store = Store(source)
        for path in store.trial_folders():
            status, reason = store.state(path.name)
            if status:
                state = f"damaged ({reason})" if reason else status
                copies.setdefault(path.name, []).append(Copy(source, path, state))
    chosen, notes = {}, []
    for name, trials in sorted(copies.items()):
        done = [trial for trial in trials if trial.state == "done"]
        for second in done[1:]:
            _check_same(done[0], second)
        # An exported copy has fewer files: it lacks the model and the stages.
        best = max(done, key=lambda trial: sum(1 for _ in trial.folder.rglob("*")), default=trials[0])
        if others := [f"{trial.state} in {trial.source}" for trial in trials if trial not in (*done, best)]:
            notes.append(f"{name}: {best.state} in {best.source} is kept; it is {', '.join(others)}")
        chosen[name] = best
    return chosen, notes


def _check_same(first: Copy, second: Copy) -> None:
    """Check that two records of a finished trial are equal. An export has `~` in place of the home folder.

    Raises:
        UsageError: They differ.
    """
    records = [load_record(trial.folder).without_home().to_json() for trial in (first, second)]
    if differing := [name for name in records[0] if records[0][name] != records[1][name]]:
        raise UsageError(
            f"merge: {first.folder.name} is not the same trial in {first.source} and {second.source}: '{differing[0]}' "
            "of their trial.json differs; merge only one of them, or remove the trial from the other"
        )


def copy_trial(source: Path, destination: Path) -> None:
    """Copy the folder of a trial.

    Checkpoints and models become hard links where the file system allows it, because programs replace these files and
    never change them.

    Raises:
        UsageError: A file cannot be read, linked or copied.
    """

    def copy(path: str, new: str) -> None:
        if path.endswith(".pt"):
            files.keep_copy(Path(path), Path(new))
        else:
            shutil.copyfile(path, new)

    try:
        # A killed writer leaves a part.
        shutil.copytree(source, destination, ignore=shutil.ignore_patterns("*.part"), copy_function=copy)
    except shutil.Error as error:
        path, _, reason = error.args[0][0]
        raise UsageError(f"merge: {path} cannot be copied: {reason}") from error


def combine_commands(sources: Sequence[Path]) -> dict[str, Any]:
    """Return the `suite.json` of a merged folder: the commands of all folders by time, each once and with its folder.

    The first fields of the file are those of the latest command, as in any folder.
    """

    def time_of(command: Mapping[str, Any]) -> str:
        return str(command.get("time_utc", ""))

    suites = [read_suite(source / "suite.json") for source in sources]
    named = [
        [{"folder": files.without_home(str(source)), **command} for command in suite["commands"]]
        for source, suite in zip(sources, suites, strict=True)
    ]
    commands: dict[str, dict[str, Any]] = {}  # by their text without folder: copied folders have the same commands
    for command in heapq.merge(*named, key=time_of):  # commands of a folder keep their order
        commands.setdefault(as_text({**command, "folder": ""}), command)
    latest = max(suites, key=lambda suite: max(map(time_of, suite["commands"]), default=""))
    return {**latest, "commands": [*commands.values()]}


def combine(
    file: EntryFile[Entry], sources: Sequence[Path], new: Path, join: Callable[[Entry, Entry, str], Entry]
) -> list[str]:
    """Write what passes measured in several folders, and return a line for each method whose entries differ.

    Args:
        file: The file of the passes.
        sources: The folders.
        new: The folder that gets the file.
        join: Returns one entry for two of a method, given where the second is.
    """
    notes = []
    for source in sources:
        for group in file.read(source):
            known = next((other.methods for other in file.read(new) if other.key == group.key), {})
            for label, entry in group.methods.items():
                if label in known and known[label] != entry:
                    notes.append(f"{file.name}: {label} was measured in {source} too")
                    entry = join(known[label], entry, f"merge: {label} in {source / file.name}")
                file.add(new, group.key, label, entry)
    return notes


def join_passes(first: MethodTime, second: MethodTime, where: str) -> MethodTime:
    """Return the passes of both. One that both have, as copies do, counts once.

    Raises:
        UsageError: The passes have different numbers of threads.
    """
    new = [timed for timed in second.passes if timed not in first.passes]
    joined: MethodTime = validate(MethodTime, {"passes": (*first.passes, *new)}, where)
    return joined


def later_profile(first: MethodProfile, second: MethodProfile, where: str) -> MethodProfile:
    """Return the profile that counts: in one folder too, a later profile replaces an earlier one."""
    return max(first, second, key=lambda profile: str(profile.provenance.get("time_utc", "")))


def copy_tuned(sources: Sequence[Path], new: Path) -> list[str]:
    """Copy the first `tune.json` of several folders, and return a line for each that differs from it."""
    tuned = {source: content for source in sources if (content := read_tuned(source))}
    if not tuned:
        return []
    first = next(iter(tuned))
    write_tuned(new, tuned[first])
    differing = [source for source, content in tuned.items() if content != tuned[first]]
    return [f"tune.json: kept from {first}, and not from {source}" for source in differing]
