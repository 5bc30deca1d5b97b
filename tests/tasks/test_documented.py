"""The examples of docs/add-a-task.md and docs/add-a-model.md run as they are written."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from toy_suite import forget_plugins

from suite import registry
from suite.cli import main as cli
from suite.cli.options import read_run_options
from suite.engine.network.channels.spaces import find_index_spaces
from suite.errors import MissingData
from suite.trials.planning import plan
from suite.trials.spec import SuiteSpec
from suite.trials.trial_run import TrialRun
from tasks.digits import load_digits

DOCS = Path(__file__).parents[2] / "docs"
MAX_LINES = 90  # of a task with its model


def blocks(document: str, language: str) -> list[str]:
    """Return the fenced blocks of one language."""
    text = (DOCS / document).read_text(encoding="utf-8")
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(code) for name, code in found if name == language]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, which contains the examples as the plugins that the documents name."""
    (tmp_path / "stripes.py").write_text(blocks("add-a-task.md", "python")[0], encoding="utf-8")
    (tmp_path / "tiny_resnet.py").write_text(blocks("add-a-model.md", "python")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget_plugins()


def test_a_task_with_a_model_is_short(folder: Path) -> None:
    lines = [line for path in folder.glob("*.py") for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) <= MAX_LINES


@pytest.mark.parametrize("document", ["add-a-task.md", "add-a-model.md"])
def test_documented_commands_are_valid(folder: Path, capsys: pytest.CaptureFixture[str], document: str) -> None:
    for commands in blocks(document, ""):
        described, run = (shlex.split(line)[2:] for line in commands.strip().splitlines())
        assert described[0] == "describe"
        assert cli.main(described) == 0
        assert described[1].partition("[")[0] in capsys.readouterr().out
        assert read_run_options(run).preset == "smoke"


def test_the_documented_task_trains_the_documented_model(folder: Path) -> None:
    suite = SuiteSpec(
        methods="dense",
        tasks="stripes",
        models="tiny_resnet[channels=8,blocks=1]",
        preset="smoke",
        seeds=(0,),
        device="cpu",
        dtype="float32",
        data_root=str(folder),
        plugins=("stripes.py", "tiny_resnet.py"),
    )
    for path in suite.plugins:
        registry.load_plugin(path)
    (trial,) = plan(suite)
    (folder / "trial").mkdir()
    run = TrialRun(trial, folder / "trial")
    run.run()
    assert run.result["test_accuracy"] > 0.5  # of three equal classes


def test_the_documented_models_channels_and_branches_can_be_removed(folder: Path) -> None:
    registry.load_plugin("tiny_resnet.py")
    model = registry.get("model", "tiny_resnet")(num_classes=10, in_channels=1)
    spaces = find_index_spaces(model, (1, 16, 16))
    assert not spaces.not_followed
    assert [*spaces.removable_branches] == ["3.branch", "4.branch"]


def test_the_documented_file_of_images_is_read_or_missed_in_one_line(folder: Path) -> None:
    (folder / "my_digits.py").write_text(blocks("add-a-task.md", "python")[1], encoding="utf-8")
    registry.load_plugin("my_digits.py")
    task = registry.get("task", "my_digits")()
    with pytest.raises(MissingData, match=r"my_digits\.npz: no such file; give another folder with --data-root"):
        task.prepare(folder, "quick")
    data = load_digits()
    np.savez(folder / "my_digits.npz", **vars(data))
    assert task.prepare(folder, "quick").checksum == data.checksum()
