"""What an accuracy costs: for each target, the ways that are shown to reach it, with and without pruning, by cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from reports import formatting
from reports.content.model import Cell, Column, PriceList
from reports.content.verdict import cost_text
from reports.data.method_rows import MethodRow, spread_of_dense
from reports.data.records import PageGroup, epochs
from reports.data.rule import FEWEST_SEEDS, Answer, Budget, Candidate, mean_accuracy, mean_of_dense
from reports.data.targets import Targets
from reports.data.verdict import Cost, evidence
from reports.sentences import say
from suite.trials.groups import BASELINE

_MOST_NAMES = 4  # of ways in a row, besides dense
_INEXACT = 1e-8  # percent


class _Way(NamedTuple):
    """A way to train, with its cost and the accuracy in percent that it is shown to reach, -inf with a lost seed."""

    cost: float
    reached: float
    share: str
    text: str
    is_dense: bool


def price_list(
    group: PageGroup, rows: Sequence[MethodRow], answer: Answer, cost: Cost, given: Targets, name: str
) -> PriceList | None:
    """Return a table of the cheapest ways to each target; `None` without a target, or if no way can be compared.

    Targets are those that were asked for or declared. Without them, dense training of several lengths gives some: what
    each length is shown to reach, rounded down to a tenth of a percent.

    Args:
        group: Trials that may be compared.
        rows: Ranked rows of the group.
        answer: What the rule says about them at the cost that decides.
        cost: That cost.
        given: The targets that were asked for or declared.
        name: Name of the table.
    """
    ways, left_out = _ways(group, rows, answer, cost)
    targets = [100 * target for target in given.accuracies]
    lengths = [way.reached for way in ways if way.is_dense and way.reached > 0]
    if not targets and len(lengths) > 1:
        targets = [math.floor(10 * reached + 1e-6) / 10 for reached in lengths]
    if not targets or not ways:
        return None
    columns = (
        Column("Accuracy of at least", "%", "measured"),
        Column("Lowest cost", "× dense", "measured" if cost == "time" else "counted"),
        Column("Reached by", numeric=False),
        Column("The ways that reach it, cheapest first", numeric=False),
    )
    body = tuple(_cells(target, ways) for target in sorted({*targets}))
    lead = say("verdict.prices", cost=cost)
    below = say(
        "verdict.prices_mean", cost=cost, origin=given.origin, compared=len(ways), left_out=left_out,
        seeds=FEWEST_SEEDS, ways=bool(answer.without_pruning),
    )  # fmt: skip
    return PriceList(name, "What an accuracy costs", columns, body, lead=lead, below=below)


def _cells(target: float, ways: Sequence[_Way]) -> tuple[Cell, ...]:
    reaching = [way for way in ways if way.reached >= target - _INEXACT]
    dense = [way for way in reaching if way.is_dense][:1]  # what any other way has to beat is always named
    texts = [way.text for way in dict.fromkeys([*reaching[:_MOST_NAMES], *dense])]
    more = len(reaching) - len(texts)
    return (
        Cell(f"{target:g}", value=target),
        Cell(reaching[0].share, value=reaching[0].cost) if reaching else Cell(formatting.DASH),
        Cell(f"{len(reaching)} of {len(ways)} ways"),
        Cell("; ".join([*texts, f"{more} more"] if more > 0 else texts) or "none", spans=True),
    )


def _ways(group: PageGroup, rows: Sequence[MethodRow], answer: Answer, cost: Cost) -> tuple[list[_Way], list[str]]:
    """Return what can be compared, cheapest first, and the names of what lacks a cost, an interval, or seeds."""
    looks, budgets = {row.label: row.look for row in rows}, evidence(group, (), cost).budgets
    spread = spread_of_dense(budgets)
    known: list[tuple[str, float, str, Budget | Candidate]] = [
        (f"`{BASELINE}`, {epochs(length):g} epochs", budget.share, f"{budget.share:.2f}", budget)
        for length, budget in zip((*group.budgets, group), budgets, strict=False)
    ]
    for judged in answer.both:
        name = looks[judged.candidate.label].named(f"`{judged.candidate.label}`")
        of = judged.cost
        text = cost_text(of, cost).partition(" [")[0] if of else ""
        known.append((name, of.share if of else 0.0, text, judged.candidate))
    ways = {}
    for name, share, text, trained in known:
        if not text or len(trained.accuracies) < FEWEST_SEEDS:
            continue
        is_dense = isinstance(trained, Budget)
        mean = (mean_of_dense if is_dense else mean_accuracy)(trained.accuracies, spread)
        reached = -math.inf if trained.diverged else mean.value - mean.half_width()
        mark = ", preliminary" if isinstance(trained, Candidate) and trained.is_preliminary else ""
        if mean.error:
            ways[name] = _Way(share, reached, text, f"{name}: {text}{mark}", is_dense)
    return sorted(ways.values()), [name for name, *_ in known if name not in ways]
