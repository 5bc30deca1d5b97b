"""Tables of the parts of a step, and of what a method saves of it."""

from __future__ import annotations

from reports.content.model import Cell, Column, Table, missing_cell, number_cell
from reports.content.why.shares import PRODUCTS, Saving, flops, part_seconds, products_seconds, savings, total
from reports.data.estimates import mean_of
from reports.data.method_rows import MethodRow
from suite.runs.folder.profiles import PART_TITLES, MethodProfile, Product, StageProfile, StepProfile

_MILLI = 1e3
_NO_FLOPS = "Only products have counted FLOPs"
_MODEL = (
    "Every product takes its dense time, times the share of its FLOPs that remains (the model of SDGP's Sec. IV-C)."
)
_PAIRS = (
    "Over all pairs of neighbouring steps without clocks, slow ones included; the tables of parts and layers are means "
    "over the faster half of the steps."
)
_NETWORK = "Pooling, sums, the loss, attention, layers that no method can plan, and Python between operations."
_REST = "The norm of the gradients, counting, and the training loop."


def parts_table(row: MethodRow, profile: MethodProfile, stage: StageProfile, name: str) -> Table:
    """Return the table of the parts of a step, dense next to the method."""
    method, dense = stage.method, stage.dense or stage.method
    rows = [_product_row(product, dense, method) for product in PRODUCTS]
    rows.append(_row("three products", (flops(dense, "dense"), flops(dense, "dense")), dense, method, products=None))
    others = [part for part in PART_TITLES if part not in PRODUCTS]
    notes = {"network": _NETWORK, "rest": _REST}
    rows += [
        _time_row(PART_TITLES[part], part_seconds(dense, part), part_seconds(method, part), dense, method,
                  notes.get(part, "")) for part in others
    ]  # fmt: skip
    rows.append(_time_row("sum of the parts", total(dense), total(method), dense, method))
    rows.append(
        _time_row("step without clocks", dense.step_s, method.step_s, dense, method, "Mean over the faster half.")
    )
    which = "a step" if profile.stages_of_trial == 1 else f"a step from epoch {stage.epoch}"
    compared = "" if stage.dense is None else ", next to a dense step"
    caption = f"Parts of {which} of {row.label} with batch size {method.batch_size}{compared}"
    columns = (
        Column("Part", numeric=False),
        Column("Share of FLOPs", "%", "counted", "Of the FLOPs of a dense step."),
        Column("Effective", "× dense", "counted, assumes hardware that skips"),
        Column("Executed", "× dense", "counted"),
        Column("Dense", "ms", "measured"),
        Column("Method", "ms", "measured"),
        Column("Share of dense step", "%", "measured", "Of the sum of the parts."),
        Column("Share of step", "%", "measured", "Of the sum of the parts."),
    )
    return Table(name, f"{caption}.", columns, tuple(rows))


def _product_row(product: Product, dense: StepProfile, method: StepProfile) -> tuple[Cell, ...]:
    counted = flops(dense, "dense", product), flops(dense, "dense")
    return _row(PART_TITLES[product], counted, dense, method, product)


def _row(
    title: str, counted: tuple[float, float], dense: StepProfile, method: StepProfile, products: Product | None
) -> tuple[Cell, ...]:
    """Return the row of one product, or of the three together."""
    own, everything = counted
    per_image = own / dense.batch_size
    ratios = [flops(method, column, products) / method.batch_size / per_image if per_image else 0.0 for column in
              ("effective", "executed")]  # fmt: skip
    times = [products_seconds(step) if products is None else part_seconds(step, products) for step in (dense, method)]
    head, _, _, _, *tail = _time_row(title, times[0], times[1], dense, method)
    share = own / everything if everything else 0.0
    return (head, number_cell(100 * share, 1), *(number_cell(ratio, 2) for ratio in ratios), *tail)


def _time_row(
    title: str, dense_s: float, method_s: float, dense: StepProfile, method: StepProfile, note: str = ""
) -> tuple[Cell, ...]:
    """Return a row with times only."""
    return (
        Cell(title, note),
        *(missing_cell(_NO_FLOPS) for _ in range(3)),
        number_cell(_MILLI * dense_s, 2),
        number_cell(_MILLI * method_s, 2),
        number_cell(100 * dense_s / total(dense), 1),
        number_cell(100 * method_s / total(method), 1),
    )


def savings_table(row: MethodRow, profile: MethodProfile, name: str) -> Table | None:
    """Return the table of modelled and measured savings in the last stage; `None` for dense training."""
    stage = profile.stages[-1]
    found = savings(stage)
    if found is None or stage.dense is None:
        return None
    faster_half = Saving(found.measured.products, 1 - stage.method.step_s / stage.dense.step_s)
    rows = [
        _saving_row("what can be skipped takes no time, and pruning takes no time", "modelled", found.skipped, _MODEL),
        _saving_row("the same, less the measured time of pruning", "modelled", found.with_pruning),
        _saving_row("steps of this profile, faster half", "measured", faster_half),
        _saving_row("steps of this profile, median", "measured", Saving(None, found.measured.step), _PAIRS),
    ]
    share, count = mean_of(row.time.share), len(row.time.passes)
    if count and share is not None:
        note = f"Of the whole training; mean of {count} {'pass' if count == 1 else 'passes'}."
        rows.append(_saving_row("time pass", "measured", Saving(None, 1 - share), note))
    columns = (
        Column("Saving", numeric=False),
        Column("Kind", numeric=False),
        Column("Of the three products", "%"),
        Column("Of the step", "%"),
    )
    caption = f"Time that {row.label} saves in its last stage, relative to dense."
    return Table(name, caption, columns, tuple(rows))


def _saving_row(title: str, kind: str, saving: Saving, note: str = "") -> tuple[Cell, ...]:
    of_products = missing_cell("Measured for whole steps only") if saving.products is None else number_cell(
        100 * saving.products, 1
    )  # fmt: skip
    return Cell(title, note), Cell(kind), of_products, number_cell(100 * saving.step, 1)
