"""The verdict about time of a campaign, recomputed from its records by NumPy and SciPy alone."""

import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

RESULTS = Path(__file__).parents[2] / "results/cpu-zen4-2cores"
MARGIN, LEVEL = 0.5, 0.025
FROZEN_AFTER = 3  # epochs of the recipe
SURE_SEEDS = 5


def records(folder):
    """Return the accuracy in percent by method with its parameters, by epochs and by seed, and each trial's seed."""
    accuracies, seeds, families = defaultdict(dict), {}, {}
    for path in folder.glob("trials/*/trial.json"):
        record = json.loads(path.read_text())
        spec = record["spec"]
        label = f"{spec['method']}[{spec['variant']}]" if spec["variant"] else spec["method"]
        accuracies[label, spec["recipe"]["epochs"]][spec["seed"]] = 100 * record["result"]["test_accuracy"]
        seeds[path.parent.name] = spec["seed"]
        families[label] = "twin" if spec["control"] else spec.get("prunes", True)
    sorted_by_seed = {key: np.array([values[seed] for seed in sorted(values)]) for key, values in accuracies.items()}
    return sorted_by_seed, seeds, families


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


def verdict(folder, prunes):
    """Return for each timed method of a family its gain, the half of its interval and the word of the answer."""
    known, seed_of, families = records(folder)
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
    lengths = sorted(epochs for label, epochs in known if label == "dense" and len(known[label, epochs]) >= 3)
    cost = np.array([FROZEN_AFTER * before + (epochs - FROZEN_AFTER) * after for epochs in lengths])
    x, dense = np.log((cost / cost[-1] + fixed) / (1 + fixed)), [known["dense", epochs] for epochs in lengths]
    n, means = np.array([len(one) for one in dense]), np.array([one.mean() for one in dense])
    spread, of_spread = sum((one.var() * len(one)) for one in dense) / (n - 1).sum(), (n - 1).sum()
    unit = [np.polyfit(x, row, 2, w=np.sqrt(n)) for row in np.eye(len(x))]  # weights of the means
    curve = np.polyfit(x, means, 2, w=np.sqrt(n))
    floor = np.var([np.log(np.median(np.divide(*pairs(one["twice"])))) for one in of_dense], ddof=1)

    gains, raw = {}, defaultdict(list)
    claims = len({label for label, _ in known if families[label] == prunes and label != "dense"})
    for label in labels:
        passes = timed[label]
        (seeds,) = (values for (name, _), values in known.items() if name == label)
        values, count = np.log([ratio(one) for one in passes]), len(seeds)
        error_of_cost = np.sqrt(max(values.var(ddof=1), floor) / len(values))
        if len(passes) == count == len({seed_of[one["trial"]] for one in passes}):
            low = values.mean() - stats.t.ppf(0.975, count - 1) * error_of_cost
            logs = np.zeros(count) if low > 0 else values
            own, uncertain = seeds - np.polyval(curve, logs), []
        else:
            logs, own = values.mean(keepdims=True), seeds - np.polyval(curve, values.mean())
            slope = max(np.polyval(np.polyder(curve), values.mean()), 0)
            uncertain = [((slope * error_of_cost) ** 2, len(values) - 1)]
        at = np.array([np.polyval(row, logs).mean() for row in unit])
        spread_of_method = max(seeds.var(ddof=1) if uncertain else own.var(ddof=1), spread)
        parts = [(spread_of_method / count, count - 1), (spread * (at**2 / n).sum(), of_spread), *uncertain]
        error, nu = np.sqrt(sum(variance for variance, _ in parts)), freedom(parts)
        gains[label] = own.mean(), stats.t.ppf(1 - LEVEL * (1 - 2 / count) / claims, nu) * error
        for claim, value in {
            "better": own.mean(), "worse": -own.mean(), "above": MARGIN + own.mean(), "below": MARGIN - own.mean(),
        }.items():  # fmt: skip
            raw[claim].append(min(1, count / (count - 2) * stats.t.sf(value / error, nu)))
    raw = {claim: [*values, *[1.0] * (claims - len(labels))] for claim, values in raw.items()}  # others claim nothing
    shown = {claim: {labels[place] for place, p in holm(values).items() if p <= LEVEL} for claim, values in raw.items()}

    few = {label for label, epochs in known if len(known[label, epochs]) < SURE_SEEDS}

    def word(label):
        other = f"same within {MARGIN:g}" if label in shown["above"] & shown["below"] else "undecided"
        said = next((claim for claim in ("better", "worse") if label in shown[claim]), other)
        return f"{said}, preliminary" if label in few and said != "undecided" else said

    return {label: (*gains[label], word(label)) for label in labels}


@pytest.mark.parametrize(("name", "prunes"), [("campaign", True)])
def test_the_verdict_about_time_is_that_of_another_computation(name, prunes):
    answers = verdict(RESULTS / name, prunes)
    lines = (RESULTS / name / "report.md").read_text().split("### ")[0].splitlines()
    rows = {line.split("`")[1]: line.split(" | ") for line in lines if line.startswith("| `")}
    assert answers
    for label, (gain, half, word) in answers.items():
        cells = [re.sub("<sup>.*?</sup>", "", cell) for cell in rows[label]]
        mean, _, width = cells[4].replace("−", "-").replace("+", "").partition(" ± ")
        digits = len(width.partition(".")[2])
        assert (float(mean), float(width)) == pytest.approx((gain, half), abs=0.5001 * 10**-digits)
        assert cells[5] == word
