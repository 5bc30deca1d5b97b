"""Tests of `on_gpu.sh` on a stand-in for a rented machine, whose `python3` measures nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "on_gpu.sh"
PARTS = (
    *("large", "steps", "steps-graph", "tests", "tests-suite", "steps-compile", "layers", "memcheck", "racecheck"),
    *("smoke", "quick", "table1", "prunetrain", "clicktrain"),
)
CALLS = (
    *("-k large and", "--execution eager", "--execution cuda_graph", "-m gpu tests/kernels"),
    *("-m gpu tests --ignore tests/kernels", "--execution compile", "-k not large"),
    *("test_cuda_launch.py tests/kernels/test_cuda_sparse_conv.py",) * 2,
    *("--preset smoke", "--preset quick --seeds 3", "reproduce sdgp-table1", "resnet50_cifar", "vgg11_click"),
)
PYTHON = """#!/usr/bin/env bash
if [[ $1 == -c ]]; then
  [[ -z ${NO_GPU-} ]] || { printf 'Traceback:\\nRuntimeError: no driver\\n' >&2; exit 1; }
  echo '{}' >"$3"
  exit
fi
[[ $2 == benchmarks.kernels.tables ]] || echo "$*" >>"$CALLED"
[[ $* != *${BREAKS-nothing}* ]] || { echo "it breaks"; exit 3; }
[[ $* != *${SLOW-nothing}* ]] || sleep 60
for folder; do :; done
if [[ $1 == run_suite.py ]]; then
  mkdir -p "$folder/stages"
  touch "$folder"/{trial.json,model.pt,checkpoint.pt,stages/1.pt,.lock}
fi
"""
SANITIZER = """#!/usr/bin/env bash
while [[ $1 != python3 ]]; do shift; done
exec "$@"
"""


class Machine:
    """A checkout that has only the script, and the folder OUT that is copied back."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.out, self.called = folder / "checkout", folder / "out", folder / "called"
        (self.checkout / "benchmarks").mkdir(parents=True)
        self.script = shutil.copy(SCRIPT, self.checkout / "benchmarks")
        self.tools = folder / "tools"
        self.tools.mkdir()
        for name, text in (("python3", PYTHON), ("compute-sanitizer", SANITIZER)):
            (self.tools / name).write_text(text)
            (self.tools / name).chmod(0o755)

    def start(self, *parts: str, **variables: object) -> subprocess.Popen[str]:
        path = f"{self.tools}{os.pathsep}{os.environ['PATH']}"
        changed = {name: str(value) for name, value in {"CALLED": self.called, "PATH": path, **variables}.items()}
        command, pipe = ["bash", self.script, self.out, *parts], subprocess.PIPE
        return subprocess.Popen(command, env={**os.environ, **changed}, stdout=pipe, stderr=pipe, text=True)

    def run(self, *parts: str, **variables: object) -> tuple[int, str, str, list[str]]:
        """Return exit status, output, errors, and the calls of `python3` that measure."""
        self.called.unlink(missing_ok=True)
        process = self.start(*parts, **variables)
        output, errors = process.communicate(timeout=120)
        return process.returncode, output, errors, self.calls()

    def calls(self) -> list[str]:
        return self.called.read_text().splitlines() if self.called.exists() else []

    def packed(self) -> set[str]:
        with tarfile.open(self.out / "on_gpu.tar.gz") as tar:
            return {one.name.removeprefix("gpu/") for one in tar.getmembers() if one.isfile()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "first")


def test_all_parts_run_in_order_and_the_same_command_runs_the_one_that_failed(machine):
    status, output, _, called = machine.run(BREAKS="execution compile")
    assert status == 1
    assert "it breaks\n== steps-compile: FAILED (exit status 3)\n" in output
    assert output.endswith("not done: steps-compile\n")
    assert len(called) == len(CALLS)
    assert all(part in line for part, line in zip(CALLS, called, strict=True)), called
    packed = machine.packed()
    done = {f"done/{part}" for part in PARTS}
    assert {name for name in packed if name.startswith("done/")} == done - {"done/steps-compile"}
    assert {"machine.json", "steps-compile.txt", "smoke/trial.json"} <= packed
    assert not [name for name in packed if name.endswith(".pt") or "/." in name]
    assert [path.name for path in machine.out.iterdir()] == ["on_gpu.tar.gz"]

    status, output, _, called = machine.run()
    assert (status, len(called)) == (0, 1)
    assert "--execution compile" in called[0]
    assert output.endswith(f"all done: {' '.join(PARTS)}\n")


def test_finished_parts_are_in_the_archive_of_a_machine_that_was_switched_off(machine, tmp_path):
    process = machine.start(SLOW="-m gpu tests/kernels")
    end = time.monotonic() + 60
    while not any("-m gpu tests/kernels" in line for line in machine.calls()):
        assert time.monotonic() < end
        time.sleep(0.02)
    script = psutil.Process(process.pid)
    for one in (script, *script.children(recursive=True)):
        one.kill()
    process.communicate()
    finished = {"done/large", "done/steps", "done/steps-graph"}
    assert {name for name in machine.packed() if name.startswith("done/")} == finished

    other = Machine(tmp_path / "second")
    with tarfile.open(machine.out / "on_gpu.tar.gz") as tar:
        tar.extractall(other.checkout / "runs", filter="data")
    status, output, _, called = other.run("large", "tests")
    assert (status, len(called)) == (0, 1)
    assert "== large: already done\n" in output


def test_time_limits_stop_a_part_and_start_none(machine):
    status, output, _, _ = machine.run("layers", "steps", SLOW="-k not large", PDT_PART_SECONDS=1)
    assert status == 1
    assert "== layers: stopped by its time limit; the same command continues\n" in output
    assert output.endswith("not done: layers\n")
    status, output, _, called = machine.run("layers", PDT_TOTAL_SECONDS=10)
    assert (status, called) == (1, [])
    assert "== layers: not started, no time is left\n" in output


def test_wrong_usage_and_a_machine_without_a_gpu_are_one_line(machine):
    assert machine.run("stepz") == (
        2,
        "",
        f"on_gpu.sh: error: no part is called 'stepz'; known: {' '.join(PARTS)}\n",
        [],
    )
    assert machine.run(NO_GPU=1) == (2, "", "on_gpu.sh: error: no GPU can be used: RuntimeError: no driver\n", [])
    assert not list(machine.out.iterdir())
