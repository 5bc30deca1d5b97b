"""The benchmark programs in processes of their own, and `on_gpu.sh` with a `python3` that only notes its calls."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
BENCH = "benchmarks/bench_kernels.py"


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
    done = bench("--quick", "--batch-size", "3", "--benchmark-json", path)
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


def test_kernel_tables_reads_them(kernel_json, tmp_path):
    done = run(sys.executable, "benchmarks/kernel_tables.py", kernel_json, "-o", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "kernels.md").read_text(encoding="utf-8")
    assert "| float32 | rescaled by sample\\_channel | 3×64×16×16 |" in page


def test_a_wrong_element_and_one_that_is_not_written_are_seen(tmp_path):
    pytest.importorskip("pytest_benchmark")
    (tmp_path / "wrong_kernel.py").write_text(
        "import kernels, torch\n"
        "right = kernels.prune_nm\n"
        "def wrong(grad, n, m, mode, rescale, seed):\n"
        "    pruned = right(grad, n, m, mode, rescale, seed)\n"
        "    if mode == 'random':  # the last sample is never written\n"
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
    done = run(sys.executable, "benchmarks/check_kernels.py", "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("; 0 wrong\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_patterns_are_not_measured_on_a_device_that_is_not_there():
    done = run(sys.executable, "benchmarks/bench_patterns.py", "layers", "--device", "cuda")
    assert done.returncode == 2
    assert "error: --device cuda: torch" in done.stderr.splitlines()[-1]


@pytest.fixture
def on_gpu(tmp_path):
    """Runs the script where `python3` writes down what it is asked, and answers as on a machine with a GPU."""
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    tools = tmp_path / "tools"
    tools.mkdir()
    called = tmp_path / "called"
    python = tools / "python3"
    python.write_text(
        f'#!/bin/sh\necho "$*" >> {called}\n'
        'case "$*" in\n'
        '  *--missing) echo "$LACKING";;\n'
        '  *machine_facts.py*) [ -z "$NO_GPU" ] || { echo "no GPU" >&2; exit 2; };;\n'
        "  *$BREAKS*) exit 1;;\n"
        "esac\n"
    )
    sanitizer = tools / "compute-sanitizer"
    sanitizer.write_text('#!/bin/sh\nwhile [ "$1" != python3 ]; do shift; done\nexec "$@"\n')
    for tool in (python, sanitizer):
        tool.chmod(0o755)

    def start(*stages, breaks="nothing at all", **variables):
        called.unlink(missing_ok=True)
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        out = tmp_path / "out"
        done = run("bash", "benchmarks/on_gpu.sh", out, *stages, PATH=path, BREAKS=breaks, **variables)
        lines = called.read_text().splitlines() if called.exists() else []
        return done, [line for line in lines if "machine_facts" not in line and "kernel_tables" not in line]

    return start


def test_on_gpu_runs_all_in_order_and_goes_on_where_it_was_cut_off(on_gpu):
    done, called = on_gpu(breaks="bench_step")
    assert done.returncode == 1
    assert "not done: steps" in done.stdout
    assert called[0] == "benchmarks/check_kernels.py --device cuda"
    assert [line.split("--shapes ")[1].split()[0] for line in called if "bench_kernels" in line] == [
        *("large", "large", "resnet9", "resnet18,resnet50")
    ]
    order = (
        "check_kernels",
        "-m gpu",
        "bench_kernels",
        "test_cuda_tap_conv.py",
        "bench_step",
        "bench_patterns.py layers --device cuda",
        "bench_pruned",
        "--preset smoke",
        "--preset quick --seeds",
        "reproduce",
        "resnet50_cifar",
        "vgg11_click",
    )
    places = [next(index for index, line in enumerate(called) if part in line) for part in order]
    assert places == sorted(places)

    done, called = on_gpu()
    assert done.returncode == 0
    assert called == [next(line for line in called if "bench_step" in line)]
    assert "all done: tests kernels sanitizer steps patterns pruned suites" in done.stdout


def test_on_gpu_does_not_call_done_what_the_sanitizer_did_not_see(on_gpu, tmp_path):
    if shutil.which("compute-sanitizer") or Path("/usr/local/cuda/bin/compute-sanitizer").exists():
        pytest.skip("compute-sanitizer is installed")
    (tmp_path / "tools" / "compute-sanitizer").unlink()
    done, _ = on_gpu("sanitizer", "steps")
    assert done.returncode == 1
    assert "not done: sanitizer" in done.stdout


def test_on_gpu_runs_the_stages_asked_for(on_gpu):
    done, called = on_gpu("steps")
    assert done.returncode == 0
    assert [line.split()[0] for line in called] == ["benchmarks/bench_step.py"]


def test_on_gpu_names_missing_modules_and_leaves_out_what_needs_them(on_gpu):
    done, called = on_gpu("tests", "kernels", "steps", LACKING="hypothesis pytest_benchmark")
    assert done.returncode == 1
    assert "missing modules: hypothesis pytest_benchmark; steps that need them are left out\n" in done.stdout
    assert [line.split()[0] for line in called] == ["benchmarks/bench_step.py"]


def test_on_gpu_refuses_what_it_does_not_know_and_machines_without_a_gpu(on_gpu, tmp_path):
    done, called = on_gpu("stepz")
    assert (done.returncode, called) == (2, [])
    assert "no stage is called 'stepz'; known: tests kernels sanitizer steps patterns pruned suites" in done.stderr
    done, called = on_gpu(NO_GPU="1")
    assert (done.returncode, called) == (2, [])
    assert not (tmp_path / "out").exists()
