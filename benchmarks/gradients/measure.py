"""Times of one gradient of a layer, dense, masked and skipping, in alternation; each result is checked before."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gradients.bounds import SIDE, bound, fastest_copy, moved_bytes, square_product
from benchmarks.gradients.layers import LayerShape, Operands, dense_product
from kernels import PruneRule, compress_nm, prune_nm
from kernels.compressed.dispatch import data_gradient, weight_gradient
from suite.engine.cost.interleaved import ratio_of
from suite.method import Compressed

KEY = 1  # of random masks
FEWEST_PAIRS = 3
# Largest error of a result, relative to the largest element of the reference, which is torch's product in float32 of
# what `prune_nm` keeps. Results in bfloat16 are rounded to 8 bits.
ERRORS = {torch.float32: 1e-4, torch.bfloat16: 1e-2}


class WrongProduct(Exception):
    """A product that skips differs from the reference; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to compute a gradient: preparation of the output gradient, and the product with its result."""

    prepare: Callable[[], Any]
    product: Callable[[Any], object]

    def seconds(self) -> tuple[float, float]:
        """Run once; return the times of both parts."""
        began = time.perf_counter()
        prepared = self.prepare()
        between = time.perf_counter()
        self.product(prepared)
        return between - began, time.perf_counter() - between


def compressed(grad: Tensor, rule: PruneRule) -> Compressed:
    """Prune and compress an output gradient."""
    return Compressed(*compress_nm(grad, rule, KEY), tuple(grad.shape), grad.dtype, rule.n, rule.m)


def skipping_product(product: str, pruned: Compressed, given: Operands, shape: LayerShape) -> Tensor:
    """Return a gradient from kept values and their channels."""
    if product == "dgrad":
        return data_gradient(pruned, given.weight, shape.size, shape.geometry)
    return weight_gradient(pruned, given.activation, given.weight, shape.geometry)


def relative_error(product: str, given: Operands, shape: LayerShape, rule: PruneRule) -> float:
    """Return the largest difference between the skipping product and torch's, relative to torch's largest element.

    Torch multiplies in float32 what `prune_nm` keeps of the same gradient.
    """
    found = skipping_product(product, compressed(given.grad, rule), given, shape).float()
    pruned = prune_nm(given.grad, rule, KEY).float()
    expected = dense_product(product, pruned, given.to(torch.float32), shape.geometry)
    return float((found - expected).abs().max() / expected.abs().max())


def check(product: str, given: Operands, shape: LayerShape, rule: PruneRule) -> float:
    """Return the relative error of a skipping product.

    Raises:
        WrongProduct: The error exceeds its bound, or the result has NaN.
    """
    error, dtype = relative_error(product, given, shape, rule), given.grad.dtype
    if not error <= ERRORS[dtype]:
        raise WrongProduct(
            f"{product} of {shape}, {rule.n}:{rule.m}, {name_of(dtype)}: relative error {error:.2g} exceeds "
            f"{ERRORS[dtype]:g}; not timed"
        )
    return error


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


Key = tuple[str, torch.dtype, PruneRule | None]


def candidates(
    product: str, shape: LayerShape, each: Sequence[Operands], rules: Sequence[PruneRule]
) -> dict[Key, Candidate]:
    """Return all ways to compute a gradient: `dense`, `masked` and `skip`, by dtype and rule."""
    found: dict[Key, Candidate] = {}
    for given in each:
        dtype = given.grad.dtype

        def dense(grad: Tensor, given: Operands = given) -> Tensor:
            return dense_product(product, grad, given, shape.geometry)

        found["dense", dtype, None] = Candidate(lambda given=given: given.grad, dense)
        for rule in rules:

            def skip(pruned: Any, given: Operands = given) -> Tensor:
                return skipping_product(product, pruned, given, shape)

            masked = Candidate(lambda given=given, rule=rule: prune_nm(given.grad, rule, KEY), dense)
            found["masked", dtype, rule] = masked
            found["skip", dtype, rule] = Candidate(lambda given=given, rule=rule: compressed(given.grad, rule), skip)
    return found


def measure(
    product: str,
    shape: LayerShape,
    batch: int,
    rules: Sequence[PruneRule],
    dtypes: Sequence[torch.dtype],
    peaks: Mapping[str, float],
    pairs: int,
    seconds: float,
) -> list[dict[str, Any]]:
    """Check and measure one gradient of a layer.

    Args:
        product: `dgrad` or `wgrad`.
        shape: The layer.
        batch: Number of images.
        rules: Rules of pruning, which are measured in alternation with each other, too.
        dtypes: Dtypes of the operands.
        peaks: Highest known multiply-adds per second in `float32` and `bfloat16`.
        pairs: Largest number of rounds in which every candidate runs once, in an order that alternates.
        seconds: The rounds end after this time, but not before the third.

    Returns:
        One row of plain data for each rule.

    Raises:
        WrongProduct: A product is wrong; nothing is timed.
    """
    operands = Operands.random(shape, batch)
    each = [operands.to(dtype) for dtype in dtypes]
    errors = {(given.grad.dtype, rule): check(product, given, shape, rule) for given in each for rule in rules}
    ways = candidates(product, shape, each, rules)
    copied = moved_bytes(shape, batch, None, torch.float32.itemsize)
    copy = fastest_copy(copied)
    ways["copy", torch.uint8, None] = Candidate(lambda: None, lambda _: copy())
    for dtype in ERRORS:
        square = square_product(dtype)
        ways["peak", dtype, None] = Candidate(lambda: None, lambda _, run=square: run())
    load, times = os.getloadavg()[0], alternate(ways, pairs, seconds)
    rate = copied / times["copy", torch.uint8, None].sum(axis=1).min()
    found_peaks = {name_of(dtype): SIDE**3 / times["peak", dtype, None].sum(axis=1).min() for dtype in ERRORS}
    peaks = {name: float(max(found, peaks[name])) for name, found in found_peaks.items()}
    rows = []
    for rule in rules:
        by_dtype = {}
        for dtype in dtypes:
            part = {name: times[name, dtype, None if name == "dense" else rule] for name in ("dense", "masked", "skip")}
            kept = rule.kept(shape.out_channels)
            bounds = {
                "skip": bound(shape, batch, kept, dtype, peaks, rate),
                "dense": bound(shape, batch, None, dtype, peaks, rate),
            }
            found = figures(part, bounds)
            by_dtype[name_of(dtype)] = {**found, "relative_error": errors[dtype, rule]}
        faster = min(by_dtype, key=lambda name: by_dtype[name]["dense_ms"]["median"])
        rows.append(
            {
                "product": product, "n": rule.n, "m": rule.m, "mode": rule.mode, "rescale": rule.rescale,
                "batch": batch, "shape": dataclasses.asdict(shape), "load": load,
                "pairs": len(times["copy", torch.uint8, None]), "copy_bytes_per_s": rate,
                "peaks": peaks, "faster_dense": faster, "dtypes": by_dtype,
            }
        )  # fmt: skip
    return rows


def alternate(ways: Mapping[Key, Candidate], pairs: int, seconds: float) -> dict[Key, np.ndarray]:
    """Return the seconds of preparation and product of all candidates, (rounds, 2) each.

    Each candidate runs once before, unmeasured. Every second round runs in reverse order.
    """
    for way in ways.values():
        way.seconds()
    times: dict[Key, list[tuple[float, float]]] = {key: [] for key in ways}
    began = time.perf_counter()
    for index in range(pairs):
        if index >= FEWEST_PAIRS and time.perf_counter() - began > seconds:
            break
        for key in list(ways) if index % 2 == 0 else reversed(list(ways)):
            times[key].append(ways[key].seconds())
    return {key: np.array(pair) for key, pair in times.items()}


def figures(part: Mapping[str, np.ndarray], bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of one rule and dtype: milliseconds, times as fast as the others, and shares of the bounds."""
    whole = {name: times.sum(axis=1) for name, times in part.items()}
    found: dict[str, Any] = {
        f"{name}_ms": {"median": 1e3 * float(np.median(times)), "least": 1e3 * float(times.min())}
        for name, times in whole.items()
    }
    found["compress_ms"] = 1e3 * float(np.median(part["skip"][:, 0]))
    found["share_of_compression"] = float(np.median(part["skip"][:, 0] / whole["skip"]))
    for other in ("dense", "masked"):
        ratio = ratio_of(whole[other], whole["skip"])
        found[f"times_as_fast_as_{other}"] = {name: getattr(ratio, name) for name in ("median", "low", "high", "least")}
    for name, limit in bounds.items():
        product_s = float(np.median(part[name][:, 1]))
        found[f"{name}_bound"] = {"ms": 1e3 * limit.seconds, "by": limit.by, "reached": limit.seconds / product_s}
    return found
