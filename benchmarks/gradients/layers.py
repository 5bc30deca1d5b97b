"""The distinct layers of a network that have a data gradient, and random operands for the products of such a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torchvision
from torch import Tensor, nn

from suite.brackets import read_list
from suite.choices import ModelChoice
from suite.engine.cost.flops import LayerCost, count_layers
from suite.method import Geometry
from suite.ops import TORCH

CIFAR, IMAGENET = (3, 32, 32), (3, 224, 224)
CIFAR_BATCH, IMAGENET_BATCH = 128, 32
CIFAR_CLASSES, IMAGENET_CLASSES = 10, 1000
SEED = 0


@dataclass(frozen=True)
class LayerShape:
    """What the products of a layer depend on, for one image.

    Attributes:
        in_channels, out_channels: C and K.
        kernel: (R, S).
        size, out_size: (H, W) and (P, Q); for a linear layer (1, 1).
        rows: Rows of the operands per image; 1 for a convolution.
        geometry: Stride, padding, dilation and groups.
    """

    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    size: tuple[int, int]
    out_size: tuple[int, int]
    rows: int
    geometry: Geometry

    @property
    def is_linear(self) -> bool:
        return self.geometry.kind == "linear"

    @property
    def positions(self) -> int:
        """Number of positions of the output gradient of one image."""
        return self.rows * self.out_size[0] * self.out_size[1]

    @property
    def macs_of_value(self) -> int:
        """Multiply-adds of one element of the output gradient in one product, padding included."""
        return self.in_channels // self.geometry.groups * self.kernel[0] * self.kernel[1]

    @property
    def weight_shape(self) -> tuple[int, ...]:
        if self.is_linear:
            return self.out_channels, self.in_channels
        return self.out_channels, self.in_channels // self.geometry.groups, *self.kernel

    def input_shape(self, batch: int) -> tuple[int, ...]:
        return (batch * self.rows, self.in_channels) if self.is_linear else (batch, self.in_channels, *self.size)

    def __str__(self) -> str:
        channels = f"{self.in_channels} to {self.out_channels}"
        if self.is_linear:
            return f"{channels}, linear"
        usual = Geometry("conv", padding=((self.kernel[0] - 1) // 2, (self.kernel[1] - 1) // 2))
        unusual = [
            f", {name} {'x'.join(map(str, value if value[0] != value[1] else value[:1]))}"
            for name in ("stride", "padding", "dilation")
            if (value := getattr(self.geometry, name)) != getattr(usual, name)
        ]
        groups = f", {self.geometry.groups} groups" if self.geometry.groups > 1 else ""
        kernel, size = (f"{pair[0]}x{pair[1]}" for pair in (self.kernel, self.size))
        return f"{channels}, {kernel}{''.join(unusual)}{groups}, {size}"


@dataclass(frozen=True)
class Network:
    """A model and its distinct layers.

    Attributes:
        name: Name of the model with its parameters.
        batch: Number of images.
        layers: Names of the layers by shape, in the order in which they run.
    """

    name: str
    batch: int
    layers: dict[LayerShape, list[str]]


def networks(text: str, batch: int | None, wanted: Sequence[str]) -> Iterator[Network]:
    """Yield the models of a list, with the layers that have a data gradient.

    Models that torchvision has too receive 224x224 pixels and 1000 classes, others 32x32 pixels and 10 classes.

    Args:
        text: Comma-separated list of registered models with parameters in brackets.
        batch: Number of images; `None` for 128 images of 32x32 pixels and 32 images of 224x224 pixels.
        wanted: Parts of layer names; layers whose name contains none of them are left out. Empty: all layers.

    Raises:
        UsageError: If a model or a parameter is unknown.
    """
    known = torchvision.models.list_models(module=torchvision.models)
    for choice in [choice for request in read_list(text, "--model") for choice in ModelChoice.expand(request)]:
        is_large = str(choice).partition("[")[0] in known
        images, classes = (IMAGENET, IMAGENET_CLASSES) if is_large else (CIFAR, CIFAR_CLASSES)
        with torch.device("meta"):
            model = choice.build(images, classes)
        layers: dict[LayerShape, list[str]] = {}
        for name, cost in count_layers(model, images).items():
            if cost.has_dgrad and cost.is_layer and (not wanted or any(part in name for part in wanted)):
                layers.setdefault(_shape(model.get_submodule(name), cost), []).append(name)
        yield Network(str(choice), batch or (IMAGENET_BATCH if is_large else CIFAR_BATCH), layers)


def _shape(layer: nn.Module, cost: LayerCost) -> LayerShape:
    geometry, rows = Geometry("linear"), 1
    if isinstance(layer, nn.Conv2d):
        padding = layer.padding
        assert not isinstance(padding, str)
        geometry = Geometry(
            "conv", *((pair[0], pair[1]) for pair in (layer.stride, padding, layer.dilation)), layer.groups
        )
    else:
        rows = cost.macs // (cost.in_channels * cost.out_channels)
    return LayerShape(
        cost.in_channels, cost.out_channels, cost.kernel, cost.input, cost.output, rows, geometry
    )  # fmt: skip


@dataclass(frozen=True)
class Operands:
    """Operands of the gradients of a layer, in one dtype: dO, A and W; channels-last for a convolution."""

    grad: Tensor
    activation: Tensor
    weight: Tensor

    @staticmethod
    def random(shape: LayerShape, batch: int) -> Operands:
        """Return operands in float32: normally distributed dO and W, and the positive part of such an A."""
        generator = torch.Generator().manual_seed(SEED)
        layout = torch.contiguous_format if shape.is_linear else torch.channels_last

        def normal(size: tuple[int, ...]) -> Tensor:
            return torch.randn(size, generator=generator).contiguous(memory_format=layout)

        out_shape = (batch * shape.rows, shape.out_channels) if shape.is_linear else (
            batch, shape.out_channels, *shape.out_size)  # fmt: skip
        weight = normal(shape.weight_shape) * shape.macs_of_value**-0.5
        return Operands(normal(out_shape), normal(shape.input_shape(batch)).relu_(), weight)

    def to(self, dtype: torch.dtype) -> Operands:
        return Operands(self.grad.to(dtype), self.activation.to(dtype), self.weight.to(dtype))


def dense_product(product: str, grad: Tensor, given: Operands, geometry: Geometry) -> Tensor:
    """Return the data gradient (`dgrad`) or the weight gradient (`wgrad`) by torch, as a dense layer computes it."""
    if product == "dgrad":
        return TORCH.dgrad(grad, given.weight, given.activation, geometry)
    return TORCH.wgrad(grad, given.activation, given.weight, geometry, False)[0]
