"""What an accuracy costs: for each target, the ways that are shown to reach it, with and without pruning, by cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports import formatting
from reports.content.model import Cell, Column, Section, Table
from reports.content.targets import TargetRequest
from reports.data.method_rows import MethodRow, spread_of_dense, with_interval
from reports.data.rule import FEWEST_SEEDS, Answer, Budget, Candidate, mean_of_dense
from reports.data.targets import targets_of
from reports.data.verdict import Cost, evidence
from reports.sentences import say
from suite.trials.estimates import Estimate, Missing, Quantity
from suite.trials.groups import BASELINE, TrialGroup, epochs

_MOST_NAMES = 4
_INEXACT = 1e-8  # percent


@dataclass(frozen=True)
class _Way:
    """A way to train that was compared.

    Attributes:
        text: Its name, its cost, and whether it is preliminary.
        cost: Its cost relative to the whole dense training.
        reached: Accuracy that it is shown to reach, in percent: the lower end of its 95 % interval. It is -inf if a
            seed diverged or learned nothing.
        is_dense: Whether it is dense training of some length.
    """

    text: str
    cost: float
    reached: float
    is_dense: bool


def price_list(
    group: TrialGroup, rows: Sequence[MethodRow], answer: Answer, cost: Cost, request: TargetRequest, name: str
) -> Section | None:
    """Return a table of the cheapest ways to each target; `None` without a target, or if no way can be compared.

    Targets are those that were asked for or declared. Without them, dense training of several lengths gives some: what
    each length is shown to reach, rounded down to a tenth of a percent.

    Args:
        group: Trials that may be compared.
        rows: Ranked rows of the group.
        answer: What the rule says about them at the cost that decides.
        cost: That cost.
        request: The targets that were asked for or declared.
        name: Name of the table.
    """
    every = [*_lengths(group, cost), *_others(rows, answer)]
    ways = sorted((way for way in every if way is not None), key=lambda way: way.cost)
    given, origin = targets_of(request.suite, request.asked, rows, 0.0, default=False)
    targets = [100 * target for target in given]
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
    reached = [(one, [way for way in ways if way.reached >= one - _INEXACT]) for one in sorted({*targets})]
    body = tuple(_cells(target, several, len(ways)) for target, several in reached)
    left_out = len(every) - len(ways)
    line = say("verdict.prices", cost=cost, origin=origin, compared=len(ways), left_out=left_out, seeds=FEWEST_SEEDS)
    title = "What an accuracy costs"
    return Section(title, "prices", (line,), (Table(name, title, columns, body),))


def _cells(target: float, ways: Sequence[_Way], compared: int) -> tuple[Cell, ...]:
    texts = [way.text for way in ways[:_MOST_NAMES]]
    more = len(ways) - len(texts)
    return (
        Cell(f"{target:g}", value=target),
        Cell(f"{ways[0].cost:.2f}", value=ways[0].cost) if ways else Cell(formatting.DASH),
        Cell(f"{len(ways)} of {compared} ways"),
        Cell("; ".join([*texts, *([f"{more} more"] if more else [])]) or "none", spans=True),
    )


def _lengths(group: TrialGroup, cost: Cost) -> list[_Way | None]:
    """Return dense training of each length; `None` for those that cannot be compared."""
    budgets = evidence(group, (), cost).budgets
    spread = spread_of_dense(budgets)
    ways = []
    for length, budget in zip((*group.budgets, group), budgets, strict=False):
        seeds = len(budget.accuracies)
        mean = with_interval(mean_of_dense(budget.accuracies, spread), seeds) if seeds else Missing("no seed is done")
        ways.append(_way(f"`{BASELINE}`, {epochs(length):g} epochs", budget.share, budget, mean))
    return ways


def _others(rows: Sequence[MethodRow], answer: Answer) -> list[_Way | None]:
    """Return methods and ways without pruning; `None` for those that cannot be compared."""
    judged = {one.candidate.label: one for one in answer.both}
    known = [(row, judged[row.label]) for row in rows if row.label in judged]
    return [
        _way(row.look.named(f"`{row.label}`"), getattr(one.cost, "share", None), one.candidate, _percent(row.accuracy))
        for row, one in known
    ]


def _percent(accuracy: Quantity) -> Quantity:
    return accuracy.scaled(100) if isinstance(accuracy, Estimate) else accuracy


def _way(name: str, cost: float | None, trained: Budget | Candidate, accuracy: Quantity) -> _Way | None:
    """Return a way; `None` if its cost or interval is not known, or if it has too few seeds."""
    few = len(trained.accuracies) < FEWEST_SEEDS
    if cost is None or few or isinstance(accuracy, Missing) or accuracy.half_width is None:
        return None
    mark = ", preliminary" if isinstance(trained, Candidate) and trained.is_preliminary else ""
    reached = -math.inf if trained.diverged else accuracy.low
    return _Way(f"{name}: {cost:.2f}{mark}", cost, reached, isinstance(trained, Budget))
