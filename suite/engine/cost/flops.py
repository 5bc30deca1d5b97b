"""Counted cost: multiply-adds and FLOPs of a model's layers, for one image.

`suite.engine.cost.ledger` sums them over a trial.

One multiply-add is 2 FLOPs. The count includes two-dimensional convolutions and linear layers, with their padding.
Matrix products outside of these layers have their own rows:

    MODULE:attention    both products of scaled dot-product attention
    MODULE:PARAMETER    products with a parameter, such as the projections inside `nn.MultiheadAttention`
    MODULE:matmul       all other matrix products of a module: both factors are activations or constants

The gradient of a parameter is a weight gradient, and that of any other factor a data gradient. A factor that needs no
gradient (the input of the first layer) has none. Other operations that multiply, or may multiply, are named but not
counted (`Counts.not_counted`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from suite.engine.network.forward_pass import Product, copied, probing, run_blank
from suite.errors import UsageError

PRODUCTS = ("forward", "dgrad", "wgrad")
MATRIX_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
"""Names of the matrix products in torch's dispatcher, of which `matmul`, `einsum` and `linear` consist."""


@dataclass(frozen=True)
class LayerCost:
    """Shape and multiply-adds of one row, for one image: of a layer, or of matrix products outside of layers.

    Attributes:
        name: Name of the layer. Matrix products outside of layers have the name of the module followed by `:attention`,
            by `:matmul`, or by a colon and the name of the parameter.
        kind: `conv`, `linear` (also for products with a parameter) or `attention` (also for `:matmul`).
        in_channels, out_channels, kernel, input, output: C, K, (R, S), (H, W), (P, Q). For attention: the width of all
            heads' queries (twice), (1, 1), (keys, 1), (queries, 1). The first product of a `:matmul` has the same, with
            the matrices of an image in place of the heads.
        macs: Multiply-adds of the forward. Each gradient of a layer takes as many. Attention has two products of two
            activations; its backward has two products for each, all of them data gradients.
        has_dgrad: Whether the layer's input needs a gradient.
        has_wgrad: Whether the layer's weight is trained.
        params: Number of weights and biases.
        input_elements: Number of elements of the input, which training keeps for backward.
        training_only: Whether the layer runs only in training mode, as an auxiliary head does.
        weight: Name of the parameter in a product outside of layers; empty for layers and other products.
        gradient_macs: Multiply-adds of all data gradients and of all weight gradients, if the products of a row
            determine them one by one; `None` if they follow from `kind`, `macs`, `has_dgrad` and `has_wgrad`.
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
    weight: str = ""
    gradient_macs: tuple[int, int] | None = None
    has_wgrad: bool = True

    @property
    def is_layer(self) -> bool:
        """Whether the row is a layer, which is called as a module, rather than matrix products outside of layers."""
        return self.kind != "attention" and not self.weight

    def flops(self, product: str) -> int:
        """Return the FLOPs of one product for one image."""
        if self.gradient_macs is not None and product != "forward":
            return 2 * self.gradient_macs[product == "wgrad"]
        if (product == "dgrad" and not self.has_dgrad) or (product == "wgrad" and not self.has_wgrad):
            return 0
        if self.kind == "attention" and self.gradient_macs is None:
            return {"forward": 2, "dgrad": 4, "wgrad": 0}[product] * self.macs
        return 2 * self.macs


@dataclass(frozen=True)
class Counts:
    """Cost of one image.

    Attributes:
        layers: Layers by name, in the order in which they run.
        not_counted: Operations that multiply, or may multiply, and that no row counts, as text: operation, module,
            multiply-adds.
    """

    layers: dict[str, LayerCost]
    not_counted: tuple[str, ...]


def count_layers(model: nn.Module, input_shape: tuple[int, int, int]) -> dict[str, LayerCost]:
    """Count all convolution and linear layers of a model, and other matrix products, by running a blank image.

    Args:
        model: The model. Its mode, weights and normalisation statistics stay unchanged.
        input_shape: (C, H, W) of one image.
    """
    return count(model, input_shape).layers


def count(model: nn.Module, input_shape: tuple[int, int, int]) -> Counts:
    """Count a model's rows as `count_layers` does, and name operations that may multiply and have no row.

    Blank images run through copies in evaluation mode and in training mode, in which a model may compute more. The
    model itself is not run, since its forward may count its calls or keep what it saw.

    Raises:
        UsageError: The model cannot be copied.
    """
    try:
        in_evaluation, own = copied(model), copied(model)
    except Exception as error:
        raise UsageError(f"the model cannot be copied, as a training needs: {type(error).__name__}: {error}") from error
    with probing(model):
        costs, products = _run(in_evaluation, input_shape, 1)
        # Batch normalisation needs at least two values per channel in training mode.
        in_training, more = _run(own, input_shape, 2, training=True)
    known = {(product.op, product.module) for product in products}
    products += [product for product in more if (product.op, product.module) not in known]
    # A module may use a fused attention in one mode and matrix products in the other mode.
    attending = {_module_of(cost) for cost in costs.values() if cost.kind == "attention"}
    for name, cost in in_training.items():
        if name not in costs and not (cost.kind == "attention" and _module_of(cost) in attending):
            costs[name] = replace(cost, training_only=True)
    macs: dict[tuple[str, str], float | None] = {}
    for product in products:
        if not _has_row(product):
            key, before = (product.op, product.module), macs.get((product.op, product.module), 0)
            macs[key] = None if product.macs is None or before is None else before + product.macs
    return Counts(costs, tuple(_in_words(*key, number) for key, number in macs.items()))


def _run(
    model: nn.Module, input_shape: tuple[int, int, int], images: int, training: bool = False
) -> tuple[dict[str, LayerCost], list[Product]]:
    """Return the rows of what runs, for one image, and all products outside of layers."""
    costs: dict[str, LayerCost] = {}

    def note(name: str, layer: nn.Module, given: Tensor, output: Tensor) -> None:
        params = sum(parameter.numel() for parameter in layer.parameters(recurse=False))
        elements, has_dgrad = given.numel() // images, bool(given.requires_grad)
        previous = 0
        if name in costs:  # a layer that is called twice counts twice
            previous, has_dgrad = costs[name].macs, has_dgrad or costs[name].has_dgrad
        if isinstance(layer, nn.Conv2d):
            kernel, read, size = layer.kernel_size, given.shape[-2:], output.shape[-2:]
            # The output of a gated layer has more channels than the layer computes.
            places = output.shape[0] * size[0] * size[1]
            macs = layer.out_channels * places * (layer.in_channels // layer.groups) * kernel[0] * kernel[1] // images
            costs[name] = LayerCost(
                name, "conv", layer.in_channels, layer.out_channels, (kernel[0], kernel[1]), (read[0], read[1]),
                (size[0], size[1]), previous + macs, has_dgrad, params, elements, has_wgrad=layer.weight.requires_grad,
            )  # fmt: skip
        elif isinstance(layer, nn.Linear):
            macs = output.numel() // output.shape[-1] * layer.out_features * layer.in_features // images
            costs[name] = LayerCost(
                name, "linear", layer.in_features, layer.out_features, (1, 1), (1, 1), (1, 1),
                previous + macs, has_dgrad, params, elements, has_wgrad=layer.weight.requires_grad,
            )  # fmt: skip

    multiplied = run_blank(model, input_shape, images, training, on_layer=note).products
    products = [replace(one, macs=one.macs // images) if one.macs else one for one in multiplied]
    parameters = dict(model.named_parameters())
    for product in products:
        if not _has_row(product):
            continue
        if product.attention:
            _add_attention(costs, product, images)
        else:
            _add_matrix_product(costs, product, images, parameters)
    return costs, [one for one in products if not one.layer or one.macs is None] + _further(products, costs)


def _has_row(product: Product) -> bool:
    """Return whether a product has its own row or belongs to its module's row, rather than to a layer's row."""
    counted = product.attention or product.op in MATRIX_PRODUCTS
    return counted and product.macs is not None and not product.layer


def _further(products: Sequence[Product], costs: Mapping[str, LayerCost]) -> list[Product]:
    """Return what layers multiply beyond their rows. The forward of a layer's subclass may multiply more."""
    inside: dict[str, int] = {}
    for product in products:
        if product.layer and product.macs is not None:
            inside[product.layer] = inside.get(product.layer, 0) + product.macs
    more = {name: macs - costs[name].macs for name, macs in inside.items() if name in costs}
    return [Product("further products", name, macs, False, (), name) for name, macs in more.items() if macs > 0]


def _add_attention(costs: dict[str, LayerCost], product: Product, images: int) -> None:
    name = f"{product.module}:attention"
    shapes = [operand.shape for operand in product.operands]
    queries, others = shapes[-2:] if product.op == "baddbmm" else shapes[:2]
    heads = math.prod(queries[:-2]) // images
    if name in costs:
        known = costs[name]
        costs[name] = replace(
            known, macs=known.macs + (product.macs or 0), has_dgrad=known.has_dgrad or product.has_grad
        )
        return
    keys = others[-1] if product.op in MATRIX_PRODUCTS else others[-2]
    width = heads * queries[-1]
    costs[name] = LayerCost(
        name, "attention", width, width, (1, 1), (keys, 1), (queries[-2], 1),
        product.macs or 0, product.has_grad, 0, heads * queries[-2] * queries[-1],
    )  # fmt: skip


def _add_matrix_product(
    costs: dict[str, LayerCost], product: Product, images: int, parameters: Mapping[str, nn.Parameter]
) -> None:
    """Add a matrix product outside of layers and attention to the row of its module, or of module and parameter."""
    left, right = product.operands[-2:]
    weight = right.parameter or left.parameter
    macs, module = product.macs or 0, product.module
    dgrad = macs * sum(factor.has_grad for factor in (left, right) if not factor.parameter)
    wgrad = macs * sum(factor.has_grad for factor in (left, right) if factor.parameter)
    name = f"{module}:{weight.removeprefix(f'{module}.') if weight else 'matmul'}"
    if name in costs:
        known = costs[name]
        before = known.gradient_macs or (0, 0)
        costs[name] = replace(
            known, macs=known.macs + macs, has_dgrad=known.has_dgrad or dgrad > 0,
            gradient_macs=(before[0] + dgrad, before[1] + wgrad),
        )  # fmt: skip
        return
    activation = left if not left.parameter else right
    elements, width = math.prod(activation.shape) // images, left.shape[-1]
    if weight:
        # The first of several rows that multiply with a parameter, or the parameter's layer, counts the parameter.
        counted = weight.removesuffix(".weight") in costs or any(cost.weight == weight for cost in costs.values())
        own = {weight, _bias_of(weight)} & parameters.keys()
        params = 0 if counted else sum(parameters[factor].numel() for factor in own)
        costs[name] = LayerCost(
            name, "linear", width, max(parameters[weight].numel() // max(width, 1), 1), (1, 1), (1, 1), (1, 1),
            macs, dgrad > 0, params, elements, weight=weight, gradient_macs=(dgrad, wgrad),
        )  # fmt: skip
        return
    rows, matrices = left.shape[-2], math.prod(left.shape[:-2])
    if len(left.shape) == 2:  # the images are among the rows
        rows = max(rows // images, 1)
    else:
        width *= max(matrices // images, 1)
    costs[name] = LayerCost(
        name, "attention", width, width, (1, 1), (right.shape[-1], 1), (rows, 1),
        macs, dgrad > 0, 0, elements, gradient_macs=(dgrad, wgrad),
    )  # fmt: skip


def _bias_of(weight: str) -> str:
    """Return the name of the bias that belongs to a weight: `in_proj_bias` for `in_proj_weight`."""
    module, dot, name = weight.rpartition(".")
    return module + dot + name.replace("weight", "bias")


def _module_of(cost: LayerCost) -> str:
    return cost.name.partition(":")[0]


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
    return _nonzero_share(weight)


def density_of_weights(cost: LayerCost, model: nn.Module) -> float | None:
    """Return the share of nonzero weights that a row of a model multiplies with; `None` if it has no weights."""
    if cost.weight:
        return _nonzero_share(model.get_parameter(cost.weight))
    return weight_density(model.get_submodule(cost.name)) if cost.is_layer else None


def _nonzero_share(weight: Tensor) -> float:
    return weight.count_nonzero().item() / max(weight.numel(), 1)
