"""The benchmark programs in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.kernels import results as kernel_results

ROOT = Path(__file__).parents[2]
BENCH = "benchmarks/kernels/bench_kernels.py"


def run(*command, **variables):
    # pytest-benchmark measures nothing where it reads that it was started by one of pytest-xdist's workers.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    changed = {**ours, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(list(map(str, command)), cwd=ROOT, env=changed, capture_output=True, text=True, timeout=280)


def bench(*options, **variables):
    return run(
        sys.executable, "-m", "pytest", BENCH, "-p", "no:cacheprovider", "--device", "cpu", *options, **variables
    )


@pytest.fixture(scope="module")
def kernel_json(tmp_path_factory):
    pytest.importorskip("pytest_benchmark")
    path = tmp_path_factory.mktemp("bench") / "kernels.json"
    kept = path.with_name("kept.json")
    done = bench("--quick", "--batch-size", "3", "--benchmark-json", path, "--json", kept)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout  # printed after the program started itself again
    return path


def test_kernel_benchmarks_leave_what_a_reader_needs(kernel_json):
    content = json.loads(kernel_json.read_text())
    first = content["benchmarks"][0]
    found = first["extra_info"]
    assert found["shape"] == [3, 64, 16, 16]
    assert found["layers"][0] == "resnet9[width=0.25] down.conv"
    assert (found["n"], found["m"], found["mode"], found["rescale"]) == (2, 4, "magnitude", "none")
    assert found["bytes"] == 2 * 4 * 3 * 64 * 256
    assert found["gb_per_s"] == pytest.approx(found["bytes"] / found["seconds"] / 1e9)
    # pytest-benchmark's clock saw the kernel's times and nothing else.
    assert first["stats"]["median"] == pytest.approx(found["seconds"])
    assert first["stats"]["rounds"] == 5
    fraction = found["fraction_of_copy"]
    assert fraction["low"] <= fraction["median"] <= fraction["high"]
    assert found["copy"] in found["copies_gb_per_s"]
    assert found["instead"]["topk and scatter"]["same_values"] is True
    assert "instead" not in content["benchmarks"][1]["extra_info"]
    settings = content["kernel_benchmarks"]["provenance"]["settings"]["environment"]
    assert settings["MALLOC_MMAP_THRESHOLD_"] == str(2**32)  # as a trial has it
    assert "node" not in content["machine_info"]


def test_kept_cases_are_those_of_pytest_benchmark_and_are_not_measured_again(kernel_json, tmp_path):
    path, whole = tmp_path / "kept.json", json.loads(kernel_json.with_name("kept.json").read_text())
    names = [one["name"] for one in whole["benchmarks"]]
    both = zip(whole["benchmarks"], json.loads(kernel_json.read_text())["benchmarks"], strict=True)
    for ours, theirs in both:
        assert ours["extra_info"] == theirs["extra_info"]
        assert ours["stats"]["median"] == theirs["stats"]["median"]

    path.write_text(
        json.dumps({**whole, "benchmarks": whole["benchmarks"][::2]})
    )  # as a run leaves it that was cut off
    options = ("--quick", "--batch-size", "3", "--json", path)
    done = bench(*options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "2 deselected" in done.stdout
    again = json.loads(path.read_text())["benchmarks"]
    assert again[:2] == whole["benchmarks"][::2]
    assert [one["name"] for one in again] == [names[0], names[2], names[1]]
    (run,) = kernel_results.read([path])
    assert len(run.rows) == 3
    done = bench(*options)
    assert (done.returncode, "3 deselected" in done.stdout) == (0, True), done.stdout
    done = bench(*options, "--rounds", "4")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {path} holds numbers of another run (rounds: 5, now 4); name another file\n" in done.stderr


def test_kernel_tables_reads_them(kernel_json, tmp_path):
    done = run(sys.executable, "-m", "benchmarks.kernels.tables", kernel_json, "-o", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "kernels.md").read_text(encoding="utf-8")
    assert "| float32 | rescaled by sample\\_channel | 3×64×16×16 |" in page


def test_a_wrong_element_and_one_that_is_not_written_are_seen(tmp_path):
    pytest.importorskip("pytest_benchmark")
    (tmp_path / "wrong_kernel.py").write_text(
        "import kernels, torch\n"
        "right = kernels.prune_nm\n"
        "def wrong(grad, rule, seed):\n"
        "    pruned = right(grad, rule, seed)\n"
        "    if rule.mode == 'random':  # the last sample is never written\n"
        "        found = torch.empty_like(grad)\n"
        "        found[:-1] = pruned[:-1]\n"
        "        return found\n"
        "    pruned[-1, -1, -1, -1] = 3.0\n"
        "    return pruned\n"
        "kernels.prune_nm = wrong\n"
    )
    found_there = f"{tmp_path}{os.pathsep}{ROOT}"
    done = bench("-p", "wrong_kernel", "--quick", "--batch-size", "2", PYTHONPATH=found_there)
    assert done.returncode == 1
    assert "3 failed" in done.stdout
    assert "1 elements differ from the oracle" in done.stdout
    assert f"{64 * 256} elements differ from the oracle" in done.stdout


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--modes", "magnitud"), "ERROR: --modes 'magnitud'; did you mean 'magnitude'?\n"),
        (("--benchmark-json", "no/such/x.json"), "ERROR: --benchmark-json no/such/x.json: its folder does not exist\n"),
    ],
)
def test_a_wrong_option_is_one_line(options, line):
    pytest.importorskip("pytest_benchmark")
    done = bench(*options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert line in done.stderr
    assert "Traceback" not in done.stderr


def test_check_kernels_finds_all_right():
    done = run(sys.executable, "-m", "benchmarks.kernels.check_kernels", "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("; 0 wrong\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_patterns_are_not_measured_on_a_device_that_is_not_there():
    done = run(sys.executable, "-m", "benchmarks.steps.bench_patterns", "layers", "--device", "cuda")
    assert done.returncode == 2
    assert "error: --device cuda: torch" in done.stderr.splitlines()[-1]
