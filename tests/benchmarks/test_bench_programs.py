"""Tests of the benchmark programs with their smallest measurements: what they check, save, print and refuse."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import kernels
from benchmarks import gradients, measured, step
from benchmarks import input as images
from benchmarks.kernels import bench_kernels, tables
from benchmarks.kernels import conftest as bench_conftest


def results(path):
    found = json.loads(path.read_text())["results"]
    for one in found.values():
        assert 0 < one["low"] <= one["median"] <= one["high"]
    return found


@pytest.fixture
def typed(monkeypatch):
    """Return a function that calls the main function of a program with these options, in this process."""
    monkeypatch.setenv("HOME", os.environ["HOME"])  # `input` changes it
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)

    def call(main, *options):
        monkeypatch.setattr("sys.argv", ["program", *map(str, options)])
        main()

    return call


class Benchmark:
    """The part of pytest-benchmark that the benchmarks of kernels use."""

    def __init__(self):
        self.extra_info, self.seconds = {}, []

    def pedantic(self, turn, rounds):
        for _ in range(rounds):
            before = bench_kernels.now
            turn()
            self.seconds.append(bench_kernels.now - before)


def random_case(mode, rounds=3):
    grad = torch.randn(4, 64, 6, 6).to(memory_format=torch.channels_last)
    return bench_kernels.Case(grad, "float32", "2:4", mode, rounds)


def test_kernel_benchmarks_leave_what_a_reader_needs(tmp_path, typed, capsys):
    benchmark = Benchmark()
    bench_kernels.test_prune_nm(benchmark, random_case("magnitude"))
    bench_kernels.test_compress_nm(Benchmark(), random_case("random"))
    found = benchmark.extra_info
    assert (found["shape"], found["group"], found["mode"]) == ("4x64x6x6", "2:4", "magnitude")
    assert found["bytes"] == 2 * 4 * 4 * 64 * 36
    assert found["gb_per_s"] == pytest.approx(found["bytes"] / found["seconds"] / 1e9)
    # The clock of pytest-benchmark contains only the times of the kernel.
    assert sorted(benchmark.seconds)[1] == pytest.approx(found["seconds"])
    assert len(benchmark.seconds) == 3
    of_copy = found["of_copy"]
    assert of_copy["low"] <= of_copy["median"] <= of_copy["high"]
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps({"benchmarks": [{"name": "test_prune_nm[x]", "extra_info": found}]}))
    typed(tables.main, path)
    row = capsys.readouterr().out.splitlines()[1]
    assert "prune_nm" in row
    assert f"{of_copy['median']:.3f} [{of_copy['low']:.3f}, {of_copy['high']:.3f}]" in row


def test_the_provenance_of_kernel_benchmarks_is_that_of_a_trial_and_names_no_machine():
    info = {"node": "name"}
    bench_conftest.pytest_benchmark_update_machine_info(None, info)
    assert info.keys() == {"provenance"}
    assert "torch" in info["provenance"]["software"]


def test_a_program_restarts_itself_once_with_the_settings_of_a_trial(monkeypatch):
    started, flushed = [], []
    monkeypatch.setattr(os, "execve", lambda program, words, variables: started.append((words, variables)))
    monkeypatch.setattr("suite.engine.cost.torch_hardware.use_arithmetic", flushed.append)
    monkeypatch.delenv("MALLOC_TOP_PAD_", raising=False)
    measured.enter_trial_environment(before=lambda: started.append("before"))
    before, (words, variables) = started
    assert before == "before"
    assert words == [sys.executable, *sys.orig_argv[1:]]
    assert variables["MALLOC_MMAP_THRESHOLD_"] == str(2**32)
    flushed.clear()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    measured.enter_trial_environment()
    assert (len(started), flushed) == (2, ["flush"])


@pytest.mark.parametrize(("mode", "wrong"), [("magnitude", 1), ("random", 64 * 36)])
def test_a_wrong_element_and_one_that_is_not_written_are_seen(monkeypatch, mode, wrong):
    right = kernels.prune_nm

    def prune(grad, rule, seed):
        pruned = right(grad, rule, seed)
        if rule.mode == "random":  # the last sample is never written
            found = torch.empty_like(grad)
            found[:-1] = pruned[:-1]
            return found
        pruned[-1, -1, -1, -1] = 3.0
        return pruned

    monkeypatch.setattr(kernels, "prune_nm", prune)
    with pytest.raises(AssertionError, match=f"^{wrong} elements differ from the reference"):
        bench_kernels.test_prune_nm(Benchmark(), random_case(mode))


def test_steps_of_methods_are_compared_with_the_faster_dense_ones(typed, tmp_path):
    options = ("--model", "resnet9[width=0.0625]", "--size", "16", "--batch-size", "4", "--pairs", "2")
    typed(step.main, "--methods", "sdgp[backend=skip],ssl", *options, "--device", "cpu", "--json", tmp_path / "x.json")
    found = results(tmp_path / "x.json")
    fastest = "bfloat16" if found["dense, bfloat16 / float32"]["median"] < 1 else "float32"
    methods, dtypes = ("sdgp[backend=skip]", "ssl"), ("float32", "bfloat16")
    rows = [f"{method}, {dtype} / dense, {fastest}" for method in methods for dtype in dtypes]
    assert [*found][1:] == [f"dense, {fastest} / by hand", *rows]
    assert set(found[rows[0]]["backends"].values()) == {"skip"}


def test_the_input_is_compared_with_torchs_loader(typed, tmp_path):
    for split, count in (("train", 32), ("val", 4)):
        for name in ("first", "second"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.full((40, 48, 3), number, dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / split / name / f"{number}.jpg")
    options = ("--size", "32", "--images", "64", "--workers", "0", "--pairs", "2", "--json", tmp_path / "input.json")
    typed(images.main, tmp_path / "images", *options)
    found = results(tmp_path / "input.json")
    assert [name.partition(":")[0] for name in found] == ["cache", "files", "step", "first epoch"]


@pytest.mark.parametrize(
    ("main", "options", "message"),
    [
        (step.main, ("--device", "cuda:99"), "error: --device cuda:99: "),
        (step.main, ("--methods", "dens"), "did you mean 'dense'?"),
        (gradients.main, ("--ratios", "2/4"), "argument --ratios: invalid ratio value: '2/4'"),
        (gradients.main, ("--models", "resnet81", "--pairs", "2"), "did you mean 'resnet1"),
        (images.main, ("no/such",), "no/such is not a folder"),
    ],
)
def test_a_wrong_option_is_one_line(typed, main, options, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        typed(main, *options)
    assert message in capsys.readouterr().err.splitlines()[-1]
