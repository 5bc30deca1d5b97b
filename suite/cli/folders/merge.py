"""The verb `merge`: collect the trials of several folders in a new one.

Checkpoints and models become hard links where the file system allows it, because programs replace these files and never
change them. All other files are copied.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import reports
from suite import files
from suite.cli.folders.destination import check_destination, new_folder
from suite.cli.folders.entries import combine_times, latest_profiles
from suite.cli.folders.sources import Source, Trial, combine_commands
from suite.cli.parser import Parser, program_name
from suite.errors import UsageError
from suite.trials.folder.profiles import PROFILES
from suite.trials.folder.reader import NotTestedError, update_table
from suite.trials.folder.store import Store
from suite.trials.folder.times import TIMES
from suite.trials.folder.tuning import Tuned, read_tuned, write_tuned

LINKED = (".pt",)  # suffixes of files that are linked


def merge(arguments: Sequence[str]) -> int:
    """Merge folders of trials into a new one, write its table and report, and return the exit status."""
    parser = Parser(
        prog=f"{program_name()} merge",
        description="Collect the trials of several folders in a new one, with a report about all of them. A trial that "
        "several folders have must be the same in all of them; a finished trial replaces an unfinished one.",
    )
    parser.add_argument("folders", metavar="DIR", nargs="+", help="output folders of commands, or exported copies")
    parser.add_argument("-o", "--out", metavar="DIR", help="new or empty folder", required=True)
    typed = parser.read(arguments)
    paths = [files.read_path(text, "merge") for text in typed.folders]
    destination = files.read_path(typed.out, "--out")
    if len({path.resolve() for path in paths}) < max(2, len(paths)):
        raise UsageError("merge: expected at least two different folders, and -o DIR for the new one")
    target = check_destination("merge", destination, paths)
    sources = [Source.read(path) for path in paths]
    chosen, notes = choose(sources)
    times, lines = combine_times([(source.folder, TIMES.read(source.folder)) for source in sources])
    profiles, more = latest_profiles([(source.folder, PROFILES.read(source.folder)) for source in sources])
    tuned, kept = _tuned(paths)
    report = str(destination / "report.html")
    with new_folder("merge", target) as temporary:
        store = Store(temporary)
        for name, trial in sorted(chosen.items()):
            with files.errors_of(trial.source):
                copy_trial(trial.folder, store.trial_folder(name))
        for source in sources:
            source.check_unchanged()
        files.write(temporary / "suite.json", combine_commands(sources))
        if times:
            TIMES.write(temporary, times)
        if profiles:
            PROFILES.write(temporary, profiles)
        if tuned is not None:
            write_tuned(temporary, tuned)
        update_table(temporary, none_runs=True)
        try:
            reports.write_report(temporary, place=target)
        except NotTestedError as error:
            report = f"none, since {str(error).replace(str(temporary), str(destination))}"
    for line in (*notes, *lines, *more, *kept):
        print(f"merge: {line}")
    done = sum(trial.done for trial in chosen.values())
    print(f"merge: {destination}, {len(chosen)} trials, {done} of them done; report: {report}")
    return 0


def _tuned(paths: Sequence[Path]) -> tuple[Tuned | None, list[str]]:
    """Return the first `tune.json` of several folders, and a line for each one that differs from it."""
    contents = [(path, content) for path in paths if (content := read_tuned(path)) is not None]
    others = [path for path, content in contents if content != contents[0][1]]
    return (contents[0][1] if contents else None), [
        f"tune.json: kept from {contents[0][0]}, and not from {path}" for path in others
    ]


def choose(sources: Sequence[Source]) -> tuple[dict[str, Trial], list[str]]:
    """Choose the folder of each trial.

    Returns:
        The trials by id, and a line for each trial that several folders have with different outcomes.

    Raises:
        UsageError: A trial is done in two folders with different results.
    """
    chosen: dict[str, Trial] = {}
    notes = []
    for name in sorted({name for source in sources for name in source.trials}):
        several = [source.trials[name] for source in sources if name in source.trials]
        done = [trial for trial in several if trial.done]
        for other in done[1:]:
            if difference := done[0].difference(other):
                raise UsageError(
                    f"merge: {name} is not the same trial in {done[0].source} and {other.source}: {difference}; "
                    "merge only one of them, or remove the trial from the other"
                )
        # An exported copy has fewer files: it lacks the model and the stages.
        best = max(done or several[:1], key=lambda trial: trial.size)
        chosen[name] = best
        if len(done) < len(several) and (done or any(one.plain != best.plain for one in several)):
            others = ", ".join(f"{one.state} in {one.source}" for one in several if not one.done and one != best)
            notes.append(f"{name}: {best.state} in {best.source} is kept; it is {others}")
    return chosen, notes


def copy_trial(source: Path, destination: Path) -> None:
    """Copy the folder of a trial; files with a suffix of `LINKED` get a second name instead.

    Raises:
        UsageError: A file is a pipe, a socket or a device.
        OSError: A file cannot be read, linked or copied.
    """
    files.make_folder(destination)
    for path in sorted(source.rglob("*")):
        copy = destination / path.relative_to(source)
        if path.is_dir():
            files.make_folder(copy)
        elif not path.is_file():
            raise UsageError(f"merge: {path} is not an ordinary file; move it away")
        elif path.suffix in LINKED:
            files.keep_copy(path, copy)
        elif path.suffix != ".part":  # a killed writer left a part
            shutil.copyfile(path, copy)
