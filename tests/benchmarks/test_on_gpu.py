"""`on_gpu.sh` on a stand-in for a rented machine: its `python3` measures nothing, and it may be gone at any moment."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = (
    *("bars", "steps", "steps-graph", "check", "tests", "tests-suite", "steps-compile", "patterns", "layers", "large"),
    *("pruned", "memcheck", "racecheck", "smoke", "quick", "table1", "prunetrain", "clicktrain"),
)
BENCHMARKS = (
    *("kernels-bars", "kernels-layers", "kernels-large", "bench_patterns", "bench_pruned"),
    *("eager", "cuda_graph", "compile"),  # of one file, bench_step.json
)
CASES = 3  # of each benchmark
pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None or not Path("/proc/self").exists(), reason="needs bash, and /proc to find processes"
)

# Benchmarks save invented cases with the real `partial_results.py`; each saved case is then noted in the file MEASURED.
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
    """A copy of the checkout without its history, and a folder OUT that is brought back."""

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
        """Exit status, output, errors, and what `python3` was asked for beyond packing and facts."""
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
        """The files of the archive; until there is one, of that which was carried along; nothing without either."""
        carried = self.checkout / "data" / "on_gpu.tar.gz"
        found = next((path for path in (self.archive, carried) if path.exists()), None)
        if found is None:
            return {}
        with tarfile.open(found) as tar:
            return {one.name.partition("/")[2]: tar.extractfile(one).read() for one in tar.getmembers()}

    def packed_cases(self) -> list[str]:
        """The cases in the archive's files of benchmarks."""
        found = [json.loads(content) for name, content in self.packed().items() if name.endswith(".json") and content]
        return [name for one in found for name in one.get("found", {})]

    def measured_cases(self) -> list[str]:
        return self.measured.read_text().splitlines() if self.measured.exists() else []


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def kill_session(leader: int) -> None:
    """Kill every process of a session, as a machine that is switched off does."""
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


def cut_off(machine: Machine, cuts: int, seed: int) -> None:
    """Cut a run off so many times at random moments, then let it end; see that nothing that was measured is lost."""
    draw = random.Random(seed)
    for cut in range(cuts):
        process = machine.start(CASE_SECONDS=0.05, PDT_PACK_SECONDS=0.2)
        end = time.monotonic() + draw.uniform(0, 2.0)
        while time.monotonic() < end:
            machine.packed()  # whole at every moment
            time.sleep(0.01)
        kill_session(process.pid)
        process.communicate()
        measured = machine.measured_cases()
        assert set(measured) <= set(machine.packed_cases()), f"cut {cut}"
        if draw.random() < 0.5 and machine.archive.exists():  # the next machine is another, which has what was carried
            shutil.rmtree(machine.checkout / "runs")
            (machine.checkout / "data").mkdir(exist_ok=True)
            machine.archive.replace(machine.checkout / "data" / "on_gpu.tar.gz")
            shutil.rmtree(machine.out)
    status, output, errors, _ = machine.run()
    assert (status, errors) == (0, ""), output
    measured = machine.measured_cases()
    assert len(measured) == len(set(measured)), "a case that was kept is not measured again"
    packed = machine.packed()
    assert {f"done/{part}" for part in PARTS} <= set(packed)
    assert sorted(machine.packed_cases()) == sorted(
        f"{kind} {number}" for kind in BENCHMARKS for number in range(CASES)
    )
    assert "smoke/trials/one/trial.json" in packed
    assert not [name for name in packed if name.endswith((".pt", ".part"))]
    assert [path.name for path in machine.out.iterdir()] == ["on_gpu.tar.gz"]


def test_what_was_measured_before_a_cut_is_in_the_archive(machine):
    cut_off(machine, 3, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_what_was_measured_before_many_cuts_is_in_the_archive(machine, seed):
    cut_off(machine, 12, seed)


def test_all_parts_run_in_order_and_the_same_command_goes_on(machine):
    status, output, _, called = machine.run(BREAKS="bench_patterns")
    assert status == 1
    assert "== patterns: FAILED (exit status 3)\n" in output
    assert "it breaks" in output
    assert output.endswith("not done: patterns\n")
    order = (
        "bench_kernels.py -q --benchmark-columns=median --device cuda --json",
        "bench_step --device cuda --execution eager",
        "--execution cuda_graph",
        "check_kernels --device cuda",
        "-m gpu tests/kernels",
        "-m gpu tests --ignore tests/kernels",
        "--execution compile",
        "bench_patterns layers --device cuda",
        "--shapes resnet9,resnet18,resnet50",
        "--groups 1:2,2:8,2:16 --compile",
        "bench_pruned --device cuda",
        "check_kernels --device cuda --few",
        "test_cuda_sparse_conv.py",
        "--preset smoke --device cuda --out",
        "--preset quick --seeds 3",
        "reproduce sdgp-table1",
        "--model resnet50_cifar",
        "--model vgg11_click",
    )
    places = [next(index for index, line in enumerate(called) if part in line) for part in order]
    assert places == sorted(places)

    status, output, _, called = machine.run()
    assert status == 0
    assert [line.split()[1] for line in called] == ["benchmarks.steps.bench_patterns"]
    assert output.endswith(f"all done: {' '.join(PARTS)}\n")
    assert b"it breaks" in machine.packed()["patterns.txt"]


def test_a_part_that_takes_too_long_is_stopped_and_goes_on(machine):
    slow = {"CASE_SECONDS": 0.4, "PDT_PART_SECONDS": 1}
    status, output, _, _ = machine.run("pruned", **slow)
    before = machine.measured_cases()
    if status == 1:
        assert "== pruned: stopped after 1 s; the same command goes on\n" in output
        assert "done/pruned" not in machine.packed()
    for _ in range(CASES):
        status, _, _, _ = machine.run("pruned", **slow)
    assert status == 0
    assert machine.measured_cases()[: len(before)] == before
    assert sorted(machine.measured_cases()) == sorted(machine.packed_cases())


def test_nothing_begins_when_the_time_is_over(machine):
    status, output, _, called = machine.run("steps", PDT_TOTAL_SECONDS=10)
    assert (status, called) == (1, [])
    assert "== steps: not begun, the time is over\n" in output


def test_the_images_are_unpacked_once_from_the_file_that_was_carried(machine, tmp_path):
    images, data = tmp_path / "cifar10", machine.checkout / "data"
    images.mkdir()
    (images / "0.jpg").write_text("an image")
    data.mkdir()
    with tarfile.open(data / "cifar10.tar.gz", "w:gz") as tar:
        tar.add(images, arcname="cifar10")
    _, output, _, _ = machine.run("check")
    assert "no images" not in output
    assert (machine.checkout / "runs" / "data" / "cifar10" / "0.jpg").read_text() == "an image"
    (data / "cifar10.tar.gz").write_text("damaged meanwhile, and not read again")
    assert machine.run("check")[0] == 0


def test_an_archive_that_is_damaged_or_of_another_commit_is_not_gone_on_with(machine):
    assert machine.run("pruned", "bars")[0] == 0
    whole = machine.archive.read_bytes()
    carried = machine.checkout / "data" / "on_gpu.tar.gz"
    carried.parent.mkdir()

    def on_a_fresh_machine(archive):
        carried.write_bytes(archive)
        for folder in (machine.checkout / "runs", machine.out):
            shutil.rmtree(folder)
        return machine.run("pruned", "bars")

    for damaged in (whole[: len(whole) // 2], b"no archive"):
        status, output, errors, called = on_a_fresh_machine(damaged)
        assert (status, errors, len(called)) == (0, "", 2), output
        assert "data/on_gpu.tar.gz is damaged and is not used; all parts begin\n" in output
        assert len(machine.packed_cases()) == 2 * CASES
    tool = machine.tools / "python3"
    tool.write_text(tool.read_text().replace("0123456789ab", "ba9876543210"))
    status, output, errors, called = on_a_fresh_machine(whole)
    assert (status, errors, len(called)) == (0, "", 2), output
    assert "data/on_gpu.tar.gz is not of commit ba9876543210 and is not used; all parts begin\n" in output
    status, output, _, called = on_a_fresh_machine(machine.archive.read_bytes())
    assert (status, called) == (0, [])
    assert "not used" not in output
    assert [path.name for path in (machine.checkout / "runs").iterdir() if path.is_dir()] == ["gpu-ba9876543210"]


def test_images_that_cannot_be_unpacked_are_named(machine):
    (machine.checkout / "data").mkdir()
    (machine.checkout / "data" / "cifar10.tar.gz").write_text("no archive")
    _, output, _, _ = machine.run("check")
    assert "data/cifar10.tar.gz cannot be unpacked\nno images: " in output


def test_what_is_carried_along_tells_a_copy_without_history_its_commit(tmp_path):
    checkout, images = tmp_path / "checkout", tmp_path / "images" / "cifar10" / "train"
    for folder in ("suite", "benchmarks"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".gitignore", checkout)
    images.mkdir(parents=True)
    (images / "0.jpg").write_text("an image")

    def call(*command):
        done = subprocess.run(list(map(str, command)), cwd=checkout, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def facts():
        environment = {"PYTHONPATH": str(checkout), "PATH": os.environ["PATH"]}
        return subprocess.run(
            [sys.executable, "-m", "benchmarks.evidence.machine_facts", "--line"],
            cwd=checkout, env=environment, capture_output=True, text=True, timeout=60, check=True,
        ).stdout.split()  # fmt: skip

    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        call(*git, *command)
    commit = call(*git, "rev-parse", "HEAD")[:12]
    assert f".commit.json: {commit}\n" in call(
        sys.executable, "-m", "benchmarks.evidence.carry", "--data-root", tmp_path / "images"
    )
    assert call(*git, "status", "--porcelain") == ""  # both are ignored
    with tarfile.open(checkout / "data" / "cifar10.tar.gz") as tar:
        assert "cifar10/train/0.jpg" in tar.getnames()
    shutil.rmtree(checkout / ".git")
    assert facts()[0] == commit
    (checkout / ".commit.json").unlink()
    assert facts()[0] == "unknown"


def test_what_is_missing_is_named_and_parts_that_need_it_are_left_out(machine):
    status, output, _, called = machine.run(
        "tests", "bars", "memcheck", "steps", LACKING="hypothesis compute-sanitizer"
    )
    assert status == 1
    assert "missing: hypothesis compute-sanitizer; parts that need them are left out\n" in output
    assert "not done: tests memcheck memcheck-taps\n" in output
    assert len(called) == 2


def test_unknown_parts_and_machines_without_a_gpu_are_refused(machine):
    status, _, errors, called = machine.run("stepz")
    assert (status, called) == (2, [])
    assert errors == f"on_gpu.sh: error: no part is called 'stepz'; known: {' '.join(PARTS)}\n"
    status, _, errors, called = machine.run(NO_GPU=1)
    assert (status, called) == (2, [])
    assert errors == "machine_facts: error: torch sees no CUDA GPU\n"
    assert not machine.archive.exists()
