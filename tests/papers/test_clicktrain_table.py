"""ClickTrain's table: what it declares, and from the command to its files."""

from __future__ import annotations

import csv

import pytest
from reproduced_files import page, parts_of

from methods.clicktrain.settings import hard_prune_of_the_paper
from suite import registry

MODEL = "vgg11_click[width=0.125]"
SHORT = (
    *("--preset", "smoke", "--epochs", "4", "--set", "recipe.train_images=100", "--set", "recipe.test_images=100"),
    *("--batch-size", "32", "--seeds", "1", "--model", MODEL, "--device", "cpu", "--dtype", "float32", "--jobs", "2"),
)


def declared_rows():
    """Each declared row of the table: task, network and compression."""
    for part in parts_of("clicktrain-fig11"):
        network, task = part.name.rsplit("-", 1)
        for one in part.compared:
            group, _, key = one.published.partition("/")
            if group.endswith("-compression"):
                assert (group, key.partition(", ")[0]) == (f"clicktrain-fig11-{task}-compression", network)
                yield task, network, key.partition(", ")[2]


ROWS = sorted(declared_rows())


def test_every_row_stands_beside_its_own_numbers():
    assert len(ROWS) == 13
    for part in parts_of("clicktrain-fig11"):
        for one in part.compared:
            if one.method != "dense":
                assert one.method in part.methods
                assert part.name.rpartition("-")[0] in one.quantity
    groups = page("clicktrain-fig11").paper.groups
    for task, network, row in ROWS:
        assert groups[f"clicktrain-fig11-{task}-compression"].values[f"{network}, {row}"] == float(row[:-1])


@pytest.mark.parametrize(("task", "network", "row"), ROWS)
def test_what_is_saved_in_training_is_what_inference_saves_after_hard_pruning(task, network, row):
    """The table's own two columns, by its rule; it prints the epoch of hard pruning, which `methods` has."""
    inference, training = (
        page("clicktrain-fig11").paper.find(f"clicktrain-fig11-{task}-{what}-flops/{network}, {row}").value
        for what in ("inference", "train")
    )
    share = hard_prune_of_the_paper(task, network, float(row.removesuffix("x")))
    assert inference * (1 - share) == pytest.approx(training, abs=1.0)


def test_each_network_trains_by_the_recipe_of_its_configuration():
    for part in parts_of("clicktrain-fig11"):
        recipe = registry.get("task", part.task).paper_recipes[part.recipe].recipe
        epochs = [round(share * recipe.epochs, 6) for share in recipe.milestones]
        assert epochs == [55, 130 if part.name.startswith("resnet") else 131]


@pytest.fixture(scope="module")
def rows(tmp_path_factory, reproduce):
    out = tmp_path_factory.mktemp("fig11") / "out"
    reproduce(out, "clicktrain-fig11", *SHORT)
    with open(out / "reproduce" / "clicktrain-fig11.csv", encoding="utf-8", newline="") as file:
        found = {row["quantity"]: row for row in csv.DictReader(file)}
    with open(out / "results.csv", encoding="utf-8", newline="") as file:
        trials = {row["variant"]: row for row in csv.DictReader(file)}
    return out, found, trials


def test_the_table_has_both_rows_and_what_was_published(rows):
    _, found, trials = rows
    for row, given, theirs in (
        ("8.7x", "ratios=cifar10-vgg11_click-1", 81.5),
        ("11.5x", "ratios=cifar10-vgg11_click-4", 85.3),
    ):
        where = f"vgg11_click on cifar10, {row}"
        assert float(found[f"{where} minus dense"]["published"]) in (-0.1, -0.3)
        saved = found[f"{where}: inference FLOPs saved"]
        assert float(saved["published"]) == theirs
        (trial,) = (trial for variant, trial in trials.items() if given in variant)
        (dense,) = (trial for trial in trials.values() if trial["method"] == "dense")
        left = float(trial["inference_flops_effective"]) / float(dense["inference_flops"])
        assert float(saved["ours"]) == pytest.approx(100 * (1 - left))
        assert float(saved["ours"]) > 70  # a narrow network has more of its work in layers that stay dense
        compression = float(found[f"{where}: compression"]["ours"])
        assert 0.7 * float(row.removesuffix("x")) < compression <= float(row.removesuffix("x"))
        training = float(found[f"{where}: training FLOPs saved"]["ours"])
        # Masked from the third of four epochs on, which have three steps; the first of them multiplied dense weights.
        assert training == pytest.approx(5 / 12 * float(saved["ours"]), abs=2)


def test_the_page_and_the_figure_are_there(rows):
    out, _, _ = rows
    page = (out / "reproduce" / "clicktrain-fig11.md").read_text(encoding="utf-8")
    assert "--parts vgg13_click-cifar10" in page  # a part that was not run, with its command
    assert "2.82" in page  # what ImageNet's configuration really compresses
    assert (out / "reproduce" / "clicktrain-fig11.svg").is_file()
