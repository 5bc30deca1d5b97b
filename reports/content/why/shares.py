"""What follows from a profile: shares of the step and of the three products, and modelled and measured savings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from suite.runs.folder.profiles import Part, Product, StageProfile, StepProfile

PRODUCTS: tuple[Product, ...] = ("forward", "dgrad", "wgrad")
Flops = Literal["dense", "current", "effective", "executed"]


@dataclass(frozen=True)
class Saving:
    """A saving relative to dense, as a fraction; negative if more time is taken.

    Attributes:
        products: Of the time of the three products of all planned layers; `None` if it does not refer to them.
        step: Of the time of the step.
    """

    products: float | None
    step: float


@dataclass(frozen=True)
class Savings:
    """Savings of a method in one stage.

    Attributes:
        skipped: Modelled: a product takes its dense time, times the FLOPs that remain if everything is skipped that can
            be. Pruning takes no time. For a method that prunes the data gradient to n:m, this is the share of the data
            gradient times 1 - n/m, which is the model of SDGP's Sec. IV-C.
        with_pruning: The same, less the measured time of pruning.
        measured: The measured times of products; of the step without clocks.
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
        getattr(found, column)
        for layer in step.layers
        for name, found in layer.products.items()
        if product in (None, name)
    )


def savings(stage: StageProfile) -> Savings | None:
    """Return the savings of a stage; `None` for dense training itself, and if no layer is planned."""
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
    """Return how much longer each part takes than in a dense step, as a share of the dense step, largest change first.

    The result is empty for dense training itself.
    """
    dense, method = stage.dense, stage.method
    if dense is None:
        return {}
    found = {part: (part_seconds(method, part) - part_seconds(dense, part)) / total(dense) for part in method.parts}
    return dict(sorted(found.items(), key=lambda item: -abs(item[1])))


def most_slowed_product(stage: StageProfile) -> SlowedProduct | None:
    """Return the product of one layer of which the time rose most over dense's; `None` if none rose."""
    theirs = {layer.name: layer for layer in stage.dense.layers} if stage.dense is not None else {}
    found = [
        SlowedProduct(layer.name, name, before.seconds, after.seconds)
        for layer in stage.method.layers
        for name, after in layer.products.items()
        if layer.name in theirs and (before := theirs[layer.name].products.get(name)) is not None
        if before.seconds is not None and after.seconds is not None and after.seconds > before.seconds
    ]
    return max(found, key=lambda one: one.method_s - one.dense_s, default=None)


def _skippable_seconds(dense: StepProfile, method: StepProfile) -> float:
    """Return the seconds of dense products that would be saved if time were proportional to effective FLOPs."""
    theirs = {layer.name: layer for layer in method.layers}
    saved = []
    for layer in dense.layers:
        for product, found in layer.products.items():
            if not found.seconds or not found.effective:
                continue
            other = theirs[layer.name].products.get(product) if layer.name in theirs else None
            left = other.effective / method.batch_size if other else 0.0
            saved.append(found.seconds * (1 - left / (found.effective / dense.batch_size)))
    return math.fsum(saved)
