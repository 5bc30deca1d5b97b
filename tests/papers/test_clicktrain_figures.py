"""ClickTrain's figures and its ImageNet table, from the command to their files; they share their trials."""

from __future__ import annotations

import statistics
import warnings
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest
import torch
from reproduced_files import ours, parts_of, rows, trials_of

from kernels.sparse_conv.cpu import library
from reports.papers import stages, timed_calls
from reports.papers.comparison import Comparison
from reports.papers.contract import ReproductionData
from reports.papers.networks import COUNTS, NETWORKS, network_shares
from reports.papers.stages import STAGES, step_times, time_by_stage
from suite.choices import build_model
from suite.engine.cost.flops import count_layers
from suite.trials.estimates import Estimate
from suite.trials.folder.reader import Trial

# In this order: each finds most of its trials done by those before it.
NAMES = tuple(f"clicktrain-fig{number}" for number in (13, 14, 12, 9, 1))
pytestmark = pytest.mark.timeout(600)  # the first waits for ten trials
MODEL = "resnet9[width=0.125]"
SHORT = (
    *("--preset", "smoke", "--epochs", "4", "--set", "recipe.train_images=100", "--set", "recipe.test_images=100"),
    *("--batch-size", "32", "--seeds", "1", "--model", MODEL, "--device", "cpu", "--dtype", "float32", "--jobs", "2"),
)
needs_kernels = pytest.mark.skipif(library() is None, reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, reproduce):
    """A folder in which all of them ran."""
    folder = tmp_path_factory.mktemp("figures") / "out"
    for name in NAMES:
        without = (
            ["--parts", "backends"] if library() is None and name in ("clicktrain-fig13", "clicktrain-fig14") else []
        )
        reproduce(folder, name, *SHORT, *without, processes=name == "clicktrain-fig9")
    return folder


@pytest.fixture(scope="module")
def trials(folder):
    return trials_of(folder, "cifar10")


@pytest.mark.parametrize("name", NAMES)
def test_each_leaves_a_page_that_names_its_setting_and_a_figure(folder, name):
    page = (folder / "reproduce" / f"{name}.md").read_text(encoding="utf-8")
    assert "Not the paper's setting" in page
    assert "preset smoke" in page
    assert "the network resnet9[width=0.125] in place of" in page.replace("\\", "")
    assert "network" not in page.partition("set by the command:")[2].partition("\n")[0]
    assert "Nothing was pruned" not in page or name == "clicktrain-fig1"
    assert ("Timed on " in page) == (name == "clicktrain-fig9")
    text = " ".join(ElementTree.parse(folder / "reproduce" / f"{name}.svg").getroot().itertext())
    assert "nan" not in text.casefold().split()
    assert "mathdefault" not in text
    measured = [row for row in rows(folder, name).values() if row["part"] and row["ours"]]
    assert measured
    assert {row["kind"] for row in measured} <= {"measured", "counted"}


def test_the_trials_were_shared(folder, trials):
    """Dense and three backends; dense and one compression on Imagenette."""
    assert len(trials) == (4 if library() is not None else 3)
    assert len(trials_of(folder, "imagenette")) == 2


def test_figure_1_counts_two_thirds_and_prunetrains_count_more(folder):
    found = rows(folder, "clicktrain-fig1")
    for network, (shape, _) in NETWORKS.items():
        suites, theirs = (
            float(found[f"backward, {network}, {shape[1]}x{shape[2]}, {count}"]["ours"]) for count in COUNTS
        )
        assert 65 < suites < 200 / 3
        assert 70 < theirs < 76 or (network == "vgg16" and round(theirs, 1) == 67.8)
    most = found[f"backward, most of all networks, {COUNTS[1]}"]
    assert (most["published"], float(most["ours"])) == ("70", pytest.approx(network_shares("vgg11_click")[1]))
    pair = [row for quantity, row in found.items() if "the trial's network" in quantity]
    assert float(pair[0]["ours"]) == pytest.approx(float(pair[1]["ours"]))  # counted, and by the ledger of its steps


def test_figure_1_by_hand():
    """Of ResNet-18: its first convolution has no data gradient by ours, and one by PruneTrain's."""
    with torch.device("meta"):
        costs = count_layers(build_model("resnet18", (3, 224, 224), 1000), (3, 224, 224))
    first = costs["conv1"]
    assert first.macs == 64 * 112 * 112 * 3 * 49
    whole = sum(cost.macs for cost in costs.values())
    suites, theirs = network_shares("resnet18")
    assert suites == pytest.approx(100 * (2 * whole - first.macs) / (3 * whole - first.macs))
    assert theirs > suites


def test_figure_9_makes_forms_of_the_same_weights():
    weight = torch.zeros(4, 3, 3, 3)
    weight[1, 2, 0, 0], weight[3, 0, 1, 2] = 2.0, -1.0
    layer = timed_calls.Layer("one", weight, (1, 1), (1, 1), (1, 1), (5, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        csr, known, anew = (call() for call in timed_calls.conversions(layer).values())
    assert csr.values().tolist() == known.tolist() == anew.tolist() == [2.0, -1.0]


def test_figure_9_times_the_pruned_layers_of_the_trial(folder, trials):
    _, records, path = trials["clicktrain[schedule=paper,backend=masked]"]
    pruned = [name for name, layer in records[-1]["layers"].items() if layer["weight_density"] < 0.9]
    assert [layer.name for layer in timed_calls.pruned_layers(str(path), (3, 32, 32))] == pruned
    by_layer = [quantity for quantity in rows(folder, "clicktrain-fig9") if "% left)" in quantity]
    assert [quantity.split(", ")[1].split(" ")[0] for quantity in by_layer] == pruned


def trial_of(*epochs):
    """Each epoch: its stage, steps, seconds of training until then, of which for reconfigurations."""
    records = tuple(
        {"epoch": 1 + at, "steps": steps, "train_time_s": time, "reconfigure_time_s": other,
         **({"method": {"stage": stage}} if stage else {})}
        for at, (stage, steps, time, other) in enumerate(epochs)
    )  # fmt: skip
    return Trial({}, {}, epochs=records)


def test_figure_13_has_the_time_of_a_step_by_stage():
    trial = trial_of(
        ("warm-up", 10, 9.0, 4.0), ("warm-up", 10, 11.0, 4.0), ("lasso", 10, 14.0, 4.0), ("masked", 5, 15.0, 4.0)
    )
    assert step_times(trial) == {"warm-up": [0.2], "lasso": [0.3], "masked": [0.2]}
    assert step_times(trial_of(("", 10, 5.0, 0.0))) == {"dense": [0.5]}
    assert time_by_stage(trial) == {
        "dense steps": 7.0, "under the lasso": 3.0, "after hard pruning": 1.0, "measuring the backends": 4.0,
    }  # fmt: skip


def test_figure_13_sets_stages_over_the_same_trials_own_steps(folder, trials):
    _, records, _ = trials["clicktrain[schedule=paper]"]
    times = step_times(Trial({}, {}, epochs=tuple(records)))
    assert set(times) == set(STAGES)
    expected = 100 * statistics.median(times["masked"]) / times["warm-up"][0]
    name = f"auto, {STAGES['masked']}: time of a step, of the same trial's before patterns are chosen"
    assert ours(folder, "clicktrain-fig13", name) == pytest.approx(expected)
    assert rows(folder, "clicktrain-fig13")[name]["kind"] == "measured"
    columns = stages.median_step_times(Trial({}, {}, epochs=tuple(records)))
    assert all(column.endswith("_time_s") for column in columns)  # so that times of other machines are not compared


def test_figure_14_has_the_trials_times(folder, trials):
    for way in ("masked", "auto"):
        seconds = [float(trials[label][0]["train_time_s"]) for label in (stages.WAYS[way][1], "dense")]
        assert ours(folder, "clicktrain-fig14", f"{way}: training time, of dense's") == pytest.approx(
            100 * seconds[0] / seconds[1]
        )
    assert ours(folder, "clicktrain-fig14", "masked: training FLOPs executed, of dense's") == pytest.approx(100)
    assert rows(folder, "clicktrain-fig14")["masked: training FLOPs effective, of dense's"]["kind"] == "counted"


@needs_kernels
def test_figure_14_executes_what_is_effective_where_every_layer_skips(folder):
    effective, executed = (
        ours(folder, "clicktrain-fig14", f"skipping: training FLOPs {which}, of dense's")
        for which in ("effective", "executed")
    )
    assert executed == pytest.approx(effective)
    assert executed < 90


def test_figure_12_says_what_stands_in_for_imagenet(folder):
    page = (folder / "reproduce" / "clicktrain-fig12.md").read_text(encoding="utf-8")
    assert "task imagenette instead of imagenet" in page
    assert "says nothing about" in page
    row = rows(folder, "clicktrain-fig12")["resnet18 on imagenette minus dense"]
    assert (row["published"], row["seeds"]) == ("-0.9", "1")
    assert "ours for ten of them" in row["note"]
    compression = ours(folder, "clicktrain-fig12", "resnet18 on imagenette: compression")
    _, records, _ = trials_of(folder, "imagenette")["clicktrain[ratios=solved,compression=4.1,schedule=paper]"]
    assert compression == pytest.approx(records[-1]["method"]["compression"])


def test_figure_12_declares_imagenets_rows_beside_their_own_numbers():
    parts = [part for part in parts_of("clicktrain-fig12") if part.task == "imagenet"]
    assert [part.model for part in parts] == ["resnet18", "resnet50", "resnet101", "vgg16"]
    for part in parts:
        assert part.name == f"{part.model}-imagenet"
        for one in part.compared:
            assert one.method in part.methods
            if one.published:
                assert f"/{part.model}" in one.published


def test_what_learned_nothing_is_said_to_have_lost_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(stages, "inputs_of", lambda spec: SimpleNamespace(classes=10))
    trials = {accuracy: Trial({"trial_id": "one"}, {"test_accuracy": accuracy}) for accuracy in (0.1, 0.4)}
    ran = ReproductionData(tmp_path, {}, {"one": None}, "cpu")
    (line,) = stages.warnings(ran, [trials[0.4], trials[0.1]], [])
    assert "it classifies 10 % of the test images correctly, and 10 % is chance" in line
    assert stages.warnings(ran, [trials[0.4]], []) == stages.warnings(ran, [], []) == ()


def test_what_took_no_less_time_is_named(tmp_path):
    ran = ReproductionData(tmp_path, {}, {}, "cpu")
    slow, fast = (
        Comparison(f"{name}: training time, of dense's", "%", "part", Estimate(share, None, 1), "measured")
        for name, share in (("slow", 104.0), ("fast", 60.0))
    )
    assert stages.warnings(ran, [], [slow, fast]) == (
        "No time was saved here by these methods, in percent of dense: slow (104 %).",
    )
    assert stages.warnings(ran, [], [fast]) == ()
