"""Costs as papers count them, for comparison with the figures of these papers alone.

The suite's own convention is that of `suite.engine.cost.flops`. FLOPs in papers differ by up to a factor of two, so
percentages by different conventions must not be compared.

A ring all-reduce of B bytes among p processes has 2(p - 1) exchanges: p - 1 that add up the parts (reduce-scatter) and
p - 1 that distribute the sums (all-gather). In each, every process sends B/p bytes to the next process of the ring and
receives as many. No algorithm lets a process send fewer bytes (Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", Journal of Parallel and Distributed Computing 69, 2009). PruneTrain models its
communication in Section 5 and Figure 11 with this ring ("We model the communication cost using ring allreduce"; cost
per epoch relative to dense training). Its code does not contain the model. The bytes here are those of two processes,
which send B bytes each. Among p they send 2(p - 1)/p times as many, so that ratios of two trainings do not depend on p.

Each step reduces the gradients of all parameters of the present network. Masked weights count, because a plain
all-reduce sends their zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from suite.engine.cost.flops import PRODUCTS, LayerCost

# Rows and columns that PruneTrain's code adds to a convolution's input before it counts the data gradient, by kernel.
PRUNETRAIN_PADDING = {1: 0, 3: 2, 7: 3}
NORM_PASSES, ELEMENT_BYTES = 8, 2  # three in the forward and five in the backward, in 16 bits
GRADIENT_BYTES = 4  # of an element: gradients are float32 even under autocast


def prunetrain(costs: Iterable[LayerCost]) -> dict[str, float]:
    """Return the costs of one image as PruneTrain's code counts them.

    The code counts the data gradient at the padded resolution of the layer's *input*. That is too much for strided
    convolutions, and for the first layer, which needs no data gradient. Every convolution counts as normalised.

    Returns:
        `inference_flops` (two per multiply-add, for convolution and linear layers), `train_flops`, `norm_traffic_bytes`
        of a training step, and `weights` (with one more per output channel of a convolution).

    Source: PruneTrain (Lym et al., SC 2019), its code's cost model.
    """
    inference = training = traffic = weights = 0.0
    for cost in costs:
        inference += 2 * cost.macs
        weights += cost.params
        if cost.kind == "attention":  # PruneTrain's code has no attention; this counts as in the suite
            training += sum(cost.flops(product) for product in PRODUCTS)
            continue
        if cost.kind == "linear":
            training += 3 * 2 * cost.macs
            continue
        weights += cost.out_channels
        padding = PRUNETRAIN_PADDING.get(cost.kernel[0], cost.kernel[0] - 1)
        places = cost.output[0] * cost.output[1]
        padded = (cost.input[0] + padding) * (cost.input[1] + padding)
        training += 2 * (2 * cost.macs + cost.macs / places * padded)
        traffic += NORM_PASSES * ELEMENT_BYTES * cost.out_channels * places
    return {
        "inference_flops": inference,
        "train_flops": training,
        "norm_traffic_bytes": traffic,
        "weights": weights,
    }


CONVENTIONS: dict[str, Callable[[Iterable[LayerCost]], dict[str, float]]] = {"prunetrain": prunetrain}


@dataclass(frozen=True)
class Interval:
    """Training between two changes of the network or of the size of its images.

    Attributes:
        steps: Number of steps.
        samples: Number of images.
        layers: Layers of the model in this interval.
    """

    steps: int
    samples: int
    layers: tuple[LayerCost, ...]


def read_intervals(rows: Iterable[Mapping[str, Any]]) -> list[Interval]:
    """Return the intervals of a trial in order, from the rows of its `layers.csv`."""
    rows_by_start: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        rows_by_start.setdefault(int(row["interval"]), []).append(row)
    return [_interval(several) for _, several in sorted(rows_by_start.items())]


def _interval(rows: list[Mapping[str, Any]]) -> Interval:
    layers = tuple(_layer(row) for row in rows if int(row["out_channels"]))
    return Interval(int(rows[0]["steps"]), int(rows[0]["samples"]), layers)


def _layer(row: Mapping[str, Any]) -> LayerCost:
    kernel, given, output = (_pair(row[name]) for name in ("kernel", "input", "output"))
    channels, doubled = int(row["in_channels"]), 2 * int(row["samples"])
    gradients = None
    if row["kind"] == "attention":  # some products of attention may have one gradient and others two
        gradients = round(float(row["dgrad_current"]) / doubled), round(float(row["wgrad_current"]) / doubled)
    return LayerCost(
        name=str(row["layer"]),
        kind=str(row["kind"]),
        in_channels=channels,
        out_channels=int(row["out_channels"]),
        kernel=kernel,
        input=given,
        output=output,
        macs=round(float(row["forward_current"]) / doubled),
        has_dgrad=float(row["dgrad_dense"]) > 0,
        params=int(row["params"]),
        input_elements=channels * given[0] * given[1],
        gradient_macs=gradients,
    )


def _pair(text: str) -> tuple[int, int]:
    first, second = text.split("x")
    return int(first), int(second)


def prunetrain_training(intervals: Iterable[Interval]) -> dict[str, float]:
    """Return the costs of a training as PruneTrain's paper models them.

    Returns:
        `train_flops`; `norm_traffic_bytes`, which normalisation reads and writes; and `allreduce_bytes`, which each of
        two devices sends in a ring to sum the gradients of all steps.

    Source: PruneTrain, Sec. 5.2 and Fig. 11; its code's cost model.
    """
    total = dict.fromkeys(("train_flops", "norm_traffic_bytes", "allreduce_bytes"), 0.0)
    for interval in intervals:
        image = prunetrain(interval.layers)
        total["train_flops"] += image["train_flops"] * interval.samples
        total["norm_traffic_bytes"] += image["norm_traffic_bytes"] * interval.samples
        total["allreduce_bytes"] += GRADIENT_BYTES * int(image["weights"]) * interval.steps
    return total
