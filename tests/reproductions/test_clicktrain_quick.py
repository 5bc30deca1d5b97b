"""What a short ClickTrain costs in accuracy, eight times smaller; forty minutes on two cores."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from suite.command import cli

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]

CLICKTRAIN = "clicktrain[compression=8.1,allocation=erdos_renyi,warmup=0.15,hard_prune=0.3]"


def test_vgg11_stays_within_two_and_a_half_points_of_dense_at_an_eighth_of_its_weights(tmp_path):
    data = Path(os.environ.get("PDT_DATA", "~/.cache/pdt-data")).expanduser()
    if not (data / "cifar10").is_dir():
        pytest.skip(f"{data} has no CIFAR-10: unpack shared/data there, or set PDT_DATA")
    arguments = ["--methods", f"dense,{CLICKTRAIN}", "--task", "cifar10", "--model", "vgg11_click[width=0.5]"]
    run = [
        "--preset",
        "quick",
        "--recipe",
        "resnet9",
        "--seeds",
        "2",
        "--device",
        "cpu",
        "--jobs",
        "2",
        "--data-root",
        str(data),
    ]
    assert cli.main([*arguments, *run, "--out", str(tmp_path / "out")]) == 0
    table = pd.read_csv(tmp_path / "out" / "results.csv").sort_values("seed")
    dense, pruned = (table[table["method"] == name] for name in ("dense", "clicktrain"))
    assert ((dense["test_accuracy"].to_numpy() - pruned["test_accuracy"].to_numpy()) <= 0.025).all()
    for trial in pruned["trial_id"]:
        *_, last = (tmp_path / "out" / "trials" / trial / "epochs.jsonl").read_text().splitlines()
        assert json.loads(last)["method"]["compression"] >= 8
