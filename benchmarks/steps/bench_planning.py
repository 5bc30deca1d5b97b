"""Time and memory of a command whose trials are all finished, for a folder of many trials.

    python -m benchmarks.steps.bench_planning [--trials 1000] [--folder DIR]

One small trial is trained; the others are copies with other seeds and separate records. Then the command that would
train all of them runs, and prints that there is nothing to run. The figures are:

- planning: seconds from the start of the command to that line. Every file of every trial is read and its checksum is
  verified in that time. Memory: the peak of the command's own process until then, which it keeps while trials train.
- command: the same for the complete command, with its table and report.
- largest process: the peak memory of its largest process. Planning imports torch and therefore runs in a separate
  process, which ends before trials start.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from suite.trials.folder.records import FILES, write_record
from suite.trials.spec import TrialSpec

ROOT = Path(__file__).resolve().parents[2]

OPTIONS = ("--methods", "dense", "--task", "digits", "--preset", "smoke", "--device", "cpu", "--dtype", "float32")


def command(folder: Path, trials: int) -> list[str]:
    """Return the command line of a suite with this number of seeds."""
    return [sys.executable, str(ROOT / "run_suite.py"), *OPTIONS, "--seeds", str(trials), "--out", str(folder)]


def make(folder: Path, trials: int) -> None:
    """Train the trial of seed 0 and copy it to the other seeds."""
    done = subprocess.run(command(folder, 1), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    (first,) = (folder / "trials").iterdir()
    record = json.loads((first / "trial.json").read_text(encoding="utf-8"))
    for seed in range(1, trials):
        spec = dataclasses.replace(TrialSpec.from_json(record["spec"]), seed=seed)
        other = folder / "trials" / spec.trial_id
        other.mkdir()
        for name in FILES:
            shutil.copyfile(first / name, other / name)
        write_record(other, spec, "done", result=record["result"], provenance=record["provenance"])


def peak_mib(pid: int) -> float:
    """Return the peak memory of a process in MiB (Linux)."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    return int(found[1]) / 1024 if found else 0.0


def measure(folder: Path, trials: int) -> dict[str, float]:
    """Run the command on a folder of finished trials, and return the figures."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command(folder, trials), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    found: dict[str, float] = {}
    assert process.stdout is not None
    for line in process.stdout:
        if "nothing to run" in line:
            found["planning, s"] = time.perf_counter() - began
            found["planning, MiB"] = peak_mib(process.pid)
        elif line.startswith("report: "):
            found["command, MiB"] = peak_mib(process.pid)
    _, status, usage = os.wait4(process.pid, 0)
    found["command, s"] = time.perf_counter() - began
    found["largest process, MiB"] = usage.ru_maxrss / 1024
    if status or "planning, s" not in found:
        raise SystemExit("the command found something to run")
    return found


def main() -> None:
    """Create the folder if it does not exist, run the command three times, and print the figures of each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument(
        "--folder", type=Path, help="folder of the trials, created if it does not exist (default: a temporary folder)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "out"
        if not folder.exists():
            make(folder, options.trials)
        for _ in range(3):
            found = measure(folder, options.trials)
            print("  ".join(f"{name}: {value:.1f}" for name, value in sorted(found.items())), flush=True)


if __name__ == "__main__":
    main()
