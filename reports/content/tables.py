"""Tables of a group: the first screen, results and time, cost relative to dense, absolute counts; a row per method."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reports import formatting
from reports.content.model import Cell, Column, Kind, Table, missing_cell, quantity_cell
from reports.data.disturbed_times import DISTURBED_NOTE, is_disturbed_pass, mark_disturbed
from reports.data.estimates import Estimate, Missing, Quantity, estimate
from reports.data.method_rows import NONE_DONE, MethodRow, all_timed, by_seed, not_measured
from reports.data.records import Trial
from reports.data.significance import MOST_SEEDS
from reports.data.verdict import Finding, is_dense
from suite.runs.folder.columns import COLUMNS

_INTERVAL = "± is the half-width of the 95 % confidence interval over seeds."
_VERDICTS = (
    "The gain is the accuracy minus that of dense training that costs as much: interpolated between trainings of "
    "different length, and the whole dense training for a method that costs more. Its ± is not corrected for the "
    "number of methods. Pays: the gain is shown to be above 0. Does not pay: it is shown to be below the margin. "
    "Shown: by a t-test, corrected for the number of claims (Holm). Undecided: neither; so many more seeds would "
    "decide if mean and spread stay the same."
)
_TIMED = (
    "The time pass compares steps that run in turn, with the networks of one seed; its interval in brackets is that of "
    "the steps."
)
_INFERENCE = "Of the final model's shapes; zero weights count."
_RATIOS = "Geometric mean of the ratios, paired by seed; the 95 % interval in brackets is that of their logarithms."
_ONE_SEED = "One seed: no interval, so chance cannot be excluded; --seeds 3 gives one."
_COUNTS = (
    *("train_flops_dense", "train_flops_current", "train_flops_effective", "train_flops_executed"),
    *("inference_flops", "inference_flops_effective", "params", "nonzero_params"),
)
_SKIPPING: Kind = "counted, assumes hardware that skips"
_SKIPS = (
    "Assumes hardware that skips every multiply-add that the method's sparsity makes superfluous; "
    "the executed FLOPs are what was computed here."
)


def summary_table(rows: Sequence[MethodRow], found: Sequence[Finding], slug: str, title: str) -> Table | None:
    """Return the table of the first screen; `None` if no trial is done.

    Args:
        rows: Ranked rows of one group.
        found: The findings of its verdict; empty if it has none.
        slug: Prefix of the table's name.
        title: Heading of the group.
    """
    if not any(row.done for row in rows):
        return None
    interval = f"Means over seeds, paired by seed. {_INTERVAL if any(row.seeds > 1 for row in rows) else _ONE_SEED}"
    by_pass = all_timed(rows)
    unit, explained = "× dense", _RATIOS
    if by_pass:
        unit, explained = "× dense, time pass", _TIMED
    elif any(row.timed is not None for row in rows):
        explained = f"{_TIMED} Otherwise: the trials. {_RATIOS}"
    columns = (
        Column("Method", numeric=False),
        Column("Accuracy, and difference to dense", "%, points", "measured", interval),
        Column("Training time for equal epochs", unit, "measured", explained),
        Column("Executed training FLOPs", "× dense", "counted"),
        Column("Inference FLOPs", "× dense", "counted", _INFERENCE),
        Column("Verdict at equal time", "gain in points", numeric=False, note=_VERDICTS),
        Column("Verdict at equal FLOPs", "gain in points", numeric=False, note="At equal executed training FLOPs."),
    )
    by_cost = {(one.label, one.cost): one for one in found}

    def cells(row: MethodRow) -> tuple[Cell, ...]:
        exact = (_cell(one, row.seeds, _exact_ratio) for one in (row.flops_ratio["executed"], row.inference_ratio))
        verdicts = (_verdict_cell(row, by_cost.get((row.label, cost))) for cost in ("time", "flops"))
        return (_accuracy_cell(row), _time_cell(row, "" if by_pass else " (time pass)"), *exact, *verdicts)

    return _table(f"{slug}-summary", title, columns, rows, cells)


def _accuracy_cell(row: MethodRow) -> Cell:
    def write(value: Estimate) -> str:
        difference = row.accuracy_difference
        if isinstance(difference, Missing):
            return formatting.percent(value)
        points = formatting.interval(difference.scaled(100), 2, sign=True, reference=0)
        return f"{formatting.percent(value)} ({points})"

    return _cell(row.accuracy, row.seeds, write)


def _time_cell(row: MethodRow, source: str) -> Cell:
    timed = row.timed
    if timed is not None:
        text = f"{timed.ratio:.3f} [{timed.low:.3f}, {timed.high:.3f}]{source}"
        return Cell(mark_disturbed(text, is_disturbed_pass(timed)), value=timed.ratio)
    if row.is_baseline:
        return _cell(row.time_ratio, row.seeds, formatting.ratio)
    disturbed = ", disturbed" if row.ratio_is_disturbed else ""
    return _cell(row.time_ratio, row.seeds, lambda value: f"{formatting.ratio(value)} (trials{disturbed})")


def _verdict_cell(row: MethodRow, finding: Finding | None) -> Cell:
    if finding is None:
        return missing_cell("Dense has no verdict." if is_dense(row) else "A smoke test gives no verdict.")
    if finding.outcome == "none":
        untrained = finding.reason.startswith("dense was not trained")
        return Cell(f"no verdict: {'no dense training at this cost' if untrained else finding.reason}")
    assert isinstance(finding.gain, Estimate)
    gain = formatting.interval(finding.gain.scaled(100), 2, sign=True, reference=0)
    return Cell(f"{_outcome(finding, finding.gain)}: {gain}", value=finding.gain.mean)


def _outcome(finding: Finding, gain: Estimate) -> str:
    if finding.outcome != "undecided":
        return finding.outcome
    if finding.seeds_needed is None:
        same = gain.half_width is None
        return "undecided, all seeds have the same gain" if same else f"undecided, more than {MOST_SEEDS} seeds"
    more = finding.seeds_needed - gain.count
    return f"undecided, {more} more {'seed' if more == 1 else 'seeds'}"


def group_tables(rows: Sequence[MethodRow], slug: str, device: str) -> tuple[Table, ...]:
    """Return the tables of a group, each with its rows in the order of `rows`.

    Args:
        rows: Ranked rows of one group.
        slug: Prefix of the tables' names.
        device: Device of the group. It determines whether peak memory was measured or counted.
    """
    return results_table(rows, slug), relative_cost_table(rows, slug, device), counts_table(rows, slug)


def results_table(rows: Sequence[MethodRow], slug: str) -> Table:
    """Return accuracy, training time, and the realised and theoretical savings."""
    disturbed = any(row.time_is_disturbed or row.ratio_is_disturbed for row in rows)
    warning = f" {DISTURBED_NOTE}" if disturbed else ""
    disturbed_pass = any(is_disturbed_pass(row.timed) for row in rows)
    ratio_warning = f" {DISTURBED_NOTE}" if disturbed_pass else "" if all_timed(rows) else warning
    several = any(row.seeds > 1 for row in rows)
    realised = "1 − training time × dense." if several else f"1 − training time × dense. {_ONE_SEED}"
    columns = (
        Column("Method", numeric=False),
        Column("Seeds done"),
        Column(COLUMNS["test_accuracy"].title, "%", "measured", _INTERVAL if several else _ONE_SEED),
        Column("Difference to dense", "points", "measured", "Paired by seed."),
        Column(
            COLUMNS["train_time_s"].title,
            "",
            "measured",
            f"Mean over seeds. It includes input pipeline, pruning, regulariser and reconfiguration.{warning}",
        ),
        Column(COLUMNS["train_time_s"].title, "× dense", "measured", f"{_RATIOS}{ratio_warning}"),
        Column("Realised saving of time", "%", "measured", realised + ratio_warning),
        Column("Theoretical saving of FLOPs", "%", _SKIPPING, f"1 − effective training FLOPs × dense. {_SKIPS}"),
    )
    caption = (
        "Accuracy and training time. Dense is first; the others are sorted by their measured trade-off, best first. "
        "The order compares means, whether or not intervals overlap."
    )
    if ratio_warning:
        caption += " Disturbed times affect this order: do not rely on it."
    return _table(f"{slug}-results", caption, columns, rows, _results_cells)


def _results_cells(row: MethodRow) -> tuple[Cell, ...]:
    seeds = row.seeds
    done = str(seeds) if not row.failures else f"{len(row.done)} of {len(row.trials)}"

    def time(value: Estimate) -> str:
        return mark_disturbed(formatting.duration_interval(value), row.time_is_disturbed)

    return (
        Cell(done, f"Not done: {row.failures}." if row.failures else "", float(seeds)),
        _cell(row.accuracy, seeds, formatting.percent),
        _cell(
            row.accuracy_difference,
            seeds,
            lambda value: formatting.interval(value.scaled(100), 2, sign=True, reference=0),
        ),
        _cell(row.train_time, seeds, time),
        _ratio_cell(row),
        missing_cell("Dense is the baseline of this saving.") if row.is_baseline else _saving_cell(row),
        _cell(_saving(row.flops_ratio["effective"]), seeds, lambda value: _whole_percent(value, exact=True)),
    )


def _ratio_cell(row: MethodRow) -> Cell:
    if row.timed is not None:
        text = f"{row.timed.ratio:.3f} [{row.timed.low:.3f}, {row.timed.high:.3f}]"
        return Cell(mark_disturbed(text, is_disturbed_pass(row.timed)), _TIMED, row.timed.ratio)
    return _cell(
        row.time_ratio, row.seeds, lambda value: mark_disturbed(formatting.ratio(value), row.ratio_is_disturbed)
    )


def _saving_cell(row: MethodRow) -> Cell:
    if row.timed is not None:
        saved, low, high = (100 * (1 - ratio) for ratio in (row.timed.ratio, row.timed.high, row.timed.low))
        texts = [formatting.plain(value, 1) for value in (saved, low, high)]
        return Cell(f"{texts[0]} [{texts[1]}, {texts[2]}]", _TIMED, saved / 100)
    return _cell(
        _saving(row.time_ratio), row.seeds, lambda value: mark_disturbed(_whole_percent(value), row.ratio_is_disturbed)
    )


def relative_cost_table(rows: Sequence[MethodRow], slug: str, device: str) -> Table:
    """Return FLOPs and size as multiples of the dense network's, and peak memory."""
    memory: tuple[Kind, str] = ("counted", "Bytes of saved tensors, weights, gradients and optimizer state.")
    if device.startswith("cuda"):
        memory = ("measured", "Maximum of the memory allocator.")
    columns = (
        Column("Method", numeric=False),
        Column(
            COLUMNS["train_flops_executed"].title,
            "× dense",
            "counted",
            f"Relative to the dense network in the same trial. {_RATIOS}",
        ),
        Column(COLUMNS["train_flops_effective"].title, "× dense", _SKIPPING, _SKIPS),
        Column(COLUMNS["inference_flops"].title, "× dense", "counted", "From the shapes of the final model."),
        Column(COLUMNS["params"].title, "× dense", "counted", "From the shapes of the final model."),
        Column(COLUMNS["peak_memory_bytes"].title, "", memory[0], f"{memory[1]} Largest value over seeds."),
    )
    return _table(f"{slug}-relative", "Cost of training and of the final model", columns, rows, _relative_cells)


def _relative_cells(row: MethodRow) -> tuple[Cell, ...]:
    ratios = (
        row.flops_ratio["executed"], row.flops_ratio["effective"], row.inference_ratio, row.params_ratio,
    )  # fmt: skip
    return (*(_cell(one, row.seeds, _exact_ratio) for one in ratios), _peak_memory(row.done))


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
        values = list(by_seed(row.done, column).values())
        quantity = estimate(values, not_measured(column) if row.done else NONE_DONE)
        return _cell(quantity, row.seeds, lambda value: formatting.si(value.mean, COLUMNS[column].unit))

    return tuple(map(counted, _COUNTS))


def _table(
    name: str,
    caption: str,
    columns: tuple[Column, ...],
    rows: Sequence[MethodRow],
    cells: Callable[[MethodRow], tuple[Cell, ...]],
) -> Table:
    body = tuple((Cell(row.label, code=True, colour=row.colour), *cells(row)) for row in rows)
    return Table(name, caption, columns, body, pinned=sum(row.is_baseline for row in rows))


def _cell(quantity: Quantity, expected: int, write: Callable[[Estimate], str]) -> Cell:
    return quantity_cell(quantity, "" if isinstance(quantity, Missing) else write(quantity), expected)


def _saving(quantity: Quantity) -> Quantity:
    if isinstance(quantity, Missing):
        return quantity
    return quantity.complement()


def _whole_percent(value: Estimate, *, exact: bool = False) -> str:
    return formatting.interval(value.scaled(100), 0, exact=exact, reference=None if exact else 0)


def _peak_memory(done: Sequence[Trial]) -> Cell:
    values = by_seed(done, "peak_memory_bytes")
    if not values:
        return missing_cell(not_measured("peak_memory_bytes") if done else NONE_DONE)
    return Cell(formatting.binary_bytes(max(values.values())), value=max(values.values()))
