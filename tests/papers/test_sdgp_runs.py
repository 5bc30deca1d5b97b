"""Each reproduction of SDGP from the command to its files, on the sample that the package carries."""

from __future__ import annotations

import csv
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from reproduced_files import rows

from suite.trials.engines.local import LocalEngine

ROOT = Path(__file__).resolve().parents[2]
# One folder for all: the parts share their dense trial, and 2:4 rescaled.
SHORT = (
    *("--preset", "smoke", "--epochs", "1", "--set", "recipe.train_images=256", "--set", "recipe.test_images=200"),
    *("--seeds", "1", "--model", "resnet9[width=0.125]", "--device", "cpu", "--dtype", "float32", "--jobs", "2"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduce")


def run_command(folder, *arguments):
    command = [sys.executable, str(ROOT / "run_suite.py"), "reproduce", *arguments, *SHORT, "--out", "out"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


def page(folder, name):
    return (folder / "out" / "reproduce" / f"{name}.md").read_text(encoding="utf-8")


def test_table_1(folder, reproduce):
    reproduce(folder / "out", "sdgp-table1", "--parts", "columns", *SHORT)
    found = rows(folder / "out", "sdgp-table1")
    with open(folder / "out" / "results.csv", encoding="utf-8", newline="") as file:
        accuracies = {row["variant"]: 100 * float(row["test_accuracy"]) for row in csv.DictReader(file)}
    assert len(accuracies) == 4
    for mode, published in (("random", "-0.8"), ("magnitude", "-0.1"), ("rescaled", "-0.1")):
        row = found[f"{mode} 2:4 minus dense"]
        assert row["published"] == published
        assert float(row["ours"]) == pytest.approx(accuracies[f"n=2,m=4,mode={mode}"] - accuracies[""])
        assert (row["interval"], row["kind"]) == ("", "measured")
    assert float(found["accuracy, dense"]["difference"]) == pytest.approx(accuracies[""] - 95.3)
    assert found["rescaled 4:32 (repository) minus dense"]["note"] == "not run"
    text = page(folder, "sdgp-table1")
    assert text.index("Not the paper's setting") < text.index("## ")
    assert "epochs 1 instead of 150" in text
    assert "--parts group-sizes" in text
    ElementTree.parse(folder / "out" / "reproduce" / "sdgp-table1.svg")


def test_figure_8_and_the_trials_that_it_shares_with_table_1(folder, reproduce):
    reproduce(folder / "out", "sdgp-table1", "--parts", "columns", *SHORT)
    before = set((folder / "out" / "trials").iterdir())
    reproduce(folder / "out", "sdgp-fig8", "--parts", "corners", *SHORT)
    assert len(set((folder / "out" / "trials").iterdir()) - before) == 4  # of six
    found = rows(folder / "out", "sdgp-fig8")
    assert found["rescaled 16:32 minus dense"]["ours"]
    assert not found["rescaled 8:16 minus dense"]["ours"]
    text = page(folder, "sdgp-fig8")
    assert "rescaled 16:32 minus dense |" in text
    assert "| rescaled 8:16 minus dense |" not in text
    assert "--parts inner" in text
    assert (folder / "out" / "reproduce" / "sdgp-fig8.svg").read_text(encoding="utf-8").count("not run") >= 6
    # Trials of another command, for a part that was not requested, are in the table; the part is not called complete.
    reproduce(folder / "out", "sdgp-table1", "--parts", "columns", *SHORT)
    found = rows(folder / "out", "sdgp-table1")
    assert found["rescaled 16:32 (repository) minus dense"]["ours"]
    assert not found["rescaled 8:16 (repository) minus dense"]["ours"]
    assert "--parts group-sizes" in page(folder, "sdgp-table1")


def test_figures_6_7_and_10_need_no_other_trials(folder, reproduce):
    reproduce(folder / "out", "sdgp-table1", "--parts", "columns", *SHORT)
    reproduce(folder / "out", "sdgp-fig8", "--parts", "corners", *SHORT)
    before = set((folder / "out" / "trials").iterdir())
    with open(folder / "out" / "results.csv", encoding="utf-8", newline="") as file:
        accuracies = {row["variant"]: 100 * float(row["test_accuracy"]) for row in csv.DictReader(file)}
    for name in ("sdgp-fig10", "sdgp-fig6", "sdgp-fig7"):
        reproduce(folder / "out", name, *SHORT)
        assert "Not the paper's setting" in page(folder, name)
        ElementTree.parse(folder / "out" / "reproduce" / f"{name}.svg")
    assert set((folder / "out" / "trials").iterdir()) == before
    late = "mean accuracy of all epochs, rescaled minus dense"
    gap = rows(folder / "out", "sdgp-fig7")[late]
    assert float(gap["ours"]) == pytest.approx(accuracies["n=2,m=4,mode=rescaled"] - accuracies[""])
    assert float(rows(folder / "out", "sdgp-fig10")["target accuracy"]["ours"]) == pytest.approx(accuracies[""] - 0.8)
    assert rows(folder / "out", "sdgp-fig10")["epochs to the target, dense"]["ours"] == "1"


def test_figure_5_and_figure_4_of_its_trial(tmp_path, reproduce):
    folder = tmp_path
    reproduce(folder / "out", "sdgp-fig5", *SHORT)
    found = {name: float(row["ours"]) for name, row in rows(folder / "out", "sdgp-fig5").items()}
    for mode in ("random", "magnitude", "rescaled"):
        assert found[f"exact zeros, {mode}"] == pytest.approx(50, abs=1)
        assert 0 < found[f"cosine with the dense gradient, {mode}"] < 1
        assert found[f"relative error of the data gradient, {mode}"] > 0
    errors = [found[f"relative error of the data gradient, {mode}"] for mode in ("magnitude", "random")]
    assert errors[0] < errors[1]
    assert found["sum of magnitudes left in a channel, rescaled, median of channels"] == pytest.approx(100, abs=0.1)
    text = page(folder, "sdgp-fig5")
    assert "dO of layer down.conv" in text
    assert "after 2 steps (one epoch, seed 0)" in text
    assert "model.pt (SHA-256 " in text
    table = folder / "out" / "reproduce" / "sdgp-fig5.csv"
    numbers = table.read_text(encoding="utf-8")
    (record,) = (folder / "out" / "trials").glob("*/trial.json")
    written = record.stat().st_mtime_ns
    reproduce(folder / "out", "sdgp-fig5", *SHORT)
    assert table.read_text(encoding="utf-8") == numbers  # the same trial, the same batch, the same gradient
    reproduce(folder / "out", "sdgp-fig4", *SHORT)
    assert record.stat().st_mtime_ns == written
    small = rows(folder / "out", "sdgp-fig4")
    assert (small["second element of [1, 7, -3, 2], magnitude 2:4"]["ours"]) == "7"
    assert float(small["exact zeros, rescaled"]["ours"]) == 50.0
    ElementTree.parse(folder / "out" / "reproduce" / "sdgp-fig4.svg")


@pytest.mark.slow
def test_figure_5_by_the_command_line(tmp_path):
    """As a user runs it: with the trial in a process of its own, and the report of the suite."""
    run_command(tmp_path, "sdgp-fig5")
    assert (tmp_path / "out" / "report.html").is_file()
    assert float(rows(tmp_path / "out", "sdgp-fig5")["exact zeros, rescaled"]["ours"]) == pytest.approx(50, abs=1)
    assert "after 2 steps (one epoch, seed 0)" in page(tmp_path, "sdgp-fig5")


def test_a_trial_that_fails_is_named_and_nothing_is_drawn(tmp_path, reproduce):
    processes = LocalEngine.run  # which can end a trial
    reproduce(tmp_path / "out", "sdgp-fig5", "--timeout", "0.5", *SHORT, status=1, engine=processes)
    assert rows(tmp_path / "out", "sdgp-fig5")["exact zeros, dense"]["note"] == "the dense trial is not done"
    text = page(tmp_path, "sdgp-fig5")
    assert "Trials that are not done and not included in any number here:" in text
    assert "timeout" in text
    assert not (tmp_path / "out" / "reproduce" / "sdgp-fig5.svg").exists()
