"""The verb `plan`: predict what the trials of a command will take, from a short probe of each setting."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence

from rich.console import Console

from suite.cli.options import add_run_options, resolve_run_options
from suite.cli.parser import LINE_WIDTH, Parser, program_name
from suite.cli.run import prepared
from suite.errors import UsageError
from suite.measure.prediction.cluster import check_device, check_trial, read_cluster
from suite.measure.prediction.forecast import (
    DEFAULT_STEPS,
    forecast,
    in_subprocess,
    on_cluster,
    seconds_here,
    seconds_on,
    threads_of,
)
from suite.measure.prediction.render import as_json, cluster_line, notes, table, totals

log = logging.getLogger(__name__)

EPILOG = """\
All options of run apply too (run --help). The prediction comes from probes: a probe runs a few steps
of a setting with the learning rate 0. Nothing is trained, and the output folder is not touched. Decoded
images, compiled kernels and measured choices of kernels are stored, so that the trials find them.
docs/scaling.md says what is measured, counted and modelled.

example:
  {program} plan --methods dense,sdgp --task cifar10 --seeds 3

exit status: 0 all trials are predicted; 1 a trial could not be probed; 2 wrong usage or missing data
"""


def plan(arguments: Sequence[str]) -> int:
    """Print the table of trials with their predicted cost.

    Returns:
        1 if a trial that is to run could not be probed, otherwise 0.

    Raises:
        UsageError: The user can correct the command.
    """
    parser = Parser(
        prog=f"{program_name()} plan",
        usage="%(prog)s [OPTION ...]",
        description="Predict time, FLOPs and memory of a command's trials before anything is trained.",
        epilog=EPILOG.format(program=program_name()),
    )
    add_run_options(parser, shown=False)
    more = parser.add_argument_group("plan")
    more.add_argument("--json", action="store_true", help="print JSON in place of the table")
    more.add_argument("--probe-steps", metavar="N", help="timed steps of a probe, at least 2 (default: 8)")
    more.add_argument(
        "--cluster",
        metavar="KEY=VALUE,...",
        help="also predict the time on a cluster: nodes=16,gpus=8,link=400Gb, or without GPUs "
        "nodes=16,cpus=32,link=25Gb; may be followed by local=900GB, the bandwidth inside a node, and latency=10us, "
        "the time of a message without content",
    )
    namespace = parser.read(arguments)
    steps = _steps(namespace.probe_steps)
    options = resolve_run_options(namespace)

    cluster = None if namespace.cluster is None else read_cluster(namespace.cluster)

    suite, trials, folder, _ = prepared(options, trained_here=cluster is None)
    if cluster:
        check_device(cluster, suite.device)
        for trial in trials:
            check_trial(cluster, trial, threads_of(trial, options.jobs))
    probe = in_subprocess(steps or DEFAULT_STEPS, options.jobs)
    forecasts = forecast(trials, folder, options.only, options.jobs, probe, lambda line: log.info("%s", line))
    here, there = seconds_here(forecasts, options.jobs), None
    if cluster:
        forecasts = on_cluster(forecasts, cluster, options.jobs)
        there = seconds_on(forecasts, cluster, options.jobs)
    if namespace.json:
        data = as_json(
            forecasts, folder=str(folder), jobs=options.jobs, total_s=here, cluster=cluster, cluster_s=there,
            left_out=suite.left_out,
        )  # fmt: skip
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        Console(width=None if sys.stdout.isatty() else LINE_WIDTH).print(table(forecasts, cluster))
        for line in [*notes(forecasts), totals(forecasts, here, options.jobs)]:
            print(line)
        if cluster and there is not None:
            threads = threads_of(trials[0], options.jobs)
            print(cluster_line(forecasts, there, cluster, cluster.devices(threads)))
    return 1 if any(prediction.error for prediction in forecasts) else 0


def _steps(text: str | None) -> int | None:
    if text is not None and not (text.isdecimal() and len(text) < 6 and int(text) >= 2):
        raise UsageError(f"--probe-steps '{text}': expected an integer from 2 to 99999")
    return None if text is None else int(text)
