"""What a short PruneTrain takes out of ResNet-32, and what that costs; half an hour on two cores."""

import os
from pathlib import Path

import pandas as pd
import pytest

from reproductions.prunetrain.quantities import IN_FEW_EPOCHS
from suite.command import cli

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]


def test_a_quarter_of_resnet32_goes_within_three_points_of_dense(tmp_path):
    data = Path(os.environ.get("PDT_DATA", "~/.cache/pdt-data")).expanduser()
    if not (data / "cifar10").is_dir():
        pytest.skip(f"{data} has no CIFAR-10: unpack shared/data there, or set PDT_DATA")
    arguments = ["--methods", f"dense,{IN_FEW_EPOCHS}", "--task", "cifar10", "--model", "resnet32"]
    run = [
        "--preset",
        "quick",
        "--recipe",
        "resnet9",
        "--seeds",
        "0,",
        "--device",
        "cpu",
        "--jobs",
        "2",
        "--data-root",
        str(data),
        "--out",
        str(tmp_path / "out"),
    ]
    assert cli.main([*arguments, *run]) == 0
    table = pd.read_csv(tmp_path / "out" / "results.csv").set_index("method")
    dense, pruned = table.loc["dense"], table.loc["prunetrain"]
    assert pruned["epochs"] <= 12
    assert pruned["inference_flops"] <= 0.75 * dense["inference_flops"]
    assert pruned["test_accuracy"] >= dense["test_accuracy"] - 0.03
