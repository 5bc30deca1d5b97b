"""The papers' figures and tables, from the command to their files; they share a folder and its trials."""

from __future__ import annotations

import contextlib
import csv
import io
import statistics
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from borrowed_trials import Borrowing
from reproduced_files import ours, rows, trials_of
from small_trials import recorded

from reports.papers import comparison, networks, stages, timed_calls
from reports.papers.stages import STAGES, step_times
from suite.checkpoint import load_model
from suite.choices import build_model
from suite.engine.cost.flops import count_model
from suite.engine.cost.paper_conventions import prunetrain_training, read_intervals
from suite.trials.folder.records import write_record

pytestmark = pytest.mark.slow  # the trials of all pages take half a minute
ROOT = Path(__file__).resolve().parents[2]
# In this order: those of a paper find most of their trials done by those before them.
PARTS = {
    "sdgp-fig8": "corners",
    "sdgp-table1": "columns",
    "clicktrain-fig13": "backends",
    "clicktrain-fig14": "backends",
}
NAMES = (
    *(f"sdgp-{which}" for which in ("fig8", "table1", "fig10", "fig6", "fig7", "fig5", "fig4")),
    *(
        f"prunetrain-{which}"
        for which in ("table1", "table2", "fig12", "fig9", "fig11", "fig8", "fig6", "fig2", "table3")
    ),
    *(f"clicktrain-fig{which}" for which in (13, 14, 11, 12, 9, 1)),
)
NO_FIGURE = ("prunetrain-table2",)
TIMED = ("prunetrain-table2", "clicktrain-fig9")
SHAPE = (3, 32, 32)
MODEL = "resnet9[width=0.125]"
FEW_EPOCHS = "prunetrain[ratio=0.3,threshold=0.05]"
SHORT = (
    *("--preset", "smoke", "--epochs", "4", "--set", "recipe.train_images=64", "--set", "recipe.test_images=50"),
    *("--batch-size", "32", "--seeds", "1", "--model", MODEL, "--device", "cpu", "--dtype", "float32", "--jobs", "2"),
)
COUNTED = ("vgg11_click", "resnet18", "vgg16")  # of the networks of ClickTrain's Fig. 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory, reproduce):
    """A folder in which all of them ran, with one trained trial of each method."""
    folder = tmp_path_factory.mktemp("pages") / "out"
    engine = Borrowing()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr(networks, "NETWORKS", {name: networks.NETWORKS[name] for name in COUNTED})
        for module in (comparison, stages):  # whatever else this machine does
            patch.setattr(module, "is_disturbed", lambda trial: False)
        for name in NAMES:
            parts = ("--parts", PARTS[name]) if name in PARTS else ()
            reproduce(folder, name, *parts, *SHORT, engine=lambda _, *given: engine(*given))
    assert [*engine.trained] == ["dense", "sdgp", "prunetrain", "clicktrain"]
    for said in ("2/2: images per second", "1/1: conversion times"):
        assert f"measurement {said} of {MODEL}" in printed.getvalue()
    return folder


@pytest.fixture(scope="module")
def trials(folder):
    return trials_of(folder, "cifar10")


def text_of(folder, name):
    return (folder / "reproduce" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_each_leaves_a_page_that_names_its_setting_and_a_figure(folder, name):
    page = text_of(folder, name)
    assert page.index("Not the paper's setting") < page.index("## ")
    assert "preset smoke" in page
    assert "Nothing was pruned" not in page or name == "clicktrain-fig1"
    assert ("Timed on " in page) == (name in TIMED)
    figure = folder / "reproduce" / f"{name}.svg"
    assert figure.exists() == (name not in NO_FIGURE)
    if figure.exists():
        text = " ".join(ElementTree.parse(figure).getroot().itertext())
        assert "nan" not in text.casefold().split()
        assert "mathdefault" not in text
    measured = [row for row in rows(folder, name).values() if row["part"] and row["ours"]]
    assert measured
    assert {row["kind"] for row in measured} <= {"measured", "counted", "modelled"}


def test_the_trials_are_shared(folder, trials):
    methods = [label.partition("[")[0] for label in trials]
    counts = {method: methods.count(method) for method in methods}
    assert counts == {"dense": 1, "sdgp": 7, "prunetrain": 5, "oneshot": 3, "ssl": 2, "clicktrain": 4}
    assert len(trials_of(folder, "imagenette")) == 2


def test_table_1_of_sdgp_has_the_parts_that_ran(folder, trials):
    found = rows(folder, "sdgp-table1")
    accuracies = {label: 100 * float(row["test_accuracy"]) for label, (row, _, _) in trials.items()}
    for mode, published in (("random", "-0.8"), ("magnitude", "-0.1"), ("rescaled", "-0.1")):
        row = found[f"{mode} 2:4 minus dense"]
        assert (row["published"], row["interval"], row["kind"]) == (published, "", "measured")
        assert float(row["ours"]) == pytest.approx(accuracies[f"sdgp[n=2,m=4,mode={mode}]"] - accuracies["dense"])
    assert float(found["accuracy, dense"]["difference"]) == pytest.approx(accuracies["dense"] - 95.3)
    # Trials of another command, for a part that was not requested, are in the table; the part is not called complete.
    assert found["rescaled 16:32 (repository) minus dense"]["ours"]
    assert found["rescaled 8:16 (repository) minus dense"]["note"] == "not run"
    text = text_of(folder, "sdgp-table1")
    assert "epochs 4 instead of 150" in text
    assert "--parts group-sizes" in text


def test_figures_of_sdgps_gradient_are_of_the_dense_trial(folder):
    found = {name: float(row["ours"]) for name, row in rows(folder, "sdgp-fig5").items()}
    for mode in ("random", "magnitude", "rescaled"):
        assert found[f"exact zeros, {mode}"] == pytest.approx(50, abs=1)
        assert 0 < found[f"cosine with the dense gradient, {mode}"] < 1
        assert found[f"relative error of the data gradient, {mode}"] > 0
    errors = [found[f"relative error of the data gradient, {mode}"] for mode in ("magnitude", "random")]
    assert errors[0] < errors[1]
    assert found["sum of magnitudes left in a channel, rescaled, median of channels"] == pytest.approx(100, abs=0.1)
    text = text_of(folder, "sdgp-fig5")
    assert "dO of layer down.conv" in text
    assert "after 8 steps (4 epochs, seed 0)" in text
    assert "model.pt (SHA-256 " in text
    small = rows(folder, "sdgp-fig4")
    assert small["second element of [1, 7, -3, 2], magnitude 2:4"]["ours"] == "7"
    assert float(small["exact zeros, rescaled"]["ours"]) == 50.0


def test_a_trial_that_failed_is_named_and_nothing_is_drawn(tmp_path, reproduce):
    def fail(engine, trials, progress):
        for spec, folder in trials:
            folder.mkdir(parents=True)
            write_record(folder, spec, "timeout", "it took too long")

    out = tmp_path / "out"
    reproduce(out, "sdgp-fig5", *SHORT, status=1, engine=fail)
    assert rows(out, "sdgp-fig5")["exact zeros, dense"]["note"] == "the dense trial is not done"
    text = text_of(out, "sdgp-fig5")
    assert "Trials that are not done and not included in any number here:" in text
    assert "timeout: it took too long" in text
    assert not (out / "reproduce" / "sdgp-fig5.svg").exists()


@pytest.mark.parametrize(
    ("name", "prefix", "method", "change"),
    [
        ("prunetrain-table1", "resnet32 on cifar10", FEW_EPOCHS, "-1.8"),
        ("prunetrain-table3", "prunetrain", "prunetrain", "-0.5"),
    ],
)
def test_tables_of_prunetrain_have_accuracy_flops_and_time(folder, trials, name, prefix, method, change):
    found = rows(folder, name)
    dense, pruned = trials["dense"][0], trials[method][0]
    row = found[f"{prefix}: inference FLOPs left"]
    share = 100 * float(pruned["inference_flops"]) / float(pruned["inference_flops_dense"])
    assert (float(row["ours"]), row["published"], row["kind"]) == (pytest.approx(share), "34", "counted")
    row = found[f"{prefix} minus dense"]
    gap = 100 * (float(pruned["test_accuracy"]) - float(dense["test_accuracy"]))
    assert (float(row["ours"]), row["published"]) == (pytest.approx(gap), change)
    time = float(pruned["train_time_s"]) / float(dense["train_time_s"])
    assert float(found[f"{prefix}: training time left"]["ours"]) == pytest.approx(100 * time)
    assert "the best of all epochs on the test set" in text_of(folder, name)


def test_table_2_of_prunetrain_has_speeds_of_both_networks(folder):
    name = f"{MODEL} on cifar10, batch 10"
    dense, pruned = (
        ours(folder, "prunetrain-table2", f"{name}: {method}, images per second") for method in ("dense", "prunetrain")
    )
    row = rows(folder, "prunetrain-table2")[f"{name}: prunetrain over dense"]
    assert float(row["ours"]) == pytest.approx(pruned / dense)
    assert (row["published"], row["unit"], row["kind"]) == ("", "×", "measured")  # theirs is of another network


def test_figure_2_of_prunetrain_counts_what_the_trials_did(folder, trials):
    row, _, _ = trials["prunetrain"]
    left = float(row["train_flops_current"]) / float(row["train_flops_dense"])
    assert ours(folder, "prunetrain-fig2", "ratio 0.2: training FLOPs left") == pytest.approx(100 * left)
    once = [float(trials[f"oneshot[ratio=0.2,at={at}]"][0]["train_flops_current"]) for at in (0.25, 0.5, 0.75)]
    (extra,) = (row for quantity, row in rows(folder, "prunetrain-fig2").items() if "at its best time" in quantity)
    assert float(extra["ours"]) == pytest.approx(100 * (min(once) / float(row["train_flops_current"]) - 1), abs=1e-6)
    assert extra["published"] == "25"


def test_figure_6_of_prunetrain_gates_what_the_union_keeps(folder, trials):
    row, _, path = trials["prunetrain"]
    union, gated = (
        ours(folder, "prunetrain-fig6", f"{MODEL}, ratio 0.2: inference FLOPs left, {way}")
        for way in ("union", "gating")
    )
    final = 100 * count_model(load_model(path), SHAPE)["inference_flops"] / float(row["inference_flops_dense"])
    assert 0 < gated <= union <= final + 1e-6


def test_figure_8_of_prunetrain_has_inference_and_memory_traffic(folder, trials):
    row, _, _ = trials["ssl[ratio=0.2,from_trained=dense]"]
    left = float(row["inference_flops"]) / float(row["inference_flops_dense"])
    name = "ssl, from trained, ratio 0.2: inference FLOPs left"
    assert ours(folder, "prunetrain-fig8", name) == pytest.approx(100 * left)
    traffic = rows(folder, "prunetrain-fig8")["prunetrain, ratio 0.2: memory traffic of normalisation left"]
    costs = []
    for label in ("prunetrain", "dense"):
        with open(trials[label][2].with_name("layers.csv"), encoding="utf-8", newline="") as file:
            costs.append(prunetrain_training(read_intervals(csv.DictReader(file)))["norm_traffic_bytes"])
    assert float(traffic["ours"]) == pytest.approx(100 * costs[0] / costs[1])
    assert traffic["kind"] == "modelled"


def test_figure_9_of_prunetrain_has_the_memory_and_the_batch_of_each_epoch(folder, trials):
    _, records, _ = trials["prunetrain[dynamic_batch=start]"]
    assert ours(folder, "prunetrain-fig9", "cifar10: last batch") == records[-1]["batch_size"]
    taken = [record["step_memory_bytes"] / records[0]["step_memory_bytes"] for record in records]
    memory = "memory of an epoch's steps, of that of the first, growing batch"
    assert ours(folder, "prunetrain-fig9", f"cifar10: most {memory}") == pytest.approx(100 * max(taken))
    memory = "memory of the last epoch's steps, of that of the first, growing batch"
    row = rows(folder, "prunetrain-fig9")[f"cifar10: {memory}"]
    assert (float(row["ours"]), row["kind"]) == (pytest.approx(100 * taken[-1]), "counted")  # on the CPU
    grew = len({record["batch_size"] for record in records}) > 1
    assert ("The batch did not grow" in text_of(folder, "prunetrain-fig9")) is not grew


def test_figure_12_of_prunetrain_counts_weights_of_the_final_network(folder, trials):
    weights = [weight for weight in load_model(trials["prunetrain"][2]).parameters() if weight.ndim > 1]
    left = sum(weight.numel() for weight in weights)
    near = sum(int((weight.abs() < 1e-4).sum()) for weight in weights)
    share = ours(folder, "prunetrain-fig12", "weights near zero, of those that are left")
    assert share == pytest.approx(100 * near / left)
    built = sum(weight.numel() for weight in build_model(MODEL, SHAPE, 10).parameters() if weight.ndim > 1)
    share = ours(folder, "prunetrain-fig12", "weights left, of those that the network was built with")
    assert share == pytest.approx(100 * left / built)


def test_figure_1_of_clicktrain_counts_two_thirds_and_prunetrains_count_more(folder):
    found = rows(folder, "clicktrain-fig1")
    for network in COUNTED:
        size = networks.NETWORKS[network][0][1]
        suites, theirs = (
            float(found[f"backward, {network}, {size}x{size}, {count}"]["ours"]) for count in networks.COUNTS
        )
        assert 65 < suites < 200 / 3
        assert 70 < theirs < 76 or (network == "vgg16" and round(theirs, 1) == 67.8)
    most = found[f"backward, most of all networks, {networks.COUNTS[1]}"]
    assert most["published"] == "70"
    assert float(most["ours"]) == pytest.approx(networks.network_shares("vgg11_click")[1])
    pair = [row for quantity, row in found.items() if "the trial's network" in quantity]
    assert float(pair[0]["ours"]) == pytest.approx(float(pair[1]["ours"]))  # counted, and by the ledger of its steps


def test_figure_9_of_clicktrain_times_the_pruned_layers_of_the_trial(folder, trials):
    _, records, path = trials["clicktrain[schedule=paper,backend=masked]"]
    pruned = [name for name, layer in records[-1]["layers"].items() if layer["weight_density"] < 0.9]
    assert [layer.name for layer in timed_calls.pruned_layers(str(path), SHAPE)] == pruned
    by_layer = [quantity for quantity in rows(folder, "clicktrain-fig9") if "% left)" in quantity]
    assert [quantity.split(", ")[1].split(" ")[0] for quantity in by_layer] == pruned


def test_table_11_of_clicktrain_has_both_rows_and_what_was_published(folder, trials):
    found, dense = rows(folder, "clicktrain-fig11"), trials["dense"][0]
    for row, given, theirs in (
        ("8.7x", "ratios=cifar10-vgg11_click-1", ("-0.1", "81.5")),
        ("11.5x", "ratios=cifar10-vgg11_click-4", ("-0.3", "85.3")),
    ):
        where = f"vgg11_click on cifar10, {row}"
        trial, records, _ = trials[f"clicktrain[{given},schedule=paper]"]
        saved = found[f"{where}: inference FLOPs saved"]
        assert (found[f"{where} minus dense"]["published"], saved["published"]) == theirs
        left = float(trial["inference_flops_effective"]) / float(dense["inference_flops"])
        assert float(saved["ours"]) == pytest.approx(100 * (1 - left))
        compression = float(found[f"{where}: compression"]["ours"])
        assert compression == pytest.approx(records[-1]["method"]["compression"])
    page = text_of(folder, "clicktrain-fig11")
    assert "--parts vgg13_click-cifar10" in page  # a part that was not run, with its command
    assert "2.82" in page  # what ImageNet's configuration really compresses
    assert f"the network {MODEL} in place of vgg11_click" in page.replace("\\", "")


def test_figure_13_of_clicktrain_sets_stages_over_the_same_trials_own_steps(folder, trials):
    trial = recorded(epochs=trials["clicktrain[schedule=paper]"][1])
    times = step_times(trial)
    assert set(times) == set(STAGES)
    expected = 100 * statistics.median(times["masked"]) / times["warm-up"][0]
    name = f"auto, {STAGES['masked']}: time of a step, of the same trial's before patterns are chosen"
    assert ours(folder, "clicktrain-fig13", name) == pytest.approx(expected)
    # So that times of other machines are not compared.
    assert all(column.endswith("_time_s") for column in stages.median_step_times(trial))


def test_figure_14_of_clicktrain_has_the_trials_times(folder, trials):
    for way in ("masked", "auto"):
        seconds = [float(trials[label][0]["train_time_s"]) for label in (stages.WAYS[way][1], "dense")]
        assert ours(folder, "clicktrain-fig14", f"{way}: training time, of dense's") == pytest.approx(
            100 * seconds[0] / seconds[1]
        )
    assert rows(folder, "clicktrain-fig14")["masked: training FLOPs effective, of dense's"]["kind"] == "counted"
