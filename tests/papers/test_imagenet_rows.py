"""The rows for ImageNet: each trial is compared with the numbers of its own row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from reproduced_files import page, parts_of

from reports.papers.contract import ReproductionData
from reports.papers.paper import Part
from suite import brackets, registry
from suite.choices import MethodChoice
from suite.trials.folder.reader import Trial
from suite.trials.planning import read_choices

ROWS = (
    "sdgp-table1-imagenet",
    "prunetrain-table1-imagenet",
    "prunetrain-table2-imagenet",
    "prunetrain-table4-imagenet",
    "prunetrain-fig9-imagenet",
    "clicktrain-fig12",
)


@pytest.mark.parametrize("name", ROWS)
def test_short_presets_do_not_need_imagenet(name: str) -> None:
    parts = parts_of(name)
    assert {part.task for part in parts if "quick" in part.presets} == {"imagenette"}
    assert {part.task for part in parts if "paper" in part.presets} == {"imagenet"}


def named(part: Part) -> set[tuple[str, str]]:
    """Return method and published number of all lines of a part that have one."""
    return {(one.method, one.published) for one in part.compared if one.published}


# Recipe, network of the dense trial and network of the pruned trials, by the end of the published group's name.
SDGP_ROWS = {
    "resnet18": ("sdgp", "resnet18", "resnet18[blur=true]"),
    "regnetx400mf": ("sdgp_regnet", "regnet_x_400mf[blur=true]", "regnet_x_400mf[blur=true]"),
    "resnet50": ("sdgp_resnet50", "resnet50[blur=true]", "resnet50[blur=true]"),
}
SDGP_METHODS = {
    "dense": "dense",
    **{mode: f"sdgp[n=2,m=4,mode={mode}]" for mode in ("random", "magnitude", "rescaled")},
}


@pytest.mark.parametrize("row", SDGP_ROWS)
def test_sdgp_trains_each_row_as_published(row: str) -> None:
    recipe, dense, pruned = SDGP_ROWS[row]
    group = f"sdgp-table1-imagenet-{row}"
    parts = [
        part
        for part in parts_of("sdgp-table1-imagenet")
        if part.task == "imagenet" and any(number.startswith(f"{group}/") for _, number in named(part))
    ]
    trained = {
        str(method): part.model for part in parts for method in read_choices(part.methods, MethodChoice, "--methods")
    }
    assert trained == {method: dense if method == "dense" else pruned for method in SDGP_METHODS.values()}
    assert {part.recipe for part in parts} == {recipe}
    assert recipe in registry.get("task", "imagenet").paper_recipes
    compared = {one for part in parts for one in named(part)}
    assert compared == {(method, f"{group}/{column}") for column, method in SDGP_METHODS.items()}


def test_sdgp_compares_the_stand_in_with_the_row_of_its_network() -> None:
    stand_in = parts_of("sdgp-table1-imagenet")[0]
    assert (stand_in.task, stand_in.model, stand_in.recipe) == ("imagenette", "resnet18", "")
    assert named(stand_in) == {
        (method, f"sdgp-table1-imagenet-resnet18/{column}") for column, method in SDGP_METHODS.items()
    }


def test_a_pruned_row_is_compared_with_the_dense_trials_of_its_baseline() -> None:
    table = page("sdgp-table1-imagenet")
    method = SDGP_METHODS["rescaled"]
    dense, other, pruned = (
        Trial({"status": "done", "method": name}, {"test_accuracy": accuracy, "seed": 0})
        for name, accuracy in (("dense", 0.7), ("dense", 0.1), ("sdgp", 0.69))
    )
    trials = {"resnet18-dense": {"dense": (dense,)}, "resnet18": {method: (pruned,)}, "resnet50": {"dense": (other,)}}
    lines = {one.quantity: one for one in table.compare(ReproductionData(Path(), trials, {}, "cpu"))}
    difference = lines["rescaled 2:4 of resnet18 on imagenet minus dense"]
    assert difference.part == "resnet18"
    assert difference.ours.mean == pytest.approx(-1.0)
    assert difference.published == pytest.approx(-0.2)


def test_clicktrain_trains_by_the_recipe_of_the_task_for_the_epochs_of_the_slides() -> None:
    stand_in, *parts = parts_of("clicktrain-fig12")
    assert (stand_in.recipe, dict(stand_in.paper_recipe)) == ("", {})
    for part in parts:
        assert (part.recipe, dict(part.paper_recipe)) == ("clicktrain", {"epochs": 90})


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("prunetrain")])
def test_prunetrain_trains_by_its_own_recipe(name: str) -> None:
    parts = parts_of(name)
    assert {(part.recipe, part.model) for part in parts if part.task == "imagenet"} == {("prunetrain", "resnet50")}


def test_prunetrain_compares_each_ratio_with_its_row() -> None:
    stand_in, part = parts_of("prunetrain-table1-imagenet")
    assert not named(stand_in)
    found = named(part)
    assert len(found) == 3 * 4
    for method, published in found:
        ratio = re.search(r"ratio=([0-9.]+),interval=5", method)
        assert ratio
        assert published.endswith(f"/ratio {ratio[1]}")


def test_figure_9_uses_the_trials_of_table_4_and_compares_the_last_batch() -> None:
    figure, table = (page(f"prunetrain-{name}-imagenet").declared for name in ("fig9", "table4"))
    for ours, theirs in zip(figure.parts, table.parts, strict=True):
        trained = set(brackets.split(theirs.methods))
        assert set(figure.chart.lines[ours.name].values()) <= trained
        assert set(brackets.split(ours.methods)) == trained
    stand_in, part = figure.parts
    assert not named(stand_in)
    assert named(part) == {("prunetrain[ratio=0.25,interval=5,dynamic_batch=start]", "prunetrain-fig9a-batch/epoch 30")}


def test_table_4_compares_the_growing_batch_with_the_adjusted_row() -> None:
    stand_in, part = parts_of("prunetrain-table4-imagenet")
    assert not named(stand_in)
    assert {(published.partition("/")[2], "dynamic_batch=start" in method) for method, published in named(part)} == {
        ("naive", False),
        ("adjusted", True),
    }


def test_table_2_finds_the_rows_of_each_ratio() -> None:
    table = page("prunetrain-table2-imagenet")
    lines = table.outcome(ReproductionData(Path(), {}, {}, "cpu")).comparisons
    stand_in, *parts = table.declared.parts
    assert not any(line.published for line in lines if line.part == stand_in.name)
    groups = {what: table.paper.groups[f"prunetrain-table2-imagenet-{what}"] for what in ("dense", "pruned", "speedup")}
    for part in parts:
        assert f"[{part.name.replace(' ', '=')}," in part.methods
        expected = []
        for batch in (10, 100):
            expected.append(groups["dense"].values[f"batch {batch}"])
            expected += [groups[what].values[f"{part.name}, batch {batch}"] for what in ("pruned", "speedup")]
        assert [line.published for line in lines if line.part == part.name] == expected
