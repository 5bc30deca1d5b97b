"""The tables of a group: what was measured beside what was counted, and the counts themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reports import formatting
from reports.content.model import Cell, Column, Kind, Table, missing_cell, quantity_cell
from reports.data.disturbed_times import DISTURBED_NOTE, mark_disturbed
from reports.data.estimates import Estimate, Missing, Quantity, estimate
from reports.data.method_rows import MethodRow, by_seed
from reports.data.records import Trial

_INTERVAL = "± is the half-width of the 95 % t-interval over seeds."
_ONE_SEED = "From one seed: no interval, and no telling what chance did; --seeds 3 gives one."
_SKIPS = (
    "Assumes hardware that skips every multiply-add the method's sparsity makes superfluous; "
    "what was multiplied here is the executed column."
)


def summary_table(rows: Sequence[MethodRow], slug: str, device: str) -> Table:
    """How sure, and at what cost: a row a method, in the order of `rows`.

    Args:
        rows: of one group, ranked.
        slug: the group's, for the table's name.
        device: of the group; it decides whether peak memory was measured or counted.
    """
    doubt = f" {DISTURBED_NOTE}" if any(row.time_is_disturbed or row.ratio_is_disturbed for row in rows) else ""
    memory: tuple[Kind, str] = ("counted", "Bytes of saved tensors, parameters, gradients and optimizer state.")
    if device.startswith("cuda"):
        memory = ("measured", "The allocator's maximum.")
    columns = (
        Column("Method", numeric=False),
        Column("Seeds done"),
        Column("Test accuracy", "%", "measured", _INTERVAL if any(row.seeds > 1 for row in rows) else _ONE_SEED),
        Column("Difference to dense", "points", "measured", "Paired by seed."),
        Column(
            "Training time",
            "",
            "measured",
            f"Mean over seeds; input, pruning, regulariser and reconfiguration are inside.{doubt}",
        ),
        Column("Training time", "× dense", "measured", f"Mean of the ratios, paired by seed.{doubt}"),
        Column("Realised saving of time", "%", "measured", _realised_note(rows) + doubt),
        Column(
            "Theoretical saving of FLOPs",
            "%",
            "counted, assumes hardware that skips",
            "1 − effective training FLOPs × dense. " + _SKIPS,
        ),
        Column("Training FLOPs, executed", "× dense", "counted", "Of the dense net's FLOPs in the same trial."),
        Column("Training FLOPs, effective", "× dense", "counted, assumes hardware that skips", _SKIPS),
        Column("Inference FLOPs", "× dense", "counted", "Of the final model's shapes."),
        Column("Parameters", "× dense", "counted", "Of the final model's shapes."),
        Column("Peak memory", "", memory[0], f"{memory[1]} The largest over seeds."),
    )
    body = tuple(_summary_row(row) for row in rows)
    caption = "Dense first, then by best measured trade of accuracy against training time, by means, told apart or not."
    if doubt:
        caption += " Disturbed times take part in this order: do not trust it either."
    return Table(f"{slug}-trade", caption, columns, body, pinned=sum(row.is_baseline for row in rows))


def _realised_note(rows: Sequence[MethodRow]) -> str:
    note = "1 − training time × dense."
    return note if any(row.seeds > 1 for row in rows) else f"{note} {_ONE_SEED}"


def _summary_row(row: MethodRow) -> tuple[Cell, ...]:
    expected = row.seeds
    done = str(expected) if not row.failures else f"{len(row.done)} of {len(row.trials)}"
    return (
        Cell(row.label, code=True, colour=row.colour),
        Cell(done, f"Not done: {row.failures}." if row.failures else "", float(expected)),
        _cell(row.accuracy, expected, lambda value: formatting.percent(value)),
        _cell(
            row.accuracy_difference,
            expected,
            lambda value: formatting.interval(value.scaled(100), 2, sign=True, reference=0),
        ),
        _cell(
            row.train_time,
            expected,
            lambda value: mark_disturbed(formatting.duration_interval(value), row.time_is_disturbed),
        ),
        _cell(row.time_ratio, expected, lambda value: mark_disturbed(formatting.ratio(value), row.ratio_is_disturbed)),
        _cell(
            _saving(row.time_ratio),
            expected,
            lambda value: mark_disturbed(_whole_percent(value), row.ratio_is_disturbed),
        )
        if not row.is_baseline
        else missing_cell("Dense saves nothing."),
        _cell(_saving(row.flops_ratio["effective"]), expected, lambda value: _whole_percent(value, exact=True)),
        _ratio_cell(row.flops_ratio["executed"], expected),
        _ratio_cell(row.flops_ratio["effective"], expected),
        _ratio_cell(row.inference_ratio, expected),
        _ratio_cell(row.params_ratio, expected),
        _peak_memory(row.done),
    )


def flops_table(rows: Sequence[MethodRow], slug: str) -> Table:
    """The counts: training FLOPs in their four columns, and the final model."""
    columns = (
        Column("Method", numeric=False),
        Column("Training FLOPs, dense net", "", "counted", "Of the original net, over the whole training."),
        Column("Training FLOPs, current shapes", "", "counted", "Of the shapes that existed at each step."),
        Column("Training FLOPs, effective", "", "counted, assumes hardware that skips", _SKIPS),
        Column("Training FLOPs, executed", "", "counted", "What the kernels really did."),
        Column("Inference FLOPs", "", "counted", "Of the final model's shapes, one image."),
        Column(
            "Inference FLOPs, effective",
            "",
            "counted, assumes hardware that skips",
            "Times each layer's share of weights that are not 0.",
        ),
        Column("Parameters", "", "counted"),
        Column("Parameters not 0", "", "counted"),
    )
    body = [_flops_row(row) for row in rows]
    caption = "What was counted, means over seeds; one multiply-add is 2 FLOPs. No method is ranked by these numbers."
    return Table(
        f"{slug}-flops",
        caption,
        columns,
        tuple(body),
        pinned=sum(row.is_baseline for row in rows),
    )


def _flops_row(row: MethodRow) -> tuple[Cell, ...]:
    def counted(column: str, unit: str) -> Cell:
        quantity = _column(row.done, column)
        return _cell(quantity, row.seeds, lambda value: formatting.si(value.mean, unit))

    return (
        Cell(row.label, code=True, colour=row.colour),
        *(counted(f"train_flops_{kind}", "FLOPs") for kind in ("dense", "current", "effective", "executed")),
        counted("inference_flops", "FLOPs"),
        counted("inference_flops_effective", "FLOPs"),
        counted("params", ""),
        counted("nonzero_params", ""),
    )


def _column(done: Sequence[Trial], column: str) -> Quantity:
    reason = f"Not measured: {column} is empty." if done else "No trial of this method is done."
    return estimate(list(by_seed(done, column).values()), reason)


def _cell(quantity: Quantity, expected: int, write: Callable[[Estimate], str]) -> Cell:
    return quantity_cell(quantity, "" if isinstance(quantity, Missing) else write(quantity), expected)


def _ratio_cell(quantity: Quantity, expected: int) -> Cell:
    return _cell(quantity, expected, lambda value: formatting.ratio(value, exact=True))


def _saving(quantity: Quantity) -> Quantity:
    if isinstance(quantity, Missing):
        return quantity
    return Estimate(1 - quantity.mean, quantity.half_width, quantity.count)


def _whole_percent(value: Estimate, *, exact: bool = False) -> str:
    share = value.scaled(100)
    return formatting.interval(share, 0, exact=exact, reference=None if exact else 0)


def _peak_memory(done: Sequence[Trial]) -> Cell:
    values = by_seed(done, "peak_memory_bytes")
    if not values:
        return missing_cell("Not measured: peak_memory_bytes is empty." if done else "No trial of this method is done.")
    return Cell(formatting.binary_bytes(max(values.values())), value=max(values.values()))
