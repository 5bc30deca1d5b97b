"""Tests of the benchmark programs: measurements, saved files and refused options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.kernels import check_kernels, options, tables
from benchmarks.kernels import results as kernel_results
from benchmarks.steps import bench_dtypes, bench_patterns

ROOT = Path(__file__).parents[2]
BENCH = "benchmarks/kernels/bench_kernels.py"


def run(*command, **variables):
    # pytest-benchmark measures nothing if the environment says that a worker of pytest-xdist started it.
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
    assert "8 passed" in done.stdout  # printed after the program restarted itself
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
    # The clock of pytest-benchmark contains only the times of the kernel.
    assert first["stats"]["median"] == pytest.approx(found["seconds"])
    assert first["stats"]["rounds"] == 5
    fraction = found["fraction_of_copy"]
    assert fraction["low"] <= fraction["median"] <= fraction["high"]
    assert found["copy"] in found["copies_gb_per_s"]
    assert found["instead"]["topk and scatter"]["same_values"] is True
    assert "instead" not in content["benchmarks"][1]["extra_info"]
    settings = content["kernel_benchmarks"]["provenance"]["settings"]["environment"]
    assert settings["MALLOC_MMAP_THRESHOLD_"] == str(2**32)  # as in a trial
    assert "node" not in content["machine_info"]


def test_kept_cases_are_those_of_pytest_benchmark_and_are_not_measured_again(kernel_json, tmp_path):
    path, whole = tmp_path / "kept.json", json.loads(kernel_json.with_name("kept.json").read_text())
    names = [one["name"] for one in whole["benchmarks"]]
    both = zip(whole["benchmarks"], json.loads(kernel_json.read_text())["benchmarks"], strict=True)
    for ours, theirs in both:
        assert ours["extra_info"] == theirs["extra_info"]
        assert ours["stats"]["median"] == theirs["stats"]["median"]

    kept = whole["benchmarks"][::2]  # as after an interrupted run
    path.write_text(json.dumps({**whole, "benchmarks": kept}))
    typed = ("--quick", "--batch-size", "3", "--json", path)
    done = bench(*typed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(names) - len(kept)} passed" in done.stdout
    assert f"{len(kept)} deselected" in done.stdout
    again = json.loads(path.read_text())["benchmarks"]
    assert again[: len(kept)] == kept
    assert [one["name"] for one in again] == names[::2] + names[1::2]
    (run,) = kernel_results.read([path])
    assert len(run.rows) == len(names)
    done = bench(*typed)
    assert (done.returncode, f"{len(names)} deselected" in done.stdout) == (0, True), done.stdout


def test_kernel_tables_reads_them(kernel_json, tmp_path):
    assert tables.main([str(kernel_json), "-o", str(tmp_path)]) == 0
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
    assert "4 failed" in done.stdout
    assert "1 elements differ from the reference" in done.stdout
    assert f"{64 * 256} elements differ from the reference" in done.stdout


def test_a_wrong_option_is_one_line():
    pytest.importorskip("pytest_benchmark")
    done = bench("--modes", "magnitud")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --modes 'magnitud'; did you mean 'magnitude'?\n" in done.stderr
    assert "Traceback" not in done.stderr


class Config(SimpleNamespace):
    """The part of pytest's configuration that the options of the benchmarks read."""

    def getoption(self, name):
        default = "cpu" if name == "device" else name == "quick"
        return self.typed.get(name, default or None)


def config_of(**typed):
    return Config(typed=typed, stash={}, pluginmanager=SimpleNamespace(hasplugin=lambda name: True))


@pytest.mark.parametrize("name", ["benchmark_json", "json"])
def test_a_file_in_no_folder_is_refused_before_anything_is_measured(name):
    expected = f"--{name.replace('_', '-')} no/such/x.json: its folder does not exist"
    with pytest.raises(pytest.UsageError, match=expected):
        options.pytest_configure(config_of(**{name: Path("no/such/x.json")}))


def test_cases_of_another_run_are_not_continued(tmp_path):
    path = tmp_path / "kept.json"
    before = config_of(batch_size=3)
    options.pytest_configure(before)
    path.write_text(json.dumps({"benchmarks": [], options.KEY: options.facts_of(before)}))
    options.pytest_configure(config_of(batch_size=3, json=path))
    with pytest.raises(pytest.UsageError, match=r"kept.json holds numbers of another run \(rounds: 5, now 4\)"):
        options.pytest_configure(config_of(batch_size=3, json=path, rounds=4))


def test_check_kernels_finds_all_right(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["check_kernels", "--device", "cpu"])
    try:
        assert check_kernels.main() == 0
    finally:
        torch.use_deterministic_algorithms(False)
    assert capsys.readouterr().out.endswith("; 0 wrong\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_patterns_are_not_measured_on_a_device_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_patterns", "layers", "--device", "cuda"])
    with pytest.raises(SystemExit, match="2"):
        bench_patterns.main()
    assert "error: --device cuda: torch" in capsys.readouterr().err.splitlines()[-1]


def test_types_are_compared_on_the_networks_that_are_named(tmp_path):
    program = (sys.executable, "-m", "benchmarks.steps.bench_dtypes", "--device", "cpu")
    done = run(*program, "--networks", "resnet9[width=0.25]", "--pairs", "2", "--json", tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "found.json").read_text())["results"].values()
    assert (found["side"], found["batch"]) == (32, 64)
    assert 0 < found["low"] <= found["median"] <= found["high"]
    done = run(*program, "--networks", "resnet")
    assert done.returncode == 2
    assert done.stderr.endswith("choose from " + ", ".join(case.model for case in bench_dtypes.CASES) + "\n")
