"""What a short training of each paper takes out of a network, and what that costs; an hour on two cores."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from suite.cli import main as cli

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]
FEW_EPOCHS = "prunetrain[ratio=0.3,threshold=0.05]"  # in preset quick of prunetrain-table1
CLICKTRAIN = "clicktrain[compression=8.1,allocation=erdos_renyi,warmup=0.15,hard_prune=0.3]"


@pytest.fixture
def quick(tmp_path, real_data):
    """Function that trains methods in preset `quick` on CIFAR-10, and returns the folder and its table."""

    def run(methods: str, model: str, seeds: str) -> tuple[Path, pd.DataFrame]:
        out = tmp_path / "out"
        setting = {"methods": methods, "model": model, "seeds": seeds, "task": "cifar10", "preset": "quick"}
        others = {"recipe": "resnet9", "device": "cpu", "jobs": 2, "data-root": real_data, "out": out}
        assert cli.main([f"--{name}={value}" for name, value in (setting | others).items()]) == 0
        return out, pd.read_csv(out / "results.csv")

    return run


def test_a_quarter_of_resnet32_goes_within_three_points_of_dense(quick):
    table = quick(f"dense,{FEW_EPOCHS}", "resnet32", "0,")[1].set_index("method")
    dense, pruned = table.loc["dense"], table.loc["prunetrain"]
    assert pruned["epochs"] <= 12
    assert pruned["inference_flops"] <= 0.75 * dense["inference_flops"]
    assert pruned["test_accuracy"] >= dense["test_accuracy"] - 0.03


def test_vgg11_stays_within_two_and_a_half_points_of_dense_at_an_eighth_of_its_weights(quick):
    out, table = quick(f"dense,{CLICKTRAIN}", "vgg11_click[width=0.5]", "2")
    table = table.sort_values("seed")
    dense, pruned = (table[table["method"] == name] for name in ("dense", "clicktrain"))
    assert ((dense["test_accuracy"].to_numpy() - pruned["test_accuracy"].to_numpy()) <= 0.025).all()
    for trial in pruned["trial_id"]:
        *_, last = (out / "trials" / trial / "epochs.jsonl").read_text().splitlines()
        assert json.loads(last)["method"]["compression"] >= 8
