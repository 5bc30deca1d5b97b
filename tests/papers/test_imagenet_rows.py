"""The rows for ImageNet: each trial is compared with the numbers of its own row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reports.papers.contract import Part, ReproductionData
from suite import brackets, registry
from suite.choices import MethodChoice
from suite.errors import UsageError
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
    parts = registry.get("reproduction", name).parts
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
        for part in registry.get("reproduction", "sdgp-table1-imagenet").parts
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
    stand_in = registry.get("reproduction", "sdgp-table1-imagenet").parts[0]
    assert (stand_in.task, stand_in.model, stand_in.recipe) == ("imagenette", "resnet18", "")
    assert named(stand_in) == {
        (method, f"sdgp-table1-imagenet-resnet18/{column}") for column, method in SDGP_METHODS.items()
    }


def test_a_pruned_row_is_compared_with_the_dense_trials_of_its_baseline() -> None:
    table = registry.get("reproduction", "sdgp-table1-imagenet")()
    method = SDGP_METHODS["rescaled"]
    dense, other, pruned = (
        Trial({"status": "done", "method": name}, {"test_accuracy": accuracy, "seed": 0})
        for name, accuracy in (("dense", 0.7), ("dense", 0.1), ("sdgp", 0.69))
    )
    trials = {"resnet18-dense": {"dense": (dense,)}, "resnet18": {method: (pruned,)}, "resnet50": {"dense": (other,)}}
    lines = {one.quantity: one for one in table.compare(ReproductionData(Path(), trials, {}, "cpu")) if one.part}
    difference = lines["rescaled 2:4 of resnet18 on imagenet minus dense"]
    assert difference.part == "resnet18"
    assert difference.ours.mean == pytest.approx(-1.0)
    assert difference.published == pytest.approx(-0.2)


def test_a_baseline_that_is_no_part_is_refused() -> None:
    class Wrong(registry.get("reproduction", "sdgp-table1-imagenet")):
        parts = (Part(name="a", title="", methods="dense", task="digits", baseline="b"),)

    with pytest.raises(UsageError, match="part a has no part 'b' as baseline"):
        Wrong().check()


def test_clicktrain_trains_by_the_recipe_of_the_task_for_the_epochs_of_the_slides() -> None:
    stand_in, *parts = registry.get("reproduction", "clicktrain-fig12").parts
    assert (stand_in.recipe, dict(stand_in.paper_recipe)) == ("", {})
    for part in parts:
        assert (part.recipe, dict(part.paper_recipe)) == ("clicktrain", {"epochs": 90})


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("prunetrain")])
def test_prunetrain_trains_by_its_own_recipe(name: str) -> None:
    parts = registry.get("reproduction", name).parts
    assert {(part.recipe, part.model) for part in parts if part.task == "imagenet"} == {("prunetrain", "resnet50")}


def test_prunetrain_compares_each_ratio_with_its_row() -> None:
    stand_in, part = registry.get("reproduction", "prunetrain-table1-imagenet").parts
    assert not named(stand_in)
    found = named(part)
    assert len(found) == 3 * 4
    for method, published in found:
        ratio = re.search(r"ratio=([0-9.]+),interval=5", method)
        assert ratio
        assert published.endswith(f"/ratio {ratio[1]}")


def test_figure_9_uses_the_trials_of_table_4_and_compares_the_last_batch() -> None:
    figure, table = (registry.get("reproduction", f"prunetrain-{name}-imagenet") for name in ("fig9", "table4"))
    for ours, theirs in zip(figure.parts, table.parts, strict=True):
        trained = set(brackets.split(theirs.methods))
        assert set(figure().labels(ours)) <= trained
        assert set(brackets.split(ours.methods)) == trained
    stand_in, part = figure.parts
    assert not named(stand_in)
    assert named(part) == {("prunetrain[ratio=0.25,interval=5,dynamic_batch=start]", "prunetrain-fig9a-batch/epoch 30")}


def test_table_4_compares_the_growing_batch_with_the_adjusted_row() -> None:
    stand_in, part = registry.get("reproduction", "prunetrain-table4-imagenet").parts
    assert not named(stand_in)
    assert {(published.partition("/")[2], "dynamic_batch=start" in method) for method, published in named(part)} == {
        ("naive", False),
        ("adjusted", True),
    }


def test_table_2_finds_the_rows_of_each_ratio() -> None:
    table = registry.get("reproduction", "prunetrain-table2-imagenet")()
    stand_in, *parts = table.parts
    assert table.rows(stand_in) is None
    for part in parts:
        dense, row = table.rows(part)
        assert f"[{row.replace(' ', '=')}," in part.methods
        for batch in (10, 100):
            assert f"{row}, batch {batch}" in table.published.group("prunetrain-table2-imagenet-speedup").values
        assert dense == ""
