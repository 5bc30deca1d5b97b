"""Costs as papers count them, where this suite counts otherwise: for figures that stand beside theirs, and no others.

The suite's own convention is `suite.ledger`'s. FLOPs counts of papers differ by up to a factor of two; a percentage of
one convention says nothing of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from suite.ledger import LayerCost

# Rows and columns that PruneTrain's code adds to a convolution's input before it counts the data gradient, by kernel.
PRUNETRAIN_PADDING = {1: 0, 3: 2, 7: 3}
NORM_PASSES, ELEMENT_BYTES = 8, 2  # three of the forward and five of the backward, in 16 bits


def prunetrain(costs: Iterable[LayerCost]) -> dict[str, float]:
    """Costs of one image as PruneTrain's code counts them.

    The data gradient is charged at the padded resolution of the layer's *input*, also that of the first layer, which
    nobody needs; strided convolutions are overcharged by that. Normalisation is assumed behind every convolution.

    Returns:
        `inference_flops` (two a multiply-add, convolution and linear layers), `train_flops`, `norm_traffic_bytes` of a
        training step, and `weights`, with one more for each output channel of a convolution.

    Source: PruneTrain (Lym et al., SC 2019), its code's cost model.
    """
    inference = training = traffic = weights = 0.0
    for cost in costs:
        inference += 2 * cost.macs
        weights += cost.params
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
