"""Tests of `on_gpu.sh` on a stand-in for a rented machine, which can be switched off at any moment."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from pathlib import Path

import pytest
from rented_machine import BENCHMARKS, CASES, PARTS, ROOT, Machine, kill_session
from shards import shards

from benchmarks.evidence import carry

pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None or not Path("/proc/self").exists(), reason="needs bash, and /proc to find processes"
)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def cut_off(machine: Machine, cuts: int, seed: int) -> None:
    """Interrupt a run several times at random moments, then let it end; check that no measurement is lost."""
    draw = random.Random(seed)
    for cut in range(cuts):
        process = machine.start(CASE_SECONDS=0.05, PDT_PACK_SECONDS=0.2)
        end = time.monotonic() + draw.uniform(0, 2.0)
        while time.monotonic() < end:
            machine.packed()  # readable at every moment
            time.sleep(0.01)
        kill_session(process.pid)
        process.communicate()
        measured = machine.measured_cases()
        assert set(measured) <= set(machine.packed_cases()), f"cut {cut}"
        if draw.random() < 0.5 and machine.archive.exists():  # continue on another machine, which has the archive
            shutil.rmtree(machine.checkout / "runs")
            (machine.checkout / "data").mkdir(exist_ok=True)
            machine.archive.replace(machine.checkout / "data" / "on_gpu.tar.gz")
            shutil.rmtree(machine.out)
    status, output, errors, _ = machine.run()
    assert (status, errors) == (0, ""), output
    measured = machine.measured_cases()
    assert len(measured) == len(set(measured)), "a saved case must not be measured again"
    packed = machine.packed()
    assert {f"done/{part}" for part in PARTS} <= set(packed)
    assert sorted(machine.packed_cases()) == sorted(
        f"{kind} {number}" for kind in BENCHMARKS for number in range(CASES)
    )
    assert "smoke/trials/one/trial.json" in packed
    assert not [name for name in packed if name.endswith((".pt", ".part"))]
    assert [path.name for path in machine.out.iterdir()] == ["on_gpu.tar.gz"]


def test_measurements_before_an_interruption_are_in_the_archive(machine):
    cut_off(machine, 3, seed=1)


@shards(range(2, 12), slow=(2, 3))
def test_measurements_before_many_interruptions_are_in_the_archive(machine, number):
    cut_off(machine, 12, number)


def test_all_parts_run_in_order_and_the_same_command_continues(machine):
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


def test_a_part_that_takes_too_long_is_stopped_and_continued(machine):
    slow = {"CASE_SECONDS": 0.4, "PDT_PART_SECONDS": 1}
    status, output, _, _ = machine.run("pruned", **slow)
    before = machine.measured_cases()
    if status == 1:
        assert "== pruned: stopped after 1 s; the same command continues\n" in output
        assert "done/pruned" not in machine.packed()
    for _ in range(CASES):
        status, _, _, _ = machine.run("pruned", **slow)
    assert status == 0
    assert machine.measured_cases()[: len(before)] == before
    assert sorted(machine.measured_cases()) == sorted(machine.packed_cases())


def test_no_part_starts_when_no_time_is_left(machine):
    status, output, _, called = machine.run("steps", PDT_TOTAL_SECONDS=10)
    assert (status, called) == (1, [])
    assert "== steps: not started, no time is left\n" in output


def test_the_images_are_unpacked_once_from_the_archive(machine, tmp_path):
    images, data = tmp_path / "cifar10", machine.checkout / "data"
    images.mkdir()
    (images / "0.jpg").write_text("an image")
    data.mkdir()
    with tarfile.open(data / "cifar10.tar.gz", "w:gz") as tar:
        tar.add(images, arcname="cifar10")
    _, output, _, _ = machine.run("check")
    assert "no images" not in output
    assert (machine.checkout / "runs" / "data" / "cifar10" / "0.jpg").read_text() == "an image"
    (data / "cifar10.tar.gz").write_text("damaged meanwhile; must not be read again")
    assert machine.run("check")[0] == 0


def test_an_archive_that_is_damaged_or_of_another_commit_is_ignored(machine):
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
        assert "data/on_gpu.tar.gz is damaged and is ignored; all parts start from the beginning\n" in output
        assert len(machine.packed_cases()) == 2 * CASES
    tool = machine.tools / "python3"
    tool.write_text(tool.read_text().replace("0123456789ab", "ba9876543210"))
    status, output, errors, called = on_a_fresh_machine(whole)
    assert (status, errors, len(called)) == (0, "", 2), output
    assert (
        "data/on_gpu.tar.gz is not of commit ba9876543210 and is ignored; all parts start from the beginning\n"
        in output
    )
    status, output, _, called = on_a_fresh_machine(machine.archive.read_bytes())
    assert (status, called) == (0, [])
    assert "ignored" not in output
    assert [path.name for path in (machine.checkout / "runs").iterdir() if path.is_dir()] == ["gpu-ba9876543210"]


def test_images_that_cannot_be_unpacked_are_named(machine):
    (machine.checkout / "data").mkdir()
    (machine.checkout / "data" / "cifar10.tar.gz").write_text("no archive")
    _, output, _, _ = machine.run("check")
    assert "data/cifar10.tar.gz cannot be unpacked\nno images: " in output


def test_a_copy_without_git_history_knows_its_commit(tmp_path):
    checkout, images = tmp_path / "checkout", tmp_path / "images" / "cifar10" / "train"
    for folder in ("suite", "benchmarks"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".gitignore", checkout)
    images.mkdir(parents=True)
    (images / "0.jpg").write_text("an image")
    (checkout / "data" / "packages").mkdir(parents=True)  # exists, and is not installed again

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
    assert call(*git, "status", "--porcelain") == ""  # git ignores all files
    with tarfile.open(checkout / "data" / "cifar10.tar.gz") as tar:
        assert "cifar10/train/0.jpg" in tar.getnames()
    shutil.rmtree(checkout / ".git")
    assert facts()[0] == commit
    (checkout / ".commit.json").unlink()
    assert facts()[0] == "unknown"


def test_missing_modules_are_named_and_parts_that_need_them_are_skipped(machine):
    status, output, _, called = machine.run(
        "tests", "bars", "memcheck", "steps", LACKING="hypothesis compute-sanitizer"
    )
    assert status == 1
    assert "missing: hypothesis compute-sanitizer; parts that need them are skipped\n" in output
    assert "not done: tests memcheck memcheck-taps\n" in output
    assert len(called) == 2


def test_parts_that_import_the_suite_are_left_out_without_its_packages(machine):
    status, output, _, called = machine.run(LACKING="docstring_parser")
    assert (status, called) == (1, [])
    assert output.count("skipped, docstring_parser is missing") == len(PARTS) + len(("memcheck-taps", "racecheck-taps"))


def test_packages_are_looked_for_in_the_folder_that_is_carried_along(machine):
    tool = machine.tools / "python3"
    tool.write_text(
        tool.read_text().replace("given = ", "print(os.environ['PYTHONPATH'], file=sys.stderr)\ngiven = ", 1)
    )
    _, _, errors, _ = machine.run("pruned")
    assert errors.splitlines()[0].split(os.pathsep)[:2] == [
        str(machine.checkout), str(machine.checkout / "data" / "packages")
    ]  # fmt: skip


def test_packages_are_installed_whole_for_the_other_python_or_the_reason_is_named(tmp_path, monkeypatch):
    pip = tmp_path / "python"
    pip.write_text("""#!/bin/sh
echo "$@" > args
[ "$FAILS" ] && { echo "ERROR: no such version" >&2; exit 1; }
mkdir .packages.part
""")
    pip.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(pip))
    monkeypatch.setenv("FAILS", "1")
    assert carry.install(tmp_path / "packages", "3.13") == "ERROR: no such version"
    assert not (tmp_path / "packages").exists()
    monkeypatch.delenv("FAILS")
    assert carry.install(tmp_path / "packages", "3.13") == ""
    assert (tmp_path / "packages").is_dir()
    assert "--python-version 3.13 " in (tmp_path / "args").read_text()


def test_packages_that_are_carried_along_are_dependencies_of_the_project():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert set(carry.PACKAGES) <= set(dependencies)


def test_unknown_parts_and_machines_without_a_gpu_are_refused(machine):
    status, _, errors, called = machine.run("stepz")
    assert (status, called) == (2, [])
    assert errors == f"on_gpu.sh: error: no part is called 'stepz'; known: {' '.join(PARTS)}\n"
    status, _, errors, called = machine.run(NO_GPU=1)
    assert (status, called) == (2, [])
    assert errors == "machine_facts: error: torch sees no CUDA GPU\n"
    assert not machine.archive.exists()
