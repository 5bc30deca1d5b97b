"""The sections "Why" of a report: where the time of a step goes, from the file of the profile pass.

The file has, in this order: shares of the step and of the three products, modelled and measured savings, the causes of
a method's time, the tables of parts, savings and layers, and the sections.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from reports import formatting
from reports.content.model import Cell, Column, Section, Table, missing_cell, number_cell
from reports.data.method_rows import MethodRow
from reports.figures.figure import Figure
from reports.figures.step_parts import step_figure
from reports.sentences import say
from suite.trials.estimates import mean_of
from suite.trials.folder.profiles import (
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


@dataclass(frozen=True)
class Saving:
    """A saving relative to dense, as a fraction; negative if the method takes longer.

    Attributes:
        products: Saving in the time of the three products of all planned layers; `None` if it is not about them.
        step: Saving in the time of the step.
    """

    products: float | None
    step: float


@dataclass(frozen=True)
class Savings:
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


def part_seconds(step: StepProfile, part: Part) -> float:
    """Return the seconds of a part."""
    return step.parts.get(part, 0.0)


def products_seconds(step: StepProfile) -> float:
    """Return the seconds of the three products together."""
    return math.fsum(part_seconds(step, product) for product in PRODUCTS)


def share_of_products(step: StepProfile, product: Product) -> float:
    """Return the share of a product in the time of the three products, or 0 if no layer is planned."""
    products = products_seconds(step)
    return part_seconds(step, product) / products if products else 0.0


def flops(step: StepProfile, column: Flops, product: Product | None = None) -> float:
    """Return the FLOPs of a step: of one product, or of all."""
    return math.fsum(
        getattr(counted, column)
        for layer in step.layers
        for name, counted in layer.products.items()
        if product in (None, name)
    )


def savings(stage: StageProfile) -> Savings | None:
    """Return the savings of a stage; `None` for dense training itself or without planned layers."""
    if stage.dense is None or stage.ratio is None or not products_seconds(stage.dense):
        return None
    products, step = products_seconds(stage.dense), total(stage.dense)
    saved, pruning = _skippable_seconds(stage.dense, stage.method), part_seconds(stage.method, "pruning")
    mine = products_seconds(stage.method)
    return Savings(
        skipped=Saving(saved / products, saved / step),
        with_pruning=Saving((saved - pruning) / products, (saved - pruning) / step),
        measured=Saving(1 - mine / products, 1 - stage.ratio.ratio),
    )


@dataclass(frozen=True)
class SlowedProduct:
    """A product of one layer that takes longer than dense's.

    Attributes:
        layer: Name of the layer.
        product: The product.
        dense_s: Seconds in a dense step.
        method_s: Seconds in a step of the method.
    """

    layer: str
    product: Product
    dense_s: float
    method_s: float


def changes(stage: StageProfile) -> dict[Part, float]:
    """Return how much longer each part takes than in a dense step, as a share of that step, largest change first.

    The result is empty for dense training itself.
    """
    dense, method = stage.dense, stage.method
    if dense is None:
        return {}
    longer = {part: (part_seconds(method, part) - part_seconds(dense, part)) / total(dense) for part in method.parts}
    return dict(sorted(longer.items(), key=lambda item: -abs(item[1])))


def most_slowed_product(stage: StageProfile) -> SlowedProduct | None:
    """Return the product of a layer whose time exceeds dense's by most; `None` if none does."""
    theirs = {layer.name: layer for layer in stage.dense.layers} if stage.dense is not None else {}
    slowed = [
        SlowedProduct(layer.name, name, before.seconds, after.seconds)
        for layer in stage.method.layers
        for name, after in layer.products.items()
        if layer.name in theirs and (before := theirs[layer.name].products.get(name)) is not None
        if before.seconds is not None and after.seconds is not None and after.seconds > before.seconds
    ]
    return max(slowed, key=lambda one: one.method_s - one.dense_s, default=None)


def _skippable_seconds(dense: StepProfile, method: StepProfile) -> float:
    """Return the seconds of dense products that would be saved if time were proportional to effective FLOPs."""
    theirs = {layer.name: layer for layer in method.layers}
    saved = []
    for layer in dense.layers:
        for product, cost in layer.products.items():
            if not cost.seconds or not cost.effective:
                continue
            other = theirs[layer.name].products.get(product) if layer.name in theirs else None
            left = other.effective / method.batch_size if other else 0.0
            saved.append(cost.seconds * (1 - left / (cost.effective / dense.batch_size)))
    return math.fsum(saved)


_MILLI = 1e3
_NEGLIGIBLE = 0.01  # of a dense step
_REMARKABLE = 0.1  # of a dense step; a layer's product that is slower by more is named


class _Change(NamedTuple):
    """The change of a part of a step; for a product also its executed FLOPs and its time relative to dense."""

    title: str
    percent: float
    executed: float | None = None
    time: float | None = None


def causes(profile: MethodProfile | None, epochs: float) -> list[str]:
    """Return which parts of a step are faster or slower than dense's in the last stage; empty without a profile.

    Args:
        profile: Profile of a method.
        epochs: Number of epochs of the trials; 0 if it is not known.
    """
    if profile is None or (dense := profile.stages[-1].dense) is None:
        return []
    stage = profile.stages[-1]
    if not (dense.adds_up and stage.method.adds_up):
        return []  # the clocks or another program took some of the time
    parts = [_change(stage, part, share) for part, share in changes(stage).items() if abs(share) >= _NEGLIGIBLE]
    of_several = stage.epoch if profile.stages_of_trial > 1 else None
    lines = [say("methods.changed_parts", stage=of_several, epochs=epochs, parts=parts)]
    slowed = most_slowed_product(stage)
    if parts and slowed is not None and slowed.method_s - slowed.dense_s >= _REMARKABLE * total(dense):
        product = "forward pass" if slowed.product == "forward" else PART_TITLES[slowed.product]
        ms, dense_ms = _MILLI * slowed.method_s, _MILLI * slowed.dense_s
        lines.append(say("methods.slowed", product=product, layer=slowed.layer, ms=ms, dense_ms=dense_ms))
    return lines


def _change(stage: StageProfile, part: Part, share: float) -> _Change:
    dense, method = stage.dense, stage.method
    if part not in PRODUCTS or dense is None or not (whole := flops(dense, "dense", part)):
        return _Change(PART_TITLES[part], 100 * share)
    executed = flops(method, "executed", part) / method.batch_size / (whole / dense.batch_size)
    return _Change(PART_TITLES[part], 100 * share, executed, part_seconds(method, part) / part_seconds(dense, part))


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
    caption = f"Time that {row.label} saves in its last stage, relative to dense."
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
        Column("Bound", "ms", "modelled", _BOUND),
        Column("Time / bound", "", "modelled"),
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
        number_cell(100 * found.dense / images / whole, 1),
        number_cell(found.executed / found.dense, 2),
        missing_cell(not_timed) if other is None or other.seconds is None else number_cell(_MILLI * other.seconds, 3),
        missing_cell(not_timed) if found.seconds is None else number_cell(_MILLI * found.seconds, 3),
        missing_cell(not_timed) if found.seconds is None else number_cell(100 * found.seconds / total(stage.method), 1),
        missing_cell(not_timed) if bound is None else number_cell(_MILLI * bound.seconds, 3),
        missing_cell(not_timed)
        if bound is None or found.seconds is None
        else number_cell(found.seconds / bound.seconds, 1),
        Cell("" if bound is None else bound.by),
    )


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
PRUNING: Part = "pruning"
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
    steps = {BASELINE: dense} | {row.label: profile.stages[-1].method for row, profile in found}
    return step_figure(
        {label: _milliseconds(step, dense.batch_size) for label, step in steps.items()}, f"{slug}-step-parts", _BARS
    )


def _milliseconds(step: StepProfile, batch_size: int) -> dict[str, float]:
    """Return the milliseconds of each part of a step in the figure, for as many images as a dense step has."""
    scale = 1e3 * batch_size / step.batch_size
    shown = {PART_TITLES[part]: scale * part_seconds(step, part) for part in (*PRODUCTS, PRUNING)}
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
        f"three products and {_percent(part_seconds(dense, 'dgrad') / total(dense))} % of the step. {_PUBLISHED}",
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
