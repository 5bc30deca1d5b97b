"""What the reproductions declare: every line stands beside the number of its own task, network and method."""

from __future__ import annotations

from pathlib import Path

import pytest
from reproduced_files import page, parts_of
from small_trials import recorded

from reports.papers import paper
from reports.papers.contract import ReproductionData, named
from suite import registry
from suite.choices import MethodChoice, read_list

NAMES = registry.names("reproduction")


def compared_lines(name):
    """Each part that trains as published, each of its lines with a published number, and that number's group and key.

    Only SDGP's saved time is that of another network.
    """
    for part in parts_of(name):
        for one in part.compared:
            group, _, key = one.published.partition("/")
            if "paper" in part.presets and key and group != "sdgp-time-saved-resnet18":
                yield part, one, page(name).paper.groups[group], key


@pytest.mark.parametrize("name", NAMES)
def test_a_declaration_holds_together(name):
    names = [part.name for part in parts_of(name)]
    assert names
    assert len(set(names)) == len(names)
    for part in parts_of(name):
        requests = read_list(part.methods, part.name)
        labels = {str(choice) for one in requests for choice in MethodChoice.expand(one)}
        assert {one.method for one in part.compared} <= labels


@pytest.mark.parametrize("name", NAMES)
def test_each_line_stands_beside_the_number_of_its_task_and_network(name):
    for part, one, group, key in compared_lines(name):
        assert group.conditions.get("task", part.task) == part.task
        model = group.conditions.get("model", part.model)
        assert model == (part.model.partition("[")[0] or "resnet9"), one.quantity
        if part.model and key.partition(", ")[0] in registry.names("model"):
            assert key.partition(", ")[0] == part.model


def test_every_function_that_a_declaration_names_is_there():
    for name in NAMES:
        declared = page(name).declared
        drawn = [f"reports.papers.charts:{declared.chart.draw}"] if declared.chart else []
        curves = [panel.values for panel in declared.chart.panels] if declared.chart else []
        for function in filter(None, [*declared.columns, declared.measured, *drawn, *curves]):
            assert callable(named(function))


def test_every_published_group_is_quoted_by_a_reproduction():
    quoted = set()
    for name in NAMES:
        one = page(name).declared
        quoted |= {*filter(None, [one.reference]), *one.also, *one.compared_with}
        quoted |= {line.published.partition("/")[0] for part in one.parts for line in part.compared if line.published}
    assert quoted == {group for path in paper.OWN for group in paper.read(path).groups}


def test_a_pruned_row_is_compared_with_the_dense_trials_of_its_baseline():
    method = "sdgp[n=2,m=4,mode=rescaled]"
    dense, other, pruned = (
        recorded({"test_accuracy": accuracy}, method=name)
        for name, accuracy in (("dense", 0.7), ("dense", 0.1), ("sdgp", 0.69))
    )
    trials = {"resnet18-dense": {"dense": (dense,)}, "resnet18": {method: (pruned,)}, "resnet50": {"dense": (other,)}}
    compared = page("sdgp-table1-imagenet").compare(ReproductionData(Path(), trials, {}, "cpu"))
    (difference,) = (one for one in compared if one.quantity == "rescaled 2:4 of resnet18 on imagenet minus dense")
    assert difference.part == "resnet18"
    assert difference.ours.mean == pytest.approx(-1.0)
    assert difference.published == pytest.approx(-0.2)


def test_table_2_of_prunetrain_finds_the_rows_of_each_ratio():
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
