"""Tests of the benchmark programs with their smallest measurements: what they check, save, print and refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import gradients, step
from benchmarks import input as images

ROOT = Path(__file__).parents[2]
BENCH = "benchmarks/kernels/bench_kernels.py"
FEW = ("--benchmark-min-rounds", "3", "-k", "prune_nm and 512x64x6x6-float32-2:4 and (magnitude or random)")


def run(*command, **variables):
    # pytest-benchmark measures nothing if the environment says that a worker of pytest-xdist started it.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Without a GPU: the tests are about the CPU.
    changed = {**ours, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    return subprocess.run(list(map(str, command)), cwd=ROOT, env=changed, capture_output=True, text=True, timeout=280)


def bench(*options, **variables):
    return run(sys.executable, "-m", "pytest", BENCH, "-p", "no:cacheprovider", *FEW, *options, **variables)


def program(name, *options):
    return run(sys.executable, "-m", f"benchmarks.{name}", *options)


def results(path):
    content = json.loads(path.read_text())
    assert content["provenance"]["settings"]["environment"]["MALLOC_MMAP_THRESHOLD_"] == str(2**32)  # as in a trial
    for one in content["results"].values():
        assert 0 < one["low"] <= one["median"] <= one["high"]
    return content["results"]


def test_kernel_benchmarks_leave_what_a_reader_needs(tmp_path):
    pytest.importorskip("pytest_benchmark")
    path = tmp_path / "kernels.json"
    done = bench("--benchmark-json", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout  # printed after the program restarted itself
    content = json.loads(path.read_text())
    first = content["benchmarks"][0]
    found = first["extra_info"]
    assert (found["shape"], found["group"], found["mode"]) == ("512x64x6x6", "2:4", "magnitude")
    assert found["bytes"] == 2 * 4 * 512 * 64 * 36
    assert found["gb_per_s"] == pytest.approx(found["bytes"] / found["seconds"] / 1e9)
    # The clock of pytest-benchmark contains only the times of the kernel.
    assert first["stats"]["median"] == pytest.approx(found["seconds"])
    assert first["stats"]["rounds"] == 3
    of_copy = found["of_copy"]
    assert of_copy["low"] <= of_copy["median"] <= of_copy["high"]
    settings = content["machine_info"]["provenance"]["settings"]["environment"]
    assert settings["MALLOC_MMAP_THRESHOLD_"] == str(2**32)  # as in a trial
    assert "node" not in content["machine_info"]
    table = program("kernels.tables", path)
    assert table.returncode == 0, table.stderr
    assert f"{of_copy['median']:.3f} [{of_copy['low']:.3f}, {of_copy['high']:.3f}]" in table.stdout.splitlines()[1]


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
    done = bench("-p", "wrong_kernel", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 1
    assert "2 failed" in done.stdout
    assert "1 elements differ from the reference" in done.stdout
    assert f"{64 * 36} elements differ from the reference" in done.stdout


def test_steps_of_methods_are_compared_with_the_faster_dense_ones(tmp_path):
    options = (
        "--model",
        "resnet9[width=0.0625]",
        "--batch-size",
        "4",
        "--pairs",
        "2",
        "--json",
        tmp_path / "steps.json",
    )
    done = program("step", "--methods", "sdgp[backend=skip],prunetrain", *options)
    assert done.returncode == 0, done.stderr
    found = results(tmp_path / "steps.json")
    fastest = "bfloat16" if found["dense, bfloat16 / float32"]["median"] < 1 else "float32"
    assert [*found][1:] == [
        f"dense, {fastest} / by hand",
        *(
            f"{method}, {dtype} / dense, {fastest}"
            for method in ("sdgp[backend=skip]", "prunetrain")
            for dtype in ("float32", "bfloat16")
        ),
    ]
    assert set(found[f"sdgp[backend=skip], float32 / dense, {fastest}"]["backends"].values()) == {"skip"}


def test_the_input_is_compared_with_torchs_loader(tmp_path):
    for split in ("train", "val"):
        for name in ("first", "second"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for number in range(40):
                pixels = np.full((40, 48, 3), number, dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / split / name / f"{number}.jpg")
    options = ("--size", "32", "--images", "64", "--workers", "1", "--pairs", "2", "--json", tmp_path / "input.json")
    done = program("input", tmp_path / "images", *options)
    assert done.returncode == 0, done.stderr
    assert [name.partition(":")[0] for name in results(tmp_path / "input.json")] == [
        "cache", "files", "step", "first epoch",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("main", "typed", "message"),
    [
        (step.main, ("--device", "cuda:99"), "error: --device cuda:99: "),
        (step.main, ("--methods", "dens"), "did you mean 'dense'?"),
        (gradients.main, ("--ratios", "2/4"), "argument --ratios: invalid ratio value: '2/4'"),
        (gradients.main, ("--models", "resnet81", "--pairs", "2"), "did you mean 'resnet1"),
        (images.main, ("no/such",), "no/such is not a folder"),
    ],
)
def test_a_wrong_option_is_one_line(main, typed, message, monkeypatch, capsys):
    monkeypatch.setenv("HOME", os.environ["HOME"])  # `input` changes it
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr("sys.argv", ["program", *typed])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert message in capsys.readouterr().err.splitlines()[-1]
