"""Measure how often the claims of a report are wrong, and how often a true loss is found, on simulated accuracies.

    python -m benchmarks.evidence.simulate_claims [--draws 2000] [--seeds 5] [--spread 0.2] [--methods 1,5,12]

Every draw is a page with so many methods: accuracies and times of all seeds are drawn from normal distributions, and
the report's own functions decide what to claim. Printed for each number of methods: the share of pages with a false
claim where no method differs from dense, and the share of methods whose loss of twice the margin is found.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from reports.data.budget import budget_curve, fold_budgets
from reports.data.estimates import mean_of
from reports.data.groups import group_trials, looks
from reports.data.method_rows import MethodRow, method_rows
from reports.data.records import Trial
from reports.data.verdict import MARGIN, Finding, findings

ACCURACY = 0.9
TIME_SPREAD = 0.01  # relative standard deviation of a training time
EPOCHS = 7
BUDGET = 6


def page(
    generator: np.random.Generator,
    methods: int,
    seeds: int,
    spread: float,
    loss: float = 0.0,
    time: float = 1.0,
    budget_loss: float = 0.0,
    time_spread: float = TIME_SPREAD,
) -> tuple[list[MethodRow], list[Finding]]:
    """Draw a page, and return its rows and findings.

    Args:
        generator: Source of the random numbers.
        methods: Number of methods besides dense.
        seeds: Number of seeds.
        spread: Standard deviation of an accuracy over seeds, as a fraction.
        loss: True loss of accuracy of every method against dense training for the same number of epochs, as a fraction.
        time: True training time of every method relative to dense.
        budget_loss: True loss of accuracy of dense training for 6 of 7 epochs, as a fraction.
        time_spread: Relative standard deviation of a training time.
    """

    def trial(method: str, seed: int, accuracy: float, epochs: int, cost: float) -> Trial:
        accuracy += generator.normal(0.0, spread)
        seconds = cost * generator.normal(1.0, time_spread)
        numbers = {"seed": seed, "epochs": epochs, "test_accuracy": accuracy, "train_time_s": 100 * seconds}
        flops = {f"train_flops_{kind}": 1e12 * cost for kind in ("current", "effective", "executed")}
        spec = {"recipe": {"epochs": epochs}}
        return Trial({"method": method, "status": "done"}, {**numbers, **flops, "train_flops_dense": 1e12}, spec)

    lengths = ((EPOCHS, 0.0), (BUDGET, budget_loss))
    trials = [trial("dense", seed, ACCURACY - less, count, 1.0) for seed in range(seeds) for count, less in lengths]
    names = [f"method{index}" for index in range(methods)]
    trials += [trial(name, seed, ACCURACY - loss, EPOCHS, time) for name in names for seed in range(seeds)]
    (group,) = fold_budgets(group_trials(trials)[0])
    rows = method_rows(group, looks(names))
    return rows, findings(rows, budget_curve(group), MARGIN)


def makes_a_false_claim(rows: Sequence[MethodRow], found: Sequence[Finding]) -> bool:
    """Return whether a page without a true difference claims one: in a headline, or in the verdict."""
    return any(row.accuracy_is_certain or row.time_is_certain for row in rows) or any(
        finding.outcome == "pays" for finding in found
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the shares for each number of methods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000, help="pages per line (default: 2000)")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each method (default: 5)")
    parser.add_argument("--spread", type=float, default=0.2, help="standard deviation of an accuracy (0.2 points)")
    parser.add_argument("--methods", default="1,5,12", help="numbers of methods on a page (default: 1,5,12)")
    typed = parser.parse_args(arguments)
    generator, spread = np.random.default_rng(0), typed.spread / 100
    print(f"{typed.draws} pages, {typed.seeds} seeds, spread {typed.spread} points, margin {100 * MARGIN:g} points")
    for methods in map(int, typed.methods.split(",")):
        false = sum(
            makes_a_false_claim(*page(generator, methods, typed.seeds, spread, time=1.0)) for _ in range(typed.draws)
        )
        draws = max(1, typed.draws // methods)
        lossy = [page(generator, methods, typed.seeds, spread, loss=2 * MARGIN, time=0.9) for _ in range(draws)]
        losses = [row for rows, _ in lossy for row in rows if row.accuracy_is_certain]
        found = sum((mean_of(row.accuracy_difference) or 0.0) < 0 for row in losses) / (draws * methods)
        named = sum(one.outcome == "does not pay" for _, all_found in lossy for one in all_found if one.cost == "time")
        print(
            f"{methods:3d} methods: false claims on {100 * false / typed.draws:.1f} % of pages; "
            f"a loss of {200 * MARGIN:g} points is found in {100 * found:.0f} %, "
            f"and said not to pay in {100 * named / (draws * methods):.0f} %"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
