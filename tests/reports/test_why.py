"""The section "Why" of a report, from profiles with known numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from profiles import profile, stage, step

from reports.content.build import build
from reports.data.records import page_groups, read
from reports.render import html, markdown

pytestmark = pytest.mark.usefixtures("without_figures")


@pytest.fixture
def profiled(suite: Any) -> Any:
    """Function that writes a profile of one method, and returns the sections of the report about it."""
    for seed in range(3):
        suite.add("dense", seed, accuracy=71.0 + 0.1 * seed, time=365.0)
        suite.add("quick", seed, accuracy=70.0 + 0.1 * seed, time=350.0)
    suite.write()

    def write(entry: dict[str, Any]) -> list[Any]:
        (group,) = page_groups(read(suite.folder).trials)[0]
        content = {"version": 1, "groups": [{"key": dict(group.key), "methods": {"quick": entry}}]}
        (suite.folder / "profile.json").write_text(json.dumps(content))
        (found,) = build(read(suite.folder)).groups
        return [section for section in found.sections if section.anchor.startswith("why")]

    return write


HALVED = step(dgrad_s=1.5, effective=0.5, executed=0.5, pruning_s=0.6, clocks=1.02)


def texts(table: Any) -> dict[str, list[str]]:
    """Return the cells of each row by the text of its first."""
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_parts_of_the_method_are_next_to_those_of_dense(profiled: Any) -> None:
    why, _ = profiled(profile(stage(HALVED, step(), ratio=0.95)))
    rows = texts(why.tables[0])
    assert rows["data gradient"] == ["33.3", "0.50", "0.50", "3000.00", "1500.00", "21.4", "11.5"]
    assert rows["three products"] == ["100.0", "0.83", "0.83", "9000.00", "7500.00", "64.3", "57.3"]
    assert rows["pruning"] == ["–", "–", "–", "0.00", "600.00", "0.0", "4.6"]
    assert rows["rest"] == ["–", "–", "–", "1000.00", "1000.00", "7.1", "7.6"]
    assert rows["sum of the parts"][3:5] == ["14000.00", "13100.00"]
    shown = [float(row[4]) for name, row in rows.items() if name not in ("three products", "sum of the parts",
                                                                      "step without clocks")]  # fmt: skip
    assert sum(shown) == pytest.approx(13_100)
    assert "1.010 to 1.020 times as long; the parts add up to 1.010 to 1.020 times" in why.lines[0]
    assert "takes 33.3 % of the time of the three products and 21.4 % of the step" in why.lines[1]


def test_savings_are_modelled_and_measured(profiled: Any) -> None:
    why, _ = profiled(profile(stage(HALVED, step(), ratio=0.95)))
    rows = [[cell.text for cell in row[1:]] for row in why.tables[1].rows]
    assert rows == [
        ["modelled", "16.7", "10.7"],
        ["modelled", "10.0", "6.4"],
        ["measured", "16.7", "7.3"],
        ["measured", "–", "5.0"],
    ]


def test_each_stage_has_a_table_and_layers_are_those_of_the_last(profiled: Any) -> None:
    first = stage(step(), step(), ratio=1.0)
    why, layers = profiled(profile(first, stage(HALVED, step(), ratio=0.9, epoch=4)))
    assert [table.caption.partition(" of quick")[0] for table in why.tables[:2]] == [
        "Parts of a step from epoch 1",
        "Parts of a step from epoch 4",
    ]
    assert texts(why.tables[2])["steps of this profile, median"][-1] == "10.0"
    assert [row[4].text for row in layers.tables[0].rows][1] == "0.50"


def test_a_disturbed_profile_says_so(profiled: Any) -> None:
    entry = profile(stage(step(clocks=1.2), step(), ratio=0.95)) | {"load": 1.5, "execution": "cuda_graph"}
    lines = profiled(entry)[0].lines
    assert any("more than 10 % away from a step without clocks for quick" in line for line in lines)
    assert any("Other programs used 1.5 cores" in line for line in lines)
    assert any("execution=cuda_graph; the profiled steps ran eagerly" in line for line in lines)


def test_a_report_without_a_profile_is_unchanged(suite: Any, profiled: Any) -> None:
    """Also for a file about other groups."""

    def pages() -> list[str]:
        report = build(read(suite.folder))
        return [html.render(report), markdown.render(report)]

    before = pages()
    profiled(profile(stage(HALVED, step(), ratio=0.95)))
    assert all("Why: where the time of a step goes" in page for page in pages())
    (suite.folder / "profile.json").write_text('{"version": 1, "groups": [{"key": {"task": "x"}, "methods": {}}]}')
    assert pages() == before
    (suite.folder / "profile.json").unlink()
    assert pages() == before


def test_a_damaged_profile_is_named_and_not_shown(suite: Any, profiled: Any) -> None:
    profiled(profile(stage(HALVED, step(), ratio=0.95)))
    (suite.folder / "profile.json").write_text("{")
    report = build(read(suite.folder))
    assert not [section for section in report.groups[0].sections if section.anchor.startswith("why")]
    assert report.problems is not None
    assert any("profile.json is damaged" in cell.text for row in report.problems.table.rows for cell in row)
