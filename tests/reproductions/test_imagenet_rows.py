"""The rows for ImageNet: each trial is compared with the numbers of its own row."""

from __future__ import annotations

import re

import pytest

from reproductions.contract import Part
from suite import brackets, registry

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


def test_sdgp_compares_each_network_with_its_row() -> None:
    parts = registry.get("reproduction", "sdgp-table1-imagenet").parts
    for part in parts:
        network = part.model.partition("[")[0]
        row = {"resnet18": "resnet18", "regnet_x_400mf": "regnetx400mf", "resnet50": "resnet50"}[network]
        assert ("blur=true" in part.model) == (part.presets == ("paper",) and network != "regnet_x_400mf")
        modes = {mode: f"sdgp[n=2,m=4,mode={mode}]" for mode in ("random", "magnitude", "rescaled")}
        assert named(part) == {
            (method, f"sdgp-table1-imagenet-{row}/{column}") for column, method in {"dense": "dense", **modes}.items()
        }


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
