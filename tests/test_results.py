"""Reports, method cards and the README agree with committed results."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from suite import registry

ROOT = Path(__file__).parents[1]
REPORTS = [path.parent for path in sorted((ROOT / "results").glob("*/*/report.md"))]
SDGP_TABLES = sorted(path.parent for path in (ROOT / "results").glob("*/sdgp-table1/results.csv"))


@pytest.mark.parametrize("folder", REPORTS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_the_accuracies_of_a_report_are_the_means_of_its_table(folder):
    """The report is read as text, and the means are pandas's own."""
    table = pd.read_csv(folder / "results.csv", dtype={"variant": str}).fillna({"variant": ""})
    done = table[table["status"] == "done"]
    done = done.assign(label=done["method"] + done["variant"].map(lambda text: f"[{text}]" if text else ""))
    text = (folder / "report.md").read_text("utf-8")
    rows = re.findall(r"^\| `([^`]+)` (?:\(no pruning\) )?\| ([\d.]+)", text, re.MULTILINE)
    means = {label: [] for label in done["label"]}
    for (label, _), trials in done.groupby(["label", "epochs"]):
        means[label].append(100 * trials.groupby("seed")["test_accuracy"].mean().mean())
    first = {label: text for label, text in reversed(rows) if label in means}  # of the first table
    assert {*first} == {*means} != set()
    for label, text in first.items():
        rounding = 0.51 * 10 ** -len(text.partition(".")[2])
        assert min(abs(float(text) - mean) for mean in means[label]) <= rounding, label


@pytest.mark.parametrize("folder", SDGP_TABLES, ids=lambda folder: folder.parent.name)
def test_a_reproduction_agrees_with_its_table_and_the_card(folder):
    table = pd.read_csv(folder / "results.csv").fillna({"variant": "dense"})
    assert (table["status"] == "done").all()
    accuracy = table.pivot(index="seed", columns="variant", values="test_accuracy") * 100
    assert sorted(accuracy.index) == [0, 1, 2]
    lines = pd.read_csv(folder / "reproduce" / "sdgp-table1.csv").set_index("quantity")
    card = " ".join((ROOT / "docs" / "methods" / "sdgp.md").read_text(encoding="utf-8").split())
    for mode in ("random", "magnitude", "rescaled"):
        differences = accuracy[f"n=2,m=4,mode={mode}"] - accuracy["dense"]
        line = lines.loc[f"{mode} 2:4 minus dense"]
        assert line["ours"] == pytest.approx(differences.mean())
        assert line["interval"] == pytest.approx(4.302653 * differences.sem(), rel=1e-5)  # t of two degrees of freedom
        quoted = f"{mode} {line['ours']:+.1f} ± {line['interval']:.1f}".replace("-", "\N{MINUS SIGN}")
        assert quoted in card


def test_the_card_has_the_steps_of_cut_networks_as_they_were_measured():
    card = (ROOT / "docs" / "methods" / "prunetrain.md").read_text(encoding="utf-8")
    text = " ".join(card.split())
    folder = ROOT / "results" / "cpu-zen4-2cores"
    half, single = (
        json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["found"]
        for name in ("bench_pruned", "bench_pruned_float32")
    )

    def time(one):
        return f"{one['median']:.2f} ({one['low']:.2f} to {one['high']:.2f})"

    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$", card, re.MULTILINE)
    assert {network for network, *_ in rows} == {"vgg11", "resnet32", "resnet50_cifar"}
    assert len(rows) == 6
    for network, rounding, *quoted in rows:
        one, other = (found[f"{network}, round_to {rounding}"] for found in (half, single))
        assert quoted == [f"{100 * one['inference_flops']:.1f} %", time(one), time(other)]
    nothing_removed = [one["median"] for name, one in half.items() if name.endswith("(nothing removed) / dense")]
    assert f"{min(nothing_removed):.2f} to {max(nothing_removed):.2f}" in text
    for name in ("resnet32: union / dense", "resnet32: gated / dense"):
        assert time(half[name]) in text
        assert f"{100 * half[name]['inference_flops']:.1f} %" in text


def test_the_card_has_resnet32_as_it_was_trained():
    card = " ".join((ROOT / "docs" / "methods" / "prunetrain.md").read_text(encoding="utf-8").split())
    table = pd.read_csv(ROOT / "results" / "cpu-zen4-2cores" / "prunetrain-resnet32.csv")
    (dense,) = table.loc[table["method"] == "dense", "test_accuracy"]
    assert f"dense {100 * dense:.2f} %" in card
    said = (
        ("proximal", 0.81, "`proximal` removes {}, {} and {} % of the inference FLOPs for {}, {} and {} points"),
        ("subgradient", 0.3, "`subgradient` {}, {} and {} % for {}, {} and {}"),
    )
    for update, ratio, text in said:
        rows = table[(table["update"] == update) & (table["ratio"] == ratio)].set_index("threshold")
        rows = rows.loc[[0.05, 0.07, 0.09]]
        removed = 100 * (1 - rows["inference_flops"] / rows["inference_flops_dense"])
        lost = 100 * (dense - rows["test_accuracy"])
        assert text.format(*removed.map("{:.0f}".format), *lost.map("{:.1f}".format)) in card


def test_the_card_has_clicktrain_s_layers_and_steps_as_they_were_measured():
    card = (ROOT / "docs" / "methods" / "clicktrain.md").read_text(encoding="utf-8")
    path = ROOT / "results" / "cpu-zen5-2cores" / "bench_patterns.json"
    found = json.loads(path.read_text(encoding="utf-8"))["found"]
    whole = found["layers"].pop("resnet32_wide")
    assert whole["times_as_fast"] >= 2  # the bar
    by_speed = sorted((one["times_as_fast"], shape) for shape, one in found["layers"].items())
    slowest, fastest = (f"{speed:.2f} ({shape})" for speed, shape in (by_speed[0], by_speed[-1]))
    text = " ".join(card.split())
    assert f"together {whole['times_as_fast']:.2f} times as fast as dense, from {slowest} to {fastest}" in text
    assert min(one["known"]["median"] for one in found["conversion"].values()) >= 5  # the bar
    assert found["steps"]["vgg11_click[width=0.5]: compact / masked"]["median"] <= 0.7  # the bar
    measured = {}
    for name, one in found["steps"].items():
        network, _, what = name.partition(": ")
        network, _, scope = network.partition(", ")
        what = what.replace("compact", "skipping")  # the former name of this backend
        what = f"{scope}, {what}" if scope else what
        measured[f"`{network}`: {what}"] = f"{one['median']:.2f} ({one['low']:.2f} to {one['high']:.2f})"
    rows = dict(re.findall(r"^\| (`vgg11_click\S*: .+?) \| (.+?) \|$", card, re.MULTILINE))
    assert len(rows) >= 5
    assert rows.items() <= measured.items()


VARIANTS = {  # what the card calls them
    "ratios=cifar10-vgg11_click-1,schedule=paper": "the list",
    "ratios=cifar10-vgg11_click-1,warmup=0.15,hard_prune=0.3": "the list, early",
    "compression=8.1,schedule=paper": "`uniform`",
    "compression=8.1,allocation=erdos_renyi,schedule=paper": "`erdos_renyi`",
    "compression=8.1,allocation=erdos_renyi,warmup=0.15,hard_prune=0.3": "`erdos_renyi`, early",
}


@pytest.fixture(scope="module")
def vgg11():
    """The trials of seven epochs, by seed, and dense's accuracies in percent."""
    table = pd.read_csv(ROOT / "results" / "cpu-zen5-2cores" / "clicktrain-vgg11.csv").sort_values("seed")
    table = table[table["epochs"] == 7]
    return table, 100 * table.loc[table["method"] == "dense", "test_accuracy"].to_numpy()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_card_has_vgg11_as_clicktrain_trained_it_in_quick(vgg11, variant):
    card = (ROOT / "docs" / "methods" / "clicktrain.md").read_text(encoding="utf-8")
    table, dense = vgg11
    assert f"dense {dense[0]:.2f} and {dense[1]:.2f} %" in card
    ours = table[table["variant"] == variant]
    left = [
        100 * (ours[cost] / ours[f"{cost.removesuffix('_effective')}_dense"]).mean()
        for cost in ("inference_flops_effective", "train_flops_effective")
    ]
    accuracy = 100 * ours["test_accuracy"].to_numpy()
    first, second = accuracy - dense
    quoted = f"{accuracy[0]:.2f} {accuracy[1]:.2f} ({first:+.2f} {second:+.2f})".replace("-", "\N{MINUS SIGN}")
    assert f"| {VARIANTS[variant]} | {left[0]:.1f} % | {left[1]:.1f} % | {quoted} |" in card


def test_the_readme_names_the_arithmetic_of_the_steps_that_it_quotes():
    """Ratios depend on the number format, so each is quoted with its own."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    half, single = (
        json.loads((ROOT / "results" / "cpu-zen4-2cores" / f"{name}.json").read_text(encoding="utf-8"))["found"]
        for name in ("bench_pruned", "bench_pruned_float32")
    )
    times = [found["resnet32, round_to 1"]["median"] for found in (half, single)]
    assert "takes {:.2f} of the dense time in bfloat16 and {:.2f} in float32".format(*times) in readme
    path = ROOT / "results" / "cpu-zen5-2cores" / "bench_patterns.json"
    steps = json.loads(path.read_text(encoding="utf-8"))["found"]["steps"]
    network = "vgg11_click[width=0.5]: "
    names = ("compact / masked", "compact, float32 / dense, bfloat16", "auto / dense, both bfloat16")
    quoted = [steps[network + name]["median"] for name in names]
    text = (
        "takes {:.2f} of the time of a float32 step that multiplies the zeros, and {:.2f} of a dense bfloat16 step; "
        "a bfloat16 step takes {:.2f}"
    )
    assert text.format(*quoted) in readme


def test_the_short_setting_of_prunetrain_for_resnet32_follows_from_counted_flops():
    table = pd.read_csv(ROOT / "results" / "cpu-zen4-2cores" / "prunetrain-resnet32.csv")
    tried = table[table["update"] == "subgradient"]
    gone = tried[tried["inference_flops"] < 0.8 * tried["inference_flops_dense"]]
    weakest = gone.loc[gone["inference_flops"].idxmax()]
    assert (
        f"prunetrain[ratio={weakest['ratio']},threshold={weakest['threshold']}]"
        in registry.get("reproduction", "prunetrain-table1")().declared.parts[0].methods
    )
