"""Check that two checkouts train the same: final weights bit for bit, and all counted numbers.

    python -m benchmarks.guards OLD NEW

Each checkout trains every method that both have, one after the other on this machine: on digits with two ranks,
and killed after its first epoch and resumed; on the sample of CIFAR-10 whole. Trials are matched by method,
variant, epochs and seed, since their names may change. Returns 1 if something differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from suite.trials.provenance import git_facts

COMMON = ("--model=resnet9[width=0.0625]", "--preset=smoke", "--device=cpu", "--dtype=float32", "--seeds=0,",
          "--jobs=2")  # fmt: skip
RUNS: dict[str, tuple[str, ...]] = {
    "digits, two ranks": ("--task=digits", "--batch-size=32", "--nproc-per-trial=2"),
    "digits, resumed": ("--task=digits", "--batch-size=32"),
    "sample of CIFAR-10": ("--task=cifar10",),
}
PRUNED = "prunetrain[ratio=0.5]"  # its default removes nothing in so short a training
TYPED = {
    "prunetrain": PRUNED,
    "scratch": f"scratch[of={PRUNED}]",
    # What is chosen by measurement may be another backend in each checkout.
    "sdgp": "sdgp[backend=skip]",
    "clicktrain": "clicktrain[backend=skipping]",
    "gmp": "gmp[backend=masked]",
    "rigl": "rigl[backend=masked]",
    "progressive_resizing": "progressive_resizing[start=0.75]",  # half the side of digits is too small for the network
}
KILLED = "digits, resumed"
COUNTED = ("flops", "params", "communication", "macs")  # parts of the names of counted columns
POLL_S = 0.02


def methods(root: Path) -> list[str]:
    """Return the methods of a checkout."""
    listed = subprocess.run([*_program(root), "list", "--json"], cwd=root, env=_environment(root), check=True,
                            capture_output=True, text=True)  # fmt: skip
    return [TYPED.get(one["name"], one["name"]) for one in json.loads(listed.stdout)["methods"]]


def commit(root: Path) -> str:
    """Return the commit of a checkout; end the program if a file differs from it."""
    facts = git_facts(root)
    if not facts:
        raise SystemExit(f"{root} is not a checkout")
    if facts["dirty"]:
        raise SystemExit(f"{root} has changes that are not committed; commit them, or leave out --keep")
    return str(facts["commit"])


def train(root: Path, names: Sequence[str], options: Sequence[str], out: Path) -> None:
    """Train methods in a checkout.

    Raises:
        subprocess.CalledProcessError: A trial failed.
    """
    command = [*_program(root), f"--methods={','.join(names)}", *COMMON, *options, f"--out={out}"]
    subprocess.run(command, cwd=root, env=_environment(root), check=True, stdout=subprocess.DEVNULL)


def train_killed(root: Path, names: Sequence[str], options: Sequence[str], out: Path) -> None:
    """Train methods in a checkout, kill the processes of each trial after its first epoch, and resume all.

    Raises:
        RuntimeError: A trial ended before it could be killed.
    """
    command = [*_program(root), f"--methods={','.join(names)}", *COMMON, *options, f"--out={out}"]
    killed: set[str] = set()
    while len(killed) < len(names):  # a trial whose dependency was killed starts with the next command
        before = len(killed)
        suite = subprocess.Popen(command, cwd=root, env=_environment(root), stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)  # fmt: skip
        while suite.poll() is None:
            for checkpoint in out.glob("trials/*/checkpoint.pt"):
                trial = checkpoint.parent.name
                if trial not in killed and (processes := _processes_of(trial, suite.pid)):
                    killed.add(trial)
                    for process in processes:
                        with contextlib.suppress(psutil.NoSuchProcess):
                            process.kill()
            time.sleep(POLL_S)
        if len(killed) == before:
            raise RuntimeError(f"only {', '.join(sorted(killed)) or 'no trial'} could be killed")
    train(root, names, options, out)


def _processes_of(trial: str, suite: int) -> list[psutil.Process]:
    """Return the processes below that of a suite whose command names a trial."""
    found = []
    for process in psutil.Process(suite).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if any(trial in part for part in process.cmdline()):
                found.append(process)
    return found


def records(folder: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the records of all trials below a folder by what identifies a training, with the path of each model."""
    found = {}
    for path in folder.rglob("trial.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        spec = record["spec"]
        key = spec["method"], spec.get("variant", ""), spec["recipe"]["epochs"], spec["seed"]
        found[key] = {**record, "model": path.with_name("model.pt")}
    return found


def differences(old: Path, new: Path) -> list[str]:
    """Return a line for each difference between the trials of two folders."""
    before, after = records(old), records(new)
    lines = [f"{key}: only in one of the two" for key in sorted({*before} ^ {*after}, key=str)]
    if not before:
        lines.append(f"{old} has no trials")
    for key in sorted({*before} & {*after}, key=str):
        ours, theirs = before[key], after[key]
        if {ours["status"], theirs["status"]} != {"done"}:
            lines.append(f"{key}: {ours['status']}, {theirs['status']}")
            continue
        tensors = [torch.load(one["model"], weights_only=True)["tensors"] for one in (ours, theirs)]
        if not _equal(*tensors):
            lines.append(f"{key}: other weights")
        results = [one["result"] for one in (ours, theirs)]
        names = sorted(name for name in {*results[0], *results[1]} if any(part in name for part in COUNTED))
        if not names:
            lines.append(f"{key}: no counted number")
        lines += [
            f"{key}: {name} was {was}, is {now}"
            for name in names
            if (was := results[0].get(name)) != (now := results[1].get(name))
        ]
    return lines


def _equal(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor]) -> bool:
    return old.keys() == new.keys() and all(
        old[name].dtype == new[name].dtype and old[name].shape == new[name].shape and torch.equal(old[name], new[name])
        for name in old
    )


def _program(root: Path) -> list[str]:
    return [sys.executable, str(root / "run_suite.py")]


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root)}


def main() -> int:
    """Train in both checkouts, print what differs, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep the trials of each commit in DIR, where they are found again",
    )
    typed = parser.parse_args()
    roots = [typed.old.resolve(), typed.new.resolve()]
    ours = methods(roots[1])
    names = [name for name in methods(roots[0]) if name in ours]
    began, lines = time.perf_counter(), 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        for number, (run, options) in enumerate(RUNS.items()):
            folders = []
            for root in roots:
                above = Path(temporary) / str(len(folders)) if typed.keep is None else typed.keep / commit(root)
                folders.append(above / str(number))
                if not (folders[-1] / "report.html").is_file():
                    (train_killed if run == KILLED else train)(root, names, options, folders[-1])
            found = differences(*folders)
            lines += len(found)
            equal = f"{run}: equal ({len(records(folders[0]))} trials)"
            print("\n".join(f"{run}: {line}" for line in found) or equal, flush=True)
    print(f"{lines or 'no'} {'difference' if lines == 1 else 'differences'} in {time.perf_counter() - began:.0f} s")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
