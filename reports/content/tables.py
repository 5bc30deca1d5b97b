"""Tables of a group with a row per method: first screen, results and time, cost relative to dense, absolute counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from reports import formatting
from reports.content.model import Cell, Column, Kind, Table, missing_cell, name_cell, quantity_cell
from reports.content.verdict import cost_text, good_word, inference_share, share_text, word
from reports.data.estimates import Estimate, Missing, estimate
from reports.data.method_rows import NONE_DONE, MethodRow, not_measured, times_rank
from reports.data.records import DISTURBED_NOTE, mark_disturbed
from reports.data.rule import Answer, Judged, costs_more
from reports.data.verdict import Cost, gain_shown
from suite.trials.folder.table import COLUMNS

_INTERVAL = (
    "± is the half-width of the 95 % confidence interval over seeds. It comes from the spread of the method's own "
    "seeds, or from that of dense if it is larger."
)
_TIMED = (
    "Geometric mean of the ratios of the undisturbed time passes, each of which compares steps that run in turn. The "
    "95 % interval in brackets covers differences between passes, and between seeds that were measured; it needs three."
)
_GAIN = (
    "Accuracy minus that of dense training for the same cost. All intervals of a page together hold with a probability "
    "of 95 %. They include the error of the curve that is fitted to dense trainings."
)
_OUTCOME = (
    "better or worse: a gain above or below 0 is shown. same: the gain is shown to be within the margin of {margin:g} "
    "points. undecided: none of these is shown. preliminary: fewer than five seeds. The tests are one-sided t-tests at "
    "2.5 %, with Holm's correction for the methods of the page."
)
_FAMILIES = (
    " Ways without pruning, marked (no pruning), are a family of their own: their intervals and corrections count them "
    "alone, and those of methods do not count them."
)
_AS_GOOD = (
    "yes: the method is shown to lose less than the margin of {margin:g} points against the whole dense training, and "
    "to cost less. no: it is shown to lose more, or to cost more. undecided: neither is shown."
)
_CURVE = "Read from a curve that is fitted to dense trainings of several lengths."
_INFERENCE = (
    "Of the final model, for one image. Zero weights count, unless the method's kernels skip them. In brackets: the "
    "range over seeds."
)
_RATIOS = (
    "Geometric mean of the ratios, paired by seed. The 95 % interval in brackets is computed from their logarithms."
)
_SPREAD = "Standard deviation over seeds. That of dense is pooled over its lengths."
_OF_DENSE = "Seeds may agree by chance: the intervals and tests use the larger spread of dense."
_ONE_SEED = "One seed: no interval, so chance cannot be excluded. --seeds 3 gives an interval."
_UNEXPLAINED = "Less than its FLOPs explain: expect other causes, such as load on the machine."
_EXPLAINED = 0.05
_COUNTS = (
    *("train_flops_dense", "train_flops_current", "train_flops_effective", "train_flops_executed"),
    *("inference_flops", "inference_flops_effective", "params", "nonzero_params"),
)
_SKIPPING: Kind = "counted, assumes hardware that skips"
_SKIPS = (
    "Assumes hardware that skips every multiply-add that the method's sparsity makes superfluous. "
    "The executed FLOPs are what was computed here."
)


def verdict_table(
    rows: Sequence[MethodRow], answer: Answer | None, cost: Cost, margin: float, name: str, title: str
) -> Table | None:
    """Return the table of the answers at one cost; `None` if no trial is done.

    Args:
        rows: Ranked rows of one group.
        answer: What the rule says; `None` for a smoke test.
        cost: The cost that is equal.
        margin: δ, in points.
        name: Name of the table.
        title: Heading of the table.
    """
    if not any(row.done for row in rows):
        return None
    families = _FAMILIES if any(row.is_without_pruning for row in rows) else ""
    ratios = Column("Training time", "× dense", "measured", _TIMED, short="Time")
    equal, less = "At equal time", "in less time"
    if cost == "flops":
        ratios = Column("Executed training FLOPs", "× dense", "counted", _RATIOS, short="FLOPs")
        equal, less = "At equal FLOPs", "for fewer FLOPs"
    interval = _INTERVAL if any(row.seeds > 1 for row in rows) else _ONE_SEED
    columns = (
        Column("Method", numeric=False),
        Column("Accuracy", "%", "measured", interval),
        Column("Spread", "points", "measured", _SPREAD),
        ratios,
        Column("Gain over dense for this cost", "points", "measured, dense fitted", _GAIN, short="Gain over dense"),
        Column(equal, numeric=False, note=_OUTCOME.format(margin=margin) + families),
        Column(
            f"As good as dense, {less}", numeric=False, note=_AS_GOOD.format(margin=margin), short=f"As good {less}"
        ),
        Column("Inference FLOPs", "× dense", "counted", _INFERENCE, short="Inference"),
    )
    body: list[tuple[Cell, ...]] = []
    under = set()
    for row in rows:
        one = None if answer is None else answer.of(row.label)
        body.append((name_cell(row.label, row.look), *_verdict_cells(row, one, cost, margin)))
        if one is not None and one.dense is not None and one.cost is not None:
            under.add(len(body))
            body.append(_dense_cells(one, cost))
    pinned = sum(row.is_baseline for row in rows)
    return Table(name, title, columns, tuple(body), pinned, frozenset(under))


def _verdict_cells(row: MethodRow, judged: Judged | None, cost: Cost, margin: float) -> tuple[Cell, ...]:
    accuracy = quantity_cell(row.accuracy, row.seeds, formatting.percent)
    spread = quantity_cell(row.spread, row.seeds, lambda value: formatting.plain(100 * value.mean, 2))
    if judged is not None and not judged.has_own_spread:
        spread = replace(spread, note=_OF_DENSE)
    ratio = cost_cell(row, cost, judged)
    inference = quantity_cell(inference_share(row), row.seeds, _exact_ratio)
    if row.is_baseline:
        nothing = missing_cell("Dense is what methods are compared with.")
        return accuracy, spread, ratio, nothing, nothing, nothing, inference
    if judged is None:
        reason = (
            "Controls are only there for comparison: they get no verdict."
            if row.is_control
            else "A smoke test has no verdict."
        )
        nothing = missing_cell(reason)
        return accuracy, spread, ratio, nothing, nothing, nothing, inference
    missing = missing_cell(judged.reason or judged.lack)
    gain, note = missing, missing.note if judged.reason else ""
    if (points := gain_shown(judged)) is not None:
        gain = Cell(formatting.points(points), value=points.mean)
    return (
        accuracy,
        spread,
        ratio,
        gain,
        Cell(word(judged, margin), note),
        Cell(good_word(judged), note if judged.as_good == "not measured" else ""),
        inference,
    )


def _dense_cells(judged: Judged, cost: Cost) -> tuple[Cell, ...]:
    """Return the row of dense training for the cost of a method, which was not trained."""
    assert judged.dense is not None
    assert judged.cost is not None
    share = judged.cost.of_dense
    empty = Cell("")
    accuracy = Cell(f"{judged.dense:.2f}", _CURVE, judged.dense / 100)
    name = "· the whole dense training" if costs_more(judged) else "· dense for this cost"
    return Cell(name), accuracy, empty, Cell(share_text(judged, cost), value=share), empty, empty, empty, empty


def cost_cell(row: MethodRow, cost: Cost, judged: Judged | None) -> Cell:
    """Return a cost over that of dense. A time is that of the time passes.

    Args:
        row: The method.
        cost: The cost.
        judged: What the rule says about the method at equal cost of this kind; `None` if nothing.
    """
    if row.is_baseline:
        return Cell("1.00", value=1.0)
    if cost == "flops":
        of = None if judged is None else judged.cost
        if of is None:
            return quantity_cell(row.flops_ratio["executed"], row.seeds, _exact_ratio)
        return Cell(cost_text(of, cost), value=of.share)
    return _passes_cell(row) if row.time.passes else missing_cell("No time pass measured it.")


def _passes_cell(row: MethodRow) -> Cell:
    """Return the ratio of the passes, with its interval if enough of them are undisturbed."""
    ratio, count = row.time.share, len(row.time.passes)
    if isinstance(ratio, Missing):
        return missing_cell(ratio.reason)
    if row.cost is not None:
        return Cell(cost_text(row.cost, "time"), value=row.cost.share)
    passes = f"{count} {'pass' if count == 1 else 'passes'}: an interval needs three undisturbed ones."
    return Cell(f"{ratio.mean:.3f}", "" if row.is_control else passes, ratio.mean)


def group_tables(rows: Sequence[MethodRow], slug: str, device: str) -> tuple[Table, ...]:
    """Return the tables of a group, each with its rows in the order of `rows`.

    Args:
        rows: Ranked rows of one group.
        slug: Prefix of the tables' names.
        device: Device of the group. It determines whether peak memory was measured or counted.
    """
    return results_table(rows, slug), relative_cost_table(rows, slug, device), counts_table(rows, slug)


def results_table(rows: Sequence[MethodRow], slug: str) -> Table:
    """Return accuracy and training time."""
    warning = f" {DISTURBED_NOTE}" if any(row.time_is_disturbed for row in rows) else ""
    several, passes = any(row.seeds > 1 for row in rows), any(row.time.passes for row in rows)
    columns = (
        Column("Method", numeric=False),
        Column("Seeds done"),
        Column(COLUMNS["test_accuracy"].title, "%", "measured", _INTERVAL if several else _ONE_SEED),
        Column("Difference to dense", "points", "measured", "After equal epochs, unless a name gives its own."),
        Column(
            COLUMNS["train_time_s"].title,
            "",
            "measured",
            f"Mean over seeds. It includes input pipeline, pruning, regulariser and reconfiguration.{warning}",
        ),
        Column(COLUMNS["train_time_s"].title, "× dense", "measured", _TIMED if passes else _RATIOS),
    )
    by = "their measured trade-off" if times_rank(rows) else "accuracy alone, because times are disturbed"
    ways = " Those without pruning follow the methods." if any(row.is_without_pruning for row in rows) else ""
    caption = (
        f"Accuracy and training time. Dense is first. The others are sorted by {by}, with the best first.{ways} The "
        "order compares means, whether or not intervals overlap."
    )
    return _table(f"{slug}-results", caption, columns, rows, _results_cells)


def _results_cells(row: MethodRow) -> tuple[Cell, ...]:
    seeds = row.seeds
    done = str(seeds) if not row.failures else f"{len(row.done)} of {len(row.trials)}"

    def time(value: Estimate) -> str:
        return mark_disturbed(formatting.duration_interval(value), row.time_is_disturbed)

    return (
        Cell(done, f"Not done: {row.failures}." if row.failures else "", float(seeds)),
        quantity_cell(row.accuracy, seeds, formatting.percent),
        quantity_cell(
            row.accuracy_difference,
            seeds,
            lambda value: formatting.points(value.scaled(100)),
        ),
        quantity_cell(row.train_time, seeds, time),
        _ratio_cell(row),
    )


def _ratio_cell(row: MethodRow) -> Cell:
    if row.time.passes:
        return _passes_cell(row)
    time, effective = row.time.share, row.flops_ratio["effective"]
    cell = quantity_cell(time, row.seeds, formatting.ratio)
    if isinstance(time, Estimate) and isinstance(effective, Estimate):
        return replace(cell, note=_UNEXPLAINED) if time.high < min(1.0, effective.mean) - _EXPLAINED else cell
    return cell


def relative_cost_table(rows: Sequence[MethodRow], slug: str, device: str) -> Table:
    """Return FLOPs and size as multiples of the dense network's, and peak memory."""
    ways = ", and to dense training for those without pruning" if any(row.is_without_pruning for row in rows) else ""
    memory: tuple[Kind, str] = ("counted", "Bytes of saved tensors, weights, gradients and optimizer state.")
    if device.startswith("cuda"):
        memory = ("measured", "Maximum of the memory allocator.")
    columns = (
        Column("Method", numeric=False),
        Column(
            COLUMNS["train_flops_executed"].title,
            "× dense",
            "counted",
            f"Relative to the dense network in the same trial{ways}. {_RATIOS}",
        ),
        Column(COLUMNS["train_flops_effective"].title, "× dense", _SKIPPING, _SKIPS),
        Column(COLUMNS["inference_flops"].title, "× dense", "counted", "From the shapes of the final model."),
        Column("Inference without zero weights", "× dense", _SKIPPING, "FLOPs of the nonzero weights."),
        Column(COLUMNS["params"].title, "× dense", "counted", "From the shapes of the final model."),
        Column(COLUMNS["peak_memory_bytes"].title, "", memory[0], f"{memory[1]} Largest value over seeds."),
    )
    return _table(f"{slug}-relative", "Cost of training and of the final model", columns, rows, _relative_cells)


def _relative_cells(row: MethodRow) -> tuple[Cell, ...]:
    ratios = (
        row.flops_ratio["executed"], row.flops_ratio["effective"], row.inference_ratio,
        row.inference_effective_ratio, row.params_ratio,
    )  # fmt: skip
    return (*(quantity_cell(ratio, row.seeds, _exact_ratio) for ratio in ratios), _peak_memory(row))


def _exact_ratio(value: Estimate) -> str:
    return formatting.ratio(value, exact=True)


def counts_table(rows: Sequence[MethodRow], slug: str) -> Table:
    """Return absolute counts: training FLOPs in their four columns, and the final model."""
    heads = (_counted_head(name) for name in _COUNTS)
    caption = "Absolute counts, means over seeds. One multiply-add is 2 FLOPs. The ranking does not use these numbers."
    return _table(f"{slug}-counts", caption, (Column("Method", numeric=False), *heads), rows, _count_cells)


def _counted_head(name: str) -> Column:
    schema = COLUMNS[name]
    return Column(
        schema.title, "", _SKIPPING if name.endswith("_effective") else "counted", schema.meaning.replace("`", "")
    )


def _count_cells(row: MethodRow) -> tuple[Cell, ...]:
    def counted(column: str) -> Cell:
        values = list(row.by_seed(column).values())
        quantity = estimate(values, not_measured(column) if row.done else NONE_DONE)
        return quantity_cell(quantity, row.seeds, lambda value: formatting.si(value.mean, COLUMNS[column].unit))

    return tuple(map(counted, _COUNTS))


def _table(
    name: str,
    caption: str,
    columns: tuple[Column, ...],
    rows: Sequence[MethodRow],
    cells: Callable[[MethodRow], tuple[Cell, ...]],
) -> Table:
    body = tuple((name_cell(row.label, row.look), *cells(row)) for row in rows)
    return Table(name, caption, columns, body, pinned=sum(row.is_baseline for row in rows))


def _peak_memory(row: MethodRow) -> Cell:
    values = row.by_seed("peak_memory_bytes")
    if not values:
        return missing_cell(not_measured("peak_memory_bytes") if row.done else NONE_DONE)
    return Cell(formatting.binary_bytes(max(values.values())), value=max(values.values()))
