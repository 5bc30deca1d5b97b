"""The table of dense trainings for fewer epochs."""

from __future__ import annotations

from reports import formatting
from reports.content.model import Cell, Column, Table, quantity_cell
from reports.data.budget import epochs
from reports.data.estimates import Estimate
from reports.data.groups import TrialGroup
from reports.data.method_rows import with_interval
from reports.data.rule import Mean, mean_accuracy, pooled
from reports.data.verdict import evidence


def budget_table(group: TrialGroup, slug: str) -> tuple[Table, ...]:
    """Return a table with one row per number of epochs; none if dense was trained for one number of epochs only.

    Args:
        group: Trials that may be compared, with the shorter dense trainings.
        slug: Prefix of the table's name.
    """
    known = zip((*group.budgets, group), evidence(group, (), "flops").budgets, strict=False)
    found = [(epochs(one), budget) for one, budget in known if budget.accuracies]
    budgets = [budget for _, budget in found]
    if len(budgets) < 2 or budgets[-1].share != 1:
        return ()
    spread = pooled(one.accuracies for one in budgets)
    means = [mean_accuracy(one.accuracies, spread) for one in budgets]
    columns = (
        Column("Epochs"),
        Column("Cost", "× dense", "counted", "The share of training time and of training FLOPs."),
        Column("Seeds done"),
        Column("Test accuracy", "%", "measured", "± has the spread of all lengths together."),
        Column("Difference to all epochs", "points", "measured"),
    )
    rows = []
    for (count, budget), mean in zip(found, means, strict=True):
        seeds = len(budget.accuracies)
        difference = Mean(mean.value - means[-1].value, (*mean.parts, *means[-1].parts))
        rows.append(
            (
                Cell(f"{count:g}", value=count),
                Cell(f"{budget.share:.2f}", value=budget.share),
                Cell(str(seeds), value=float(seeds)),
                _cell(with_interval(mean, seeds), sign=False),
                Cell("0") if budget is budgets[-1] else _cell(with_interval(difference, seeds), sign=True),
            )
        )
    caption = "Dense training for fewer epochs, each with its whole learning-rate schedule: what a method has to beat."
    return (Table(f"{slug}-budgets", caption, columns, tuple(rows)),)


def _cell(points: Estimate, *, sign: bool) -> Cell:
    return quantity_cell(points, formatting.interval(points, 2, sign=sign, reference=0 if sign else None), points.count)
