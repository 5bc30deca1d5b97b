"""What Ray adds to the time of a command: the same trials with both engines, in interleaved pairs.

    python -m benchmarks.engines.bench_ray [--pairs 6] [--trials 2] [--epochs 60]

Each command trains `--trials` seeds of a small network on the digits, one at a time, and plans, starts and reports as a
user's command does. Ray runs on a cluster of this machine that was started before, so that its start is not measured.
Choose `--epochs` so that a trial takes the time of interest; the program prints it. Other programs disturb both times:
use an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from suite.engine.cost.hardware import available_cores
from suite.engine.cost.interleaved import interleaved_times, ratio_of

ROOT = Path(__file__).resolve().parents[2]
LARGEST_RATIO = 1.10


@contextmanager
def cluster() -> Iterator[str]:
    """Start a Ray cluster on this machine, and yield its address."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    head = {"num_cpus": available_cores(), "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield found.address
    finally:
        found.shutdown()


def options(trials: int, epochs: int) -> list[str]:
    """Return the options of `run` that both engines get."""
    return [
        *("--methods", "dense", "--task", "digits", "--preset", "smoke", "--model", "resnet9[width=0.125]"),
        *("--device", "cpu", "--dtype", "float32", "--seeds", str(trials), "--epochs", str(epochs)),
    ]


def run(arguments: Sequence[str]) -> list[float]:
    """Run a command in a new folder, and return the wall time of each trial, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "run_suite.py"), *arguments, "--out", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        records = [json.loads(path.read_bytes()) for path in Path(folder, "trials").glob("*/trial.json")]
    return [record["result"]["wall_time_s"] for record in records]


def main() -> None:
    """Measure and print; the exit status is 1 if Ray certainly adds more than 10 %."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines.bench_ray", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6, help="interleaved pairs of commands (6)")
    parser.add_argument("--trials", type=int, default=2, help="trials of a command (2)")
    parser.add_argument("--epochs", type=int, default=60, help="epochs of a trial (60)")
    chosen = parser.parse_args()
    typed, seconds = options(chosen.trials, chosen.epochs), list[float]()
    with cluster() as address:
        times = interleaved_times(
            (
                lambda: run([*typed, "--engine", "ray", "--ray-address", address]),
                lambda: seconds.extend(run(typed)),
            ),
            chosen.pairs,
        )
    ratio = ratio_of(times[:, 0], times[:, 1])
    print(
        f"{chosen.trials} trials of {sum(seconds) / len(seconds):.1f} s, {available_cores()} cores, {chosen.pairs} "
        f"pairs, load {os.getloadavg()[0]:.2f}: Ray {ratio.first_s:.1f} s, local {ratio.second_s:.1f} s"
    )
    print(f"Ray over local: {ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]")
    if ratio.low > LARGEST_RATIO:
        raise SystemExit(f"Ray adds more than {100 * (LARGEST_RATIO - 1):.0f} %")


if __name__ == "__main__":
    main()
