"""Counted cost: FLOPs by layer and product, integrated over the changing architecture.

One multiply-add is 2 FLOPs. Two-dimensional convolutions and linear layers are counted, padding included, and the two
products of scaled dot-product attention, in rows of their own; a layer whose input needs no gradient (the first) has no
data gradient. What else multiplies is not counted, but named (`Counts.not_counted`). A method's own arithmetic is
overhead, in a column of its own. Every figure of training FLOPs exists four times:

    dense       the model as it was built
    current     the shapes as they are now
    effective   current, times the density that the method states: what hardware that skips zeros would need
    executed    what the kernels really multiplied

Masked emulation has executed = current.
"""

from __future__ import annotations

import copy
import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from suite.method import Context, Density, Method
from suite.network.forward_pass import LAYERS, Product, run_blank
from suite.network.planned_layer import PlannedLayer

PRODUCTS = ("forward", "dgrad", "wgrad")
COLUMNS = ("dense", "current", "effective", "executed")
Flops = dict[str, dict[str, float]]


@dataclass(frozen=True)
class LayerCost:
    """One layer's shape and multiply-adds for one image.

    Attributes:
        name, kind: the layer's name, and `conv` or `linear`; or the name of a module followed by `:attention`, and
            `attention`.
        in_channels, out_channels, kernel, input, output: C, K, (R, S), (H, W), (P, Q).
            Of attention: the width of all heads' queries and values, (1, 1), and the numbers of keys and of queries,
            with 1.
        macs: multiply-adds of its forward; each gradient takes as many. Attention multiplies two activations, twice:
            its backward takes two products for each, all of them data gradients.
        has_dgrad: whether its input needs a gradient.
        params: its weights and biases.
        input_elements: elements of its input, which training keeps for backward.
        training_only: whether it runs in training mode alone (an auxiliary head), and is no part of inference.
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
        """FLOPs of one product for one image."""
        if product == "dgrad" and not self.has_dgrad:
            return 0
        if self.kind == "attention":
            return {"forward": 2, "dgrad": 4, "wgrad": 0}[product] * self.macs
        return 2 * self.macs


@dataclass(frozen=True)
class Counts:
    """What one image costs.

    Attributes:
        layers: by name, in the order in which they run.
        not_counted: what multiplies and is in no layer's count, in words: operation, module, multiply-adds of an image.
    """

    layers: dict[str, LayerCost]
    not_counted: tuple[str, ...]


def count_layers(model: nn.Module, input_shape: tuple[int, int, int]) -> dict[str, LayerCost]:
    """Count every convolution and linear layer of a model, and attention, by running one blank image through it.

    Args:
        model: its mode, weights and normalisation statistics are left as they are.
        input_shape: (C, H, W).
    """
    return count(model, input_shape).layers


def count(model: nn.Module, input_shape: tuple[int, int, int]) -> Counts:
    """Count a model's layers as `count_layers` does, and name what multiplies outside of them.

    The blank image runs in evaluation mode. Where a layer did not run then, images run in training mode too, through a
    copy, to find the layers that training alone has.
    """
    costs, products = _run(model, input_shape, 1)
    layers = {name for name, module in model.named_modules() if isinstance(module, LAYERS)}
    if not layers <= costs.keys():
        # Two images: batch normalisation over one value a channel takes no single one.
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
    """The layers and attentions that run, for one image, and all products outside of layers."""
    costs: dict[str, LayerCost] = {}

    def note(name: str, layer: nn.Module, given: Tensor, output: Tensor) -> None:
        params = sum(parameter.numel() for parameter in layer.parameters(recurse=False))
        elements, has_dgrad = given.numel() // images, bool(given.requires_grad)
        previous = 0
        if name in costs:  # a layer that is used twice multiplies twice
            previous, has_dgrad = costs[name].macs, has_dgrad or costs[name].has_dgrad
        if isinstance(layer, nn.Conv2d):
            kernel, read, size = layer.kernel_size, given.shape[-2:], output.shape[-2:]
            # Not the output's own channels: those of a gated layer are scattered among others.
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
    """Enter a product of attention into the row of its module."""
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
    amount = "multiply-adds unknown" if macs is None else f"{macs:,.0f} multiply-adds an image"
    return f"{op} in {where} ({amount})"


def count_model(model: nn.Module, input_shape: tuple[int, int, int]) -> dict[str, int]:
    """Parameters, multiply-adds and FLOPs of one image's inference: `params`, `macs`, `inference_flops`."""
    macs = sum(cost.macs for cost in count_layers(model, input_shape).values() if not cost.training_only)
    params = sum(parameter.numel() for parameter in model.parameters())
    return {"params": params, "macs": macs, "inference_flops": 2 * macs}


def weight_density(layer: nn.Module) -> float:
    """Share of a layer's weights that are not 0."""
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    return weight.count_nonzero().item() / max(weight.numel(), 1)


class Ledger:
    """Integrates FLOPs over a trial, by layer and by interval between reconfigurations.

    Args:
        ctx: context of the method; its model and layers are counted.
        method: the method, which states density and overhead in every step.
        input_shape: (C, H, W).
        dense: what `count_layers` said of the model as it was built; `None` where it is so still.
    """

    def __init__(
        self,
        ctx: Context,
        method: Method,
        input_shape: tuple[int, int, int],
        dense: Mapping[str, LayerCost] | None = None,
    ) -> None:
        self._ctx, self._model, self._method, self._input_shape = ctx, ctx.model, method, input_shape
        self.current = count_layers(self._model, input_shape)
        self.dense = dict(self.current if dense is None else dense)
        self.train_flops = dict.fromkeys(COLUMNS, 0.0)
        self.step_flops = dict.fromkeys(COLUMNS, 0.0)
        self._interval: dict[str, Flops] = {}
        self._rows: list[dict[str, Any]] = []
        self._first_epoch = 1
        self._open_interval()

    def add_step(self, samples: int) -> None:
        """Count one training step of `samples` images.

        After its gradients and before anything that may change a mask: the density is that of the masks which the step
        multiplied with. `add_overhead` comes after the step.
        """
        self._steps += 1
        self._samples += samples
        step_flops = dict.fromkeys(COLUMNS, 0.0)
        for name, dense in self.dense.items():
            cost, layer = self.current.get(name), self._ctx.layers.get(name)
            sums = self._interval[name]
            # A method knows the planned layers, and no layer that is gone.
            density = self._method.density(name, self._ctx) if cost and layer is not None else Density()
            executed = layer.meter.take() if isinstance(layer, PlannedLayer) else None
            for index, product in enumerate(PRODUCTS):
                whole = float(dense.flops(product) * samples)
                now = float(cost.flops(product) * samples) if cost else 0.0
                values = (whole, now, now * density[index], now * (executed[index] if executed else 1.0))
                for column, value in zip(COLUMNS, values, strict=True):
                    sums[product][column] += value
                    step_flops[column] += value
        self.step_flops = step_flops
        for column in COLUMNS:
            self.train_flops[column] += step_flops[column]

    def add_overhead(self, samples: int) -> None:
        """Add what the method itself computed in a step, when all its hooks of that step have run."""
        for name in self.dense:
            if name in self.current and name in self._ctx.layers:
                self._overhead[name] += self._method.overhead(name, samples, self._ctx)

    def close_interval(self, epochs_done: int) -> None:
        """Write the rows of the interval that ends with `epochs_done`; before the model is changed."""
        if self._steps:
            self._rows += self._interval_rows(epochs_done)
            self._open_interval()  # should the change fail, nothing is counted twice

    def recount(self, epochs_done: int) -> None:
        """Count the architecture that exists from now on; after `close_interval` and the change."""
        self.current = count_layers(self._model, self._input_shape)
        self._first_epoch = epochs_done + 1
        self._open_interval()

    def inference_flops(self, *, effective: bool = False) -> float:
        """FLOPs of one image's inference; `effective` times the share of each layer's weights that are not 0."""
        modules = dict(self._model.named_modules())
        return float(
            sum(
                cost.flops("forward") * (weight_density(modules[name]) if effective and name in modules else 1.0)
                for name, cost in self.current.items()
                if not cost.training_only
            )
        )

    @property
    def inference_flops_dense(self) -> float:
        return float(sum(cost.flops("forward") for cost in self.dense.values() if not cost.training_only))

    def to_csv(self, last_epoch: int) -> str:
        """`layers.csv`: a row a layer and interval; `last_epoch` is the one that trained last, ended or not."""
        rows = self._rows + (self._interval_rows(last_epoch) if self._steps else [])
        text = io.StringIO()
        fields = list(rows[0]) if rows else ["interval"]
        writer = csv.DictWriter(text, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": self._rows,
            "first_epoch": self._first_epoch,
            "interval": self._interval,
            "overhead": self._overhead,
            "steps": self._steps,
            "samples": self._samples,
            "step_flops": self.step_flops,
            "train_flops": self.train_flops,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back `state_dict`, after the reconfigurations were replayed on the model."""
        self.current = count_layers(self._model, self._input_shape)
        self._rows, self._first_epoch = list(state["rows"]), state["first_epoch"]
        self._interval, self._overhead = state["interval"], state["overhead"]
        self._steps, self._samples = state["steps"], state["samples"]
        self.step_flops, self.train_flops = state["step_flops"], state["train_flops"]

    def _open_interval(self) -> None:
        self._interval = {name: {product: dict.fromkeys(COLUMNS, 0.0) for product in PRODUCTS} for name in self.dense}
        self._overhead = dict.fromkeys(self.dense, 0.0)
        self._steps = self._samples = 0

    def _interval_rows(self, last_epoch: int) -> list[dict[str, Any]]:
        modules = dict(self._model.named_modules())
        number = 1 + max((row["interval"] for row in self._rows), default=0)
        rows = []
        for name, dense in self.dense.items():
            cost, layer = self.current.get(name), modules.get(name)
            row: dict[str, Any] = {
                "interval": number,
                "first_epoch": self._first_epoch,
                "last_epoch": last_epoch,
                "steps": self._steps,
                "samples": self._samples,
                "layer": name,
                "kind": dense.kind,
                "in_channels": cost.in_channels if cost else 0,
                "out_channels": cost.out_channels if cost else 0,
                "kernel": "x".join(map(str, dense.kernel)),
                "input": "x".join(map(str, dense.input)),
                "output": "x".join(map(str, dense.output)),
                "params": cost.params if cost else 0,
                # Attention has no weights; what is gone has none that are not 0.
                "weight_density": "" if dense.kind == "attention" else weight_density(layer) if cost and layer else 0.0,
            }
            for product in PRODUCTS:
                for column in COLUMNS:
                    row[f"{product}_{column}"] = self._interval[name][product][column]
            row["overhead"] = self._overhead[name]
            rows.append(row)
        return rows
