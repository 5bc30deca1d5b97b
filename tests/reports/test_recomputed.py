"""Every number of a campaign's first table, recomputed from its records by NumPy and SciPy alone."""

import gzip
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

RESULTS = Path(__file__).parents[2] / "results"
MARGIN, LEVEL = 0.5, 0.025
FROZEN_AFTER = 3  # epochs of the recipe
SURE_SEEDS = 5


class Trained(NamedTuple):
    """What the trials of a method with its parameters and epochs recorded, in the order of seeds."""

    accuracies: np.ndarray  # percent
    executed: np.ndarray  # FLOPs
    dense: np.ndarray
    inference: np.ndarray  # relative to dense


class Costs(NamedTuple):
    """What training costs, relative to the whole dense training."""

    lengths: np.ndarray  # of dense training
    methods: dict  # label: logarithms, and whether these are one for each seed
    floor: float  # least variance of a logarithm


def records(folder):
    """Return the trials by method with its parameters and epochs; what a method is; and the seeds of trials."""
    found, seeds, families = defaultdict(dict), {}, {}
    for path in folder.glob("trials/*/trial.json"):
        record = json.loads(path.read_text())
        spec, result = record["spec"], record["result"]
        label = f"{spec['method']}[{spec['variant']}]" if spec["variant"] else spec["method"]
        seeds[path.parent.name] = spec["seed"]
        families[label] = "twin" if spec["control"] else spec.get("prunes", True)
        last = json.loads(gzip.decompress((path.parent / "epochs.jsonl.gz").read_bytes()).splitlines()[-1])
        zeros_are_skipped = {*last.get("backends", {}).values()} - {"torch"}
        inference = result["inference_flops_effective" if zeros_are_skipped else "inference_flops"]
        found[label, spec["recipe"]["epochs"]][spec["seed"]] = (
            100 * result["test_accuracy"], result["train_flops_executed"], result["train_flops_dense"],
            inference / result["inference_flops_dense"],
        )  # fmt: skip
    trained = {key: Trained(*np.array([one[seed] for seed in sorted(one)]).T) for key, one in found.items()}
    return trained, families, seeds


def pairs(text):
    return np.array(text.split(), dtype=float).reshape(-1, 2).T


def seconds_of_phases(one):
    """Return the median seconds of a dense step before and after the biases are frozen, in microseconds."""
    return [
        np.median(np.concatenate([pairs(state)[1] for stage in one["stages"] if stage["frozen"] == frozen
                                  for state in (stage["start"], stage["end"]) if state]))
        for frozen in (False, True)
    ]  # fmt: skip


def steps_of_dense(one):
    before, after = seconds_of_phases(one)
    return sum(part["steps"] * (after if part["frozen"] else before) for part in one["dense"])


def fixed_of_dense(one):
    """Return the time of dense's `precise_bn` relative to its steps."""
    return 1e6 * one.get("dense_reconfigure_s", 0.0) / steps_of_dense(one)


def ratio(one):
    """Return the training time of a pass relative to dense."""
    before, after = seconds_of_phases(one)
    own = 1e6 * one["reconfigure_s"]
    for stage in one["stages"]:
        states = [np.median(np.divide(*pairs(stage[name]))) for name in ("start", "end") if stage[name]]
        own += stage["steps"] * np.mean(states) * (after if stage["frozen"] else before)
    return own / (steps_of_dense(one) * (1 + fixed_of_dense(one)))


def holm(values):
    order = np.argsort(values)
    steps = np.maximum.accumulate((len(values) - np.arange(len(values))) * np.sort(values))
    return dict(zip(order.tolist(), np.minimum(steps, 1), strict=True))


def freedom(parts):
    return sum(variance for variance, _ in parts) ** 2 / sum(variance**2 / of for variance, of in parts if variance)


def half_width(variance, nu, level=LEVEL):
    return stats.t.ppf(1 - level, nu) * np.sqrt(variance)


def lengths_of_dense(trained):
    return sorted(key for key, one in trained.items() if key[0] == "dense" and len(one.accuracies) >= 3)


def costs_by_flops(trained, families, prunes):
    lengths = lengths_of_dense(trained)
    whole = trained[lengths[-1]]
    fixed = (whole.executed / whole.dense - 1).mean()
    cost = np.array([trained[key].dense[0] / whole.dense[0] for key in lengths])
    logs = {
        label: (np.log(one.executed / (one.dense if prunes else whole.dense[0]) / (1 + fixed)), True)
        for (label, _), one in trained.items() if families[label] == prunes and label != "dense"
    }  # fmt: skip
    return Costs((cost + fixed) / (1 + fixed), logs, 0.0)


def costs_by_time(trained, families, prunes, seed_of, folder):
    (group,) = json.loads((folder / "time.json").read_text())["groups"]
    timed = {
        label: sorted(entry["passes"], key=lambda one: seed_of[one["trial"]])
        for label, entry in group["methods"].items()
    }
    labels = [label for label in timed if families[label] == prunes]
    of_dense = [one for label in timed if not prunes or label in labels for one in timed[label]]
    first = next(one for label in timed if families[label] for one in group["methods"][label]["passes"])
    before, after = seconds_of_phases(first)
    fixed = np.mean([fixed_of_dense(one) for one in of_dense])
    cost = np.array([FROZEN_AFTER * before + (key[1] - FROZEN_AFTER) * after for key in lengths_of_dense(trained)])
    counts = {label: len(one.accuracies) for (label, _), one in trained.items() if label in labels}
    logs = {
        label: (
            np.log([ratio(one) for one in timed[label]]),
            len(timed[label]) == counts[label] == len({seed_of[one["trial"]] for one in timed[label]}),
        )
        for label in labels
    }
    floor = np.var([np.log(np.median(np.divide(*pairs(one["twice"])))) for one in of_dense], ddof=1)
    return Costs((cost / cost[-1] + fixed) / (1 + fixed), logs, floor)


def page(trained, families, prunes, costs):
    """Return what a table says of each method of a family, and costs and accuracies of dense lengths.

    Of a method, this is its accuracy, spread, cost, gain (numbers with their intervals), dense for its cost, and the
    words of both answers. A length of dense has the lower end of its accuracy.
    """
    shares, dense = costs.lengths, [trained[key].accuracies for key in lengths_of_dense(trained)]
    x, n, means = np.log(shares), np.array([len(one) for one in dense]), np.array([one.mean() for one in dense])
    spread, of_spread = sum((one.var() * len(one)) for one in dense) / (n - 1).sum(), (n - 1).sum()
    unit = [np.polyfit(x, row, 2, w=np.sqrt(n)) for row in np.eye(len(x))]  # weights of the means
    curve = np.polyfit(x, means, 2, w=np.sqrt(n))
    halves = half_width(spread / n, of_spread)
    whole = np.polyval(curve, 0), spread * (np.array([row[-1] for row in unit]) ** 2 / n).sum()
    said = {"dense": {"accuracy": (means[-1], halves[-1]), "spread": (np.sqrt(spread),), "cost": (1.0,)}}

    raw = defaultdict(list)
    of_family = {label: one.accuracies for (label, _), one in trained.items() if families[label] == prunes}
    of_family.pop("dense", None)
    claims, labels = len(of_family), [label for label in costs.methods if len(of_family[label]) >= 3]
    for label, seeds in of_family.items():
        count = len(seeds)
        own = half_width(max(seeds.var(ddof=1), spread) / count, count - 1) if count > 1 else None
        said[label] = {"accuracy": (seeds.mean(), *([own] if own else []))}
        said[label]["spread"] = (seeds.std(ddof=1),) if own else ()
        said[label]["missing"] = "too few seeds" if count < 3 else "no time pass"
        if label in costs.methods:
            said[label]["cost"] = (np.exp(costs.methods[label][0].mean()),)
    for label in labels:
        seeds, (values, by_seed) = of_family[label], costs.methods[label]
        count, error_of_cost = len(seeds), np.sqrt(max(values.var(ddof=1), costs.floor) / len(values))
        is_exact = error_of_cost < 1e-9
        width = half_width(error_of_cost**2, len(values) - 1)
        said[label]["cost"] += () if is_exact else tuple(np.exp(values.mean() + np.array([-width, width])))
        is_dearer = values.mean() > width + 1e-9
        if by_seed:
            logs = np.zeros(count) if is_dearer else values
            own, uncertain = seeds - np.polyval(curve, logs), []
        else:
            logs = np.zeros(1) if is_dearer else values.mean(keepdims=True)
            own = seeds - np.polyval(curve, logs)
            slope = max(np.polyval(np.polyder(curve), logs[0]), 0)
            uncertain = [((slope * error_of_cost) ** 2, len(values) - 1)]
        at = np.array([np.polyval(row, logs).mean() for row in unit])
        spread_of_method = max(seeds.var(ddof=1) if uncertain else own.var(ddof=1), spread)
        parts = [(spread_of_method / count, count - 1), (spread * (at**2 / n).sum(), of_spread), *uncertain]
        variance, nu = sum(variance for variance, _ in parts), freedom(parts)
        said[label]["gain"] = own.mean(), half_width(variance, nu, LEVEL * (1 - 2 / count) / claims)
        for claim, value in {
            "better": own.mean(), "worse": -own.mean(), "above": MARGIN + own.mean(), "below": MARGIN - own.mean(),
        }.items():  # fmt: skip
            never = is_dearer and claim != "worse"
            raw[claim].append(1 if never else min(1, count / (count - 2) * stats.t.sf(value / np.sqrt(variance), nu)))
        said[label]["dense"] = np.polyval(curve, logs).mean(), 1.0 if is_dearer else said[label]["cost"][0]
        loss = seeds.mean() - whole[0] + MARGIN
        parts = [(max(seeds.var(ddof=1), spread) / count, count - 1), (whole[1], of_spread)]
        statistic, nu = loss / np.sqrt(sum(variance for variance, _ in parts)), freedom(parts)
        kept, lost = (min(1, count / (count - 2) * stats.t.sf(one, nu)) for one in (statistic, -statistic))
        cheaper, dearer = (
            float(sign * values.mean() < 1e-9) if is_exact
            else stats.t.sf(sign * values.mean() / error_of_cost, len(values) - 1) for sign in (-1, 1)
        )  # fmt: skip
        raw["yes"].append(max(kept, cheaper))
        raw["lossy"].append(lost)
        raw["slower"].append(dearer)
    raw = {claim: [*values, *[1.0] * (claims - len(labels))] for claim, values in raw.items()}  # others claim nothing
    shown = {claim: {labels[place] for place, p in holm(values).items() if p <= LEVEL} for claim, values in raw.items()}

    def marked(label, word):
        is_sure = len(of_family[label]) >= SURE_SEEDS or word in ("undecided", "no dense as long")
        return word if is_sure else f"{word}, preliminary"

    for label in labels:
        other = f"same within {MARGIN:g}" if label in shown["above"] & shown["below"] else "undecided"
        word = next((claim for claim in ("better", "worse") if label in shown[claim]), other)
        if said[label]["cost"][0] < shares[0]:
            word, said[label]["gain"] = "no dense as short", ()
            del said[label]["dense"]
        elif said[label]["dense"][1] == 1 < said[label]["cost"][0] and word != "worse":
            word, said[label]["gain"] = "no dense as long", ()
        as_good = "yes" if label in shown["yes"] else "no" if label in shown["lossy"] | shown["slower"] else "undecided"
        said[label] |= {"word": marked(label, word), "as good": marked(label, as_good)}
    return said, [*zip(shares, means - halves, strict=True)]


def without_notes(cell):
    return re.sub("<sup>.*?</sup>", "", cell)


def assert_shown(cell, values):
    """Assert that a cell has these numbers, rounded."""
    texts = re.findall(r"[-+]?\d+(?:\.\d+)?", without_notes(cell).replace("−", "-"))
    assert len(texts) == len(values), cell
    for text, value in zip(texts, values, strict=True):
        assert float(text) == pytest.approx(value, abs=0.5001 * 10 ** -len(text.partition(".")[2]))


def assert_is(lines, said, inference):
    """Assert that a table shows what was recomputed."""
    rows = {line.split("`")[1]: line.split(" | ") for line in lines if line.startswith("| `")}
    assert {*said} <= {*rows}
    for label, one in said.items():
        cells, ratios = rows[label], inference[label]
        assert_shown(cells[1], one["accuracy"])
        assert_shown(cells[2], one["spread"])
        cost, digits = one.get("cost", ()), 3 if "Training time" in lines[0] else 2
        assert_shown(cells[3], cost if len({round(end, digits) for end in cost}) > 1 else cost[:1])
        assert_shown(cells[4], one.get("gain", ()))
        for cell, answer in ((cells[5], "word"), (cells[6], "as good")):
            assert without_notes(cell) == one.get(answer, "–" if label == "dense" else one.get("missing"))
        if "dense" in one:
            of_dense = lines[lines.index(" | ".join(cells)) + 1].split(" | ")
            assert_shown(of_dense[1], one["dense"][:1])
            assert_shown(of_dense[3], one["dense"][1:])
        ends = (ratios.min(), ratios.max()) if np.ptp(ratios) > 1e-9 else ()
        assert_shown(cells[7], (np.exp(np.log(ratios).mean()), *ends))


@pytest.mark.parametrize("name", ["cpu-zen4-2cores/campaign", "cpu-emr-amx-2cores/campaign-2"])
def test_the_verdicts_are_those_of_another_computation(name):
    trained, families, seed_of = records(RESULTS / name)
    inference = {label: one.inference for (label, _), one in trained.items()}
    labels = {label for label in families if families[label] != "twin"}
    lines = (RESULTS / name / "report.md").read_text().splitlines()
    heads = [place for place, line in enumerate(lines) if re.match(r"\| Method \|.*\| Gain over", line)]
    is_timed = (RESULTS / name / "time.json").exists()
    assert len(heads) == 1 + is_timed
    for place in reversed(heads):  # the first table comes last, for the price list
        said = {}
        for prunes in {True, False} & {*families.values()}:
            if "Training time" in lines[place]:
                costs = costs_by_time(trained, families, prunes, seed_of, RESULTS / name)
            else:
                costs = costs_by_flops(trained, families, prunes)
            answers, lengths = page(trained, families, prunes, costs)
            said |= answers
        assert {*said} == labels
        assert_is(lines[place : lines.index("", place)], said, inference)
    # The price list: of all ways with a cost and an interval, those that are shown to reach what dense lengths do.
    ways = lengths + [
        (one["cost"][0], one["accuracy"][0] - one["accuracy"][1]) for one in said.values() if "word" in one
    ]
    prices = [line.split(" | ") for line in lines[: heads[0]] if re.match(r"\| \d", line)]
    targets = sorted({np.floor(10 * reached + 1e-6) / 10 for _, reached in lengths})
    assert len(prices) == len(targets)
    for cells, target in zip(prices, targets, strict=True):
        reaching = [cost for cost, reached in ways if reached >= target - 1e-8]
        assert_shown(cells[0], (target,))
        assert_shown(cells[1], (min(reaching),))
        assert cells[2] == f"{len(reaching)} of {len(ways)} ways"
