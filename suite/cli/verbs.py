"""The verbs `check`, `report`, `time` and `profile`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import reports
from suite import files
from suite.cli.parser import Parser, program_name, whole
from suite.errors import UsageError
from suite.trials.folder.reader import update_table
from suite.trials.folder.records import read_record
from suite.trials.folder.store import Store
from suite.trials.folder.targets import read_targets, refuse_guesses
from suite.trials.planning import read_names


def check(arguments: Sequence[str]) -> int:
    """Check a method, print one line per contract, and return 1 if a contract is broken, otherwise 0."""
    parser = Parser(
        prog=f"{program_name()} check", description="Check that a method keeps the contract of suite/method.py."
    )
    parser.add_argument("method", metavar="METHOD", help="method, with parameters in brackets: sdgp[n=1,m=4]")
    parser.add_argument("--plugin", metavar="FILE", action="append", default=[], help="Python file that registers it")
    parser.add_argument("--task", metavar="TASK", default="digits", help="task to train on (default: digits)")
    parser.add_argument("--model", metavar="MODEL", default="", help="model to train (default: the task's model)")
    parser.add_argument("--data-root", metavar="DIR", default="", help="folder of the data sets, as for run")
    parser.add_argument(
        "--dtype",
        metavar="TYPE",
        default="float32",
        help="float32, bfloat16 or auto, as for run; methods are checked on the CPU (default: float32)",
    )
    namespace = parser.read(arguments)
    if not namespace.plugin:
        read_names(namespace.method, "method", "check")

    from suite.cli.checking import check_method  # imports torch, which a wrong name should not cost

    return check_method(namespace)


def report(arguments: Sequence[str]) -> int:
    """Update the table and the report of a suite from the files in its folder, and return the exit status."""
    parser = Parser(
        prog=f"{program_name()} report", description="Update results.csv and the report of an output folder."
    )
    parser.add_argument("folder", metavar="DIR", help="output folder of a command, or a copy without trials/")
    parser.add_argument(
        "--target",
        metavar="PERCENT",
        help="accuracies for which the report says what reaching them took: 90 or 88,90 (default: those of "
        "run --target, otherwise dense's mean accuracy minus the margin)",
    )
    parser.add_argument("--latex", action="store_true", help="also write the first tables for a paper, report.tex")
    namespace = parser.read(arguments)
    _suite_folder(namespace.folder, "report")
    folder = Path(namespace.folder).expanduser()
    targets = read_targets(namespace.target) if namespace.target is not None else ()
    for path in Store(folder).trial_folders() if targets else ():
        if (record := read_record(path)) and (classes := record.provenance.get("data", {}).get("classes")):
            refuse_guesses(targets, classes)
    update(folder, targets, namespace.latex)
    if namespace.latex:
        print(f"tables: {folder / 'report.tex'}")
    return 0


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
    print(f"report: {written.paths[0]}")
    for line in written.damage:
        print(f"damaged: {line}")


def time(arguments: Sequence[str]) -> int:
    """Measure training times relative to dense after the trials, and update the report with them.

    Returns:
        1 if a method could not be measured, otherwise 0.
    """
    parser = Parser(
        prog=f"{program_name()} time",
        description="Measure the training time of each method relative to dense, by steps of both that run in turn.",
    )
    parser.add_argument(
        "--pairs",
        metavar="N",
        type=whole(3, 100_000),
        help="pairs of steps in a pass, one step of the method and one of dense (default: 45); each stage of a trial "
        "gets at least 3 pairs at its start and 3 at its end",
    )
    parser.add_argument(
        "--passes",
        metavar="N",
        type=whole(1, 100),
        help="passes of each method that the folder has when the command ends, each in a new process; a verdict about "
        "time needs three (default: at least 5, and equally many of each seed)",
    )
    typed = _read_pass(parser, arguments)
    folder = _suite_folder(typed.folder, "time")

    from suite.measure import time_pass  # imports torch

    with files.errors_of(folder):
        complete = time_pass.run(
            folder, typed.methods, threads=typed.threads, busy=typed.busy, plugins=typed.plugin,
            pairs=typed.pairs or time_pass.DEFAULT_PAIRS, passes=typed.passes or 0,
        )  # fmt: skip
    update(Path(typed.folder).expanduser())
    return 0 if complete else 1


def profile(arguments: Sequence[str]) -> int:
    """Measure where the time of a training step goes, and update the report with it.

    Returns:
        1 if a method could not be measured, otherwise 0.
    """
    parser = Parser(
        prog=f"{program_name()} profile",
        description="Measure where the time of a training step goes, by part, layer and product, for each method and "
        "for dense training.",
    )
    parser.add_argument(
        "--rounds",
        metavar="N",
        type=whole(6, 100_000),
        help="steps to measure in each stage, with clocks and as many without, at least 6 (default: 20, or fewer if "
        "steps take long)",
    )
    parser.add_argument(
        "--all-stages",
        action="store_true",
        help="measure every stage of a trial (default: the first and the last)",
    )
    typed = _read_pass(parser, arguments)
    folder = _suite_folder(typed.folder, "profile")

    from suite.measure import profile_pass  # imports torch

    with files.errors_of(folder):
        complete = profile_pass.run(
            folder,
            typed.methods,
            threads=typed.threads,
            busy=typed.busy,
            plugins=typed.plugin,
            rounds=typed.rounds,
            all_stages=typed.all_stages,
        )
    update(Path(typed.folder).expanduser())
    return 0 if complete else 1


def _read_pass(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """Add what all passes take, and parse the arguments of one."""
    parser.add_argument("folder", metavar="DIR", help="output folder of a command")
    parser.add_argument("--methods", metavar="LIST", default="", help="methods to measure (default: all of the folder)")
    parser.add_argument(
        "--threads", metavar="N", type=whole(1, 1000), help="threads of torch (default: those of the trials)"
    )
    parser.add_argument("--busy", action="store_true", help="measure even while other programs use the machine")
    parser.add_argument(
        "--plugin",
        metavar="FILE",
        action="append",
        default=[],
        help="Python file that defines a method, task or model of the folder; a file that is not typed here is not run",
    )
    return parser.read(arguments)


def _suite_folder(text: str, verb: str) -> Path:
    folder = files.read_path(text, verb)
    if not any((folder / name).exists() for name in ("suite.json", "results.csv", "trials")):
        raise UsageError(f"{verb} {folder}: not the folder of a suite: no suite.json, results.csv or trials")
    return folder
