"""The verbs `run` and `plan`: prepare a command, run its trials and report them, or predict what they will take."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import reports
from reports.data.records import is_disturbed, mark_disturbed
from suite import files, registry
from suite.cli.main import check_system
from suite.cli.options import Parser, RunOptions, add_run_options, program_name, read_run_options, resolve_run_options
from suite.engine.cost import hardware
from suite.errors import UsageError
from suite.files import clean, without_home
from suite.parameters import accepts
from suite.trials.callbacks.listening import Callback, CallingListener
from suite.trials.controls import BASELINE
from suite.trials.folder.reader import update_table
from suite.trials.folder.records import TrialRecord, read_record
from suite.trials.folder.store import Store
from suite.trials.process import command_line, forked
from suite.trials.progress import TrialProgress, duration
from suite.trials.ranks import in_allocation
from suite.trials.ranks.allocation import Allocation, follow, lead
from suite.trials.spec import Prepared, TrialSpec

log = logging.getLogger(__name__)

LINE_WIDTH = 140  # characters, where the output is not a terminal
IN_USE = "; wait for it, or train into another folder with --out and join the two with merge"
PLAN_EPILOG = """\
All options of run apply too (run --help). For each kind of trial, 20 steps of each stage are timed with
the learning rate 0. Nothing is trained, and the output folder is not touched. Decoded images, compiled
kernels and measured choices of kernels are stored, so that the trials find them. docs/scaling.md says
what is measured, counted and left out.

example:
  {program} plan --methods dense,sdgp --task cifar10 --seeds 3

exit status: 0 all trials are predicted; 1 a trial could not be measured; 2 wrong usage or missing data
"""


def run(arguments: Sequence[str], functions: Mapping[str, Callback] | None = None) -> int:
    """Run a suite.

    Args:
        arguments: The options.
        functions: Functions of the user's program, which this process calls (`suite.run`).

    Returns:
        The exit status: 0 if every trial of the command is done, or is a control of a trial that removed nothing;
        otherwise 1.

    Raises:
        UsageError: The user can correct the command, a file or a plugin.
    """

    def run_all(options: RunOptions) -> int:
        return run_prepared(options, prepared(options), functions=functions)

    if not in_allocation():
        return run_all(read_run_options(arguments))
    allocation = Allocation.of_environment()

    def options() -> RunOptions:  # called by `follow` and `lead`, so that rank 0 alone says what is wrong
        return _of_allocation(read_run_options(arguments), allocation)

    if allocation.rank:
        return follow(allocation, lambda: _planned_by_rank(options()))
    return lead(allocation, lambda: run_all(options()))


def run_with_functions(arguments: Sequence[str], **functions: Callback | None) -> int:
    """Run a suite and call functions of the user's program; see `suite.run`.

    Raises:
        UsageError: As for `run`; or a function does not take a trial and a record.
    """
    check_system()
    given = {name: function for name, function in functions.items() if function is not None}
    for name, function in given.items():
        if not accepts(function, 2):
            raise UsageError(f"suite.run: {name}{inspect.signature(function)} has to be {name}(trial, record)")
    return run(arguments, given)


def plan(arguments: Sequence[str]) -> int:
    """Print the table of the kinds of trials with their predicted cost.

    Returns:
        1 if a trial that is to run could not be measured, otherwise 0.

    Raises:
        UsageError: The user can correct the command.
    """
    parser = Parser(
        "plan",
        usage="%(prog)s [OPTION ...]",
        description="Predict time, FLOPs and memory of a command's trials before anything is trained.",
        epilog=PLAN_EPILOG.format(program=program_name()),
    )
    add_run_options(parser, shown=False)
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    namespace = parser.read(arguments)
    options = resolve_run_options(namespace)

    from suite.measure import prediction  # what the other verbs do not need

    command = prepared(options)
    suite, trials, folder, _ = command
    threads = 1 if has_one_thread(options, command) else None
    # stdout is for the table or JSON
    kinds = prediction.predict(trials, folder, options.only, options.jobs, Console(stderr=True), threads)
    seconds = prediction.total_s(kinds, trials, options.jobs)
    if namespace.json:
        about = {"folder": str(folder), "jobs": options.jobs, "total_s": seconds, "left_out": list(suite.left_out)}
        print(json.dumps({**about, "trials": prediction.as_json(kinds)}, indent=2, allow_nan=False))
    else:
        console().print(prediction.table(kinds))
        print("\n".join(prediction.lines(kinds, seconds, options.jobs)))
    return 1 if any("error" in kind.found for kind in kinds) else 0


def prepared(options: RunOptions) -> Prepared:
    """Return the result of `suite.cli.preparation.prepare` from a separate process, which imports torch."""

    def call() -> Prepared:
        from suite.cli.preparation import prepare

        return prepare(options)

    return forked(call)


def _planned_by_rank(options: RunOptions) -> tuple[Path, list[TrialSpec]]:
    """Return the output folder and the trials of a command line, as the command of rank 0 plans them."""
    from suite.cli.preparation import planned  # imports torch

    _, trials, folder = planned(options)
    return folder, trials


def _of_allocation(options: RunOptions, allocation: Allocation) -> RunOptions:
    """Return the options with as many processes per trial as commands were started together.

    Raises:
        UsageError: The options ask for another number, or for trials at the same time.
    """
    allowed = {"nproc_per_trial": (1, allocation.size), "engine": ("local",), "jobs": (1,)}
    for name, values in allowed.items():
        if (value := getattr(options, name)) not in values:
            raise UsageError(
                f"--{name.replace('_', '-')} {value}: torchrun has started {allocation.size} processes, which train "
                "one trial at a time, all together; leave the option out"
            )
    return dataclasses.replace(options, nproc_per_trial=allocation.size)


def run_prepared(
    options: RunOptions,
    command: Prepared,
    more: Callable[[], Sequence[Path]] = lambda: (),
    functions: Mapping[str, Callback] | None = None,
) -> int:
    """Run the trials that a folder does not have yet, and write its table and report.

    Args:
        options: Options of the command.
        command: What is to run.
        more: Writes further files from the results while the folder is locked, and returns their paths.
        functions: Functions by name that are called after each epoch and at the end of each trial (`suite.run`).

    Returns:
        The exit status, as in `run`. Trials without test images, as in `tune`, may diverge; they have no report.

    Raises:
        UsageError: The folder is in use, or one of its files cannot be read.
    """
    store = Store(command.folder)
    with files.errors_of(command.folder), store.lock(IN_USE):
        store.add_command(command.suite, clean(without_home(command_line())), command.provenance)
        chosen = store.choose(command.trials, options.only)
        announce(options, command, len(chosen))
        try:
            train(options, command, chosen, functions)
        finally:
            records = update_table(command.folder, none_runs=True, whole=True)
        report = reports.write_report(command.folder, none_runs=True) if _is_tested(command) else None
        written = more()
    return summarise(command, records, report, written)


def _is_tested(command: Prepared) -> bool:
    return any(trial.recipe.get("evaluate_test", True) for trial in command.trials)


def announce(options: RunOptions, command: Prepared, count: int) -> None:
    """Say what will run, and what may disturb it.

    Args:
        count: Number of trials that are to run.
    """
    suite, trials, cores = command.suite, command.trials, hardware.available_cores()
    for task, note in {trial.task: trial.data_copy["note"] for trial in trials}.items():
        log.info("%s: %s", task, note)
    for line in recipe_lines(trials):
        log.info("%s", line)
    if not count:
        state = "none of the %d trials has failed" if options.only == "failed" else "all %d trials are done"
        log.info("nothing to run: %s, in %s", state % len(trials), command.folder)
        return
    formats = " and ".join(dict.fromkeys(trial.dtype for trial in trials))
    where = f"on {suite.device} in {formats}, into {command.folder}"
    log.info("%d of %d trials to run %s", count, len(trials), where)
    wanted = options.jobs * options.nproc_per_trial
    if busy := hardware.competition(command.provenance["busy_cores"], cores):
        log.warning(
            "%s%s", busy, "; each trial has one thread" if has_one_thread(options, command) else hardware.busy_advice()
        )
    if warning := hardware.too_many_threads(wanted, cores):
        log.warning("%s", warning)
    if suite.device == "cpu" and options.nproc_per_trial > 1 and wanted > cores and options.engine == "local":
        log.warning("%d processes train at the same time on %d core(s), and take time from each other", wanted, cores)


def train(
    options: RunOptions,
    command: Prepared,
    chosen: Sequence[tuple[TrialSpec, Path]],
    functions: Mapping[str, Callback] | None,
) -> None:
    """Run the chosen trials with the command's engine, and show how far they are.

    Raises:
        KeyboardInterrupt: The user typed Ctrl-C.
    """
    of_engine: dict[str, Any] = {}
    if options.engine == "ray":
        of_engine = {"address": options.ray_address}
    elif has_one_thread(options, command):
        of_engine = {"variables": {"OMP_NUM_THREADS": "1"}}
    engine = registry.get("engine", options.engine)(jobs=options.jobs, timeout=options.timeout, **of_engine)
    trials = command.folder / "trials"
    try:
        with TrialProgress([trial for trial, _ in chosen], console()) as progress:
            engine.run(chosen, CallingListener(progress, trials, functions) if functions else progress)
    except KeyboardInterrupt:
        if _is_tested(command) and any(record and record.done for record in map(read_record, trials.glob("*"))):
            log.info("%s report %s shows what is finished", program_name(), shlex.quote(str(command.folder)))
        raise


def summarise(
    command: Prepared, records: Sequence[TrialRecord], report: reports.Written | None, written: Sequence[Path]
) -> int:
    """Print how the command's trials ended and what was written, and return the exit status of `run_prepared`.

    Args:
        records: All trials of the folder.
        report: What was written of the report; `None` without one.
        written: Other files that were written.
    """
    names = {trial.trial_id for trial in command.trials}
    ours = [record for record in records if record.name in names]
    if report:
        console().print(summary(ours))
    for record in ours:
        if not record.done:
            print(f"{record.name}  {record.status}: {record.message}")
    for path in (*(report.paths[:1] if report else ()), *written):
        print(f"{'report' if report else 'result'}: {path}")
    for line in report.damage if report else ():
        print(f"damaged: {line}")
    complete = ("done",) if report else ("done", "diverged")
    ended = all(record.status in complete or record.is_needless for record in ours)
    return 0 if len(ours) == len(names) and ended else 1


def console() -> Console:
    """Return the console for tables on stdout."""
    return Console(width=None if sys.stdout.isatty() else LINE_WIDTH)


def has_one_thread(options: RunOptions, command: Prepared) -> bool:
    """Return whether each trial has one thread because the machine is busy.

    Several threads would wait for each other, and the times of `smoke` are no results.
    """
    busy = hardware.competition(command.provenance["busy_cores"], hardware.available_cores())
    smoke = command.suite.preset == "smoke"
    return bool(busy) and smoke and options.engine == "local" and not hardware.threads_of_environment()


def recipe_lines(trials: Sequence[TrialSpec]) -> list[str]:
    """Return one line per task: whose recipe its trials use, and which methods' papers have another."""
    lines = []
    settings = dict.fromkeys((trial.task_name, trial.recipe_source, trial.preset) for trial in trials)
    for task, source, preset in settings:
        if not source:
            continue
        papers = registry.get("task", task).paper_recipes
        others = [
            f"--recipe {name}"
            for name in dict.fromkeys(trial.method for trial in trials if trial.task_name == task)
            if name in papers
            and papers[name].preset == preset
            and not source.startswith(papers[name].source.split(",")[0])
        ]
        hint = f"; {' or '.join(others)} selects that of another method's paper, for all methods" if others else ""
        lines.append(f"{task}: every method uses the recipe of {source}{hint}")
    return lines


def summary(records: Sequence[TrialRecord]) -> Table:
    """Return a table of accuracy, training time and FLOPs per method and length, as means over the seeds that are done.

    FLOPs are relative to dense training with the most epochs; without it, to the dense network in the same trial.
    """
    table = Table(title="Means over the seeds that are done; training FLOPs relative to dense training")
    for column in ("task", "model", "method"):
        table.add_column(column, overflow="fold")
    for column in ("epochs", "done", "accuracy", "training time", "FLOPs effective", "FLOPs executed"):
        table.add_column(column, justify="right", overflow="fold")
    most: dict[tuple[str, str], float] = {}  # epochs by task and model
    rows: dict[tuple[str, str, bool, str, float], list[TrialRecord]] = {}  # dense first, and most epochs first
    for record in records:
        spec, epochs = record.spec, record.number("epochs") or 0
        key = (spec.task, spec.model, spec.method != BASELINE, spec.label, -epochs)
        rows.setdefault(key, []).append(record)
        if "epochs" not in spec.replaced:  # those of its method alone
            most[key[:2]] = max(most.get(key[:2], 0), epochs)
    for key, group in sorted(rows.items(), key=lambda row: row[0]):
        task, model, _, method, epochs = key
        done = [record for record in group if record.done]
        longest = rows.get((task, model, False, BASELINE, -most.get((task, model), 0)), ())
        whole = next(filter(None, (record.number("train_flops_dense") for record in longest)), None)
        accuracy, seconds = (mean(record.number(name) for record in done) for name in ("test_accuracy", "train_time_s"))
        table.add_row(
            *map(escape, (task, model, method)),
            f"{-epochs:g}" if epochs else "",
            f"{len(done)}/{len(group)}",
            "" if accuracy is None else f"{100 * accuracy:.2f} %",
            "" if seconds is None else mark_disturbed(duration(seconds), any(map(is_disturbed, done))),
            _share(done, "train_flops_effective", whole),
            _share(done, "train_flops_executed", whole),
        )
    return table


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; `None` if a value was not measured."""
    numbers = list(values)
    known = [value for value in numbers if value is not None]
    return sum(known) / len(known) if known and len(known) == len(numbers) else None


def _share(records: Sequence[TrialRecord], column: str, dense: float | None) -> str:
    pairs = [(record.number(column), dense or record.number("train_flops_dense")) for record in records]
    share = mean(part / whole if part is not None and whole else None for part, whole in pairs)
    return "" if share is None else f"{100 * share:.1f} %"
