"""The papers' numbers: what is wrong with their file is one line, and documents that quote them agree with it."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from methods.clicktrain.settings import hard_prune_of_the_paper
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


def value(name):
    group, _, key = name.partition("/")
    return groups()[group].values[key]


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
        ("dense = 95.3", "dense = nan", "values.dense: Input should be a finite number"),
        ("dense = 95.3", "dense = 1, dense = 2", "dense"),
        ('of = "measured"', 'of = "modeled"', "of: Input should be 'measured', 'counted' or 'modelled'"),
        ("epochs = 150", "epoch = 150", "conditions.epoch"),
        ("[sources.paper]", "[source.paper]", "source: Extra inputs are not permitted"),
        ("values =", "values", "Expected"),
        ('reference = "table1"', 'reference = "table2"', "page: no group is called 'table2'; did you mean 'table1'?"),
        ('reference = "table1"', "", "page: no source is called ''"),
        ('key = "dense"', 'key = "dens"', "table1: no value is called 'dens'; did you mean 'dense'?"),
        ('task = "digits"', 'task = "digits"\nbaseline = "b"', "page: no part is called 'b'"),
        ('task = "digits"', 'task = "digits"\npresets = ["quik"]', "presets.0: String should match"),
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


def test_the_speedups_of_inference_are_those_of_the_printed_images_a_second():
    """But for the cells that repeat the dense network's number, which the file leaves out."""
    for task in ("cifar100", "imagenet"):
        dense, pruned, speedup = (
            groups()[f"prunetrain-table2-{task}-{what}"] for what in ("dense", "pruned", "speedup")
        )
        assert len(pruned.values) in (5, 6)
        for key, images in pruned.values.items():
            before = dense.values[key if task == "cifar100" else key.partition(", ")[2]]
            assert images / before == pytest.approx(speedup.values[key], abs=0.011), key
        for group in (dense, pruned, speedup):
            assert group.conditions["dtype"] == "float16"
            assert "Mixed precision" in group.notes[0]


def test_what_clicktrain_saves_in_training_is_only_about_what_its_rule_gives():
    beyond = []
    for task in ("cifar10", "cifar100", "imagenet"):
        inference, training = (groups()[f"clicktrain-fig11-{task}-{what}-flops"] for what in ("inference", "train"))
        for row, saved in training.values.items():
            network, _, compression = row.partition(", ")
            share = 1 - hard_prune_of_the_paper(task, network, float(compression.removesuffix("x")))
            beyond.append(round(saved - inference.values[row] * share, 1))
        assert "all 17 rows of the table are 0.1 to 0.9 points above that" in training.notes[0]
    assert (len(beyond), min(beyond), max(beyond)) == (17, 0.1, 0.9)


def test_every_projection_is_marked_as_one():
    modelled = {name for name, group in groups().items() if group.of == "modelled"}
    assert modelled == {
        "sdgp-data-gradient-share-left-resnet9",
        "sdgp-time-saved-resnet18",
        "sdgp-time-saved-abstract",
        "sdgp-time-to-accuracy",
        "prunetrain-imagenet-norm-traffic-saved",
        "prunetrain-imagenet-allreduce-saved",
        *(f"clicktrain-fig11-{task}-train-flops" for task in ("cifar10", "cifar100", "imagenet")),
    }


def test_projections_follow_from_the_published_shares():
    eighteen, nine = (value(f"sdgp-data-gradient-share-{net}/share") for net in ("resnet18", "resnet9"))
    for pair, left in (("2:4", 1 / 2), ("1:4", 1 / 4)):
        assert value(f"sdgp-time-saved-resnet18/{pair}") == pytest.approx(eighteen * (1 - left), abs=0.05)
    assert value("sdgp-data-gradient-share-left-resnet9/4:32") == pytest.approx(nine / 8, abs=0.005)


def test_the_card_of_sdgp_quotes_what_is_recorded():
    card = (ROOT / "docs" / "methods" / "sdgp.md").read_text(encoding="utf-8")
    rows = {
        "CIFAR-10, ResNet-9": "cifar10-resnet9",
        "ImageNet, ResNet-18": "imagenet-resnet18",
        "ImageNet, RegNetX-400MF": "imagenet-regnetx400mf",
        "ImageNet, ResNet-50": "imagenet-resnet50",
    }
    for title, name in rows.items():
        (quoted,) = re.findall(rf"^\| {re.escape(title)} \| (.*) \|$", card, re.MULTILINE)
        group = groups()[f"sdgp-table1-{name}"]
        assert [float(cell) for cell in quoted.split(" | ")] == [
            group.values[column] for column in ("dense", "random", "magnitude", "rescaled")
        ]
    text = card[card.index("at other ratios") : card.index("Speed is projected")]
    pairs = {pair: float(value) for pair, value in re.findall(r"(\d+:\d+) ([\d.]+\d)", text)}
    repository = dict(groups()["sdgp-repository-cifar10-resnet9"].values)
    assert pairs == {key: value for key, value in repository.items() if key != "2:4"}
    assert len(repository) == 11
    saved = groups()["sdgp-time-saved-resnet18"].values
    assert f"{saved['2:4']} % saved at 2:4 and {saved['1:4']} % at 1:4" in " ".join(card.split())
