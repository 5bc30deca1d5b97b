"""The sections "Why" of a report: where the time of a step goes, from the file of the profile pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from reports import formatting
from reports.content.model import Cell, Column, Section, Table, missing_cell, number_cell
from reports.data.estimates import mean_of
from reports.data.method_rows import MethodRow
from reports.figures.figure import Figure
from reports.figures.step_parts import step_figure
from suite.measure.profiles import (
    PART_TITLES,
    LayerProfile,
    MethodProfile,
    Part,
    Product,
    StageProfile,
    StepProfile,
)
from suite.trials.groups import BASELINE

PRODUCTS: tuple[Product, ...] = ("forward", "dgrad", "wgrad")
Flops = Literal["dense", "current", "effective", "executed"]


class Saving(NamedTuple):
    """A saving relative to dense, as a fraction; negative if the method takes longer.

    Attributes:
        products: Saving in the time of the three products of all planned layers; `None` if it is not about them.
        step: Saving in the time of the step.
    """

    products: float | None
    step: float


class Savings(NamedTuple):
    """Savings of a method in one stage.

    Attributes:
        skipped: Modelled: a product takes its dense time, times the share of FLOPs that remain if all that can be
            skipped is skipped. Pruning takes no time. For a method that prunes the data gradient to n:m, this is the
            share of the data gradient times 1 - n/m, as in the model of SDGP's Sec. IV-C.
        with_pruning: `skipped` less the measured time of pruning.
        measured: Saving in the measured times: of products with clocks, and of the step without clocks.
    """

    skipped: Saving
    with_pruning: Saving
    measured: Saving


def total(step: StepProfile) -> float:
    """Return the seconds of all parts of a step."""
    return math.fsum(step.parts.values())


def seconds(step: StepProfile, parts: Sequence[Part]) -> float:
    """Return the seconds of some parts of a step together."""
    return math.fsum(step.parts.get(part, 0.0) for part in parts)


def share_of_products(step: StepProfile, product: Product) -> float:
    """Return the share of a product in the time of the three products, or 0 if no layer is planned."""
    products = seconds(step, PRODUCTS)
    return seconds(step, [product]) / products if products else 0.0


def flops(step: StepProfile, column: Flops, products: Sequence[Product] = PRODUCTS) -> float:
    """Return the FLOPs of some products of a step."""
    return math.fsum(
        getattr(counted, column)
        for layer in step.layers
        for name, counted in layer.products.items()
        if name in products
    )


def savings(stage: StageProfile) -> Savings | None:
    """Return the savings of a stage; `None` for dense training itself or without planned layers."""
    if stage.dense is None or stage.ratio is None or not (products := seconds(stage.dense, PRODUCTS)):
        return None
    step = total(stage.dense)
    saved, pruning = _skippable_seconds(stage.dense, stage.method), seconds(stage.method, ["pruning"])
    return Savings(
        skipped=Saving(saved / products, saved / step),
        with_pruning=Saving((saved - pruning) / products, (saved - pruning) / step),
        measured=Saving(1 - seconds(stage.method, PRODUCTS) / products, 1 - stage.ratio.ratio),
    )


def _skippable_seconds(dense: StepProfile, method: StepProfile) -> float:
    """Return the seconds of dense products that would be saved if time were proportional to effective FLOPs."""
    theirs = {layer.name: layer.products for layer in method.layers}
    saved = []
    for layer in dense.layers:
        for product, cost in layer.products.items():
            if cost.seconds and cost.effective:
                other = theirs.get(layer.name, {}).get(product)
                left = other.effective / method.batch_size if other else 0.0
                saved.append(cost.seconds * (1 - left / (cost.effective / dense.batch_size)))
    return math.fsum(saved)


_MILLI = 1e3
_NO_FLOPS = "Only products have counted FLOPs"
_MODEL = (
    "Every product takes its dense time, times the share of its FLOPs that remains (the model of SDGP's Sec. IV-C)."
)
_PAIRS = (
    "Over all pairs of neighbouring steps without clocks, slow ones included; the tables of parts and layers are means "
    "over the faster half of the steps."
)
_NOTES: Mapping[str, str] = {
    "network": "Pooling, sums, the loss, attention, layers that no method can plan, and Python between operations.",
    "rest": "The norm of the gradients, counting, and the training loop.",
}


def parts_table(row: MethodRow, profile: MethodProfile, stage: StageProfile, name: str) -> Table:
    """Return the table of the parts of a step, dense next to the method."""
    method, dense = stage.method, stage.dense or stage.method

    def times(title: str, parts: Sequence[Part], note: str = "") -> tuple[Cell, ...]:
        return _time_row(title, seconds(dense, parts), seconds(method, parts), dense, method, note)

    def products(title: str, of: Sequence[Product]) -> tuple[Cell, ...]:
        per_image, whole = flops(dense, "dense", of) / dense.batch_size, flops(dense, "dense") / dense.batch_size
        ratios = [
            flops(method, column, of) / method.batch_size / per_image if per_image else 0.0
            for column in ("effective", "executed")
        ]
        head, _, _, _, *tail = times(title, of)
        share = number_cell(100 * per_image / whole if whole else 0.0, 1)
        return (head, share, *(number_cell(ratio, 2) for ratio in ratios), *tail)

    rows = [products(PART_TITLES[product], [product]) for product in PRODUCTS]
    rows.append(products("three products", PRODUCTS))
    rows += [times(title, [part], _NOTES.get(part, "")) for part, title in PART_TITLES.items() if part not in PRODUCTS]
    rows.append(times("sum of the parts", [*PART_TITLES]))
    rows.append(
        _time_row("step without clocks", dense.step_s, method.step_s, dense, method, "Mean over the faster half.")
    )
    which = "a step" if profile.stages_of_trial == 1 else f"a step from epoch {stage.epoch}"
    compared = "" if stage.dense is None else ", next to a dense step"
    caption = f"Parts of {which} of {row.name} with batch size {method.batch_size}{compared}"
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
    saved = savings(stage)
    if saved is None or stage.dense is None:
        return None
    faster_half = Saving(saved.measured.products, 1 - stage.method.step_s / stage.dense.step_s)
    rows = [
        _saving_row("what can be skipped takes no time, and pruning takes no time", "modelled", saved.skipped, _MODEL),
        _saving_row("the same, less the measured time of pruning", "modelled", saved.with_pruning),
        _saving_row("steps of this profile, faster half", "measured", faster_half),
        _saving_row("steps of this profile, median", "measured", Saving(None, saved.measured.step), _PAIRS),
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
    caption = f"Time that {row.name} saves in its last stage, relative to dense."
    return Table(name, caption, columns, tuple(rows))


def _saving_row(title: str, kind: str, saving: Saving, note: str = "") -> tuple[Cell, ...]:
    of_products = missing_cell("Measured for whole steps only") if saving.products is None else number_cell(
        100 * saving.products, 1
    )  # fmt: skip
    return Cell(title, note), Cell(kind), of_products, number_cell(100 * saving.step, 1)


_BOUND = (
    "The larger of multiply-adds over the highest rate of a large matrix product, and bytes over the rate of a copy of "
    "about the product's size; both were measured in the same process. A time below its bound means that these rates "
    "were disturbed."
)


def layer_table(row: MethodRow, profile: MethodProfile, name: str) -> Table:
    """Return the table of layers and products in the last stage."""
    stage = profile.stages[-1]
    dense = stage.dense or stage.method
    theirs = {layer.name: layer for layer in dense.layers}
    whole = flops(dense, "dense") / dense.batch_size
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
        Column("Bound", "ms", "modelled", _BOUND),
        Column("Time / bound", "", "modelled"),
        Column("Bound by", numeric=False),
    )
    return Table(name, f"Layers and products in a step of {row.name}, last stage.", columns, tuple(rows))


def _layer_row(
    layer: LayerProfile,
    product: Product,
    theirs: Mapping[str, LayerProfile],
    stage: StageProfile,
    whole: float,
) -> tuple[Cell, ...]:
    found, bound = layer.products[product], layer.products[product].bound
    other = theirs[layer.name].products.get(product) if layer.name in theirs else None
    dense_s = other.seconds if other else None
    least = bound.seconds if bound else None
    return (
        Cell(layer.name, code=True),
        Cell(_shape(layer)),
        Cell(PART_TITLES[product], "" if layer.backend == "torch" else f"Backend {layer.backend}."),
        number_cell(100 * found.dense / stage.method.batch_size / whole, 1),
        number_cell(found.executed / found.dense, 2),
        _timed(dense_s, _MILLI, 3),
        _timed(found.seconds, _MILLI, 3),
        _timed(found.seconds, 100 / total(stage.method), 1),
        _timed(least, _MILLI, 3),
        _timed(found.seconds if least else None, 1 / least if least else 1.0, 1),
        Cell(bound.by if bound else ""),
    )


def _timed(seconds: float | None, scale: float, decimals: int) -> Cell:
    if seconds is None:
        return missing_cell("No method can plan this layer, so that its products are not timed")
    return number_cell(scale * seconds, decimals)


def _pruning_row(layer: LayerProfile, step: StepProfile) -> tuple[Cell, ...]:
    reason = missing_cell("Transforms of operands have no counted FLOPs and no bound")
    seconds, share = number_cell(_MILLI * layer.pruning_s, 3), number_cell(100 * layer.pruning_s / total(step), 1)
    names = Cell(layer.name, code=True), Cell(_shape(layer)), Cell(PART_TITLES["pruning"])
    return (*names, reason, reason, reason, seconds, share, reason, reason, Cell(""))


def _shape(layer: LayerProfile) -> str:
    if layer.kind == "conv":
        kernel, size = "x".join(map(str, layer.kernel)), "x".join(map(str, layer.output))
        return f"{layer.in_channels} → {layer.out_channels}, {kernel} to {size}"
    return f"{layer.kind}, {layer.in_channels} → {layer.out_channels}"


_LAST_STAGE = "The last stage ends with the last step: channels that a method removes after it are still there."
_BARS = (
    "Means over the faster half of the steps with clocks, in the last stage of each method, for the images of a dense "
    "step. Rest: normalisation, other operations, optimizer, input and the loop."
)
_PUBLISHED = (
    "SDGP's paper measured 33.17 % of the time of the three products for ResNet-18 on ImageNet (batch size 256, Nvidia "
    "A100; Sec. IV-C and Fig. 9)."
)


def why_sections(rows: Sequence[MethodRow], profiles: Mapping[str, MethodProfile], slug: str) -> tuple[Section, ...]:
    """Return the sections about the profiles of a group: parts of a step, and layers; empty without profiles.

    Args:
        rows: Methods of a group, in the order of the report.
        profiles: The entries of `profile.json` for this group, by method.
        slug: Prefix of the tables' names.
    """
    found = [(row, profiles[row.label]) for row in rows if row.label in profiles]
    if not found:
        return ()
    parts: list[Table] = []
    layers: list[Table] = []
    for number, (row, profile) in enumerate(found, 1):
        for stage in profile.stages:
            parts.append(parts_table(row, profile, stage, f"{slug}-why-{number}-{stage.epoch}"))
        if (table := savings_table(row, profile, f"{slug}-saving-{number}")) is not None:
            parts.append(table)
        layers.append(layer_table(row, profile, f"{slug}-layers-{number}"))
    return (
        Section("Why: where the time of a step goes", "why", _lines(found), tuple(parts), (_step_figure(found, slug),)),
        Section("Why: layers and products", "why-layers", (_machine(found[0][1]), _LAST_STAGE), tuple(layers)),
    )


def _step_figure(found: Sequence[tuple[MethodRow, MethodProfile]], slug: str) -> Figure:
    """Return the figure of the last stage of each method, and of the dense steps that ran next to the first one."""
    stage = found[0][1].stages[-1]
    dense = stage.dense or stage.method
    steps = {BASELINE: dense} | {row.name: profile.stages[-1].method for row, profile in found}
    return step_figure(
        {label: _milliseconds(step, dense.batch_size) for label, step in steps.items()}, f"{slug}-step-parts", _BARS
    )


def _milliseconds(step: StepProfile, batch_size: int) -> dict[str, float]:
    """Return the milliseconds of each part of a step in the figure, for as many images as a dense step has."""
    scale = 1e3 * batch_size / step.batch_size
    parts: tuple[Part, ...] = (*PRODUCTS, "pruning")
    shown = {PART_TITLES[part]: scale * seconds(step, [part]) for part in parts}
    return shown | {"rest": scale * total(step) - sum(shown.values())}


def _lines(found: Sequence[tuple[MethodRow, MethodProfile]]) -> tuple[str, ...]:
    """Return how the profile was measured, and the share of the data gradient."""
    first = found[0][1]
    steps = [step for _, profile in found for stage in profile.stages for step in (stage.method, stage.dense) if step]
    clocks = [step.clocks.ratio for step in steps]
    sums = [step.sum_over_step for step in steps]
    dense = first.stages[0].dense or first.stages[0].method
    lines = [
        "Measured after the trials by the profile pass, in steps with clocks that alternate with steps without. With "
        f"clocks, steps took {_range(clocks)} times as long; the parts add up to {_range(sums)} times a step without "
        "clocks. These are medians over neighbouring steps, while the milliseconds of the tables are means over the "
        "faster half of the steps. The clocks compute both gradients of a layer separately, also where dense training "
        "computes them in one call.",
        f"In a dense step, the data gradient takes {_percent(share_of_products(dense, 'dgrad'))} % of the time of the "
        f"three products and {_percent(seconds(dense, ['dgrad']) / total(dense))} % of the step. {_PUBLISHED}",
    ]
    if apart := [row.label for row, profile in found if not all(_adds_up(stage) for stage in profile.stages)]:
        lines.append(
            f"The parts are more than 10 % away from a step without clocks for {', '.join(apart)}: other programs "
            "disturbed the measurement. Repeat it on an idle machine."
        )
    busy = max(profile.load for _, profile in found)
    if busy >= 0.5 * first.threads:
        lines.append(f"Other programs used {busy:.1f} cores when a measurement began; compare shares, not times.")
    if first.execution != "eager":
        lines.append(f"The trials ran with execution={first.execution}; the profiled steps ran eagerly.")
    return tuple(lines)


def _adds_up(stage: StageProfile) -> bool:
    return all(step.adds_up for step in (stage.method, stage.dense) if step)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    return low if low == high else f"{low} to {high}"


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
