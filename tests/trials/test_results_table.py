"""Tests of the table of results: rows are never lost, and a damaged record stops nothing."""

import csv
import dataclasses
import gzip
import shutil

import pandas as pd
import pytest
from suite.trials.folder.results import write_results
from test_store import put, spec

from suite.cli import main as cli
from suite.cli.folders import export, page_contents
from suite.errors import UsageError
from suite.trials.folder import packed
from suite.trials.folder.records import read_record, write_json
from suite.trials.folder.store import Store
from suite.trials.folder.table import COLUMNS, read_table

RESULT = {"test_accuracy": 0.5, "params": 10, "train_time_s": 1.5}


@pytest.fixture
def store(tmp_path):
    found = Store(tmp_path / "out")
    for seed in range(3):
        put(found, spec(seed), "done", result={**RESULT, "test_accuracy": 0.5 + seed / 10})
    write_results(found)
    write_json(found.folder / "suite.json", {"commands": []})
    return found


def table(store):
    with open(store.folder / "results.csv", newline="", encoding="utf-8") as file:
        return {row["trial_id"]: row for row in csv.DictReader(file)}


def test_rows_stay_whose_trials_are_not_there(store):
    whole = table(store)
    text = (store.folder / "results.csv").read_bytes()
    shutil.rmtree(store.trial_folder(spec(1).trial_id))
    write_results(store)
    assert table(store) == whole  # the table and some of its trials
    shutil.rmtree(store.folder / "trials")
    assert write_results(store) == []  # trials in the folder: none
    assert (store.folder / "results.csv").read_bytes() == text  # the table alone


def test_a_row_whose_id_is_damaged_does_not_count_twice(store):
    whole = table(store)
    path = store.folder / "results.csv"
    path.write_text(path.read_text().replace(spec(1).trial_id, spec(1).trial_id.replace("-s1-", "-s1"), 1))
    write_results(store)
    assert table(store) == whole


def test_a_trial_that_is_there_wins_over_its_row(store):
    folder = store.trial_folder(spec(0).trial_id)
    put(store, spec(0), "done", result={**RESULT, "test_accuracy": 0.9})
    (found,) = [row for row in write_results(store) if row["trial_id"] == folder.name]
    assert found["test_accuracy"] == 0.9
    assert table(store)[folder.name]["test_accuracy"] == "0.9"


def test_a_damaged_record_does_not_count_and_loses_no_number(store):
    whole = table(store)
    record = store.trial_folder(spec(0).trial_id) / "trial.json"
    content = record.read_bytes()
    record.write_bytes(content[:100])
    write_results(store)
    row = table(store)[spec(0).trial_id]
    assert (row["status"], row["test_accuracy"], row["method"]) == ("error", "0.5", "dense")
    record.write_bytes(content)
    write_results(store)
    assert table(store) == whole


def test_trials_that_begin_again_have_no_row_until_they_end(store):
    again = spec(2).trial_id
    shutil.rmtree(store.trial_folder(again))
    write_results(store, forget={again})
    assert sorted(table(store)) == sorted(spec(seed).trial_id for seed in (0, 1))


def test_columns_that_are_not_known_stay_while_they_hold_something(store):
    """Columns of a later version are kept; columns that earlier versions never filled are removed."""
    path = store.folder / "results.csv"
    frame = pd.read_csv(path, dtype=str, keep_default_na=False).assign(energy_j="", remark=["", "slow", ""])
    frame.to_csv(path, index=False, lineterminator="\n")
    shutil.rmtree(store.trial_folder(spec(1).trial_id))
    write_results(store)
    rows = table(store)
    assert list(rows[spec(0).trial_id]) == [*COLUMNS, "remark"]
    assert [rows[name]["remark"] for name in sorted(rows)] == ["", "slow", ""]


def test_fields_of_the_recipe_are_columns_where_trials_differ(store):
    one = spec(0)
    other = dataclasses.replace(one, recipe={**one.recipe, "learning_rate": 0.3, "cutout": 4, "six_views": True})
    put(store, other, "done", result=RESULT)
    write_results(store)
    expected = {one.trial_id: ("0.1", "0", "false"), other.trial_id: ("0.3", "4", "true")}
    names = ("learning_rate", "recipe.cutout", "recipe.six_views")
    for _ in range(2):  # from the records, and from the table
        rows = table(store)
        assert list(rows[one.trial_id]) == [*COLUMNS, *names[1:]]
        assert {name: tuple(rows[name][column] for column in names) for name in expected} == expected
        shutil.rmtree(store.folder / "trials", ignore_errors=True)
        write_results(store)
    write_results(store, forget=[other.trial_id])
    assert list(table(store)[one.trial_id]) == [*COLUMNS, *names[1:]]  # without its record, only the table knows them


def test_a_field_that_earlier_records_lack_is_a_column_where_a_trial_changed_it(store):
    one = dataclasses.replace(spec(0), at_default=("precise_bn",))
    earlier = dataclasses.replace(one, recipe={name: one.recipe[name] for name in one.recipe if name != "precise_bn"})
    other = dataclasses.replace(one, recipe={**one.recipe, "precise_bn": 500}, at_default=())
    assert earlier.hash == one.hash != other.hash
    for trial in (earlier, other):
        put(store, trial, "done", result=RESULT)
    write_results(store)
    rows = table(store)
    assert (rows[one.trial_id]["recipe.precise_bn"], rows[other.trial_id]["recipe.precise_bn"]) == ("0", "500")


def test_columns_of_earlier_tables_and_of_users_between_them_are_read(store):
    path = store.folder / "results.csv"
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame = frame.drop(columns=["optimizer", "learning_rate", "schedule", "weight_decay"])
    frame.insert(list(frame).index("test_accuracy"), "my_note", "x")
    frame.assign(**{"recipe.note": "y"}).to_csv(path, index=False, lineterminator="\n")
    shutil.rmtree(store.folder / "trials")
    write_results(store)
    assert {(row["my_note"], row["recipe.note"]) for row in table(store).values()} == {("x", "y")}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "has no column 'trial_id'"),
        (b"trial_id,method,status\nx,y\n", "row 2 does not have 3 fields"),
        (b"trial_id,method,status\nx,y,done\nx,y,done\n", "two rows"),
        (b"trial_id,method,status\nx,\xff,done\n", "cannot be read as CSV"),
        (b"trial_id,method,vrint,task,status\nx,y,,z,done\n", "'vrint' where 'variant' is expected"),
        (b"trial_id,method,status,mesage\nx,y,done,z\n", "'mesage' where 'message' is expected"),
    ],
)
def test_a_table_that_cannot_be_read_is_left_as_it_is(store, content, complaint, capsys):
    (store.folder / "results.csv").write_bytes(content)
    with pytest.raises(UsageError, match=complaint):
        read_table(store.folder)
    assert cli.main(["report", str(store.folder)]) == 2
    assert complaint in capsys.readouterr().err
    assert (store.folder / "results.csv").read_bytes() == content


@pytest.mark.parametrize("provenance", [{"hardware": []}, {"hardware": {"threads": "two"}}, {"hardware_id": 3}])
def test_a_provenance_of_other_types_stops_nothing(store, provenance):
    put(store, spec(0), "done", result=RESULT, provenance=provenance)
    assert len(write_results(store)) == 3


def test_report_needs_something_to_report(tmp_path, capsys):
    (tmp_path / "trials").mkdir()
    assert cli.main(["report", str(tmp_path)]) == 2
    assert ": no results: results.csv has no rows" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["trials"]


@pytest.fixture
def whole(store, monkeypatch):
    """Folder of a suite with all files of its trials, without a report."""
    monkeypatch.setattr("reports.content.build.tradeoff_figures", lambda *given: ([], []))
    monkeypatch.setattr("reports.content.build.curve_figures", lambda rows, slug: ([], []))
    for folder in store.trial_folders():
        (folder / "epochs.jsonl").write_text('{"epoch": 1, "test_accuracy": 0.5}\n')
        (folder / "layers.csv").write_text("interval,layer,out_channels\n0,a,4\n")
        for name in ("log.txt", "progress.json", "model.pt"):
            (folder / name).write_text("x")
    return store


def test_export_holds_what_a_report_is_built_from_and_nothing_else(whole, tmp_path, capsys):
    destination = tmp_path / "kept"
    assert export([str(whole.folder), str(destination)]) == 0
    names = {str(path.relative_to(destination)) for path in destination.rglob("*") if path.is_file()}
    trials = {f"trials/{spec(seed).trial_id}" for seed in range(3)}
    files = ("trial.json", "epochs.jsonl.gz", "layers.csv.gz")
    assert names == {"suite.json", "results.csv", "report.md"} | {
        f"{trial}/{name}" for trial in trials for name in files
    }
    # The report from the copy equals the report of the folder and lacks nothing.
    before = (destination / "report.md").read_text(encoding="utf-8")
    (destination / "results.csv").unlink()
    assert cli.main(["report", str(destination)]) == 0
    assert (destination / "report.md").read_text(encoding="utf-8") == before
    assert "lacks" not in before
    other = tmp_path / "other"
    assert export([str(whole.folder), str(other)]) == 0
    packs = sorted(path.relative_to(other) for path in other.rglob("*.gz"))
    assert all((other / path).read_bytes() == (destination / path).read_bytes() for path in packs)


def test_export_has_figures_of_the_verdict_and_the_text_of_the_others(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("![a\\]: b (c)](figures/g-1-loss.svg)\n\nx ![](y)\n\n![d](figures/g-1-gain-time.svg)\n")
    assert page_contents(page).decode().splitlines()[::2] == [
        r"*Figure, which the command that writes this page draws:* a\]: b (c)",
        "x ![](y)",
        "![d](figures/g-1-gain-time.svg)",
    ]


def test_export_refuses_what_it_would_overwrite_or_cannot_read(whole, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    for source, destination, complaint in (
        (tmp_path / "full", tmp_path / "new", "not the folder of a suite"),
        (whole.folder, tmp_path / "full", "is not an empty folder"),
        (whole.folder, tmp_path / "file", "is not an empty folder"),
        (whole.folder, whole.folder / "kept", "is inside "),
    ):
        assert cli.main(["export", str(source), str(destination)]) == 2
        assert complaint in capsys.readouterr().err
    with whole.lock():
        assert cli.main(["export", str(whole.folder), str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()


def test_packed_files_are_read_and_damaged_ones_are_errors(tmp_path, store):
    path = tmp_path / "epochs.jsonl"
    assert packed.held(path) is None
    packs = path.with_name("epochs.jsonl.gz")
    packs.write_bytes(packed.pack(b"one\n"))
    assert packed.read(packed.held(path)) == b"one\n" == gzip.decompress(packs.read_bytes())
    for content in (packs.read_bytes()[:-6], b"no gzip", packs.read_bytes()[:10] + b"\0" * 20):
        packs.write_bytes(content)
        with pytest.raises(OSError, match=r"gzip|CRC"):
            packed.read(packs)
    path.write_bytes(b"plain\n")
    assert packed.read(packed.held(path)) == b"plain\n"  # the uncompressed file is the newer one
    record = store.trial_folder(spec(0).trial_id) / "trial.json"
    before = read_record(record.parent)
    record.with_name("trial.json.gz").write_bytes(packed.pack(record.read_bytes()))
    record.unlink()
    assert read_record(record.parent) == before


def test_a_table_that_a_spreadsheet_wrote_back_is_read(tmp_path):
    """Excel puts a byte order mark before the name of the first column."""
    (tmp_path / "results.csv").write_bytes(b"\xef\xbb\xbftrial_id,method,status\r\nx,dense,done\r\n")
    assert read_table(tmp_path) == {"x": {"trial_id": "x", "method": "dense", "status": "done"}}
