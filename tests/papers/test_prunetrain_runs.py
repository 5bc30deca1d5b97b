"""PruneTrain's tables: what they declare, and Table 4 from the command to its files."""

from __future__ import annotations

import numpy as np
from PIL import Image
from reproduced_files import page, parts_of, rows, trials_of

from tasks.cifar10 import CIFAR10
from tasks.cifar100 import CIFAR100, CLASSES

SHORT = (
    *("--preset", "smoke", "--epochs", "2", "--set", "recipe.train_images=64", "--set", "recipe.test_images=50"),
    *("--batch-size", "32", "--seeds", "1", "--model", "resnet9[width=0.25]", "--device", "cpu"),
    *("--dtype", "float32", "--jobs", "2"),
)


def test_every_part_trains_by_the_papers_recipe():
    parts = [part for number in (1, 3, 4) for part in parts_of(f"prunetrain-table{number}")]
    assert {part.recipe for part in parts if part.task == "cifar10"} == {"prunetrain"}
    assert CIFAR10.paper_recipes["prunetrain"].recipe == CIFAR100().recipe("paper")


def test_each_network_stands_beside_its_own_numbers():
    lines = {
        (one.quantity, one.published)
        for part in parts_of("prunetrain-table1")
        for one in part.compared
        if one.published
    }
    assert len(lines) == 8 * 4
    paper = page("prunetrain-table1").paper
    found = {quantity: paper.find(name).value for quantity, name in lines}
    assert found["resnet32 on cifar10 minus dense"] == -1.8
    assert found["vgg13 on cifar100: training time left"] == 67
    assert found["resnet50_cifar on cifar10: training FLOPs left, counted as theirs"] == 50
    assert found["vgg11 on cifar100: inference FLOPs left"] == 43


def test_table_4_on_a_small_cifar_100(tmp_path, reproduce):
    random = np.random.RandomState(0)
    for split, count in (("train", 1), ("test", 1)):
        for name in CLASSES:
            folder = tmp_path / "data" / "cifar100" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                Image.fromarray(random.randint(0, 256, (32, 32, 3)).astype(np.uint8)).save(folder / f"{index}.png")
    arguments = ("--data-root", str(tmp_path / "data"))
    out = tmp_path / "out"
    smaller = {"recipe.train_images=64": "recipe.train_images=100", "resnet9[width=0.25]": "resnet9[width=0.125]"}
    reproduce(out, "prunetrain-table4", *(smaller.get(word, word) for word in SHORT), *arguments)
    found, page = rows(out, "prunetrain-table4"), (out / "reproduce" / "prunetrain-table4.md").read_text("utf-8")
    assert len(trials_of(out)) == 3
    assert found["growing batch: training time saved"]["published"] == "43"
    assert found["batch as it was minus dense"]["published"] == "-0.7"
    assert "57 %" in page
