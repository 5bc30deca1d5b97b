"""PruneTrain's figures and tables on CIFAR-10, from the command to their files; they share their trials."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from reproduced_files import ours, rows, trials_of
from test_prunetrain_quick import IN_FEW_EPOCHS
from test_prunetrain_runs import SHORT as OF_TABLES

from reports.papers.networks import cut_again
from reports.papers.over_epochs import lost_in_first_half
from suite.checkpoint import load_model
from suite.choices import build_model
from suite.engine.cost.flops import count_model
from suite.engine.cost.paper_conventions import prunetrain_training, read_intervals
from suite.engine.network.model_files import save_model
from suite.trials.engines.subprocess_call import call_in_subprocess
from suite.trials.folder.reader import Trial

# In this order: each finds most of its trials done by those before it.
FIGURES = ("fig12", "fig9", "fig11", "fig8", "fig6", "fig2")
NAMES = tuple(f"prunetrain-{which}" for which in ("table2", "table1", *FIGURES, "table3"))
pytestmark = pytest.mark.timeout(600)  # the first waits for a dozen trials
SHAPE = (3, 32, 32)
MODEL = "resnet9[width=0.25]"  # of which the thresholds of `smoke` cut something
SMALLER = {
    "recipe.train_images=64": "recipe.train_images=32",
    "recipe.test_images=50": "recipe.test_images=20",
    "32": "16",
}
SHORT = tuple(SMALLER.get(word, word) for word in OF_TABLES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, reproduce):
    """A folder in which all of them ran."""
    folder = tmp_path_factory.mktemp("figures") / "out"
    for name in NAMES:
        reproduce(folder, name, *SHORT)
    return folder


@pytest.fixture(scope="module")
def trials(folder):
    found = trials_of(folder)
    # One trial has one label, and this names what is the default of `smoke`.
    return found | {"prunetrain[ratio=0.2]": found["prunetrain"]}


def modelled(folder, trial):
    """What the paper's conventions say of a trial."""
    with open(folder / "trials" / trial[0]["trial_id"] / "layers.csv", encoding="utf-8", newline="") as file:
        return prunetrain_training(read_intervals(csv.DictReader(file)))


@pytest.mark.parametrize("name", NAMES)
def test_each_leaves_a_page_that_names_its_setting_and_a_figure(folder, name):
    page = (folder / "reproduce" / f"{name}.md").read_text(encoding="utf-8")
    assert "Not the paper's setting" in page
    assert "preset smoke" in page
    assert "the network resnet9[width=0.25] in place of" in page.replace("\\", "")
    assert "network" not in page.partition("set by the command:")[2].partition("\n")[0]
    assert "Nothing was pruned" not in page
    assert ("Timed on " in page) == (name == "prunetrain-table2")
    figure = folder / "reproduce" / f"{name}.svg"
    assert figure.exists() == (name != "prunetrain-table2")
    if figure.exists():
        text = " ".join(ElementTree.parse(figure).getroot().itertext())
        assert "nan" not in text.casefold().split()
    measured = [row for row in rows(folder, name).values() if row["part"] and row["ours"]]
    assert measured
    assert all(row["kind"] in ("measured", "counted", "modelled") for row in measured)


@pytest.mark.parametrize(
    ("name", "prefix", "method", "change"),
    [
        ("prunetrain-table1", "resnet32 on cifar10", IN_FEW_EPOCHS, "-1.8"),
        ("prunetrain-table3", "prunetrain", "prunetrain", "-0.5"),
    ],
)
def test_tables_have_accuracy_flops_and_time_of_their_trials(folder, trials, name, prefix, method, change):
    found = rows(folder, name)
    dense, pruned = trials["dense"][0], trials[method][0]
    row = found[f"{prefix}: inference FLOPs left"]
    share = 100 * float(pruned["inference_flops"]) / float(pruned["inference_flops_dense"])
    assert share <= 100
    assert (float(row["ours"]), row["published"], row["kind"]) == (pytest.approx(share), "34", "counted")
    row = found[f"{prefix} minus dense"]
    gap = 100 * (float(pruned["test_accuracy"]) - float(dense["test_accuracy"]))
    assert (float(row["ours"]), row["published"]) == (pytest.approx(gap), change)
    time = float(pruned["train_time_s"]) / float(dense["train_time_s"])
    assert float(found[f"{prefix}: training time left"]["ours"]) == pytest.approx(100 * time)
    page = (folder / "reproduce" / f"{name}.md").read_text(encoding="utf-8")
    assert "the best of all epochs on the test set" in page
    assert "selection" in page.casefold()


def test_table_2_has_speeds_of_both_networks(folder):
    name = f"{MODEL} on cifar10, batch 10"
    dense, pruned = (
        ours(folder, "prunetrain-table2", f"{name}: {method}, images per second") for method in ("dense", "prunetrain")
    )
    row = rows(folder, "prunetrain-table2")[f"{name}: prunetrain over dense"]
    assert float(row["ours"]) == pytest.approx(pruned / dense)
    assert (row["published"], row["unit"], row["kind"]) == ("", "×", "measured")  # theirs is of another network


def test_figure_2_counts_what_the_trials_did(folder, trials):
    row, _, _ = trials["prunetrain[ratio=0.2]"]
    left = float(row["train_flops_current"]) / float(row["train_flops_dense"])
    assert ours(folder, "prunetrain-fig2", "ratio 0.2: training FLOPs left") == pytest.approx(100 * left)
    once = [float(trials[f"oneshot[ratio=0.2,at={at}]"][0]["train_flops_current"]) for at in (0.25, 0.5, 0.75)]
    extra = next(row for quantity, row in rows(folder, "prunetrain-fig2").items() if "at its best time" in quantity)
    assert float(extra["ours"]) == pytest.approx(100 * (min(once) / float(row["train_flops_current"]) - 1), abs=1e-6)
    assert extra["published"] == "25"


def test_figure_2_knows_when_flops_were_lost():
    def trial(*shares):
        epochs = tuple({"epoch": 1 + at, "step_flops": {"current": one, "dense": 1.0}} for at, one in enumerate(shares))
        return Trial({}, {}, epochs=epochs)

    assert lost_in_first_half(trial(1.0, 0.9, 0.7, 0.6)) == {"lost_in_first_half": pytest.approx(0.75)}
    assert lost_in_first_half(trial(1.0, 1.0)) == {}


def test_figure_6_gates_what_the_union_keeps(folder, trials):
    row, _, path = trials["prunetrain[ratio=0.2]"]
    union = ours(folder, "prunetrain-fig6", f"{MODEL}, ratio 0.2: inference FLOPs left, union")
    gated = ours(folder, "prunetrain-fig6", f"{MODEL}, ratio 0.2: inference FLOPs left, gating")
    final = 100 * count_model(load_model(path), SHAPE)["inference_flops"] / float(row["inference_flops_dense"])
    assert 0 < gated <= union
    assert union <= final + 1e-6
    assert final < 100


def test_figure_8_trains_on_from_the_dense_network_of_its_seed(folder, trials):
    row, _, _ = trials["ssl[ratio=0.2,from_trained=dense]"]
    spec = json.loads((folder / "trials" / row["trial_id"] / "trial.json").read_text())["spec"]
    assert spec["depends_on"] == {"dense": trials["dense"][0]["trial_id"]}
    left = float(row["inference_flops"]) / float(row["inference_flops_dense"])
    name = "ssl, from trained, ratio 0.2: inference FLOPs left"
    assert ours(folder, "prunetrain-fig8", name) == pytest.approx(100 * left)
    traffic = rows(folder, "prunetrain-fig8")["prunetrain, ratio 0.2: memory traffic of normalisation left"]
    costs = [modelled(folder, trials[label]) for label in ("prunetrain[ratio=0.2]", "dense")]
    assert float(traffic["ours"]) == pytest.approx(
        100 * costs[0]["norm_traffic_bytes"] / costs[1]["norm_traffic_bytes"]
    )
    assert traffic["kind"] == "modelled"


def test_figure_9_has_the_memory_and_the_batch_of_each_epoch(folder, trials):
    _, records, _ = trials["prunetrain[dynamic_batch=start]"]
    assert ours(folder, "prunetrain-fig9", "cifar10: last batch") == records[-1]["batch_size"]
    most = max(record["step_memory_bytes"] for record in records) / records[0]["step_memory_bytes"]
    name = "cifar10: most memory of an epoch's steps, of that of the first, growing batch"
    assert ours(folder, "prunetrain-fig9", name) == pytest.approx(100 * most)
    assert most <= 1
    last = records[-1]["step_memory_bytes"] / records[0]["step_memory_bytes"]
    name = "cifar10: memory of the last epoch's steps, of that of the first, growing batch"
    row = rows(folder, "prunetrain-fig9")[name]
    assert float(row["ours"]) == pytest.approx(100 * last)
    grew = len({record["batch_size"] for record in records}) > 1
    page = (folder / "reproduce" / "prunetrain-fig9.md").read_text(encoding="utf-8")
    assert ("The batch did not grow" in page) is not grew
    assert row["kind"] == "counted"  # on the CPU
    steps = sum(record["steps"] for record in records) / (len(records) * records[0]["steps"])
    assert ours(folder, "prunetrain-fig9", "cifar10: optimizer steps, of those without growth") == pytest.approx(
        100 * steps
    )


def test_figure_12_counts_weights_of_the_final_network(folder, trials):
    _, _, path = trials["prunetrain"]
    weights = [parameter for name, parameter in load_model(path).named_parameters() if parameter.ndim > 1]
    left = sum(parameter.numel() for parameter in weights)
    near = sum(int((parameter.abs() < 1e-4).sum()) for parameter in weights)
    assert ours(folder, "prunetrain-fig12", "weights near zero, of those that are left") == pytest.approx(
        100 * near / left
    )
    whole = build_model(MODEL, SHAPE, 10)
    built = sum(parameter.numel() for parameter in whole.parameters() if parameter.ndim > 1)
    share = ours(folder, "prunetrain-fig12", "weights left, of those that the network was built with")
    assert share == pytest.approx(100 * left / built)


def test_gates_cut_what_the_union_keeps(tmp_path):
    torch.manual_seed(0)
    model = build_model("resnet32[width=0.25]", SHAPE, 10)
    (dead,) = (layer for name, layer in model.named_modules() if name == "layer1.1.branch.conv2")
    dead.weight.data[:2] = 0.0  # outputs at a node, which other layers still give
    path = tmp_path / "model.pt"
    save_model(path, model, name="resnet32[width=0.25]", num_classes=10, input_shape=SHAPE, reconfigurations=[])
    union, gated = (cut_again(str(path), 1e-4, gating, SHAPE, 10) for gating in (False, True))
    costs = [count_model(one, SHAPE)["inference_flops"] for one in (model, union, gated)]
    assert costs[2] < costs[1] == costs[0]
    assert [any("scatter_index" in name for name, _ in one.named_buffers()) for one in (union, gated)] == [False, True]
    images = torch.randn(2, *SHAPE)
    torch.testing.assert_close(gated(images), model.eval()(images), rtol=1e-4, atol=1e-5)


def test_what_is_timed_apart_says_where_and_fails_by_its_last_line(tmp_path):
    arguments = {"files": [str(tmp_path / "model.pt")], "dtype": "float32", "shape": SHAPE, "batch": 2}
    with pytest.raises(RuntimeError, match=r"images_per_second failed: .*no such file"):
        call_in_subprocess("reports.papers.timed_calls:images_per_second", arguments, "cpu")
