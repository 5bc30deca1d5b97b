"""Sizes of the house: lines, files and imports inside functions by package, and the files that a command passes.

    python tools/house.py sizes [FOLDER]
    python tools/house.py trace --methods dense --task digits --preset smoke

`trace` runs the command of the suite, without its `--out`, in this working tree, and prints in how many of the
project's files a function runs: in all of its processes, and in the process of a trial. Bodies of modules and classes
do not count, nor do files `__init__.py`.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRACER = """
import inspect, os, sys, threading
seen = set()
out = open(os.path.join({out!r}, f"{{os.getpid()}}.txt"), "a", buffering=1)
def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename not in seen and code.co_flags & inspect.CO_OPTIMIZED:
        seen.add(code.co_filename)
        name = code.co_filename
        if name.startswith({root!r}) and name.endswith(".py") and "__init__" not in name:
            out.write(name + "\\n")
def opened_again():
    global out
    seen.clear()
    out = open(os.path.join({out!r}, f"{{os.getpid()}}.txt"), "a", buffering=1)
os.register_at_fork(after_in_child=opened_again)
sys.setprofile(profile)
threading.setprofile(profile)
"""


def sizes(root: Path) -> list[tuple[str, int, int, int]]:
    """Return package, files, lines that are not blank, and imports inside functions, of all files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True)
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for name in listed.stdout.split():
        path = Path(name)
        parts = path.parts[:-1]
        package = "/".join(parts[:2] if parts[:1] == ("suite",) else parts[:1]) or "."
        text = (root / path).read_text(encoding="utf-8")
        counts = (1, sum(bool(line.strip()) for line in text.splitlines()), _imports_inside_functions(text))
        found[package] = [before + more for before, more in zip(found[package], counts, strict=True)]
    return [(package, *counts) for package, counts in sorted(found.items())]  # type: ignore[misc]


def _imports_inside_functions(text: str) -> int:
    functions = [one for one in ast.walk(ast.parse(text)) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inside = {id(one) for function in functions for one in ast.walk(function)
              if isinstance(one, (ast.Import, ast.ImportFrom))}  # fmt: skip
    return len(inside)


def trace(arguments: list[str]) -> tuple[set[str], set[str]]:
    """Run a command, and return the files of the project that it passes, and those that the process of a trial passes.

    Raises:
        subprocess.CalledProcessError: The command failed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        hook, out = Path(temporary) / "hook", Path(temporary) / "out"
        hook.mkdir()
        out.mkdir()
        (hook / "sitecustomize.py").write_text(TRACER.format(out=str(out), root=str(ROOT) + os.sep), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(hook), str(ROOT)])}
        command = [sys.executable, str(ROOT / "run_suite.py"), *arguments, f"--out={temporary}/suite"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=sys.stderr)
        processes = [{line for line in file.read_text().split("\n") if line} for file in out.iterdir()]
    entry = str(ROOT / "suite" / "trials" / "trial.py")
    trials = [files for files in processes if entry in files and str(ROOT / "run_suite.py") not in files]
    return set().union(*processes), max(trials, key=len, default=set())


def main() -> int:
    """Print what was asked for, and return the exit status."""
    verb, arguments = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if verb == "sizes":
        rows = sizes(Path(arguments[0]) if arguments else ROOT)
        rows.append(("all", *(sum(row[index] for row in rows) for index in (1, 2, 3))))  # type: ignore[arg-type]
        print(f"{'package':24}{'files':>7}{'lines':>9}{'imports inside functions':>27}")
        for package, files, lines, imports in rows:
            print(f"{package:24}{files:7,}{lines:9,}{imports:27,}")
        return 0
    if verb == "trace" and arguments:
        try:
            command, trial = trace(arguments)
        except subprocess.CalledProcessError as error:  # the command has said why
            return int(error.returncode)
        for file in sorted(command):
            print(f"{'trial' if file in trial else '':7}{Path(file).relative_to(ROOT)}")
        print(f"{len(command)} files in the whole command, {len(trial)} in the process of a trial")
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
