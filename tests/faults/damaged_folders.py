"""Random damages of a suite's folder, each through every verb that reads it.

    PYTHONPATH=.:tests/support:tests/faults python tests/faults/damaged_folders.py [--seed N] [--count 500]

A verb must end with the status 0, 1 or 2 and without a traceback, and whatever it calls done must be what the trials
wrote. Damages are those of disks, programs, people and strangers: values, keys, bytes, sizes, names, types of files,
links, permissions, and records whose checksum was computed again.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import json
import os
import random
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import random_edits
import suites
from edits import edit
from forked import pdt
from profiles import profile, step
from profiles import stage as profiled

from reports.content import build
from suite.cli import main as cli
from suite.errors import UsageError
from suite.measure import running
from suite.measure import time_steps as steps
from suite.trials.folder import entries, packed, profiles, tuning
from suite.trials.folder.reader import read
from suite.trials.folder.results import current_rows
from suite.trials.folder.times import TIMES

VERBS = ("compare", "merge", "export", "time", "report")
LIMIT_S = 60  # for a verb; one that opens a pipe would wait for ever
METHODS = "dense,prunetrain[threshold=0.2]"
OPTIONS = ("--methods", METHODS, *suites.OPTIONS[2:], "--target", "2")
CONTENT = ("trial.json", "epochs.jsonl", "layers.csv")  # what a report says about a trial comes from these
UNREADABLE = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, EOFError, zlib.error, csv.Error),
)
REAL_TIMES = 0.03  # share of the damages after which `time` trains


class Fault(AssertionError):
    """A verb did what it must not do."""


class TooLate(BaseException):
    """A verb does not end. No error that the project handles is one of these."""


def make_base(folder: Path) -> Path:
    """Return a folder with everything that a folder can have: stages, times, profiles and a choice of parameters."""
    suites.warm_up(folder)
    out = folder / "base"
    ended = pdt(["run", *OPTIONS, "--data-root", str(folder), "--out", str(out)], folder / "run")
    assert ended.status == 0, ended.output
    for path in out.glob("trials/*/trial.json"):  # `export` writes ~ in place of the home folder
        record = json.loads(path.read_bytes())
        record["spec"]["data_copy"]["path"] = str(Path.home() / "data" / "x.npz")
        path.write_text(json.dumps(record | {"sha256": packed.digest(record)}))
    with fake_times():
        assert called(["time", str(out), "--busy", "--pairs", "3"])[0] == 0
    (group,) = TIMES.read(out)
    (method,) = group.methods
    own = json.loads(json.dumps(profile(profiled(step(), step(), 1.0)))) | {"provenance": {}}
    entry = entries.GroupEntries[profiles.MethodProfile].model_validate({"key": group.key, "methods": {method: own}})
    profiles.PROFILES.write(out, [entry])
    setting = tuning.Setting(
        values={}, trial_ids=("a",), val_accuracy=0.5, train_flops_effective=1.0, inference_flops_effective=1.0
    )
    tuned = tuning.TunedMethod(method="dense", space=(), settings=(setting,), chosen=0, label="dense")
    names = {"task": "digits", "model": "m", "preset": "smoke", "validation_images": 9, "split_seed": 0}
    tuning.write_tuned(out, tuning.Tuned(budget=1, search_seed=0, seeds=(0,), methods=(tuned,), **names))
    assert list(out.glob("trials/*/stages/*.pt")), "no trial has a second stage"
    assert called(["export", str(out), str(folder / "exported")])[0] == 0
    return out


def called(words: list[str]) -> tuple[int, str]:
    """Run a command line in this process, and return its status and output."""
    heard = io.StringIO()

    def late(*given: Any) -> None:
        raise TooLate(f"{words[0]} takes longer than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
            status = cli.main(words)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return status, heard.getvalue()


@contextlib.contextmanager
def fake_times(real: bool = False) -> Iterator[None]:
    """Measure in this process, and only pretend to, unless `real` is true."""

    def in_process(function: str) -> Callable[..., dict[str, Any]]:
        def measure(candidate: Any, arguments: Any, threads: int) -> dict[str, Any]:
            key = candidate.key
            if not real:
                pairs = [[1.0, 2.0], [1.1, 2.0]] * 5
                return {
                    "stages": [{"image_size": None, "start": pairs, "end": pairs}] * len(arguments["stages"]),
                    "twice": pairs, "dense": [[[None, False], 8]], "load": 0.0,
                    "provenance": {"hardware_id": key["hardware_id"], "software": {"torch": key["torch"]}},
                }  # fmt: skip
            try:
                return json.loads(json.dumps(steps.measure(**json.loads(json.dumps(arguments)), device="cpu")))
            except Exception as error:  # the process would end with a traceback, of which one line is shown
                raise UsageError(f"{type(error).__name__}: {error}") from error

        return measure

    before = running.in_subprocess
    running.in_subprocess = in_process
    try:
        yield
    finally:
        running.in_subprocess = before


# Damages: functions that change a folder and return what they did.


def damage(folder: Path, chance: random.Random) -> str:
    """Damage a folder once, or now and then twice or three times, and return what was done."""
    count = chance.choice((1, 1, 1, 1, 2, 3))
    return "; ".join(chance.choice(DAMAGES)(folder, chance) for _ in range(count))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _trials(folder: Path) -> list[Path]:
    place = folder / "trials"
    return sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []


def _named(path: Path, folder: Path, what: str) -> str:
    return f"{what} {str(path.relative_to(folder))!a}"


def edited(folder: Path, chance: random.Random) -> str:
    """Edit the bytes or values of any file."""
    if not (found := _files(folder)):
        return "nothing"
    path = chance.choice(found)
    others = [other for other in found if other.name == path.name]
    content, kind = edit(path.read_bytes(), chance, chance.choice(others).read_bytes())
    path.write_bytes(content)
    return _named(path, folder, f"{kind} in")


def value(folder: Path, chance: random.Random) -> str:
    """Change a value of a table or a record."""
    try:
        return random_edits.damage(folder, chance.randrange(10**9))
    except UNREADABLE:  # damaged before
        return "nothing"


NUMBERS = (-1, 10**400, True, "0.5", "", "\ud800", "\x1b[31m", [0.5], [], {}, {"x": [None]})
TEXTS = (-1, 0.5, True, None, [0.5], {}, "\ud800", "\x1b[31m\n")
OTHERS = (-1, 0.5, "x", True, [0.5], [[]])  # in place of objects and lists


def signed(folder: Path, chance: random.Random) -> str:
    """Give a value of a record another type or a number out of its domain, and compute the checksum again."""
    if not (found := _trials(folder)):
        return "nothing"
    path = chance.choice(found) / "trial.json"
    try:
        record = json.loads(path.read_bytes())
        places = [record["result"], record["spec"], record["spec"]["recipe"], record, record["files"]]
        place = chance.choice(places[:3] + places)
        # Nothing checks what has its default: no id covers it.
        key = chance.choice(sorted(set(place) - set(record["spec"]["at_default"])))
        known = place[key]
        number = isinstance(known, (int, float)) or known is None
        values = NUMBERS if number else TEXTS if isinstance(known, str) else OTHERS
        if isinstance(known, bool):  # the other truth has the right type
            values = tuple(value for value in values if not isinstance(value, bool))
        place[key] = chance.choice(values)
        digest = packed.digest(record)
        path.write_text(json.dumps(record | {"sha256": digest}), encoding="utf-8")
    except UNREADABLE:
        return "nothing"
    return _named(path, folder, f"{key} is {place[key]!r:.40} and signed again in")


def replaced(folder: Path, chance: random.Random) -> str:
    """Put something else in the place of a file or folder."""
    paths = sorted(path for path in folder.rglob("*") if not path.is_symlink())
    if not paths:
        return "nothing"
    path = chance.choice(paths)
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    kind = chance.choice(("removed", "folder", "file", "link", "dangling link", "loop", "pipe", "socket", "denied"))
    was_folder = path.is_dir()
    if kind == "denied":
        path.chmod(0)
        return _named(path, folder, "no permission for")
    if kind == "link":
        path.rename(elsewhere / path.name)
        path.symlink_to(elsewhere / path.name)
        return _named(path, folder, "a link in place of")
    shutil.rmtree(path) if was_folder else path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.write_bytes(chance.choice((b"", b"x", b"null", secrets.token_bytes(64))))
    elif kind == "dangling link":
        path.symlink_to("absent")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one, contextlib.suppress(OSError), contextlib.chdir(path.parent):
            one.bind(path.name)
    return _named(path, folder, f"{kind} in place of" if kind != "removed" else "removed")


NAMES = (
    *("x", "-", " ", "\udcff", "\x1b[31mred", "\x9bx", "a\nb", "…" * 60, "..x", "%s{0}"),
    "dense-digits-resnet9-s0-00000000",
)


def renamed(folder: Path, chance: random.Random) -> str:
    """Rename, copy or swap the folders or files of trials."""
    if len(found := _trials(folder)) < 2:
        return "nothing"
    first, second = chance.sample(found, 2)
    kind = chance.choice(("renamed", "copied", "swapped", "files swapped", "inside"))
    if kind == "swapped":
        _swap(first, second)
    elif kind == "files swapped":
        names = sorted({path.name for path in first.iterdir()} & {path.name for path in second.iterdir()})
        if names:
            _swap(first / (name := chance.choice(names)), second / name)
            kind = f"{name} swapped"
    else:
        name = chance.choice((*NAMES, first.name[:-8] + "0" * 8, first.name + "x"))
        target = second / name if kind == "inside" else first.with_name(name)
        if os.path.lexists(target):
            return "nothing"
        shutil.copytree(first, target, symlinks=True) if kind == "copied" else first.rename(target)
        kind = f"{kind} to {name!a:.60}"
    return _named(first, folder, f"{kind}:")


def _swap(first: Path, second: Path) -> None:
    other = first.with_name("swapping")
    first.rename(other)
    second.rename(first)
    other.rename(second)


def resized(folder: Path, chance: random.Random) -> str:
    """Make a file longer or shorter."""
    if not (found := _files(folder)):
        return "nothing"
    path = chance.choice(found)
    size = chance.choice((0, 1, path.stat().st_size // 2, path.stat().st_size + 1, 2**20, 70 * 2**20))
    with open(path, "r+b") as file:
        file.truncate(size)
    return _named(path, folder, f"{size} bytes of")


def repacked(folder: Path, chance: random.Random) -> str:
    """Compress a file, next to the plain one or in its place, whole or not, or unpack it."""
    paths = [path for path in _files(folder) if path.name.removesuffix(".gz") in CONTENT]
    if not paths:
        return "nothing"
    path = chance.choice(paths)
    content = path.read_bytes()
    if path.suffix == ".gz":
        path.with_suffix("").write_bytes(chance.choice((content, b"", content[::-1])))
        return _named(path, folder, "unpacked next to")
    packed = gzip.compress(chance.choice((content, content, b"", content[: len(content) // 2], bytes(2**20))), 1)
    path.with_name(path.name + ".gz").write_bytes(packed[: len(packed) - chance.choice((0, 0, 1, len(packed)))])
    if chance.random() < 0.7:
        path.unlink()
    return _named(path, folder, "packed")


def added(folder: Path, chance: random.Random) -> str:
    """Add a file or a row that does not belong there."""
    trials = _trials(folder)
    places = [folder, folder / "trials", folder / "figures", *trials]
    place = chance.choice([one for one in places if one.is_dir()])
    others = (".x.0123456789abcdef.part", "trial.json.gz", "report.tex", "stages", "g-x.svg", ".lock", ".results.lock")
    name = chance.choice((*NAMES, *others))
    path = place / name
    with contextlib.suppress(OSError):
        if not os.path.lexists(path):
            path.write_bytes(chance.choice((b"", b"{}", secrets.token_bytes(100))))
    return _named(path, folder, "added")


DAMAGES = (edited, edited, value, value, value, signed, signed, replaced, replaced, renamed, resized, repacked, added)


# What must hold.


def content_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a trial that exist, without compression.

    Of the record, without the path of the data, and without texts that may be anything and decide nothing.
    """
    found = {}
    for name in CONTENT:
        if (path := packed.held(folder / name)) is not None:
            found[name] = packed.read(path)
    if "trial.json" in found:
        record = json.loads(found["trial.json"])
        for name in ("sha256", "message"):
            record.pop(name, None)
        for name in ("variant", "recipe_source"):
            record["spec"].pop(name, None)
        record["spec"]["data_copy"].pop("path", None)
        found["trial.json"] = json.dumps(record, sort_keys=True).encode()
    return found


class Truth:
    """What the trials of the undamaged folder wrote."""

    def __init__(self, base: Path) -> None:
        self.content = {path.name: content_of(path) for path in _trials(base)}
        self.numbers = {trial.name: dict(trial.numbers) for trial in read(base).trials}

    def check(self, folder: Path, verb: str, tables: bool) -> None:
        """Check that what a folder calls done is what was written.

        Args:
            folder: Folder that a verb wrote, or has read.
            verb: The verb.
            tables: Whether the table must be right even about trials of which there is no record.
        """
        try:
            records = read(folder, current_rows(folder))
        except UsageError:
            return
        for trial in records.trials:
            if not trial.done or trial.damage:
                continue
            place = folder / "trials" / trial.name
            recorded = "trial.json" not in trial.missing_files
            if not recorded and not tables:
                continue
            if trial.name not in self.content:
                raise Fault(f"{verb}: {trial.name!a} counts as done, and no such trial was run")
            if recorded:
                found = content_of(place)
                for name, content in found.items():
                    if content != self.content[trial.name][name]:
                        raise Fault(f"{verb}: {trial.name} counts as done, with another {name}")
            mine, known = trial.numbers, self.numbers[trial.name]
            targets = mine.get("target_accuracy") == known["target_accuracy"]  # it is in suite.json
            if wrong := [name for name in mine if known[name] != mine[name] and (targets or "target" not in name)]:
                raise Fault(f"{verb}: {trial.name} counts as done, with {wrong[0]} {mine[wrong[0]]}")


def examine(base: Path, exported: Path, truth: Truth, folder: Path, chance: random.Random) -> tuple[str, list[str]]:
    """Damage a copy, and call the verbs.

    Returns:
        What was done, and each verb with its status.

    Raises:
        Fault: A verb did what it must not do.
    """
    source, other = (base, exported) if chance.random() < 0.7 else (exported, base)
    mine = folder / "damaged"
    shutil.copytree(source, mine)
    if chance.random() < 0.4:  # the records alone have to say what is true
        (mine / "results.csv").unlink()
    done = damage(mine, chance)
    outcomes = []
    has_table = "results.csv" in done
    with fake_times(chance.random() < REAL_TIMES or "stages" in done):
        for verb in VERBS:
            words = {
                "compare": ["compare", str(mine), str(other), "--json"],
                "merge": ["merge", str(mine), str(other), "-o", str(folder / "merged")],
                "export": ["export", str(mine), str(folder / "copy")],
                "time": ["time", str(mine), "--busy", "--pairs", "3"],
                "report": ["report", str(mine)],
            }[verb]
            before = _state(mine)
            try:
                status, output = called(words)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                raise Fault(f"{done}: {verb}: {traceback.format_exc()}") from error
            if status not in (0, 1, 2) or "Traceback" in output:
                raise Fault(f"{done}: {verb}: {status}: {output}")
            if status == 2 and sum(line.startswith("pdt: error: ") for line in output.splitlines()) != 1:
                raise Fault(f"{done}: {verb}: not one line: {output}")
            if any(ord(letter) < 32 and letter not in "\t\n" for letter in output):
                raise Fault(f"{done}: {verb}: control characters: {output!a}")
            if verb in ("compare", "merge") and _state(mine) != before:
                raise Fault(f"{done}: {verb} changed the folder")
            outcomes.append(f"{verb} {status}")
            try:
                if verb == "compare" and status == 0 and (not has_table or _has_records(mine, truth)):
                    _check_differences(json.loads(output), done)
                written = {"merge": folder / "merged", "export": folder / "copy", "report": mine}.get(verb)
                if written is not None and status == 0:
                    truth.check(written, verb, tables=not has_table)
                    if verb == "export":  # its records must not be truer than those that were copied
                        (written / "results.csv").unlink()
                        truth.check(written, "export, without its table", tables=True)
            except Fault as fault:
                raise Fault(f"{done}: {fault}") from None
    return done, outcomes


def _has_records(folder: Path, truth: Truth) -> bool:
    return all((folder / "trials" / name / "trial.json").is_file() for name in truth.content)


def _check_differences(found: Any, done: str) -> None:
    """Check that equal trials do not differ."""
    for one in found["differences"]:
        for name, same in (("accuracy_difference", 0.0), ("executed_flops_ratio", 1.0), ("effective_flops_ratio", 1.0)):
            if one[name].get("mean", same) != same:
                raise Fault(f"compare: a damaged number counts: {name} is {one[name]}")


def _state(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*"))


def without_figures(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Leave out what takes longest and is the same for all damages.

    Args:
        replace: Sets an attribute.
    """
    replace(build, "tradeoff_figures", lambda rows, slug, curve: ([], []))
    replace(build, "curve_figures", lambda rows, slug: ([], []))


def run(base: Path, seed: int, count: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Try a number of damages; return how often each verb ended with which status, and the faults."""
    truth, exported = Truth(base), base.parent / "exported"
    found: Counter[str] = Counter()
    faults = []
    for number in range(count):
        place = folder / str(number)
        place.mkdir()
        try:
            _, outcomes = examine(base, exported, truth, place, random.Random(f"{seed}-{number}"))
            found.update(outcomes)
        except Fault as fault:
            faults.append(f"seed {seed}, damage {number}: {fault}")
        os.system(f"chmod -R u+rwx '{place}'")
        shutil.rmtree(place, ignore_errors=True)
    return found, faults


def main() -> int:
    """Try damages, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--count", type=int, default=500)
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.count} damages", flush=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        base = make_base(Path(name))
        without_figures()
        began = time.monotonic()
        found, faults = run(base, options.seed, options.count, Path(name))
    for fault in faults:
        print(fault)
    print(", ".join(f"{name}: {count}" for name, count in sorted(found.items())))
    print(f"{len(faults)} faults, {time.monotonic() - began:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
