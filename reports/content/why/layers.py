"""The table of layers and products in a step, with their lower bounds."""

from __future__ import annotations

from collections.abc import Mapping

from reports.content.model import Cell, Column, Table, missing_cell, number_cell
from reports.content.why.shares import flops, total
from reports.data.method_rows import MethodRow
from suite.runs.folder.profiles import PART_TITLES, LayerProfile, MethodProfile, Product, StageProfile, StepProfile

_MILLI = 1e3
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
