"""Tests of `reproduce`: errors are found before anything is written, and a plugin's reproduction runs too."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
import textwrap

import pytest
import scipy.stats  # noqa: F401 - a test hides torch, which scipy looks for as it is first imported
from small_trials import put, recorded, untrained
from toy_suite import assert_one_line
from trials_here import run_here

from reports import Written
from reports.papers import outcome
from reports.papers.paper import Part
from suite import registry
from suite.cli import main as cli
from suite.cli import reproduce
from suite.cli.options import resolve_run_options
from suite.trials.engines.local import LocalEngine
from suite.trials.folder.store import Store
from suite.trials.spec import SuiteSpec


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["sdgp-table1", "--parts", "column"], "no part is called 'column'; did you mean 'columns'?"),
        (["sdgp-table1", "--parts", ""], "--parts ''"),
        (["sdgp-table1", "--parts", "columns,nothing"], "no part is called 'nothing'"),
        (["sdgp-table1", "--methods", "dense"], "--methods cannot be given: sdgp-table1 decides its trials"),
        (["sdgp-table1", "--task", "digits"], "--task cannot be given"),
        (["sdgp-table1", "--config", "x.toml"], "--config cannot be given"),
        (["sdgp-table1", "--controls"], "--controls cannot be given"),
        (["sdgp-table1", "--model", "resnet9,resnet9[width=0.5]"], "expected one"),
        (["sdgp-table1", "--sedes", "3"], "did you mean '--seeds'"),
        (["sdgp-table1", "--epochs", "0"], "--epochs"),
        (["sdgp-table1", "--preset", "fast"], "--preset: invalid choice: 'fast'"),
        (["sdgp-table1", "sdgp-fig8"], "separated by commas, without spaces"),
        (["sdgp-table1", "--out", "file"], "is a file"),
        ([], "the following arguments are required: NAME"),
        (["sdgp-table2"], "did you mean 'sdgp-"),
        (["fig9"], "did you mean 'sdgp-fig9'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_line_before_torch_is_imported(folder, capsys, monkeypatch, arguments, expected):
    (folder / "file").write_text("x")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(["reproduce", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert_one_line(captured.err, expected)
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_list_and_help_show_them(capsys):
    assert cli.main(["list", "--json"]) == 0
    assert [item["name"] for item in json.loads(capsys.readouterr().out)["reproductions"]] == registry.names(
        "reproduction"
    )
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "--help"])
    text = capsys.readouterr().out
    assert "--parts" in text
    assert "sdgp-fig8" in text
    assert "--epochs" not in text  # the options of run, to which it points


def spec(**changed):
    fields = {"methods": "dense", "tasks": "cifar10", "preset": "quick", "seeds": (0,), "device": "cpu",
              "dtype": "float32", "data_root": "/x"}  # fmt: skip
    return SuiteSpec(**{**fields, **changed})


def test_one_folder_collects_parts_and_seeds_and_nothing_else():
    first = reproduce.default_folder("a", spec())
    assert first.name.startswith("a-")
    assert reproduce.default_folder("a", spec(seeds=(0, 1), methods="sdgp", data_root="/y")) == first
    for changed in ({"preset": "paper"}, {"overrides": {"epochs": 1}}, {"models": "resnet9"}, {"dtype": "bfloat16"}):
        assert reproduce.default_folder("a", spec(**changed)) != first


def test_the_command_for_another_part():
    for typed in (["--parts", "a"], ["--parts=a"], []):
        command = outcome.other_command(["pdt", "reproduce", "x", *typed, "--out", "a folder"], "b")
        assert command == "pdt reproduce x --out 'a folder' --parts b"


def test_what_suite_json_says_of_several_parts():
    union = reproduce._union(
        [spec(seeds=(0, 1, 2)), spec(methods="dense,sdgp[n=1,m=4]", seeds=(0, 7), overrides={"epochs": 2})]
    )
    assert (union.methods, union.seeds, union.overrides) == ("dense,sdgp[n=1,m=4]", (0, 1, 2, 7), {"epochs": 2})


def trial(seed, **changed):
    fields = {"method": "sdgp", "variant": "n=2,m=4", "parameters": {"n": 2, "m": 4}}
    return untrained(seed, **{**fields, **changed})


def test_seeds_that_the_folder_has_belong_to_the_page(folder):
    store = Store(folder / "out")
    other = {**trial(0).data_copy, "path": "/elsewhere"}
    for held in (
        trial(0, variant="m=4,n=2", data_copy=other),  # typed otherwise, from another place: the same but for its seed
        trial(1),
        trial(5),
        trial(2, dtype="bfloat16"),
        trial(3, recipe={**trial(3).recipe, "epochs": 4}),
        trial(4, parameters={"n": 1, "m": 4}),
    ):
        put(store.folder, held)
    damaged = store.trial_folder("sdgp-digits-resnet9-s6-00000000")
    damaged.mkdir()
    (damaged / "trial.json").write_text("{")
    found = outcome.with_other_seeds([trial(5), trial(7)], folder / "out")
    assert [one.seed for one in found] == [5, 7, 0, 1]  # those of the command first, run or not
    assert {one.label for one in found} == {"sdgp[n=2,m=4]"}
    assert found[2].data_copy["path"] == ""


def test_trials_that_depend_on_others_belong_to_the_page_with_their_seeds_too(folder):
    def of_seed(seed):
        before = trial(seed)
        return [before, trial(seed, variant="", parameters={"n": 3, "m": 4}, depends_on={"sdgp": before.trial_id})]

    for held in of_seed(1):
        put(folder / "out", held)
    found = outcome.with_other_seeds(of_seed(0), folder / "out")
    assert [one.trial_id for one in found] == [one.trial_id for one in [*of_seed(0), *of_seed(1)]]


def numbered(method, model, **numbers):
    return recorded(numbers, method=method, model=model)


def test_a_page_says_first_when_nothing_was_pruned():
    whole = {"inference_flops": 5.0, "inference_flops_dense": 5.0}
    whole |= {"train_flops_effective": 7.0, "train_flops_dense": 7.0}
    dense, idle = numbered("dense", "a", **whole), numbered("sdgp", "a", **whole)
    assert outcome.nothing_pruned([dense]) == []
    assert "Nothing was pruned" in outcome.nothing_pruned([dense, idle])[0]
    for cost in ("inference_flops", "train_flops_effective"):
        assert outcome.nothing_pruned([idle, numbered("sdgp", "a", **(whole | {cost: 4.0}))]) == []


def test_a_page_names_the_network_that_stood_in_for_a_parts():
    parts = [Part(name=name, title="one", methods="dense", task="digits", model="big") for name in "ab"]
    trials = {"a": {"dense": [numbered("dense", "big")]}, "b": {"dense": [numbered("dense", "small")] * 2}}
    assert outcome.other_networks(parts, trials) == ["the network small in place of big"]


def test_options_override_the_settings_of_a_part():
    part = Part(name="a", title="a", methods="dense", task="digits", model="resnet9[width=0.5]",
                overrides={"epochs": 1, "batch_size": 64}, seeds={"quick": 2})  # fmt: skip

    def typed(*arguments):
        return reproduce._suite(spec(), part, resolve_run_options(reproduce.parser().read(["mine", *arguments])))

    own = typed()
    assert (own.seeds, own.models, own.overrides) == ((0, 1), "resnet9[width=0.5]", {"epochs": 1, "batch_size": 64})
    assert typed("--seeds", "5,").seeds == (5,)
    assert typed("--seeds", "4").seeds == (0, 1, 2, 3)
    assert typed("--model", "resnet9").models == "resnet9"
    small = part.model_copy(update={"small_model": "resnet9[width=0.25]"})
    for preset, model in (("smoke", small.small_model), ("quick", small.small_model), ("paper", small.model)):
        base = dataclasses.replace(spec(), preset=preset)
        several = small.model_copy(update={"seeds": {preset: 1}})
        options = resolve_run_options(reproduce.parser().read(["mine"]))
        assert reproduce._suite(base, several, options).models == model
        assert reproduce._suite(base, several, options).recipe == ""
        other = several.model_copy(update={"task": "cifar10", "recipe": "prunetrain"})
        names = {"smoke": "", "quick": "resnet9", "paper": "prunetrain"}
        assert reproduce._suite(base, other, options).recipe == names[preset]
    assert typed("--epochs", "7").overrides == {"epochs": 7, "batch_size": 64}
    assert typed("--set", "recipe.batch_size=8").overrides == {"epochs": 1, "batch_size": 8}


PLUGIN = textwrap.dedent(
    """
    from pathlib import Path

    from reports.papers.contract import Reproduction
    from suite.registry import register

    @register("reproduction", "mine")
    class Mine(Reproduction):
        '''A table of my own.'''
        file = Path(__file__).with_name("mine.toml")
    """
)
NUMBERS = """
[sources.me]
title = "Me"
where = "here"

[groups.mine]
source = "me"
place = "a table"
quantity = "accuracy"
unit = "%"
of = "measured"
conditions = { task = "digits", epochs = 1 }
values = { dense = 90, left = 75 }

[reproductions.mine]
title = "Mine"
summary = "A table of my own."
reference = "mine"

[[reproductions.mine.parts]]
name = "one"
title = "the first"
methods = "dense,sdgp[n=1,m=4]"
task = "digits"
model = "resnet9[width=0.0625]"
seeds = { smoke = 1, quick = 1, paper = 1 }
overrides = { epochs = 1, train_images = 200 }
compared = [
    { quantity = "accuracy, dense", method = "dense", published = "mine/dense" },
    { quantity = "FLOPs left", method = "sdgp[n=1,m=4]", column = "train_flops_effective", over = "train_flops_dense", kind = "counted", published = "mine/left" },
]

[[reproductions.mine.parts]]
name = "two"
title = "the second"
methods = "dense"
task = "cifar10"
presets = ["paper"]
"""  # noqa: E501


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("left = 75", "letf = 75", "mine: no value is called 'left'; did you mean 'letf'?"),
        ('unit = "%"', 'unit = "%"\ndoubt = "a slip"', "mine must not be compared with: a slip"),
    ],
)
def test_published_numbers_are_checked_before_anything_runs(folder, capsys, monkeypatch, old, new, expected):
    monkeypatch.setattr(registry, "_objects", dict(registry._objects))
    monkeypatch.setattr(registry, "_plugin_entries", dict(registry._plugin_entries))
    (folder / "mine.py").write_text(PLUGIN)
    (folder / "mine.toml").write_text(NUMBERS.replace(old, new))
    assert cli.main(["reproduce", "mine", "--plugin", "mine.py", "--preset", "smoke", "--device", "cpu"]) == 2
    assert_one_line(capsys.readouterr().err, expected)
    assert sorted(path.name for path in folder.iterdir()) == ["mine.py", "mine.toml"]


def test_a_plugins_reproduction_brings_its_own_numbers(folder, forget_toys, monkeypatch, caplog):
    caplog.set_level("INFO")
    (folder / "mine.py").write_text(PLUGIN)
    (folder / "mine.toml").write_text(NUMBERS)
    monkeypatch.setattr(sys, "argv", ["run_suite.py"])
    monkeypatch.setattr(LocalEngine, "run", run_here)
    monkeypatch.setattr("reports.write_report", lambda path, *options, **more: Written([], ()))
    command = ["reproduce", "mine", "--plugin", "mine.py", "--preset", "smoke", "--device", "cpu"]
    assert cli.main(command) == 0
    (out,) = (folder / "runs").iterdir()
    assert out.name.startswith("mine-")
    with open(out / "reproduce" / "mine.csv", encoding="utf-8", newline="") as file:
        rows = {row["quantity"]: row for row in csv.DictReader(file)}
    assert rows["accuracy, dense"]["ours"]
    left = rows["FLOPs left"]
    assert (left["published"], left["kind"], left["source"]) == ("75", "counted", "Me (here), a table")
    assert 60 < float(left["ours"]) < 90
    page = (out / "reproduce" / "mine.md").read_text(encoding="utf-8")
    assert "--parts two" in page
    assert "--plugin mine.py" in page
    assert json.loads((out / "suite.json").read_text())["spec"]["overrides"] == {"epochs": 1, "train_images": 200}
    assert (rows["accuracy, dense"]["seeds"], rows["accuracy, dense"]["interval"]) == ("1", "")
    # Another command adds a seed: the page and results.csv have both, and the interval is over both.
    assert cli.main([*command, "--seeds", "5,"]) == 0
    assert "2 of 2 trials to run" in caplog.text
    assert [path.name for path in (folder / "runs").iterdir()] == [out.name]
    with open(out / "results.csv", encoding="utf-8", newline="") as file:
        dense = [100 * float(row["test_accuracy"]) for row in csv.DictReader(file) if row["method"] == "dense"]
    with open(out / "reproduce" / "mine.csv", encoding="utf-8", newline="") as file:
        rows = {row["quantity"]: row for row in csv.DictReader(file)}
    assert rows["accuracy, dense"]["seeds"] == rows["FLOPs left"]["seeds"] == "2" == str(len(dense))
    assert float(rows["accuracy, dense"]["ours"]) == pytest.approx(sum(dense) / 2)
    assert "Trials: 4, of which 4 done" in (out / "reproduce" / "mine.md").read_text(encoding="utf-8")
