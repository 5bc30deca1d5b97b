"""Write the files that `benchmarks/evidence/on_gpu.sh` needs in addition to a checkout, into the checkout.

    python -m benchmarks.evidence.carry [--data-root FOLDER] [--python 3.12]

The files are `.commit.json`, the commit of this checkout; `data/cifar10.tar.gz`, the images of the data root (its
folder `cifar10`, or the published archive unchanged); and `data/packages`, the packages that the suite needs and that
images of such machines often lack, for Linux on x86-64 and the machine's Python. git ignores all of them. What exists
in `data` is not written again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from suite.runs.provenance import COMMIT_FILE, git_facts

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("cifar10", "cifar-10-batches-py", "cifar-10-python.tar.gz")
PACKAGES = ("pydantic>=2", "annotated-types", "filelock>=4", "docstring_parser")
LIMIT_BYTES = 64 * 2**20  # limit for everything that is copied to such a machine


def main() -> int:
    """Write the files and print their size and that of the checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data-root", type=Path, default=os.environ.get("PDT_DATA"), help="data root with CIFAR-10 (PDT_DATA)"
    )
    parser.add_argument("--python", default="3.12", help="Python of the GPU machine (default: 3.12)")
    chosen = parser.parse_args()
    facts = git_facts(ROOT)
    if not facts:
        parser.error(f"{ROOT} is not a git checkout, or git is not installed")
    (ROOT / COMMIT_FILE).write_text(json.dumps(facts) + "\n", encoding="utf-8")
    print(f"{COMMIT_FILE}: {facts['commit'][:12]}{' with uncommitted changes' if facts['dirty'] else ''}")
    carried = ROOT / "data" / "cifar10.tar.gz"
    if not carried.exists():
        if chosen.data_root is None:
            parser.error("no data root: set --data-root or PDT_DATA")
        found = next((chosen.data_root / name for name in NAMES if (chosen.data_root / name).exists()), None)
        if found is None:
            parser.error(f"--data-root {chosen.data_root} has none of {', '.join(NAMES)}")
        carried.parent.mkdir(exist_ok=True)
        made = carried.with_name(f".{carried.name}.part")
        with tarfile.open(made, "w:gz") as tar:
            tar.add(found, arcname=found.name)
        made.replace(carried)
    packages = ROOT / "data" / "packages"
    if not packages.exists() and (failure := install(packages, chosen.python)):
        parser.error(f"{', '.join(PACKAGES)} cannot be installed into data/packages: {failure}")
    tracked = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    sizes = [path.stat().st_size for name in tracked.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    sizes += [path.stat().st_size for path in packages.rglob("*") if path.is_file()]
    whole = sum(sizes) + carried.stat().st_size
    print(f"data/cifar10.tar.gz: {carried.stat().st_size / 2**20:.1f} MiB; with the checkout {whole / 2**20:.1f} MiB")
    if whole > LIMIT_BYTES:
        print(f"carry: error: the files exceed {LIMIT_BYTES / 2**20:.0f} MiB", file=sys.stderr)
        return 1
    return 0


def install(folder: Path, python: str) -> str:
    """Install `PACKAGES` into a folder for another machine; returns the last line of pip's errors if that fails."""
    partial = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    target = ["--implementation", "cp", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:"]
    command += ["--python-version", python, *target, "--target", str(partial), *PACKAGES]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"pip ended with exit status {done.returncode}"])[-1]
    partial.replace(folder)
    return ""


if __name__ == "__main__":
    sys.exit(main())
