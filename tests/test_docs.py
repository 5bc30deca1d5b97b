"""What the documents show works as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def code_blocks(document, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)


def test_loop_of_ones_own_runs_and_is_short():
    code, _ = code_blocks("docs/your-own-loop.md")
    assert len(code.split("images, labels = ", 1)[1].strip().splitlines()) <= 20
    names = {}
    exec(compile(code, "your-own-loop.md", "exec"), names)
    assert names["hooks"].ctx.step == 8


@pytest.mark.slow
def test_loop_of_several_processes_runs_on_two(tmp_path):
    _, code = code_blocks("docs/your-own-loop.md")
    (tmp_path / "loop.py").write_text(code, encoding="utf-8")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "loop.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(start, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    left = re.findall(r"rank [01]: (\d+) parameters are left", done.stdout)
    assert len(left) == 2
    assert left[0] == left[1]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    (code,) = code_blocks("docs/add-a-method.md")
    path = tmp_path_factory.mktemp("plugin") / "channel_topk.py"
    path.write_text(code, encoding="utf-8")
    return path


def test_documented_method_is_at_most_40_lines(plugin):
    assert len([line for line in plugin.read_text().splitlines() if line.strip()]) <= 40


def pdt(*arguments, cwd):
    return subprocess.run(
        [sys.executable, str(ROOT / "run_suite.py"), *arguments], cwd=cwd, capture_output=True, text=True, timeout=280
    )


def test_documented_method_passes_check(plugin):
    done = pdt("check", "channel_topk", "--plugin", plugin.name, cwd=plugin.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def test_documented_method_trains_and_shows_up_in_the_report(plugin):
    done = pdt(
        *("--methods", "dense,channel_topk[share=0.5]", "--task", "digits", "--preset", "smoke"),
        *("--plugin", plugin.name, "--out", "out"),
        cwd=plugin.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = (plugin.parent / "out" / "report.md").read_text(encoding="utf-8")
    assert "channel_topk" in report
    import pandas as pd

    table = pd.read_csv(plugin.parent / "out" / "results.csv").set_index("method")
    assert table.loc["channel_topk", "train_flops_executed"] < 0.75 * table.loc["dense", "train_flops_executed"]


def test_readme_names_only_files_that_exist():
    for document in (
        "README.md",
        "CONTRIBUTING.md",
        "docs/add-a-method.md",
        "docs/architecture.md",
        "docs/reproduce.md",
    ):
        text = (ROOT / document).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert ((ROOT / document).parent / target).exists(), f"{document} names {target}"


def test_readme_has_the_two_commands_as_the_interface_fixes_them():
    first, second = code_blocks("README.md", "")[0].strip().splitlines()
    assert first == (
        'pip install -e ".[test]" && python run_suite.py --methods dense,sdgp,prunetrain --task cifar10 --preset smoke'
    )
    assert second == 'pip install -e ".[test]" && python -m pytest'


def test_documented_reproduction_is_one(tmp_path, monkeypatch):
    from suite import registry

    for name in ("_objects", "_plugin_entries"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    (code,) = code_blocks("docs/reproduce.md")
    path = tmp_path / "documented_reproduction.py"
    path.write_text(code, encoding="utf-8")
    (entry,) = registry.load_plugin(path)
    assert (entry.name, entry.summary) == ("my-table", "One line that `list` shows.")
    (part,) = registry.get("reproduction", "my-table").parts
    assert [one.quantity for one in part.compared] == [
        "accuracy, dense",
        "accuracy, 1:4",
        "1:4 minus dense",
        "training FLOPs left",
    ]
