"""Measure how often the claims of a report are wrong, and how often a true saving is found, on simulated trainings.

    python -m benchmarks.simulate_claims [--draws 10000] [--seeds 3,5,6,10] [--only TEXT] [--jobs 2]

Every draw is a page: accuracies and costs are drawn, and the function of the report (`reports.data.rule.judge`) decides
what to claim. The draws of a line start from a seed that it prints. A rate of false claims passes at 2.5 % plus two
standard errors of the simulation; a line that does not is marked.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from reports.data.rule import LEVEL, Answer, Budget, Candidate, Evidence, judge

WHOLE = 88.7  # accuracy of the whole dense training
MOST_SEEDS = 10  # of a page to which seeds are added until something is decided


@dataclass(frozen=True)
class Page:
    """What is true on a page, and how it is measured.

    Attributes:
        methods, groups: Number of methods in each group, and of groups.
        costs: Cost of each method relative to dense, evenly spaced between these two.
        gain: True gain at equal cost, in points.
        loss: True accuracy minus that of the whole dense training; replaces `gain`.
        margin: δ, in points.
        shares: Lengths of dense training.
        steepness, bend: Dense training for a cost c loses steepness · (c^-bend - 1) points.
        spread: Standard deviation of an accuracy over seeds.
        spreads: Factors of it for dense and for each method; the last one is that of all further methods.
        pair: Whether the second method has the first one's trainings, as one with other statistics has. Power then
            counts the methods after them.
        dense_seeds: Seeds of each length of dense training; 0 for as many as methods have.
        correlation: Of accuracies with the same seed.
        degrees: Of the t distribution of accuracies; 0 for a normal one.
        diverging: Probability that a seed of a method ends at a guess.
        passes, pass_error: Time passes, and their standard deviation of ln of a ratio.
        uneven: Factor of it for the first method.
        cost_spread: Standard deviation over seeds of ln of a cost, on which accuracies depend. Costs are then FLOPs,
            one for each seed.
        grows: Whether seeds are added until something is decided.
        images: Test images, which accuracies are multiples of; 0 for exact ones.
    """

    methods: int = 3
    groups: int = 1
    costs: tuple[float, float] = (0.64, 0.93)
    gain: float = 0.0
    loss: float | None = None
    margin: float = 0.5
    shares: tuple[float, ...] = (0.55, 0.7, 0.8, 0.9, 1.0)
    steepness: float = 7.0  # both as CIFAR-10 in 4, 6 and 7 epochs: 83.3, 85.9 and 86.7 %
    bend: float = 0.7
    spread: float = 0.2
    spreads: tuple[float, ...] = (1.0,)
    pair: bool = False
    dense_seeds: int = 0
    correlation: float = 0.0
    degrees: int = 0
    diverging: float = 0.0
    passes: int = 3
    pass_error: float = 0.0075
    uneven: float = 1.0
    cost_spread: float = 0.0
    grows: bool = False
    images: int = 0

    def dense(self, cost: float) -> float:
        """Return the true accuracy of dense training for a cost."""
        return WHOLE - self.steepness * (cost**-self.bend - 1)

    def draw(self, random: np.random.Generator, seeds: int) -> list[Evidence]:
        """Draw accuracies and costs of all groups."""
        return [self._group(random, seeds) for _ in range(self.groups)]

    def _group(self, random: np.random.Generator, seeds: int) -> Evidence:
        shared = random.normal(size=seeds)

        def noise(factor: float, count: int = seeds) -> NDArray[np.float64]:
            values = random.standard_t(self.degrees, count) if self.degrees else random.normal(size=count)
            if self.degrees:
                values /= math.sqrt(self.degrees / (self.degrees - 2))
            mixed = math.sqrt(self.correlation) * shared[:count] + math.sqrt(1 - self.correlation) * values
            return factor * self.spread * mixed

        def passes(cost: float, factor: float = 1.0) -> tuple[float, ...]:
            return tuple(cost * np.exp(random.normal(0, factor * self.pass_error, self.passes)))

        factors = [self.spreads[min(number, len(self.spreads) - 1)] for number in range(self.methods + 1)]
        budgets = tuple(
            Budget(share, self._shown(self.dense(share) + noise(factors[0], self.dense_seeds or seeds)))
            for share in self.shares
        )
        candidates: list[Candidate] = []
        trainings = [noise(factor) for factor in factors[1:]]
        if self.pair:
            trainings[1] = trainings[0]
        for number, (cost, training) in enumerate(zip(np.linspace(*self.costs, self.methods), trainings, strict=True)):
            costs = cost * np.exp(random.normal(0, self.cost_spread, seeds))
            mean = np.array([self.dense(one) for one in costs]) + self.gain if self.loss is None else WHOLE + self.loss
            left = random.random(seeds) >= self.diverging
            ratios = tuple(costs[left]) if self.cost_spread else passes(cost, 1.0 if number else self.uneven)
            lost = int((~left).sum())
            accuracies = self._shown((mean + training)[left])
            candidates.append(Candidate(str(number), accuracies, ratios, lost, by_seed=self.cost_spread > 0))
        return Evidence(budgets, tuple(candidates), passes(1.0), measured=not self.cost_spread)

    def _shown(self, accuracies: NDArray[np.float64]) -> tuple[float, ...]:
        """Return accuracies as multiples of a test image."""
        return tuple(np.round(accuracies / 100 * self.images) / self.images * 100 if self.images else accuracies)


Claim = Callable[[Answer], list[bool]]


def at_equal_cost(*words: str) -> Claim:
    """Return a function that says of which methods one of these words was said at equal cost."""
    return lambda answer: [one.at_equal_cost in words for one in answer.judged]


def as_good(word: str) -> Claim:
    """Return a function that says of which methods this word answers whether they are as good in less time."""
    return lambda answer: [one.as_good == word for one in answer.judged]


COARSE = Page(shares=(4 / 7, 5 / 7, 6 / 7, 1.0), steepness=1.65, bend=2.0)  # loses 3.4 points at 4 of 7 epochs
FLAT = Page(steepness=0.45, bend=1.0, spread=0.15)  # 15 % less training loses 0.08 points
SHORTER = replace(FLAT, loss=0.0, costs=(0.85, 0.85), margin=0.3)
NEVER = Page(loss=0.0, costs=(1.0, 1.0))
PAIR = Page(methods=5, spreads=(1, 10, 10, 1), pair=True)
CAMPAIGN = Page(methods=5, spread=0.23, spreads=(1, 10, 10, 6.8, 0.35, 0.7), pair=True)  # the first campaign's spreads
DIFFERENT = Page(costs=(0.6, 0.6), pass_error=0.075)
BY_SEED = Page(cost_spread=0.05)  # as PruneTrain's FLOPs
FALSE: tuple[tuple[str, str, Page], ...] = (
    ("better", "concave curve", Page()),
    ("worse", "concave curve", Page()),
    ("better", "strongly concave, dense at 4 to 7 of 7 epochs", COARSE),
    ("worse", "strongly concave, dense at 4 to 7 of 7 epochs", COARSE),
    ("better", "flat curve (150 epochs)", FLAT),
    ("better", "15 methods", Page(methods=15)),
    ("better", "two groups", Page(groups=2)),
    ("worse", "two groups", Page(groups=2)),
    ("better", "seeds correlated by 0.5", Page(correlation=0.5)),
    ("better", "heavy tails (t with 3 degrees of freedom)", Page(degrees=3)),
    ("worse", "heavy tails (t with 3 degrees of freedom)", Page(degrees=3)),
    ("better", "1 seed in 20 of a method diverges", Page(diverging=0.05)),
    ("worse", "1 seed in 20 of a method diverges", Page(diverging=0.05)),
    ("better", "all methods with three times the spread", Page(spreads=(1, 3))),
    ("better", "dense with three times the spread", Page(spreads=(3, 1))),
    ("better", "one method with three times the spread", Page(spreads=(1, 3, 1))),
    ("worse", "one method with three times the spread", Page(spreads=(1, 3, 1))),
    ("better", "passes differ by 3 %, cost 0.6", Page(costs=(0.6, 0.6), pass_error=0.03)),
    ("worse", "passes differ by 3 %, cost 0.6", Page(costs=(0.6, 0.6), pass_error=0.03)),
    ("better", "cost 1.019", Page(costs=(1.019, 1.019))),
    ("same", "gain of the margin, 0.5", Page(gain=0.5)),
    ("same", "gain of the margin, 1.0", Page(gain=1.0, margin=1.0)),
    ("same", "loss of the margin, 0.5", Page(gain=-0.5)),
    ("yes", "loss of the margin, cost 0.85", Page(loss=-0.5, costs=(0.85, 0.85))),
    ("yes", "loss of the margin, 0.3, cost 0.85", Page(loss=-0.3, margin=0.3, costs=(0.85, 0.85))),
    ("yes", "no loss, cost 1", NEVER),
    ("no", "loss of the margin, cost 0.85", Page(loss=-0.5, costs=(0.85, 0.85))),
    ("no", "no loss, cost 1", NEVER),
    ("better", "seeds added until something is decided", Page(grows=True)),
    ("better", "1 method", Page(methods=1, costs=(0.85, 0.85))),
    ("worse", "1 method", Page(methods=1, costs=(0.85, 0.85))),
    ("yes", "1 method, loss of the margin, cost 0.85", Page(methods=1, loss=-0.5, costs=(0.85, 0.85))),
    ("better", "2 methods", Page(methods=2)),
    ("worse", "2 methods", Page(methods=2)),
    ("better", "360 test images", Page(images=360)),
    ("worse", "360 test images", Page(images=360)),
    *(
        (claim, f"passes of one method differ {factor} times as much, no loss, cost 1", replace(NEVER, uneven=factor))
        for factor in (3, 10)
        for claim in ("yes", "no")
    ),
    *(
        (claim, text, page)
        for text, page in (
            ("a pair of one training with 10 times the spread, of 5 methods", PAIR),
            ("spreads of campaign 1", CAMPAIGN),
            ("dense has three seeds", Page(dense_seeds=3)),
            ("cost 1, passes differ by 3 %", Page(costs=(1.0, 1.0), pass_error=0.03)),
            ("costs 0.97 to 1.03", Page(costs=(0.97, 1.03))),
            ("passes all differ by 7.5 %, cost 0.6", DIFFERENT),
            ("passes all differ by 7.5 %, cost 0.6, five passes", replace(DIFFERENT, passes=5)),
            ("FLOPs of seeds differ by 5 %", BY_SEED),
        )
        for claim in ("better", "worse")
    ),
    ("same", "FLOPs of seeds differ by 5 %, gain of the margin", replace(BY_SEED, gain=0.5)),
    ("yes", "FLOPs of seeds differ by 5 %, loss of the margin", replace(BY_SEED, loss=-0.5, costs=(0.85, 0.85))),
    ("yes", "a pair with 10 times the spread, loss of the margin", replace(PAIR, loss=-0.5, costs=(0.85, 0.85))),
    ("no", "a pair with 10 times the spread, loss of the margin", replace(PAIR, loss=-0.5, costs=(0.85, 0.85))),
    ("yes", "5 methods with 10 times the spread, loss of the margin",
     Page(methods=5, spreads=(1, 10), loss=-0.5, costs=(0.85, 0.85))),
    *(
        ("better", f"{methods} methods with {factor} times the spread", Page(methods=methods, spreads=(1, factor)))
        for methods, factor in ((10, 3), (10, 10), (15, 5), (15, 10), (20, 7))
    ),
    ("better", "seeds added until something is decided, three times the spread", Page(grows=True, spreads=(1, 3))),
)  # fmt: skip
TRUE: tuple[tuple[str, str, Page], ...] = (
    *(
        (claim, f"{text}, {methods} methods", replace(page, methods=methods))
        for claim, text, page in (
            ("better", "10 % saved at no loss, 7 epochs", Page(loss=0.0, costs=(0.9, 0.9))),
            ("worse", "loss of 0.5 points at equal cost", Page(gain=-0.5)),
            ("same", "no gain at equal cost", Page()),
            ("yes", "15 % saved at no loss, 150 epochs, δ 0.3", SHORTER),
            ("yes", "3 % saved at no loss, three passes", Page(loss=0.0, costs=(0.97, 0.97))),
            ("yes", "3 % saved at no loss, five passes", Page(loss=0.0, costs=(0.97, 0.97), passes=5)),
        )
        for methods in (3, 5)
    ),
    ("worse", "loss of 0.5 points beside a pair with 10 times the spread, 5 methods", replace(PAIR, gain=-0.5)),
)


def rate(claim: str, page: Page, seeds: int, draws: int, seed: int, each: bool) -> float:
    """Return the share of pages with a claim about any method, or with `each` the share of methods with one."""
    random = np.random.default_rng(seed)
    said = as_good(claim) if claim in ("yes", "no") else at_equal_cost(claim)
    total = 0.0
    for _ in range(draws):
        found = [one for answer in _answers(random, page, seeds) for one in said(answer)]
        found = found[2:] if each and page.pair else found
        total += sum(found) / len(found) if each else any(found)
    return total / draws


def _answers(random: np.random.Generator, page: Page, seeds: int) -> list[Answer]:
    if not page.grows:
        return judge(page.draw(random, seeds), page.margin)
    whole = page.draw(random, MOST_SEEDS)
    for count in range(seeds, MOST_SEEDS + 1):
        answers = judge([_first(evidence, count) for evidence in whole], page.margin)
        if any(one.at_equal_cost in ("better", "worse") for answer in answers for one in answer.judged):
            break
    return answers


def _first(evidence: Evidence, seeds: int) -> Evidence:
    """Return the evidence of the first seeds."""
    return replace(
        evidence,
        budgets=tuple(replace(one, accuracies=one.accuracies[:seeds]) for one in evidence.budgets),
        candidates=tuple(replace(one, accuracies=one.accuracies[:seeds]) for one in evidence.candidates),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and return 1 if a rate of false claims is too high."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000, help="pages per number (default: 10000)")
    parser.add_argument("--seeds", default="3,5,6,10", help="numbers of seeds (default: 3,5,6,10)")
    parser.add_argument("--only", default="", help="text that the printed lines have")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    typed = parser.parse_args(arguments)
    counts = [int(text) for text in typed.seeds.split(",")]
    limit = LEVEL + 2 * math.sqrt(LEVEL * (1 - LEVEL) / typed.draws)
    head = f"| claim | condition | {' | '.join(f'n = {count}' for count in counts)} | seed |"
    tables = (
        (f"False claims on a page, % of {typed.draws:,} pages; limit {100 * limit:.1f} %", FALSE, False),
        (f"True claims found, % of methods on {typed.draws:,} pages", TRUE, True),
    )
    exceeded = 0
    with ProcessPoolExecutor(typed.jobs) as pool:
        started = {
            (title, number): [pool.submit(rate, claim, page, count, typed.draws, number, each) for count in counts]
            for title, lines, each in tables
            for number, (claim, text, page) in enumerate(lines)
            if typed.only in f"{claim} {text}"
        }
        for title, lines, each in tables:
            print(f"{title}\n\n{head}\n| --- | --- | {'---: | ' * len(counts)}---: |", flush=True)
            for number, (claim, text, _) in enumerate(lines):
                found = [one.result() for one in started.get((title, number), ())]
                marks = [" **above**" if not each and one > limit else "" for one in found]
                exceeded += any(marks)
                shown = " | ".join(f"{100 * one:.1f}{mark}" for one, mark in zip(found, marks, strict=True))
                if found:
                    print(f"| `{claim}` | {text} | {shown} | {number} |", flush=True)
            print()
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
