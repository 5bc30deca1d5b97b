"""PruneTrain's reproductions: what they declare, and each from the command to its files."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reproductions.prunetrain import tables as prunetrain
from tasks.cifar10 import CIFAR10
from tasks.cifar100 import CIFAR100, CLASSES

ROOT = Path(__file__).resolve().parents[2]
SHORT = (
    *("--preset", "smoke", "--epochs", "2", "--set", "recipe.train_images=200", "--set", "recipe.test_images=100"),
    *("--seeds", "1", "--model", "resnet32[width=0.25]", "--device", "cpu", "--dtype", "float32", "--jobs", "2"),
)


def test_every_part_trains_by_the_papers_recipe():
    parts = [part for one in (prunetrain.Table1, prunetrain.Table3, prunetrain.Table4) for part in one.parts]
    assert {part.recipe for part in parts if part.task == "cifar10"} == {"prunetrain"}
    assert CIFAR10.paper_recipes["prunetrain"].recipe == CIFAR100().recipe("paper")


def test_each_network_stands_beside_its_own_numbers():
    lines = {
        (one.quantity, one.published) for part in prunetrain.Table1().parts for one in part.compared if one.published
    }
    assert len(lines) == 8 * 4
    published = prunetrain.Table1().published
    found = {quantity: published.find(name)[1] for quantity, name in lines}
    assert found["resnet32 on cifar10 minus dense"] == -1.8
    assert found["vgg13 on cifar100: training time left"] == 67
    assert found["resnet50_cifar on cifar10: training FLOPs left, counted as theirs"] == 50
    assert found["vgg11 on cifar100: inference FLOPs left"] == 43


def reproduce(folder, name, *arguments):
    command = [sys.executable, str(ROOT / "run_suite.py"), "reproduce", name, *arguments, *SHORT, "--out", "out"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(folder / "out" / "reproduce" / f"{name}.csv", encoding="utf-8", newline="") as file:
        # Parts may have a quantity in common; that of the part which ran is meant.
        rows = {row["quantity"]: row for row in sorted(csv.DictReader(file), key=lambda row: bool(row["ours"]))}
    with open(folder / "out" / "results.csv", encoding="utf-8", newline="") as file:
        trials = {f"{row['method']}[{row['variant']}]": row for row in csv.DictReader(file)}
    return rows, trials, (folder / "out" / "reproduce" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "prefix"), [("prunetrain-table1", "resnet32 on cifar10"), ("prunetrain-table3", "prunetrain")]
)
def test_tables_on_cifar10(tmp_path, name, prefix):
    rows, trials, page = reproduce(tmp_path, name)
    (pruned,) = (row for label, row in trials.items() if label.startswith("prunetrain["))
    dense = trials["dense[]"]
    row = rows[f"{prefix}: inference FLOPs left"]
    share = 100 * float(pruned["inference_flops"]) / float(pruned["inference_flops_dense"])
    assert share <= 100
    assert (float(row["ours"]), row["published"], row["kind"]) == (pytest.approx(share), "34", "counted")
    row = rows[f"{prefix} minus dense"]
    gap = 100 * (float(pruned["test_accuracy"]) - float(dense["test_accuracy"]))
    assert float(row["ours"]) == pytest.approx(gap)
    assert row["published"] == {"prunetrain-table1": "-1.8", "prunetrain-table3": "-0.5"}[name]
    time = float(pruned["train_time_s"]) / float(dense["train_time_s"])
    assert float(rows[f"{prefix}: training time left"]["ours"]) == pytest.approx(100 * time)
    assert "best of all epochs on the test set" in page
    assert "selection" in page.casefold()


def test_table_4_on_a_small_cifar_100(tmp_path):
    random = np.random.RandomState(0)
    for split, count in (("train", 3), ("test", 1)):
        for name in CLASSES:
            folder = tmp_path / "data" / "cifar100" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                Image.fromarray(random.randint(0, 256, (32, 32, 3)).astype(np.uint8)).save(folder / f"{index}.png")
    arguments = ("--data-root", str(tmp_path / "data"), "--batch-size", "32")
    rows, trials, page = reproduce(tmp_path, "prunetrain-table4", *arguments)
    assert len(trials) == 3
    assert rows["growing batch: training time saved"]["published"] == "43"
    assert rows["batch as it was minus dense"]["published"] == "-0.7"
    assert "57 %" in page
