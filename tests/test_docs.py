"""The examples of the documentation work as they are printed."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from trials_here import run_here

from suite import registry
from suite.cli import main as cli
from suite.engine.training.conformance import subject
from suite.trials import trial_run
from suite.trials.engines.local import LocalEngine

ROOT = Path(__file__).parents[1]


def code_blocks(document, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)


def test_loop_of_ones_own_runs_and_is_short():
    code, *_ = code_blocks("docs/your-own-loop.md")
    assert len(code.split("images, labels = ", 1)[1].strip().splitlines()) <= 20
    names = {}
    exec(compile(code, "your-own-loop.md", "exec"), names)
    assert names["hooks"].ctx.step == 8
    assert {*re.findall(r"\bhooks\.(\w+)\(", "".join(code_blocks("docs/your-own-loop.md")))} <= {*dir(names["hooks"])}
    assert all(hasattr(names["hooks"], name) and not name.startswith("_") for name in dir(names["hooks"]))


def test_loop_with_everything_goes_on_with_equal_bits_wherever_it_stops(tmp_path, monkeypatch):
    _, code, _ = code_blocks("docs/your-own-loop.md")
    stopped = code.replace("hooks.optimizer_step()", "hooks.ctx.step == 6 and 1 / 0 or hooks.optimizer_step()")

    def run(program, folder):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        names = {}
        exec(compile(program, "your-own-loop.md", "exec"), names)
        return names

    whole = run(code, "whole")
    with pytest.raises(ZeroDivisionError):
        run(stopped, "stopped")
    again = run(code, "stopped")
    assert again["hooks"].ctx.step == whole["hooks"].ctx.step == 12
    assert len(whole["hooks"].reconfigurations) >= 1
    for one, other in zip(whole["network"].parameters(), again["network"].parameters(), strict=True):
        assert torch.equal(one, other)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(whole["network"](images), whole["average"].eval()(images))


def run_on_ranks(folder, code):
    """Run the loop of several processes on two of them."""
    (folder / "loop.py").write_text(code, encoding="utf-8")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "loop.py"]
    places = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "support")))
    environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    return subprocess.run(start, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
def test_loop_of_several_processes_goes_on_with_equal_bits_after_a_kill(tmp_path):
    *_, code = code_blocks("docs/your-own-loop.md")
    killed = "import os, signal; hooks.ctx.step == 6 and os.kill(os.getpid(), signal.SIGKILL); hooks.optimizer_step()"
    weights = []
    for folder, program in (("whole", code), ("killed", code.replace("hooks.optimizer_step()", killed))):
        (tmp_path / folder).mkdir()
        done = run_on_ranks(tmp_path / folder, program)
        if folder == "killed":
            assert done.returncode
            done = run_on_ranks(tmp_path / folder, code)
        assert done.returncode == 0, done.stderr
        weights.append(torch.load(tmp_path / folder / "model.pt", weights_only=True)["sha256"])
    assert weights[0] == weights[1]


EXAMPLES = {"channel_topk": 30, "gradual_magnitude": 20, "rewiring": 40, "channel_pruning": 40}
"""Examples of methods by name, with the most lines that they may have."""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    (code,) = code_blocks("docs/add-a-method.md")
    path = tmp_path_factory.mktemp("plugin") / "top_entries.py"
    path.write_text(code, encoding="utf-8")
    return path


def test_every_example_is_listed_and_short():
    files = {path.stem: path for path in (ROOT / "docs" / "examples").glob("*.py")}
    assert files.keys() == EXAMPLES.keys()
    text = (ROOT / "docs/add-a-method.md").read_text(encoding="utf-8")
    for name, path in files.items():
        assert f"(examples/{name}.py)" in text
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        assert len(lines) <= EXAMPLES[name], name


def test_first_method_passes_check(plugin, forget_toys, capsys, monkeypatch):
    """In as many steps as `check` takes, of an eighth of the images."""
    for size, number in (("BATCH_SIZE", 8), ("TRAIN_IMAGES", 64), ("TEST_IMAGES", 50)):
        monkeypatch.setattr(subject, size, number)
    assert cli.main(["check", "top_entries", "--plugin", str(plugin)]) == 0, capsys.readouterr().out


def test_methods_of_the_page_train_and_are_in_the_report(plugin, forget_toys, monkeypatch):
    plugins = [plugin, *(ROOT / "docs" / "examples" / f"{name}.py" for name in EXAMPLES)]
    monkeypatch.chdir(plugin.parent)
    monkeypatch.setattr(LocalEngine, "run", run_here)
    monkeypatch.setattr(trial_run, "images_per_second", lambda trainer: 1.0)
    arguments = (
        *("--methods", "dense,top_entries,channel_topk[share=0.5],gradual_magnitude,rewiring,channel_pruning"),
        *("--task", "digits", "--preset", "smoke", "--model", "resnet9[width=0.0625]", "--device", "cpu"),
        *("--out", "out", "--epochs", "1", "--set", "recipe.train_images=64", "--set", "recipe.test_images=50"),
    )
    assert cli.main([*arguments, *(word for path in plugins for word in ("--plugin", str(path)))]) == 0
    report = (plugin.parent / "out" / "report.md").read_text(encoding="utf-8")
    with (plugin.parent / "out" / "results.csv").open(newline="", encoding="utf-8") as file:
        table = {row["method"]: row for row in csv.DictReader(file)}
    assert all(f"`{name}" in report for name in table)
    dense = float(table["dense"]["train_flops_executed"])
    assert float(table["top_entries"]["train_flops_executed"]) == dense
    assert float(table["top_entries"]["train_flops_effective"]) < 0.9 * dense
    assert float(table["channel_topk"]["train_flops_executed"]) < 0.75 * dense
    assert float(table["channel_pruning"]["params"]) < float(table["dense"]["params"])
    for name in ("gradual_magnitude", "rewiring"):
        assert float(table[name]["nonzero_params"]) < float(table[name]["params"])


def test_readme_has_the_two_commands_as_the_interface_fixes_them():
    first, second = code_blocks("README.md", "")[0].strip().splitlines()
    assert first == (
        "pip install -e . && python run_suite.py --methods dense,sdgp,prunetrain --task cifar10 --preset smoke"
    )
    assert second == 'pip install -e ".[test]" && python -m pytest'


def test_documented_reproduction_is_one(tmp_path, forget_toys):
    (code,) = code_blocks("docs/reproduce.md")
    (declared,) = code_blocks("docs/reproduce.md", "toml")
    path = tmp_path / "documented_reproduction.py"
    path.write_text(code, encoding="utf-8")
    (tmp_path / "my_paper.toml").write_text(declared, encoding="utf-8")
    (entry,) = registry.load_plugin(path)
    assert (entry.name, entry.summary) == ("my-table", "One line that `list` shows.")
    (part,) = registry.get("reproduction", "my-table")().declared.parts
    assert [one.quantity for one in part.compared] == [
        "accuracy, dense",
        "accuracy, 1:4",
        "1:4 minus dense",
        "FLOPs left",
    ]
