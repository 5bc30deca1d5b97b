"""Groups of trials that may be compared, and the order of methods."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pandas as pd
import pytest

from reports.content.build import build
from reports.data.disturbed_times import is_disturbed
from reports.data.looks import COLOURS, SHADES, colour_of, looks
from reports.figures import svg
from suite import registry
from suite.trials.folder.reader import read
from suite.trials.groups import group_trials

pytestmark = pytest.mark.usefixtures("without_figures")


def order(group: Any) -> list[str]:
    """Return the methods of a group's first table."""
    return [row[0].text for row in group.tables[0].rows]


@pytest.mark.parametrize(("name", "value"), [("threads", 1), ("torch", "2.16"), ("hardware_id", "99999999")])
def test_times_of_other_machines_threads_or_versions_are_never_mixed(suite: Any, name: str, value: Any) -> None:
    suite.add_all(("dense", "sdgp"), threads=2, torch="2.15")
    suite.add_all(("prunetrain",), **{"threads": 2, "torch": "2.15", name: value})
    (group,) = build(read(suite.write())).groups
    assert order(group) == ["dense", "sdgp[n=2,m=4]", "prunetrain[ratio=0.2]"]
    assert [row[5].text == "–" for row in group.tables[0].rows] == [False, False, True]  # no dense time to compare with
    assert "threads 2), arithmetic flush, torch 2.15," in group.subtitle


@pytest.mark.parametrize(("parameters", "recipe", "shown"), [
    ({"image_size": 96}, {}, "batch size 128, images of 96x96 pixels, device cpu"),
    ({"image_size": 224}, {"train_sizes": [160, 192]},
     "images of 224x224 pixels, training images of 160x160 then 192x192 pixels, device cpu"),
    ({"image_size": None}, {"train_sizes": []}, "batch size 128, device cpu"),
    ({"image_size": "large"}, {"train_sizes": 160}, "batch size 128, device cpu"),
])  # fmt: skip
def test_the_sizes_of_images_are_said_where_task_or_recipe_name_them(
    suite: Any, parameters: Any, recipe: Any, shown: str
) -> None:
    suite.add("dense", 0, accuracy=70.0, time=1.0, recipe=recipe, task_parameters=parameters)
    (group,) = build(read(suite.write())).groups
    assert shown in group.subtitle


def test_tables_from_before_threads_and_torch_were_columns_group_as_they_did(suite: Any) -> None:
    suite.add_all()
    folder = suite.write()
    shutil.rmtree(folder / "trials")
    frame = pd.read_csv(folder / "results.csv", dtype=str, keep_default_na=False).drop(columns=["threads", "torch"])
    frame.to_csv(folder / "results.csv", index=False)
    (group,) = build(read(folder)).groups
    assert len(order(group)) == 3


def test_tasks_data_copies_types_and_recipes_are_never_mixed(suite: Any) -> None:
    suite.add_all(("dense",))
    for changed in (
        {"task": "digits"},
        {"data_copy": "original-01234567"},
        {"model": "resnet32"},
        {"dtype": "bfloat16"},
        {"preset": "paper"},
        {"recipe": {"epochs": 50}},
    ):
        suite.add("sdgp", 0, accuracy=70.0, time=300.0, **changed)
    groups = build(read(suite.write())).groups
    assert len(groups) == 7
    assert len({group.slug for group in groups}) == 7
    assert len({group.title for group in groups}) == 7
    assert any("recipe epochs=50" in group.title for group in groups)


def test_records_from_before_a_field_of_recipes_join_those_that_have_its_default(suite: Any) -> None:
    result = {"accuracy": 70.0, "time": 300.0}
    suite.add("dense", 0, **result)
    suite.add("sdgp", 0, **result, recipe={"precise_bn": 0})
    assert len(build(read(suite.write())).groups) == 1
    suite.add("clicktrain", 0, **result, recipe={"precise_bn": 500})
    assert len(build(read(suite.write())).groups) == 2


def test_a_failed_trial_joins_the_group_it_does_not_contradict(suite: Any) -> None:
    suite.add_all(("dense",))
    suite.add("sdgp", 0, accuracy=None, time=None, status="error", message="x", hardware_id="")
    (group,), unassigned = group_trials(read(suite.write()).trials)
    assert [trial.text("method") for trial in group.trials] == ["dense"] * 3 + ["sdgp"]
    assert not unassigned


def test_a_failed_trial_that_fits_two_groups_joins_neither(suite: Any) -> None:
    suite.add_all(("dense",))
    suite.add_all(("dense",), hardware_id="99999999")
    suite.add("sdgp", 0, accuracy=None, time=None, status="error", message="x", hardware_id="")
    groups, unassigned = group_trials(read(suite.write()).trials)
    assert [len(group.trials) for group in groups] == [3, 3]
    assert [trial.text("method") for trial in unassigned] == ["sdgp"]


def test_order_is_dense_then_fronts_of_measured_accuracy_and_time(suite: Any) -> None:
    suite.add("aaa_dominated", 0, accuracy=60.0, time=500.0, train_flops_effective=1.0)
    suite.add("fast", 0, accuracy=65.0, time=200.0)
    suite.add("accurate", 0, accuracy=75.0, time=450.0)
    suite.add("beaten_by_dense", 0, accuracy=70.0, time=400.0, train_flops_effective=1.0)
    suite.add("no_time", 0, accuracy=99.0, time=None)
    suite.add("dense", 0, accuracy=71.0, time=370.0)
    (group,) = build(read(suite.write())).groups
    # First front: dense, accurate, fast. Second: rows that only dense and accurate beat. Effective FLOPs do not count.
    assert order(group) == ["dense", "accurate", "fast", "beaten_by_dense", "aaa_dominated", "no_time"]


def test_modelled_and_counted_numbers_do_not_change_the_order(suites: Any) -> None:
    orders = []
    for name, effective in (("one", 1e9), ("two", 1e15)):
        suite = suites(name)
        suite.add_all(("dense", "sdgp"))
        for seed, time in enumerate((300.0, 301.0, 302.0)):
            suite.add("other", seed, accuracy=68.0, time=time, train_flops_effective=effective)
        orders.append(order(build(read(suite.write())).groups[0]))
    assert orders[0] == orders[1]


def test_a_seed_run_twice_counts_once(suite: Any) -> None:
    suite.add_all(("dense",))
    suite.add("dense", 0, accuracy=71.6, time=372.0, trial_id="again")
    (group,) = build(read(suite.write())).groups
    assert group.tables[0].rows[0][1].text == "3"
    # Seed 0 is 71.4 by mean; with 71.9 and 70.8 that makes 71.37.
    assert group.tables[0].rows[0][2].text == "71.4 ± 1.4"
    assert "dense was run 2 times with seed 0" in group.remarks[0]


def test_dense_has_colour_zero_and_colours_are_the_same_in_all_groups(suite: Any) -> None:
    suite.add_all(("sdgp", "dense"))
    suite.add_all(("prunetrain", "dense", "sdgp"), task="digits")
    groups = build(read(suite.write())).groups
    colours = [{line.name: line.colour for line in group.headlines} for group in groups]
    assert colours[0]["dense"] == 0
    assert colours[0]["sdgp[n=2,m=4]"] == colours[1]["sdgp[n=2,m=4]"] != colours[1]["prunetrain[ratio=0.2]"]


def test_a_colour_follows_from_the_name_of_a_method_alone(suite: Any) -> None:
    """Earlier reports had colours by position, so that the same method changed its colour between reports."""
    alone, among = looks(["sdgp[n=2,m=4]"]), looks(["prunetrain", "sdgp[n=1,m=4]", "dense[repeat=2]", "sdgp[n=2,m=4]"])
    assert alone["sdgp[n=2,m=4]"].colour == among["sdgp[n=1,m=4]"].colour == colour_of("sdgp")
    assert among["sdgp[n=2,m=4]"].colour == colour_of("sdgp") + COLOURS  # a shade of it
    assert among["dense[repeat=2]"].colour == among["dense"].colour == 0
    assert len({look.marker for look in among.values()}) == len(among)
    assert [among[f"sdgp[n={n},m=4]"].dash for n in (1, 2)] == [0, 1]
    assert len(svg.PALETTE) == COLOURS
    assert len(svg._SHADES) == SHADES


def test_the_methods_of_the_project_have_different_colours() -> None:
    names = registry.names("method")
    assert {"dense", "sdgp", "prunetrain", "clicktrain"} <= set(names)
    assert len(set(map(colour_of, names))) == len(names)


def test_unsteady_times_are_said_and_shrinking_shapes_are_not_taken_for_them(suite: Any) -> None:
    suite.add_all(("dense", "prunetrain"), seeds=1)
    folder = suite.write()
    assert build(read(folder)).groups[0].remarks == ()
    for trial in folder.glob("trials/*"):
        records = [json.loads(line) for line in (trial / "epochs.jsonl").read_text().splitlines()]
        # Steps get 1.4 times as short at each change of shapes, which happens between epochs 2 and 3, and from 3 to 4.
        slow = {"dense": [60, 60, 60, 60, 130], "prunetrain": [90, 90, 60, 40, 40]}[trial.name.partition("-")[0]]
        for index, record in enumerate(records):
            record["train_time_s"] = sum(slow[: index + 1])
        (trial / "epochs.jsonl").write_text("\n".join(json.dumps(record) for record in records))
    found = read(folder)
    assert {trial.name.partition("-")[0] for trial in found.trials if is_disturbed(trial)} == {"dense"}
    (remark,) = build(found).groups[0].remarks
    assert "of 1 of 2 trials are unsteady" in remark
    assert "at most 2.2 times, in dense-" in remark


@pytest.mark.parametrize("when", ["now", "earlier"])
def test_trials_on_a_shared_device_are_marked_with_the_reason(suite: Any, when: str) -> None:
    suite.add_all(("dense", "prunetrain"), seeds=1)
    folder = suite.write()
    assert not any(map(is_disturbed, read(folder).trials))
    (path,) = folder.glob("trials/prunetrain-*/trial.json")
    record = json.loads(path.read_text())
    place = {"cpus": [0], "gpus": [], "shared_with": 3}
    alone = {"cpus": [], "gpus": [], "shared_with": 0}
    record["provenance"] |= (
        {"place": place} if when == "now" else {"place": alone, "attempts": [{"place": place, "until_epoch": 1}]}
    )
    path.write_text(json.dumps({name: value for name, value in record.items() if name != "sha256"}))
    found = read(folder)
    assert [trial.spec["method"] for trial in found.trials if is_disturbed(trial)] == ["prunetrain"]
    remark = build(found).groups[0].remarks[0]
    assert remark.startswith("1 of 2 trials shared their device with other trials of the command, so they slowed")
    assert "(at most with 3 at a time, in prunetrain-" in remark


def test_numbers_that_a_processor_has_no_arithmetic_for_are_said_where_times_are(suite: Any) -> None:
    for seed in range(2):
        suite.add("dense", seed, accuracy=71.0 + seed, time=370.0)
    folder = suite.write()
    path = min(folder.glob("trials/*/trial.json"))
    record = json.loads(path.read_text())
    record["provenance"]["emulated_dtype"] = "bfloat16"
    path.write_text(json.dumps(record))
    (remark,) = build(read(folder)).groups[0].remarks
    assert remark.startswith("1 of 2 trials used bfloat16, for which their processor has no arithmetic: float32 is")


def test_seeds_that_began_with_the_same_weights_are_named(suite: Any) -> None:
    suite.add_all(("dense", "prunetrain"), seeds=3)
    folder = suite.write()
    for path in folder.glob("trials/*/trial.json"):
        record = json.loads(path.read_text())
        seed = record["spec"]["seed"]
        start = "a" if record["spec"]["method"] == "prunetrain" and seed else f"{seed}"
        record["provenance"]["initial_weights"] = start
        path.write_text(json.dumps({name: value for name, value in record.items() if name != "sha256"}))
    (remark,) = build(read(folder)).groups[0].remarks
    assert remark.startswith("Several seeds of prunetrain[ratio=0.2] began with the same weights.")


def test_competing_programs_and_interruptions_are_said_where_times_are(suite: Any) -> None:
    for seed in range(3):
        suite.add("dense", seed, accuracy=71.0 + seed, time=370.0)
    folder = suite.write()
    quiet = build(read(folder)).groups[0]
    assert quiet.remarks == ()
    assert _doubted(quiet) == []
    first, second, _ = sorted((folder / "trials").iterdir())
    for trial, changed in (
        (first, {"hardware": {"threads": 2}, "busy_cores": 1.8}),
        (second, {
            "hardware": {"threads": 2}, "busy_cores": 0.1, "resumed_elsewhere": ["torch was 2.11 until epoch 2"],
            "attempts": [{"busy_cores": 0.2, "until_epoch": 2}, {"busy_cores": 0.3, "until_epoch": 4}],
        }),
    ):  # fmt: skip
        record = json.loads((trial / "trial.json").read_text())
        record["provenance"] |= changed
        (trial / "trial.json").write_text(json.dumps(record))
    group = build(read(folder)).groups[0]
    assert _doubted(group) == ["Training time", "Training time", "Realised saving of time"]
    (row,) = group.tables[0].rows
    assert [cell.text.endswith("(disturbed)") for cell in row[4:6]] == [True, False]  # dense over dense is 1 anyway
    assert "(disturbed: do not rely on it)" in group.headlines[0].text
    assert not any("disturbed" in text for text in (quiet.headlines[0].text, quiet.tables[0].rows[0][4].text))
    busy, interrupted = group.remarks
    assert busy.startswith("Other programs were running when 1 of 3 trials started: do not rely on the times")
    assert f"0.9 times as many cores as the trial (in {first.name})." in busy
    assert interrupted.startswith("One trial was interrupted and resumed later")
    assert f"{second.name} after epoch 2 and 4; torch was 2.11 until epoch 2" in interrupted


def test_layers_that_onednn_multiplies_slowly_are_named(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"), seeds=1)
    folder = suite.write()
    dense, sdgp = sorted((folder / "trials").iterdir())
    for trial, found in ((dense, ["conv1 wgrad: ref:any", "conv2 dgrad: ref:any"]), (sdgp, "not recorded: no libc")):
        record = json.loads((trial / "trial.json").read_text())
        record["provenance"]["onednn_fallbacks"] = found
        (trial / "trial.json").write_text(json.dumps(record))
    report = build(read(folder))
    (remark,) = report.groups[0].remarks
    assert f"conv1 wgrad: ref:any; conv2 dgrad: ref:any (in {dense.name})" in remark
    differing = next(table for table in report.provenance.tables if table.name == "differences")
    assert any("not recorded: no libc" in cell.text for row in differing.rows for cell in row)


def test_a_disturbed_dense_trial_makes_every_ratio_to_it_doubtful(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"))
    folder = suite.write()
    path = min(folder.glob("trials/dense-*/trial.json"))
    path.write_text(path.read_text().replace('"hardware": {', '"busy_cores": 1.9, "hardware": {'))
    (group,) = build(read(folder)).groups
    sdgp = group.tables[0].rows[1]
    assert [cell.text.endswith("(disturbed)") for cell in sdgp[4:7]] == [False, True, True]
    assert "sorted by accuracy alone, because times are disturbed" in group.tables[0].caption
    assert "× dense" in group.headlines[1].text.partition(" (disturbed: do not rely on it)")[0]


def _doubted(group: Any) -> list[str]:
    """Return the columns whose notes warn of disturbed times, since a table may be copied without the remarks."""
    return [column.title for column in group.tables[0].columns if "Do not rely on it" in column.note]


def test_damaged_records_are_counted_separately(suite: Any) -> None:
    suite.add_all(("dense",), seeds=1)
    suite.rows.append({"trial_id": "damaged-1", "method": "", "status": "error", "message": "damaged record"})
    summary = build(read(suite.write())).summary
    assert "1 trials have a damaged record" in summary
    assert "several groups" not in summary


def test_trials_of_an_edited_plugin_are_no_seeds_of_one_method(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"), seeds=2)
    folder = suite.write()
    for path, digest in zip(sorted(folder.glob("trials/sdgp-*/trial.json")), ("a" * 64, "b" * 64), strict=True):
        record = json.loads(path.read_text())
        record["spec"]["defined_by"] = {"method": {"path": "~/plugin.py", "sha256": digest}}
        path.write_text(json.dumps(record))
    (group,) = build(read(folder)).groups
    labels = [row[0].text for row in group.tables[0].rows]
    assert len(labels) == len(set(labels)) == 3
    assert sum(" file " in one for one in labels) == 2


def test_trials_with_subnormal_numbers_are_a_group_of_their_own_and_named(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"))
    suite.add_all(("dense", "sdgp"), arithmetic="ieee")
    flushed, other = build(read(suite.write())).groups
    assert "arithmetic flush" in flushed.title
    assert "arithmetic ieee" in other.title
    assert not any("subnormal" in line for line in flushed.remarks)
    (line,) = (line for line in other.remarks if "subnormal" in line)
    assert line.startswith("6 of 6 trials computed with subnormal numbers (arithmetic ieee)")


def test_controls_have_a_colour_of_their_own() -> None:
    found = looks(["sdgp", "sdgp[mode=random]", "dense[repeat=2]"], {"sdgp[mode=random]", "dense[repeat=2]"})
    assert [found[name].colour for name in ("dense", "sdgp", "sdgp[mode=random]", "dense[repeat=2]")] == [
        0, colour_of("sdgp"), -1, -1,
    ]  # fmt: skip
    assert len({(one.marker, one.dash) for one in found.values()}) == 4
    assert svg.colour(-1) not in {svg.colour(index) for index in range(9)}
