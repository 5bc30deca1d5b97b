"""Stand-in for a rented machine that runs `on_gpu.sh`: its `python3` measures nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


PARTS = (
    *("bars", "steps", "steps-graph", "check", "tests", "tests-suite", "steps-compile", "patterns", "layers", "large"),
    *("pruned", "memcheck", "racecheck", "smoke", "quick", "table1", "prunetrain", "clicktrain"),
)


BENCHMARKS = (
    *("kernels-bars", "kernels-layers", "kernels-large", "bench_patterns", "bench_pruned"),
    *("eager", "cuda_graph", "compile"),  # these share the file bench_step.json
)


CASES = 3  # cases per benchmark


# Benchmarks save invented cases with the real `partial_results.py`; the file MEASURED lists the saved cases.
PYTHON = """#!{python} -IS
import os, random, subprocess, sys, time
from pathlib import Path

given = sys.argv[1:]
line = " ".join(given)
if given[0] == "-m":
    del given[0]
Path(os.environ["CALLED"]).open("a").write(line + "\\n")
if given[0] == "benchmarks.evidence.pack":
    os.execv("{python}", ["{python}", "-EsS", "-m", *given])
if given[:2] == ["benchmarks.evidence.machine_facts", "--line"]:
    print("0123456789ab", os.environ.get("LACKING", ""))
elif given[:2] == ["benchmarks.evidence.machine_facts", "--tool"]:
    print(given[2])
elif given[0] == "benchmarks.evidence.machine_facts":
    if os.environ.get("NO_GPU"):
        sys.exit("machine_facts: error: torch sees no CUDA GPU")
    Path(given[1]).write_text("{{}}")
elif os.environ.get("BREAKS", "nothing") in line:
    print("it breaks")
    sys.exit(3)
elif "--json" in given:
    sys.path.insert(0, "")
    from benchmarks.partial_results import kept
    path = Path(given[given.index("--json") + 1])
    found = kept(path, {{}}, "found")
    kind = given[given.index("--execution") + 1] if "--execution" in given else path.stem
    for number in range({cases}):
        name = f"{{kind}} {{number}}"
        if name not in found:
            time.sleep(random.uniform(0, 2) * float(os.environ["CASE_SECONDS"]))
            found[name] = number
            Path(os.environ["MEASURED"]).open("a").write(name + "\\n")
elif "--out" in given:
    trial = Path(given[given.index("--out") + 1]) / "trials" / "one"
    trial.mkdir(parents=True, exist_ok=True)
    (trial / "trial.json").write_text("{{}}")
    (trial / "model.pt").write_text("x")
"""


class Machine:
    """A copy of the checkout without git history, and the folder OUT that is copied back."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.out, self.tools = folder / "checkout", folder / "out", folder / "tools"
        self.called, self.measured = folder / "called", folder / "measured"
        for name in (
            "__init__.py",
            "partial_results.py",
            "evidence/__init__.py",
            "evidence/pack.py",
            "evidence/on_gpu.sh",
        ):
            copied = self.checkout / "benchmarks" / name
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "benchmarks" / name, copied)
        self.tools.mkdir()
        self._tool("python3", PYTHON.format(python=sys.executable, cases=CASES))
        self._tool("compute-sanitizer", '#!/bin/sh\nwhile [ "$1" != python3 ]; do shift; done\nexec "$@"\n')
        self._tool("env", '#!/bin/sh\nwhile [ "${1#*=}" != "$1" ]; do export "$1"; shift; done\nexec "$@"\n')

    def _tool(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def start(self, *parts: str, **variables: object) -> subprocess.Popen[str]:
        changed = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PDT_")},
            **{"CALLED": self.called, "MEASURED": self.measured, "CASE_SECONDS": 0.0, **variables},
            "PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}",
        }
        return subprocess.Popen(
            ["bash", str(self.checkout / "benchmarks" / "evidence" / "on_gpu.sh"), str(self.out), *parts],
            env={name: str(value) for name, value in changed.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *parts: str, **variables: object) -> tuple[int, str, str, list[str]]:
        """Return exit status, output, errors, and the calls of `python3` other than packing, facts and tables."""
        self.called.unlink(missing_ok=True)
        process = self.start(*parts, **variables)
        output, errors = process.communicate(timeout=120)
        lines = self.called.read_text().splitlines() if self.called.exists() else []
        ours = [
            line
            for line in lines
            if not any(one in line for one in ("machine_facts", "evidence.pack", "kernels.tables"))
        ]
        return process.returncode, output, errors, ours

    @property
    def archive(self) -> Path:
        return self.out / "on_gpu.tar.gz"

    def packed(self) -> dict[str, bytes]:
        """Return the files of the archive in OUT or else of the archive of an earlier machine; empty without both."""
        carried = self.checkout / "data" / "on_gpu.tar.gz"
        found = next((path for path in (self.archive, carried) if path.exists()), None)
        if found is None:
            return {}
        with tarfile.open(found) as tar:
            return {one.name.partition("/")[2]: tar.extractfile(one).read() for one in tar.getmembers()}

    def packed_cases(self) -> list[str]:
        """Return the cases in the benchmark files of the archive."""
        found = [json.loads(content) for name, content in self.packed().items() if name.endswith(".json") and content]
        return [name for one in found for name in one.get("found", {})]

    def measured_cases(self) -> list[str]:
        return self.measured.read_text().splitlines() if self.measured.exists() else []


def kill_session(leader: int) -> None:
    """Kill every process of a session, as if the machine were switched off."""
    while True:
        alive = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            except (OSError, ValueError):
                continue
            if int(session) == leader and state != "Z":
                alive.append(int(path.parent.name))
        if not alive:
            return
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
