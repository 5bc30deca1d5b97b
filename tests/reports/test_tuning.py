"""What a report says about the choice of defaults."""

import pytest
from small_trials import put, recorded, untrained

from reports.content.provenance import provenance_section
from reports.data.records import Records, read
from suite import registry
from suite.cli.folders import copy_tuned
from suite.trials.provenance import tuning
from suite.trials.search import Setting, Tuned, TunedMethod, read_tuned, write_tuned


def defaults_chosen(tmp_path, card):
    trial = recorded(method="sdgp", provenance={"method": card})
    section = provenance_section(Records(tmp_path, (trial,)))
    (table,) = (table for table in section.tables if table.columns[0].title == "Method")
    assert table.columns[-1].title == "Defaults chosen"
    return table.rows[0][-1].text


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("quick", "quick: 8 trials on validation images ("),
        ("paper", "paper: published values, 0 trials ("),
    ],
)
def test_it_shows_what_the_defaults_of_the_preset_cost(tmp_path, preset, expected):
    card = {"source": "nowhere", "tuning": tuning(registry.get("method", "prunetrain"), preset)}
    assert defaults_chosen(tmp_path, card).startswith(expected)


@pytest.mark.parametrize("card", [{}, {"tuning": []}])
def test_a_trial_that_did_not_record_it_has_no_claim(tmp_path, card):
    assert "0 trials" not in defaults_chosen(tmp_path, card)


def setting(values, accuracy):
    costs = {"train_flops_effective": 1.0, "inference_flops_effective": 1.0}
    return Setting(values=values, trial_ids=("a",), val_accuracy=accuracy, **costs)


def test_it_shows_the_budget_of_each_method_and_whether_its_choice_is_compared(tmp_path):
    rate = {"name": "recipe.learning_rate", "default": 0.1, "low": 0.025, "high": 0.4, "log": True}
    tried = (setting({}, 0.5), setting({"recipe.learning_rate": 0.2}, 0.75))
    method = {"method": "dense", "space": (rate,), "settings": tried, "chosen": 1, "label": "dense"}
    none = method | {"method": "sdgp", "settings": (setting({}, None),) * 2, "chosen": None, "label": ""}
    fields = {"task": "digits", "model": "resnet9", "preset": "smoke", "validation_images": 1000, "split_seed": 0}
    tuned = Tuned(budget=2, search_seed=0, seeds=(0,), methods=(TunedMethod(**method), TunedMethod(**none)), **fields)
    write_tuned(tmp_path, tuned)
    assert read_tuned(tmp_path) == tuned
    for found, expected in ((0.2, "yes"), (0.1, "no")):
        trial = recorded(recipe={"learning_rate": found})
        section = provenance_section(Records(tmp_path, (trial,), tuned=tuned, untested=4))
        (table,) = (table for table in section.tables if table.name == "tuning")
        assert table.caption == "Tuning on 1,000 validation images: every method had a budget of 2"
        assert [cell.text for cell in table.rows[0]] == ["dense", "2", "1", "recipe.learning_rate", "75.00", expected]
        assert [cell.text for cell in table.rows[1]][::5] == ["sdgp", "no"]
        assert section.meaning[-1].startswith("Not shown: 4 trials of tune")


def test_a_merged_folder_keeps_the_first_tuning_and_says_so(tmp_path):
    fields = {"task": "digits", "model": "resnet9", "preset": "smoke", "validation_images": 10, "split_seed": 0}
    one, other = (Tuned(budget=count, search_seed=0, seeds=(0,), methods=(), **fields) for count in (2, 3))
    paths = [tmp_path / name for name in "abcd"]
    for path, content in zip(paths, (None, one, one, other), strict=True):
        path.mkdir()
        if content is not None:
            write_tuned(path, content)
    assert copy_tuned(paths[:1], tmp_path) == []
    assert read_tuned(tmp_path) is None
    assert copy_tuned(paths, tmp_path) == [f"tune.json: kept from {paths[1]}, and not from {paths[3]}"]
    assert read_tuned(tmp_path) == one


def test_trials_without_test_images_are_not_compared(tmp_path):
    trials = [untrained(0), untrained(1, recipe={"evaluate_test": False})]
    for trial in trials:
        put(tmp_path, trial)
    records = read(tmp_path)
    assert [trial.name for trial in records.trials] == [trials[0].trial_id]
    assert records.untested == 1
    (tmp_path / "tune.json").write_text("[]")
    damaged = read(tmp_path)
    assert damaged.tuned is None
    assert any("tune.json is damaged" in line for line in damaged.damage)
