"""The table and the figure of dense training of several lengths, from a committed report."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results/cpu-emr-2cores/reference"


def run(*arguments):
    command = [sys.executable, "-m", "benchmarks.dense_curves", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_means_are_those_of_the_trials(tmp_path):
    ended = run(f"quick={REFERENCE}", "-o", str(tmp_path / "curves"))
    assert ended.returncode == 0, ended.stderr
    trials = pd.read_csv(REFERENCE / "results.csv")
    dense = trials[(trials["method"] == "dense") & trials["variant"].isna()]
    table = pd.read_csv(tmp_path / "curves.csv").set_index("epochs")
    assert sorted(table.index) == sorted(set(dense["epochs"]))
    for epochs, several in dense.groupby("epochs"):
        assert table.loc[epochs, "seeds"] == len(several)
        assert table.loc[epochs, "accuracy"] == pytest.approx(100 * several["test_accuracy"].mean(), abs=0.006)
        assert table.loc[epochs, "accuracy_sd"] == pytest.approx(100 * several["test_accuracy"].std(), abs=0.006)
    assert "quick: resnet9[width=0.25]" in (tmp_path / "curves.svg").read_text(encoding="utf-8")


def test_a_folder_without_a_name_is_refused(tmp_path):
    ended = run(str(REFERENCE), "-o", str(tmp_path / "curves"))
    assert ended.returncode == 2
    assert "each folder needs a name: NAME=RESULTS" in ended.stderr
