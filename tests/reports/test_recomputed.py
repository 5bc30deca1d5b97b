"""The verdict about time of the first campaign, recomputed from its records by NumPy and SciPy alone."""

import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

CAMPAIGN = Path(__file__).parents[2] / "results/cpu-zen4-2cores/campaign"
MARGIN, LEVEL = 0.5, 0.025
FROZEN_AFTER = 3  # epochs of the recipe


def accuracies():
    """Return the accuracies in percent by method with its parameters, and by epochs."""
    found = defaultdict(dict)
    for path in CAMPAIGN.glob("trials/*/trial.json"):
        record = json.loads(path.read_text())
        spec = record["spec"]
        label = f"{spec['method']}[{spec['variant']}]" if spec["variant"] else spec["method"]
        found[label, spec["recipe"]["epochs"]][spec["seed"]] = 100 * record["result"]["test_accuracy"]
    return {key: np.array([values[seed] for seed in sorted(values)]) for key, values in found.items()}


def pairs(text):
    return np.array(text.split(), dtype=float).reshape(-1, 2).T


def seconds_of_phases(one):
    """Return the median seconds of a dense step before and after the biases are frozen, in microseconds."""
    return [
        np.median(np.concatenate([pairs(state)[1] for stage in one["stages"] if stage["frozen"] == frozen
                                  for state in (stage["start"], stage["end"]) if state]))
        for frozen in (False, True)
    ]  # fmt: skip


def ratio(one):
    """Return the training time of a pass relative to dense."""
    before, after = seconds_of_phases(one)
    dense = sum(part["steps"] * (after if part["frozen"] else before) for part in one["dense"])
    own = 1e6 * one["reconfigure_s"]
    for stage in one["stages"]:
        states = [np.median(np.divide(*pairs(stage[name]))) for name in ("start", "end") if stage[name]]
        own += stage["steps"] * np.mean(states) * (after if stage["frozen"] else before)
    return own / dense


def holm(values):
    order = np.argsort(values)
    steps = np.maximum.accumulate((len(values) - np.arange(len(values))) * np.sort(values))
    return dict(zip(order.tolist(), np.minimum(steps, 1), strict=True))


def freedom(parts):
    return sum(variance for variance, _ in parts) ** 2 / sum(variance**2 / of for variance, of in parts if variance)


def test_the_verdict_about_time_is_that_of_another_computation():
    known = accuracies()
    (group,) = json.loads((CAMPAIGN / "time.json").read_text())["groups"]
    first = next(iter(group["methods"].values()))["passes"][0]
    before, after = seconds_of_phases(first)
    lengths = sorted(epochs for label, epochs in known if label == "dense" and len(known[label, epochs]) >= 3)
    cost = np.array([FROZEN_AFTER * before + (epochs - FROZEN_AFTER) * after for epochs in lengths])
    x, dense = np.log(cost / cost[-1]), [known["dense", epochs] for epochs in lengths]
    n, means = np.array([len(one) for one in dense]), np.array([one.mean() for one in dense])
    spread, of_spread = sum((one.var() * len(one)) for one in dense) / (n - 1).sum(), (n - 1).sum()
    unit = [np.polyfit(x, row, 2, w=np.sqrt(n)) for row in np.eye(len(x))]  # weights of the means
    twice = [one for method in group["methods"].values() for one in method["passes"]]
    floor = np.var([np.log(np.median(np.divide(*pairs(one["twice"])))) for one in twice], ddof=1)

    labels, gains, raw = list(group["methods"]), {}, defaultdict(list)
    claims = len({label for label, epochs in known if label != "dense" and epochs == lengths[-1]})
    for label in labels:
        passes = sorted(group["methods"][label]["passes"], key=lambda one: re.search(r"-s(\d+)-", one["trial"])[1])
        seeds, values = known[label, lengths[-1]], np.log([ratio(one) for one in passes])
        assert len(seeds) == len({one["trial"] for one in passes}) == 3, (
            "the formulas below are of a pass for each seed"
        )
        low = values.mean() - stats.t.ppf(0.975, 2) * np.sqrt(max(values.var(ddof=1), floor) / 3)
        logs = np.zeros(3) if low > 0 else values
        at = np.array([np.polyval(row, logs).mean() for row in unit])
        own = seeds - np.polyval(np.polyfit(x, means, 2, w=np.sqrt(n)), logs)
        parts = [(max(own.var(ddof=1), spread) / 3, 2), (spread * (at**2 / n).sum(), of_spread)]
        error, nu = np.sqrt(sum(variance for variance, _ in parts)), freedom(parts)
        gains[label] = own.mean(), stats.t.ppf(1 - LEVEL * (1 - 2 / 3) / claims, nu) * error
        for claim, value in {
            "better": own.mean(), "worse": -own.mean(), "above": MARGIN + own.mean(), "below": MARGIN - own.mean(),
        }.items():  # fmt: skip
            raw[claim].append(min(1, 3 * stats.t.sf(value / error, nu)))
    raw = {claim: [*values, *[1.0] * (claims - len(labels))] for claim, values in raw.items()}  # one seed: no claim
    shown = {claim: {labels[place] for place, p in holm(values).items() if p <= LEVEL} for claim, values in raw.items()}
    words = {
        label: next((word for word in ("better", "worse") if label in shown[word]), "undecided") for label in labels
    }
    assert not shown["above"] & shown["below"]

    lines = (CAMPAIGN / "report.md").read_text().split("### ")[0].splitlines()
    rows = {line.split("`")[1]: line.split(" | ") for line in lines if line.startswith("| `")}
    for label in labels:
        cells = [re.sub("<sup>.*?</sup>", "", cell) for cell in rows[label]]
        mean, _, width = cells[4].replace("−", "-").partition(" ± ")
        digits = len(width.partition(".")[2])
        assert (float(mean), float(width)) == pytest.approx(gains[label], abs=0.5001 * 10**-digits)
        assert cells[5] == f"{words[label]}, preliminary"
