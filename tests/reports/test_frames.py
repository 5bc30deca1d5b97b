"""`suite.load_results`: frames with the values of the files, and the unit and kind of each column."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
from time_passes import time_json

import suite as suite_package
from reports.content.build import build
from reports.data.estimates import Estimate
from reports.data.records import read
from reports.formatting import DASH, points
from reports.frames import EPOCHS, LAYERS, MEASURED_COMMUNICATION
from suite.engine.training.ranks import Kind
from suite.errors import UsageError
from suite.trials.folder.records import unpacked
from suite.trials.folder.table import SCHEMA

FRAMES = ("verdicts", "trials", "epochs", "layers", "times")
ROOT = Path(__file__).parents[2]
EXPORT = ROOT / "results" / "cpu-zen4-2cores" / "vit-digits"
RECORDS = sorted(ROOT.glob("results/*/*/trials/*"))


def test_frames_have_the_values_of_an_export(tmp_path: Path) -> None:
    shutil.copytree(EXPORT, tmp_path / "export")
    ratios = {"prunetrain[ratio=0.5,update=proximal]": (0.86, 0.85), "prunetrain[update=proximal]": (0.91,)}
    times = time_json({"task": "digits", "epochs": "25"}, **ratios)
    (tmp_path / "export" / "time.json").write_text(json.dumps(times))
    found = suite_package.load_results(tmp_path / "export")
    with (EXPORT / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert found.damage == ()
    assert list(found.trials["trial_id"]) == [row["trial_id"] for row in rows]
    for column in SCHEMA:
        for value, row in zip(found.trials[column.name], rows, strict=True):
            text = row.get(column.name, "")
            assert pd.isna(value) if text == "" else value == column.type(text)
    folder = EXPORT / "trials" / rows[0]["trial_id"]
    lines = [json.loads(line) for line in unpacked(folder / "epochs.jsonl.gz").splitlines()]
    epochs = found.epochs[found.epochs["trial_id"] == folder.name]
    assert list(epochs["epoch"]) == [line["epoch"] for line in lines]
    assert list(epochs["step_flops_executed"]) == [line["step_flops"]["executed"] for line in lines]
    assert list(epochs["test_accuracy"]) == [line["test_accuracy"] for line in lines]
    layers = found.layers[found.layers["trial_id"] == folder.name]
    planned = [layer for layer in layers["layer"] if ":" not in layer]  # without the products of attention
    assert planned == list(lines[-1]["layers"])
    # The ledger of the layers adds up to the columns of the trial.
    parts = [f"{product}_effective" for product in ("forward", "dgrad", "wgrad")]
    sums = found.layers.groupby("trial_id")[parts].sum().sum(axis=1)
    trials = found.trials.set_index("trial_id")
    assert (sums / trials["train_flops_effective"]).to_numpy() == pytest.approx(1.0)
    assert list(found.times["time_ratio"]) == pytest.approx([0.86, 0.85, 0.91])
    assert list(found.times["pass"]) == [1, 2, 1]
    # Each time joins the trials, one per seed, of its method, variant and epochs.
    assert set(found.times["epochs"]) == {25}
    joined = found.times.merge(trials, on=["method", "variant", "epochs"])
    assert [*joined.groupby(["method", "variant", "pass"])["seed"].nunique()] == [3, 3, 3]


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("name", ["campaign", "controls"])
def test_verdicts_are_those_of_the_page_and_the_object_prints_them_in_a_few_lines(name: str) -> None:
    found = suite_package.load_results(EXPORT.with_name(name))
    (group,) = build(read(EXPORT.with_name(name))).groups
    by_time, by_flops = ([row for row in table.rows if row[0].code] for table in (group.summary, group.tables[0]))
    for row, cells, counted in zip(found.verdicts.itertuples(), by_time, by_flops, strict=True):
        label = row.method if pd.isna(row.variant) else f"{row.method}[{row.variant}]"
        gain = Estimate(row.gain, row.gain_high - row.gain, 3)
        written = DASH if pd.isna(row.gain) else points(gain)
        outcome = DASH if pd.isna(row.outcome) else row.outcome
        assert [cells[index].text for index in (0, 4, 5)] == [label, written, outcome]
        known = [cells[3].value or math.nan, counted[3].value, gain.low]
        assert [row.time_ratio, row.flops_ratio, row.gain_low] == pytest.approx(known, nan_ok=True)
    first, answer, *frames = repr(found).splitlines()
    assert f"/{name}: {len(found.trials)} trials, {len(found.trials)} done; " in first
    assert all(f" {outcome}: " in answer for outcome in found.verdicts["outcome"].dropna())
    assert [line.split()[0] for line in frames] == [f"{one}," for one in (*FRAMES, "columns", "damage")]


def test_fields_of_the_recipe_in_which_trials_differ_are_columns(tmp_path: Path) -> None:
    shutil.copytree(EXPORT, tmp_path / "export")
    assert not [name for name in suite_package.load_results(tmp_path / "export").trials if name.startswith("recipe.")]
    packs = sorted(tmp_path.glob("export/trials/dense-*/trial.json*"))[0]
    record = json.loads(unpacked(packs))
    record["spec"]["recipe"] |= {"cutout": 8, "alternating_flip": True}
    packs.unlink()
    (packs.parent / "trial.json").write_text(json.dumps(record))
    found = suite_package.load_results(tmp_path / "export")
    changed = found.trials["trial_id"] == packs.parent.name
    assert [*found.trials.columns[-2:]] == ["recipe.alternating_flip", "recipe.cutout"]
    for name, before, after in (("recipe.alternating_flip", "false", "true"), ("recipe.cutout", "0", "8")):
        assert {*found.trials[name][changed]} == {after}
        assert {*found.trials[name][~changed]} == {before}
        assert found.columns.loc[("trials", name), "kind"] == "setting"


def test_units_kinds_and_types_follow_the_schema() -> None:
    found = suite_package.load_results(EXPORT)
    assert found.trials.attrs["units"]["train_time_s"] == "s"
    assert found.trials.attrs["kinds"]["train_flops_executed"] == "counted"
    assert found.layers.attrs["units"]["dgrad_executed"] == "FLOPs"
    assert found.times.attrs["kinds"]["time_ratio"] == "measured"
    assert found.columns.loc[("epochs", "eval_time_s"), "unit"] == "s"
    names = {"str": "string", "int": "Int64", "float": "float64", "bool": "boolean"}
    for name in FRAMES:
        frame = getattr(found, name)
        schema = found.columns.loc[name]
        assert list(frame.columns) == list(schema.index)
        assert [str(kind) for kind in frame.dtypes] == [names[text] for text in schema["type"]]
        assert frame.attrs["units"] == schema["unit"].to_dict()
        assert frame.attrs["kinds"] == schema["kind"].to_dict()
    # What several files have under one name has one unit and one kind.
    for one in (EPOCHS, LAYERS):
        for column in one:
            shared = [known for known in SCHEMA if known.name == column.name]
            assert all(known.unit == column.unit for known in shared), column.name


def test_communicated_bytes_are_columns(suite: Any) -> None:
    assert get_args(Kind) == MEASURED_COMMUNICATION
    suite.add("dense", 0, accuracy=70.0, time=300.0)
    folder = suite.write()
    record = {
        "epoch": 1,
        "step_communication": {"gradients": 40, "decisions": 4},
        "train_communication": {"gradients": 400, "decisions": 40},
        "communication": {"gradients": 400, "decisions": 40, "start": 48},
    }
    (trial,) = (folder / "trials").iterdir()
    (trial / "epochs.jsonl").write_text(json.dumps(record) + "\n")
    (row,) = suite_package.load_results(str(folder)).epochs.to_dict("records")
    for name in ("step_communication", "train_communication", "communication"):
        for kind, size in record[name].items():
            assert row[f"{name}_{kind}"] == size
    assert pd.isna(row["communication_statistics"])


def test_missing_and_damaged_values_are_missing_and_named(suite: Any) -> None:
    suite.add("dense", 0, accuracy=70.0, time=300.0, peak_memory_bytes=None)
    suite.add("dense", 1, accuracy=700.0, time=300.0)
    folder = suite.write()
    whole, damaged = sorted((folder / "trials").iterdir())
    with (whole / "epochs.jsonl").open("a") as file:
        file.write("{\n")
    found = suite_package.load_results(str(folder))
    assert list(found.trials["trial_id"]) == [whole.name]
    assert pd.isna(found.trials.loc[0, "peak_memory_bytes"])
    assert found.trials["test_accuracy"].dtype == "float64"
    assert [line.partition(": ")[0] for line in found.damage] == [damaged.name, whole.name]
    assert "test_accuracy is 7.0: not between 0 and 1" in found.damage[0]
    assert found.epochs.shape[0] == 5
    assert found.times.shape[0] == 0
    assert re.search("cost: nothing was compared\n(.*\n){6}  damage, 2 lines$", repr(found))
    assert list(found.times.dtypes.astype(str))[:2] == ["string", "string"]


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    for folder, reason in ((tmp_path, "has no results"), (tmp_path / "nowhere", "does not exist")):
        with pytest.raises(UsageError, match=f"^{folder} {reason}"):
            suite_package.load_results(folder)


def test_the_package_is_imported_without_pandas(started_programs: None) -> None:
    code = "import suite, sys; suite.load_results; sys.exit('pandas' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
