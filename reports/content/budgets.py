"""The table of dense trainings for fewer epochs."""

from __future__ import annotations

from reports import formatting
from reports.content.model import Cell, Column, Table, quantity_cell
from reports.data.budget import BudgetCurve
from reports.data.estimates import Estimate, Quantity, estimate


def budget_table(curve: BudgetCurve, epochs: float, slug: str) -> tuple[Table, ...]:
    """Return a table with one row per number of epochs; none if dense was trained for one number of epochs only.

    Args:
        curve: Dense training for shares of the epochs.
        epochs: Number of epochs of the whole training.
        slug: Prefix of the table's name.
    """
    shares = curve.shares
    if len(shares) < 2:
        return ()
    columns = (
        Column("Epochs"),
        Column("Cost", "× dense", "counted", "The share of the epochs, of training time and training FLOPs alike."),
        Column("Seeds done"),
        Column("Test accuracy", "%", "measured"),
        Column("Difference to all epochs", "points", "measured", "Paired by seed."),
    )
    rows = []
    for share in shares:
        accuracies = curve.with_share(share)
        accuracy = estimate(list(accuracies.values()), "not measured")
        whole = curve.with_share(1.0)
        difference = estimate([value - whole[seed] for seed, value in accuracies.items()], "not measured")
        rows.append(
            (
                Cell(f"{share * epochs:g}", value=share * epochs),
                Cell(f"{share:.2f}", value=share),
                Cell(str(len(accuracies)), value=float(len(accuracies))),
                _cell(accuracy, sign=False),
                Cell("0") if share == 1.0 else _cell(difference, sign=True),
            )
        )
    caption = "Dense training for fewer epochs, each with its whole learning-rate schedule: what a method has to beat."
    return (Table(f"{slug}-budgets", caption, columns, tuple(rows)),)


def _cell(quantity: Quantity, *, sign: bool) -> Cell:
    assert isinstance(quantity, Estimate)  # a share has at least one seed
    scaled = quantity.scaled(100)
    text = formatting.interval(scaled, 2, sign=True, reference=0) if sign else formatting.percent(quantity)
    return quantity_cell(quantity, text, quantity.count)
