"""Print the files that a command of the suite passes.

    python tools/house.py trace --methods dense --task digits --preset smoke

The command runs without its `--out`, in this working tree. A file counts if one of its functions runs: in any process
of the command, or in the process of a trial. Bodies of modules and classes do not count, nor do files `__init__.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
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
    if sys.argv[1:2] != ["trace"] or len(sys.argv) == 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        command, trial = trace(sys.argv[2:])
    except subprocess.CalledProcessError as error:  # the command has said why
        return int(error.returncode)
    for file in sorted(command):
        print(f"{'trial' if file in trial else '':7}{Path(file).relative_to(ROOT)}")
    print(f"{len(command)} files in the whole command, {len(trial)} in the process of a trial")
    return 0


if __name__ == "__main__":
    sys.exit(main())
