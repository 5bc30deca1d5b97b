"""The papers' numbers: what is wrong with their file is one line, and documents that quote them agree with it."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from reports.papers import paper
from suite.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
[sources.paper]
title = "A paper"
where = "arXiv 1"

[groups.table1]
source = "paper"
place = "Table I"
quantity = "accuracy"
unit = "%"
of = "measured"
conditions = { task = "cifar10", epochs = 150 }
values = { dense = 95.3, "2:4" = 95 }
"""


PAGE = """
[texts]
where = "of a table"

[templates]
accuracy = [
    { quantity = "accuracy, {name}", method = "{method}", published = "table1/{key}" },
    { quantity = "{name} minus dense", method = "{method}", against = "difference" },
]

[reproductions.page]
title = "A page {where}"
summary = "One line."
reference = "table1"

[reproductions.page.each_part]
name = "{n}:{m}"
task = "digits"

[[reproductions.page.parts]]
for = { n = [1, 2], m = [4, 8] }
title = "a part"
methods = "dense,sdgp[n={n},m={m}]"
compared = [
    { for = [{ key = "dense", method = "dense" }, { key = "2:4", method = "sdgp[n={n},m={m}]" }], template = "accuracy", name = "{key}" },
    { quantity = "time", method = "dense", column = "train_time_s", scale = 1 },
]
"""  # noqa: E501


def read(tmp_path, text):
    path = tmp_path / "numbers.toml"
    path.write_text(text, encoding="utf-8")
    return paper.read(path)


@functools.cache
def groups():
    """All groups of published numbers by name."""
    return {name: group for path in paper.OWN for name, group in paper.read(path).groups.items()}


def test_a_value_comes_with_its_source_unit_and_kind(tmp_path):
    numbers = read(tmp_path, GOOD)
    found, group = numbers.find("table1/2:4"), numbers.groups["table1"]
    assert (found.value, group.unit, found.kind, found.rounding) == (95.0, "%", "published", 0.5)
    assert (group.values["dense"], group.rounding("dense")) == (95.3, 0.05)
    assert found.citation == "A paper (arXiv 1), Table I"
    assert group.conditions == {"task": "cifar10", "epochs": 150}


def test_a_printed_zero_is_a_digit_that_was_not_rounded(tmp_path):
    assert read(tmp_path, GOOD.replace("95.3", "95.30")).groups["table1"].rounding("dense") == 0.005


def test_a_projection_is_not_called_published_alone(tmp_path):
    numbers = read(tmp_path, GOOD.replace('of = "measured"', 'of = "modelled"'))
    assert numbers.find("table1/dense").kind == "published, of a modelled quantity"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('place = "Table I"\n', "", "groups.table1.place: Field required"),
        ('source = "paper"', 'source = "papre"', "no source is called 'papre'; did you mean 'paper'?"),
        ('of = "measured"', 'of = "modeled"', "of: Input should be 'measured', 'counted' or 'modelled'"),
        ("values =", "values", "Expected"),
        ('reference = "table1"', 'reference = "table2"', "page: no group is called 'table2'; did you mean 'table1'?"),
        ('reference = "table1"', "", "page: no source is called ''"),
        ('key = "dense"', 'key = "dens"', "table1: no value is called 'dens'; did you mean 'dense'?"),
        ('task = "digits"', 'task = "digits"\nbaseline = "b"', "page: no part is called 'b'"),
        (', name = "{key}" }', " }", "names 'name', which has no value"),
        ('template = "accuracy"', 'template = "acuracy"', "names 'acuracy', which has no value"),
        ('[groups.table1]', '[groups.table1]\ndoubt = "a slip"', "table1 must not be compared with: a slip"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, old, new, expected):
    assert old in GOOD + PAGE
    with pytest.raises(UsageError) as raised:
        read(tmp_path, (GOOD + PAGE).replace(old, new, 1))
    assert expected in str(raised.value)
    assert "numbers.toml" in str(raised.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match=r"none\.toml: No such file"):
        paper.read(tmp_path / "none.toml")


def test_a_table_stands_for_several(tmp_path):
    page = read(tmp_path, GOOD + PAGE).reproductions["page"]
    assert page.title == "A page of a table"
    assert [part.name for part in page.parts] == ["1:4", "1:8", "2:4", "2:8"]
    assert {part.task for part in page.parts} == {"digits"}
    assert [(one.quantity, one.method, one.published) for one in page.parts[1].compared] == [
        ("accuracy, dense", "dense", "table1/dense"),
        ("dense minus dense", "dense", ""),
        ("accuracy, 2:4", "sdgp[n=1,m=8]", "table1/2:4"),
        ("2:4 minus dense", "sdgp[n=1,m=8]", ""),
        ("time", "dense", ""),
    ]


# Tables of two papers, typed a second time. What else is printed twice is compared with itself below.
TABLES = {
    "sdgp-table1-cifar10-resnet9": {"dense": 95.3, "random": 94.5, "magnitude": 95.2, "rescaled": 95.2},
    "prunetrain-table1-cifar10-accuracy": {"resnet32": -1.8, "resnet50_cifar": -1.1, "vgg11": -0.7, "vgg13": -0.6},
}


def test_the_files_have_what_the_papers_print():
    assert {name: dict(groups()[name].values) for name in TABLES} == TABLES
    assert dict(groups()["sdgp-table1-cifar10-resnet9"].conditions) == {
        **{"task": "cifar10", "data_copy": "original", "model": "resnet9", "epochs": 150, "batch_size": 512},
        **{"dtype": "float16", "execution": "eager", "hardware": "Nvidia A100", "selection": "final epoch"},
    }
