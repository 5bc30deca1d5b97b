"""The table of results is a view of the trials' records; `export` copies what a report is built from."""

import csv
import dataclasses
import gzip
from pathlib import Path
from typing import get_args

import pytest
from small_trials import put
from small_trials import untrained as spec

from suite.cli import main as cli
from suite.cli.folders import export, page_contents
from suite.trials.folder.reader import update_table
from suite.trials.folder.records import held, load_record, pack, unpacked, write_json
from suite.trials.folder.store import Store
from suite.trials.folder.table import COLUMNS, SCHEMA, Kind, markdown

DOCS = Path(__file__).parents[2] / "docs" / "results.md"
MACHINE = {"hardware_id": "h1234567", "hardware": {"threads": 2}, "software": {"torch": "2.15.0+cu132"}}


@pytest.fixture
def store(tmp_path):
    found = Store(tmp_path / "out")
    for seed in range(3):
        put(found.folder, spec(seed), result={"test_accuracy": 0.5 + seed / 10, "params": 10, "train_time_s": 1.5})
    write_json(found.folder / "suite.json", {"commands": []})
    return found


def table(folder):
    """Write the table of a folder, and return its rows by trial."""
    update_table(folder)
    with open(folder / "results.csv", newline="", encoding="utf-8") as file:
        return {row["trial_id"]: row for row in csv.DictReader(file)}


def test_the_documented_table_is_the_schema():
    text = DOCS.read_text(encoding="utf-8")
    assert "\n".join(markdown()) in text, (
        "run python -m suite.trials.folder.table and paste its table into docs/results.md"
    )
    assert all(f"- **{kind}**: " in text for kind in get_args(Kind))
    assert len(COLUMNS) == len(SCHEMA)
    assert all(column.kind in get_args(Kind) and column.meaning.endswith(".") for column in SCHEMA)


def test_each_column_has_its_value_from_the_record(tmp_path):
    result = {"test_accuracy": 0.5, "params": 10, "train_flops_dense": 3 * 10**18, "val_accuracy": None}
    recipe = {**spec().recipe, "execution": "cuda_graph"}
    first = spec(0, method="sdgp", variant="n=2,m=4", parameters={"m": 4, "n": 2}, recipe=recipe, processes=2)
    put(tmp_path, first, result=result, provenance=MACHINE)
    earlier = spec(1, recipe={name: value for name, value in recipe.items() if name != "execution"})
    put(tmp_path, earlier, "error", 'a "quoted", line')
    put(tmp_path, spec(2), "running")
    rows = table(tmp_path)
    row = rows[first.trial_id]
    assert list(row) == list(COLUMNS)
    expected = {"method": "sdgp", "variant": "n=2,m=4", "parameters": '{"m":4,"n":2}', "seed": "0", "status": "done"}
    expected |= {"data_copy": "original-abababab", "hardware_id": "h1234567", "epochs": "3", "batch_size": "4"}
    expected |= {"test_accuracy": "0.5", "params": "10", "train_flops_dense": str(3 * 10**18), "val_accuracy": ""}
    expected |= {"threads": "2", "torch": "2.15", "execution": "cuda_graph in 2 processes", "test_loss": ""}
    assert {key: row[key] for key in expected} == expected
    row = rows[earlier.trial_id]
    assert (row["message"], row["execution"], row["hardware_id"]) == ('a "quoted", line', "eager", "")
    row = rows[spec(2).trial_id]
    assert (row["status"], row["message"]) == ("error", "did not end: the command that ran it is gone")
    with Store(tmp_path).lock():  # it runs now
        assert table(tmp_path).keys() == rows.keys() - {spec(2).trial_id}
        assert len(update_table(tmp_path, none_runs=True)) == 3  # by the command that holds the lock, at its end


def test_the_table_has_what_trials_say_and_nothing_that_was_written_into_it(store):
    whole = table(store.folder)
    assert [whole[spec(seed).trial_id]["test_accuracy"] for seed in range(3)] == ["0.5", "0.6", "0.7"]
    (store.folder / "results.csv").write_bytes(b"\xff")
    assert table(store.folder) == whole


def test_fields_of_the_recipe_are_columns_where_trials_differ(store):
    one = spec(0)
    other = dataclasses.replace(one, recipe={**one.recipe, "learning_rate": 0.3, "cutout": 4, "six_views": True})
    # A record that was written before the field existed.
    lacks = {name: value for name, value in one.recipe.items() if name != "precise_bn"}
    earlier = spec(3, recipe=lacks, at_default=("precise_bn",))
    for trial in (other, earlier):
        put(store.folder, trial)
    names = ("learning_rate", "recipe.cutout", "recipe.six_views")
    rows = table(store.folder)
    assert list(rows[one.trial_id]) == [*COLUMNS, *names[1:]]
    for trial, values in (
        (one, ("0.1", "0", "false")),
        (other, ("0.3", "4", "true")),
        (earlier, ("0.1", "0", "false")),
    ):
        assert tuple(rows[trial.trial_id][name] for name in names) == values
    changed = spec(4, recipe={**one.recipe, "precise_bn": 500})
    put(store.folder, changed)
    rows = table(store.folder)
    assert [rows[trial.trial_id]["recipe.precise_bn"] for trial in (earlier, changed)] == ["0", "500"]


def test_report_needs_something_to_report(tmp_path, capsys):
    (tmp_path / "trials").mkdir()
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "has no results to report: no trials/*/trial.json exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["trials"]


@pytest.fixture
def whole(store, monkeypatch):
    """Folder of a suite with all files of its trials, without a report."""
    monkeypatch.setattr("reports.content.build.tradeoff_figures", lambda *given: ([], []))
    monkeypatch.setattr("reports.content.build.curve_figures", lambda rows, slug: ([], []))
    for folder in store.trial_folders():
        for name in ("log.txt", "progress.json"):
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
    table_before = (destination / "results.csv").read_bytes()
    (destination / "results.csv").unlink()
    assert cli.main(["report", str(destination)]) == 0
    assert (destination / "report.md").read_text(encoding="utf-8") == before
    assert (destination / "results.csv").read_bytes() == table_before
    assert Store(destination).choose([spec(seed) for seed in range(3)], "missing") == []  # it may be continued
    other = tmp_path / "other"
    assert export([str(whole.folder), str(other)]) == 0
    packs = sorted(path.relative_to(other) for path in other.rglob("*.gz"))
    assert all((other / path).read_bytes() == (destination / path).read_bytes() for path in packs)


def test_an_export_leaves_out_by_name_what_is_damaged(whole, tmp_path, capsys):
    damaged, unread, *kept = whole.trial_folders()
    (damaged / "trial.json").write_text("{")
    (unread / "trial.json").unlink()  # of a command that was killed as it began
    assert cli.main(["export", str(whole.folder), str(tmp_path / "kept")]) == 0
    assert [path.name for path in (tmp_path / "kept" / "trials").iterdir()] == [path.name for path in kept]
    assert f"damaged: {damaged.name}: damaged record: " in capsys.readouterr().out
    assert f"{damaged.name},,,,,,,error,damaged record: " in (tmp_path / "kept" / "results.csv").read_text()


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
    assert held(path) is None
    packs = path.with_name("epochs.jsonl.gz")
    packs.write_bytes(pack(b"one\n"))
    assert unpacked(held(path)) == b"one\n" == gzip.decompress(packs.read_bytes())
    for content in (packs.read_bytes()[:-6], b"no gzip", packs.read_bytes()[:10] + b"\0" * 20):
        packs.write_bytes(content)
        with pytest.raises(OSError, match=r"gzip|CRC"):
            unpacked(packs)
    path.write_bytes(b"plain\n")
    assert unpacked(held(path)) == b"plain\n"  # the uncompressed file is the newer one
    record = store.trial_folder(spec(0).trial_id) / "trial.json"
    before = load_record(record.parent).to_json()
    record.with_name("trial.json.gz").write_bytes(pack(record.read_bytes()))
    record.unlink()
    assert load_record(record.parent).to_json() == before
