"""The section "Why": where the time of a step goes, from the file of the profile pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports import formatting
from reports.content.model import Cell, Column, Section, Table, missing_cell
from reports.data.groups import TrialGroup
from reports.data.method_rows import MethodRow
from suite.runs.folder.profiles import (
    PART_TITLES,
    GroupProfiles,
    LayerProfile,
    MethodProfile,
    Product,
    StageProfile,
    StepProfile,
)
from suite.runs.profile_shares import (
    PRODUCTS,
    Saving,
    flops,
    part_seconds,
    products_seconds,
    savings,
    share_of_products,
    total,
)

_MILLI = 1e3
_PUBLISHED = (
    "SDGP's paper measured 33.17 % of the time of the three products for ResNet-18 on ImageNet (batch size 256, Nvidia "
    "A100; Sec. IV-C and Fig. 9)."
)
_NO_FLOPS = "Only products have counted FLOPs"
_BOUND = (
    "The larger of multiply-adds over the highest rate of a large matrix product, and bytes over the rate of a copy of "
    "about the product's size; both were measured in the same process. A time below its bound means that these rates "
    "were disturbed."
)
_NETWORK = "Pooling, sums, the loss, attention, layers that no method can plan, and Python between operations."
_REST = "The norm of the gradients, counting, and the training loop."


def why_sections(
    group: TrialGroup, rows: Sequence[MethodRow], profiles: Sequence[GroupProfiles], slug: str
) -> tuple[Section, ...]:
    """Return the sections about the profiles of a group: parts of a step, and layers. None without profiles.

    Args:
        group: Trials that may be compared.
        rows: Their methods, in the order of the report.
        profiles: Content of `profile.json`.
        slug: Prefix of the tables' names.
    """
    entries = next((one.methods for one in profiles if one.key == dict(group.key)), {})
    found = [(row, entries[row.label]) for row in rows if row.label in entries]
    if not found:
        return ()
    parts: list[Table] = []
    layers: list[Table] = []
    for number, (row, profile) in enumerate(found, 1):
        for stage in profile.stages:
            parts.append(_parts_table(row, profile, stage, f"{slug}-why-{number}-{stage.epoch}"))
        if (table := _savings_table(row, profile, f"{slug}-saving-{number}")) is not None:
            parts.append(table)
        layers.append(_layer_table(row, profile, f"{slug}-layers-{number}"))
    return (
        Section("Why: where the time of a step goes", "why", _lines(found), tuple(parts)),
        Section("Why: layers and products", "why-layers", (_machine(found[0][1]),), tuple(layers)),
    )


def _lines(found: Sequence[tuple[MethodRow, MethodProfile]]) -> tuple[str, ...]:
    """Return how the profile was measured, and the share of the data gradient."""
    first = found[0][1]
    steps = [step for _, one in found for stage in one.stages for step in (stage.method, stage.dense) if step]
    clocks = [step.clocks.ratio for step in steps]
    sums = [step.sum_over_step for step in steps]
    dense = first.stages[0].dense or first.stages[0].method
    lines = [
        "Measured after the trials by the profile pass, in steps with clocks that alternate with steps without. With "
        f"clocks, steps took {_range(clocks)} times as long; the parts add up to {_range(sums)} times a step without "
        "clocks. The clocks compute both gradients of a layer separately, also where dense training computes them in "
        "one call.",
        f"In a dense step, the data gradient takes {_percent(share_of_products(dense, 'dgrad'))} % of the time of the "
        f"three products and {_percent(part_seconds(dense, 'dgrad') / total(dense))} % of the step. {_PUBLISHED}",
    ]
    if apart := [row.label for row, one in found if not all(_adds_up(stage) for stage in one.stages)]:
        lines.append(
            f"The parts are more than 10 % away from a step without clocks for {', '.join(apart)}: other programs "
            "disturbed the measurement. Repeat it on an idle machine."
        )
    busy = max(one.load for _, one in found)
    if busy >= 0.5 * first.threads:
        lines.append(f"Other programs used {busy:.1f} cores when a measurement began; compare shares, not times.")
    if first.execution != "eager":
        lines.append(f"The trials ran with execution={first.execution}; the profiled steps ran eagerly.")
    return tuple(lines)


def _adds_up(stage: StageProfile) -> bool:
    return all(step.adds_up for step in (stage.method, stage.dense) if step)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _parts_table(row: MethodRow, profile: MethodProfile, stage: StageProfile, name: str) -> Table:
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
    beside = "" if stage.dense is None else ", next to a dense step"
    caption = f"Parts of {which} of {row.label} with batch size {method.batch_size}{beside}"
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
    return (head, _number(100 * share, 1), *(_number(ratio, 2) for ratio in ratios), *tail)


def _time_row(
    title: str, dense_s: float, method_s: float, dense: StepProfile, method: StepProfile, note: str = ""
) -> tuple[Cell, ...]:
    """Return a row with times only."""
    return (
        Cell(title, note),
        *(missing_cell(_NO_FLOPS) for _ in range(3)),
        _number(_MILLI * dense_s, 2),
        _number(_MILLI * method_s, 2),
        _number(100 * dense_s / total(dense), 1),
        _number(100 * method_s / total(method), 1),
    )


def _savings_table(row: MethodRow, profile: MethodProfile, name: str) -> Table | None:
    """Return the table of modelled and measured savings in the last stage; `None` for dense training."""
    found = savings(profile.stages[-1])
    if found is None:
        return None
    rows = [
        _saving_row(
            "everything that can be skipped takes no time, and pruning takes no time", "modelled", found.skipped
        ),
        _saving_row("the same, less the measured time of pruning", "modelled", found.with_pruning),
        _saving_row("steps of this profile", "measured", found.measured),
    ]
    if row.timed is not None:
        low, high = (formatting.plain(100 * (1 - end), 1) for end in (row.timed.high, row.timed.low))
        note = f"Of the whole training; 95 % interval [{low}, {high}]."
        rows.append(_saving_row("time pass", "measured", Saving(None, 1 - row.timed.ratio), note))
    columns = (
        Column("Saving", numeric=False),
        Column("Kind", numeric=False),
        Column("Of the three products", "%"),
        Column("Of the step", "%"),
    )
    caption = (
        f"Time that {row.label} saves in its last stage, relative to dense. The first line is the model of SDGP's Sec. "
        "IV-C: for n:m, the share of the data gradient times 1 − n/m"
    )
    return Table(name, f"{caption}.", columns, tuple(rows))


def _saving_row(title: str, kind: str, saving: Saving, note: str = "") -> tuple[Cell, ...]:
    of_products = missing_cell("Measured for whole steps only") if saving.products is None else _number(
        100 * saving.products, 1
    )  # fmt: skip
    return Cell(title, note), Cell(kind), of_products, _number(100 * saving.step, 1)


def _layer_table(row: MethodRow, profile: MethodProfile, name: str) -> Table:
    """Return the table of layers and products in the last stage."""
    stage = profile.stages[-1]
    theirs = {layer.name: layer for layer in (stage.dense or stage.method).layers}
    whole = flops(stage.dense or stage.method, "dense") / (stage.dense or stage.method).batch_size
    rows = []
    for layer in stage.method.layers:
        rows += [_layer_row(layer, product, theirs, stage, whole) for product in layer.products]
        if layer.pruning_s:
            rows.append(_pruning_row(layer, stage.method))
    columns = (
        Column("Layer", numeric=False),
        Column("Shape", numeric=False),
        Column("Product", numeric=False),
        Column("Share of FLOPs", "%", "counted", "Of the FLOPs of a dense step."),
        Column("Executed", "× dense", "counted"),
        Column("Dense", "ms", "measured"),
        Column("Method", "ms", "measured"),
        Column("Share of step", "%", "measured"),
        Column("Bound", "ms", "measured", _BOUND),
        Column("Time / bound", "", "measured"),
        Column("Bound by", numeric=False),
    )
    return Table(name, f"Layers and products in a step of {row.label}, last stage.", columns, tuple(rows))


def _layer_row(
    layer: LayerProfile,
    product: Product,
    theirs: Mapping[str, LayerProfile],
    stage: StageProfile,
    whole: float,
) -> tuple[Cell, ...]:
    found, images = layer.products[product], stage.method.batch_size
    other = theirs[layer.name].products.get(product) if layer.name in theirs else None
    not_timed = "No method can plan this layer, so that its products are not timed"
    bound = found.bound
    return (
        Cell(layer.name, code=True),
        Cell(_shape(layer)),
        Cell(PART_TITLES[product], "" if layer.backend == "torch" else f"Backend {layer.backend}."),
        _number(100 * found.dense / images / whole, 1),
        _number(found.executed / found.dense, 2),
        missing_cell(not_timed) if other is None or other.seconds is None else _number(_MILLI * other.seconds, 3),
        missing_cell(not_timed) if found.seconds is None else _number(_MILLI * found.seconds, 3),
        missing_cell(not_timed) if found.seconds is None else _number(100 * found.seconds / total(stage.method), 1),
        missing_cell(not_timed) if bound is None else _number(_MILLI * bound.seconds, 3),
        missing_cell(not_timed)
        if bound is None or found.seconds is None
        else _number(found.seconds / bound.seconds, 1),
        Cell("" if bound is None else bound.by),
    )


def _pruning_row(layer: LayerProfile, step: StepProfile) -> tuple[Cell, ...]:
    reason = missing_cell("Transforms of operands have no counted FLOPs and no bound")
    seconds, share = _number(_MILLI * layer.pruning_s, 3), _number(100 * layer.pruning_s / total(step), 1)
    names = Cell(layer.name, code=True), Cell(_shape(layer)), Cell(PART_TITLES["pruning"])
    return (*names, reason, reason, reason, seconds, share, reason, reason, Cell(""))


def _shape(layer: LayerProfile) -> str:
    if layer.kind == "conv":
        kernel, size = "x".join(map(str, layer.kernel)), "x".join(map(str, layer.output))
        return f"{layer.in_channels} → {layer.out_channels}, {kernel} to {size}"
    return f"{layer.kind}, {layer.in_channels} → {layer.out_channels}"


def _machine(profile: MethodProfile) -> str:
    copies = profile.machine.copies
    threads = f"{profile.threads} thread" + ("" if profile.threads == 1 else "s")
    rates = " and ".join(
        f"{formatting.si(one.bytes_per_s, 'B/s')} ({formatting.binary_bytes(one.bytes)})"
        for one in dict.fromkeys((copies[0], copies[-1]))
    )
    peak = formatting.si(2 * profile.machine.macs_per_s, "FLOP/s")
    return f"Measured with the profile on {threads} in {profile.dtype}: a large matrix product {peak}; a copy {rates}."


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _number(value: float, decimals: int) -> Cell:
    return Cell(formatting.plain(value, decimals), value=value)
