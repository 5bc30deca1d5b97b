"""The verb `plan`: what the trials of a command will take, from some steps of each kind of trial."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rich.console import Console

from suite.cli.options import LINE_WIDTH, Parser, add_run_options, program_name, resolve_run_options
from suite.cli.run import has_one_thread, prepared
from suite.measure.prediction import as_json, lines, predict, table, total_s

EPILOG = """\
All options of run apply too (run --help). For each kind of trial, 20 steps of each stage are timed with
the learning rate 0. Nothing is trained, and the output folder is not touched. Decoded images, compiled
kernels and measured choices of kernels are stored, so that the trials find them. docs/scaling.md says
what is measured, counted and left out.

example:
  {program} plan --methods dense,sdgp --task cifar10 --seeds 3

exit status: 0 all trials are predicted; 1 a trial could not be measured; 2 wrong usage or missing data
"""


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
        epilog=EPILOG.format(program=program_name()),
    )
    add_run_options(parser, shown=False)
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    namespace = parser.read(arguments)
    options = resolve_run_options(namespace)
    command = prepared(options)
    suite, trials, folder, _ = command
    threads = 1 if has_one_thread(options, command) else None
    # stdout is for the table or JSON
    kinds = predict(trials, folder, options.only, options.jobs, Console(stderr=True), threads)
    seconds = total_s(kinds, trials, options.jobs)
    if namespace.json:
        about = {"folder": str(folder), "jobs": options.jobs, "total_s": seconds, "left_out": list(suite.left_out)}
        print(json.dumps({**about, "trials": as_json(kinds)}, indent=2, allow_nan=False))
    else:
        Console(width=None if sys.stdout.isatty() else LINE_WIDTH).print(table(kinds))
        print("\n".join(lines(kinds, seconds, options.jobs)))
    return 1 if any("error" in kind.found for kind in kinds) else 0
