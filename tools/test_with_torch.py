"""Run the fast tests with a version of torch, in a virtual environment that is made for it.

    python tools/test_with_torch.py 2.14.1
    python tools/test_with_torch.py oldest -n 0 tests/engine/cost

VERSION is `oldest` (the one in `pyproject.toml`), `newest`, or digits. What follows it is passed to pytest. The
environment takes about 6 GB and is removed at the end; with `--keep FOLDER` it stays there and is used again.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    """Make the environment, and return the exit status of pytest; 2 if torch cannot be installed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="folder of an environment that is kept")
    parser.add_argument("version", metavar="VERSION", type=requirement, help="oldest, newest, or as 2.14 or 2.14.1")
    parser.add_argument("pytest", metavar="...", nargs=argparse.REMAINDER, help="arguments of pytest")
    if {"-h", "--help"} & set(arguments):  # also behind VERSION, where it would be pytest's, after an installation
        parser.print_help()
        return 0
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pdt-torch-") as folder:
        environment = (chosen.keep or Path(folder)).resolve()
        if not (environment / "pyvenv.cfg").exists():
            venv.create(environment, with_pip=True)
        python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
        # The torchvision that belongs to a torch requires it, so that pip finds it.
        install = [python, "-m", "pip", "install", "--quiet", chosen.version, "torchvision", "-e", ".[test]"]
        if subprocess.run(install, cwd=ROOT).returncode:
            print(f"test_with_torch: {chosen.version} cannot be installed", file=sys.stderr)
            return 2
        subprocess.run([python, "-c", "import torch; print('torch', torch.__version__)"], cwd=ROOT, check=True)
        return subprocess.run([python, "-m", "pytest", *chosen.pytest], cwd=ROOT).returncode


def requirement(version: str) -> str:
    """Return what pip is to install for a VERSION."""
    if version == "newest":
        return "torch"
    if version == "oldest":
        needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
        version = next(one.removeprefix("torch>=") for one in needed if one.startswith("torch>="))
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        raise argparse.ArgumentTypeError(f"'{version}' is not a version: oldest, newest, or as 2.14 or 2.14.1")
    return f"torch=={version}" if version.count(".") == 2 else f"torch=={version}.*"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
