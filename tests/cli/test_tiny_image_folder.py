"""A folder of so few images that nothing can be learned from it: the command and the report say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_bad_image_folders import OPTIONS, image
from trials_here import run_here

from suite.cli import main as cli
from suite.trials.engines.local import LocalEngine

EACH = {"train": {"cat": 5, "dog": 3}, "val": {"cat": 2, "dog": 3}}


def test_few_steps_and_an_accuracy_of_chance_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(LocalEngine, "run", run_here)
    monkeypatch.setattr("reports.content.build.tradeoff_figures", lambda rows, slug, curve: ([], []))
    monkeypatch.setattr("reports.content.build.curve_figures", lambda rows, slug: ([], []))
    for split, classes in EACH.items():
        for name, count in classes.items():
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(count):
                image().save(tmp_path / "data" / split / name / f"{number}.png")  # the same image in both classes
    out = tmp_path / "out"
    with caplog.at_level("WARNING"):
        assert (
            cli.main([*OPTIONS, "--task", "imagefolder", "--data-root", str(tmp_path / "data"), "--out", str(out)]) == 0
        )
    (said,) = (one for one in caplog.messages if "steps per epoch" in one)
    assert said.startswith("imagefolder: 8 training images in batches of 2 make 4 steps per epoch and 4 in a trial, ")
    (record,) = (json.loads(path.read_text()) for path in (out / "trials").glob("*/trial.json"))
    sizes = {"classes": 2, "train_images": 8, "test_images": 5, "largest_test_class": 3}
    assert record["provenance"]["data"] == sizes
    assert "**Caution:** Dense training has not learned the task" in (out / "report.md").read_text()
