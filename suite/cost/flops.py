"""Counted cost: multiply-adds and FLOPs of a model's layers, for one image. `suite.cost.ledger` sums them over a trial.

One multiply-add is 2 FLOPs. Two-dimensional convolutions and linear layers are counted, padding included, and so are
the two products of scaled dot-product attention, as separate rows. A layer whose input needs no gradient (the first)
has no data gradient. Other operations that multiply are not counted but named (`Counts.not_counted`).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from suite.network.forward_pass import LAYERS, Product, run_blank

PRODUCTS = ("forward", "dgrad", "wgrad")


@dataclass(frozen=True)
class LayerCost:
    """Shape and multiply-adds of one layer, for one image.

    Attributes:
        name: Name of the layer; for attention, the name of the module followed by `:attention`.
        kind: `conv`, `linear` or `attention`.
        in_channels, out_channels, kernel, input, output: C, K, (R, S), (H, W), (P, Q). For attention: the width of all
            heads' queries (twice), (1, 1), (keys, 1), (queries, 1).
        macs: Multiply-adds of the forward; each gradient takes as many. Attention multiplies two activations, twice;
            its backward has two products for each, all of them data gradients.
        has_dgrad: Whether the layer's input needs a gradient.
        params: Number of weights and biases.
        input_elements: Number of elements of the input, which training keeps for backward.
        training_only: Whether the layer runs only in training mode (an auxiliary head) and not in inference.
    """

    name: str
    kind: str
    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    input: tuple[int, int]
    output: tuple[int, int]
    macs: int
    has_dgrad: bool
    params: int
    input_elements: int
    training_only: bool = False

    def flops(self, product: str) -> int:
        """Return the FLOPs of one product for one image."""
        if product == "dgrad" and not self.has_dgrad:
            return 0
        if self.kind == "attention":
            return {"forward": 2, "dgrad": 4, "wgrad": 0}[product] * self.macs
        return 2 * self.macs


@dataclass(frozen=True)
class Counts:
    """Cost of one image.

    Attributes:
        layers: Layers by name, in the order in which they run.
        not_counted: Operations that multiply and are in no layer's count, as text: operation, module, multiply-adds.
    """

    layers: dict[str, LayerCost]
    not_counted: tuple[str, ...]


def count_layers(model: nn.Module, input_shape: tuple[int, int, int]) -> dict[str, LayerCost]:
    """Count all convolution and linear layers of a model, and attention, by running a blank image.

    Args:
        model: The model. Its mode, weights and normalisation statistics stay unchanged.
        input_shape: (C, H, W) of one image.
    """
    return count(model, input_shape).layers


def count(model: nn.Module, input_shape: tuple[int, int, int]) -> Counts:
    """Count a model's layers as `count_layers` does, and name the operations that multiply outside them.

    The blank image runs in evaluation mode. If a layer does not run then, blank images also run through a copy in
    training mode.
    """
    costs, products = _run(model, input_shape, 1)
    layers = {name for name, module in model.named_modules() if isinstance(module, LAYERS)}
    if not layers <= costs.keys():
        # Batch normalisation needs at least two values per channel.
        in_training, more = _run(copy.deepcopy(model), input_shape, 2, training=True)
        known = {(product.op, product.module) for product in products}
        products += [product for product in more if (product.op, product.module) not in known]
        for name, cost in in_training.items():
            if name not in costs:
                costs[name] = replace(cost, training_only=True)
    macs: dict[tuple[str, str], float | None] = {}
    for product in products:
        if not product.attention:
            key, before = (product.op, product.module), macs.get((product.op, product.module), 0)
            macs[key] = None if product.macs is None or before is None else before + product.macs
    return Counts(costs, tuple(_in_words(*key, number) for key, number in macs.items()))


def _run(
    model: nn.Module, input_shape: tuple[int, int, int], images: int, training: bool = False
) -> tuple[dict[str, LayerCost], list[Product]]:
    """Return the layers and attentions that run, for one image, and all products outside of layers."""
    costs: dict[str, LayerCost] = {}

    def note(name: str, layer: nn.Module, given: Tensor, output: Tensor) -> None:
        params = sum(parameter.numel() for parameter in layer.parameters(recurse=False))
        elements, has_dgrad = given.numel() // images, bool(given.requires_grad)
        previous = 0
        if name in costs:  # a layer that is called twice multiplies twice
            previous, has_dgrad = costs[name].macs, has_dgrad or costs[name].has_dgrad
        if isinstance(layer, nn.Conv2d):
            kernel, read, size = layer.kernel_size, given.shape[-2:], output.shape[-2:]
            # The output of a gated layer has more channels than the layer computes.
            places = output.shape[0] * size[0] * size[1] // images
            macs = layer.out_channels * places * (layer.in_channels // layer.groups) * kernel[0] * kernel[1]
            costs[name] = LayerCost(
                name, "conv", layer.in_channels, layer.out_channels, (kernel[0], kernel[1]), (read[0], read[1]),
                (size[0], size[1]), previous + macs, has_dgrad, params, elements,
            )  # fmt: skip
        elif isinstance(layer, nn.Linear):
            macs = output.numel() // output.shape[-1] // images * layer.out_features * layer.in_features
            costs[name] = LayerCost(
                name, "linear", layer.in_features, layer.out_features, (1, 1), (1, 1), (1, 1),
                previous + macs, has_dgrad, params, elements,
            )  # fmt: skip

    found = run_blank(model, input_shape, images, training, on_layer=note).products
    products = [replace(one, macs=one.macs // images) if one.macs else one for one in found]
    for product in products:
        if product.attention:
            _add_attention(costs, product, images)
    return costs, products


def _add_attention(costs: dict[str, LayerCost], product: Product, images: int) -> None:
    """Add a product of attention to the row of its module."""
    name = f"{product.module}:attention"
    queries, others = product.shapes[-2:] if product.op == "baddbmm" else product.shapes[:2]
    heads = math.prod(queries[:-2]) // images
    if name in costs:
        known = costs[name]
        costs[name] = replace(
            known, macs=known.macs + (product.macs or 0), has_dgrad=known.has_dgrad or product.has_grad
        )
        return
    fused = product.op.startswith("_scaled_dot_product")
    keys = others[-2] if fused else others[-1]
    width = heads * queries[-1]
    costs[name] = LayerCost(
        name, "attention", width, width, (1, 1), (keys, 1), (queries[-2], 1),
        product.macs or 0, product.has_grad, 0, heads * queries[-2] * queries[-1],
    )  # fmt: skip


def _in_words(op: str, module: str, macs: float | None) -> str:
    where = f"'{module}'" if module else "the model's own forward"
    amount = "multiply-adds unknown" if macs is None else f"{macs:,.0f} multiply-adds per image"
    return f"{op} in {where} ({amount})"


def count_model(model: nn.Module, input_shape: tuple[int, int, int]) -> dict[str, int]:
    """Return `params`, and the `macs` and `inference_flops` of one image's inference."""
    macs = sum(cost.macs for cost in count_layers(model, input_shape).values() if not cost.training_only)
    params = sum(parameter.numel() for parameter in model.parameters())
    return {"params": params, "macs": macs, "inference_flops": 2 * macs}


def weight_density(layer: nn.Module) -> float:
    """Return the share of a layer's weights that are nonzero."""
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    return weight.count_nonzero().item() / max(weight.numel(), 1)
