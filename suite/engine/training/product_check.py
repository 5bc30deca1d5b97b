"""Compare the products of each layer with float64, on a few images.

Fast convolutions of a library have been wrong for single geometries, without an error. So the products of each layer
are computed from random operands by the backend that computes them in training, and again by torch's plain loops in
float64. The same runs show which of oneDNN's implementations a layer uses.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.engine.cost.flops import PRODUCTS, LayerCost
from suite.engine.cost.torch_hardware import NOT_RECORDED, instruction_set, is_reference, listening, onednn_version
from suite.engine.network.layers import PlannedConv2d
from suite.engine.network.planned_layer import PlannedLayer
from suite.engine.network.products import TORCH
from suite.plan import Backend, Compressed, Geometry, Operand, Site, takes_compressed

log = logging.getLogger(__name__)

IMAGES = 4
IMAGES_POINTWISE = 16  # torch calls oneDNN for a 1x1 convolution of fewer images only if there are several threads
FEWEST_IMAGES, MACS = 2, 4e8  # fewer images if a product exceeds this number of multiply-adds, to keep the check cheap
ROWS = 256  # of a linear layer's operands, at most
# Limits on the largest error of an element, relative to the root mean square of the product. Rounding errors are far
# smaller; the wrong products that were found had errors of 0.8 and more.
LIMITS = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
NAMES = {"forward": "output", "dgrad": "data gradient", "wgrad": "weight gradient", "bias": "bias gradient"}


class WrongProduct(Exception):
    """A layer's product differs from float64 by more than rounding. The message names layer, geometry and library."""


@dataclass(frozen=True)
class _Problem:
    """Everything that the products of a layer depend on."""

    geometry: Geometry
    shape: tuple[int, ...]  # of the weight
    input: tuple[int, int]  # (H, W); of a linear layer (rows, 1)
    with_bias: bool
    backend: str
    dtype: torch.dtype

    def __str__(self) -> str:
        geometry, (out_channels, in_channels, *kernel) = self.geometry, self.shape
        dtype = str(self.dtype).removeprefix("torch.")
        if geometry.kind == "linear":
            return f"linear layer {in_channels} to {out_channels}, {dtype}, backend {self.backend}"
        numbers = {
            "kernel": tuple(kernel),
            "stride": geometry.stride,
            "padding": geometry.padding,
            "dilation": geometry.dilation,
            "input": self.input,
        }
        text = ", ".join(f"{name} {rows}x{columns}" for name, (rows, columns) in numbers.items())
        channels = f"{in_channels * geometry.groups} to {out_channels} channels in {geometry.groups} group(s)"
        return f"convolution of {channels}, {text}, {dtype}, channels-last, backend {self.backend}"


class ProductCheck:
    """Checks the layers of one training, each again when its geometry or its backend changes.

    Args:
        dtype: `torch.float32`, or the autocast type.
        device: Device of the model.

    Attributes:
        implementations: Names of oneDNN's implementations by layer and product (`forward`, `dgrad`, `wgrad`); `torch`
            if torch did not call oneDNN. Only on the CPU.
        log_error: Why oneDNN's output could not be read; empty otherwise.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.implementations: dict[str, dict[str, str]] = {}
        self.log_error = ""
        self._checked: dict[str, dict[_Problem, tuple[str, ...]]] = {}
        # The implementations of torch's own products, which several layers can share.
        self._right: dict[tuple[_Problem, tuple[str, ...]], dict[str, str]] = {}

    def check(
        self,
        layers: Mapping[str, nn.Module],
        costs: Mapping[str, LayerCost],
        evaluated: Mapping[str, LayerCost] | None = None,
    ) -> int:
        """Check the layers that are new or changed. The random state of torch does not change.

        Args:
            layers: Planned layers by name.
            costs: Their costs by name (`suite.engine.cost.flops.count_layers`). A layer without costs never runs and is
                skipped.
            evaluated: The costs for images of an evaluation, of which the forward product is checked if their size is
                another.

        Returns:
            Number of layers that were new or changed.

        Raises:
            WrongProduct: for the first product that is wrong.
        """
        changed = 0
        for name, layer in layers.items():
            if name not in costs or not isinstance(layer, PlannedLayer):
                continue
            problems: dict[_Problem, tuple[str, ...]] = {self._problem(layer, costs[name]): PRODUCTS}
            if evaluated and name in evaluated and not evaluated[name].training_only:
                problems.setdefault(self._problem(layer, evaluated[name]), ("forward",))
            if self._checked.get(name) == problems:
                continue
            changed += 1
            found = [self._found(name, layer, problem, products) for problem, products in problems.items()]
            self._checked[name], self.implementations[name] = problems, found[0]
        for name in set(self._checked) - set(layers):
            del self._checked[name]
            self.implementations.pop(name, None)
        if changed and self.device.type == "cuda":
            torch.cuda.empty_cache()  # so that these products do not count as memory of the training
        return changed

    def fallbacks(self) -> list[str] | str:
        """Return the products that a reference implementation of oneDNN computes, as `layer product: implementation`.

        If oneDNN's output could not be read, a text says so instead.
        """
        if self.log_error:
            return f"{NOT_RECORDED}: {self.log_error}"
        return [
            f"{name} {product}: {implementation}"
            for name, products in self.implementations.items()
            for product, implementation in products.items()
            if is_reference(implementation)
        ]

    def by_implementation(self) -> dict[str, list[str]]:
        """Return the products of the present network, as `layer product`, by the implementation that computes them."""
        found: dict[str, list[str]] = {}
        for name, products in self.implementations.items():
            for product, implementation in products.items():
                found.setdefault(implementation, []).append(f"{name} {product}")
        return found

    def _problem(self, layer: PlannedLayer, cost: LayerCost) -> _Problem:
        size = cost.input
        if isinstance(layer, PlannedConv2d):
            size = layer.padded_size(*size)
        else:
            size = (cost.macs // max(1, cost.in_channels * cost.out_channels), 1)
        backend = layer.op_plan.backend or TORCH
        shape, with_bias = tuple(layer.weight.shape), getattr(layer, "bias", None) is not None
        return _Problem(layer.geometry, shape, size, with_bias, backend.name, self.dtype)

    def _found(self, name: str, layer: PlannedLayer, problem: _Problem, products: tuple[str, ...]) -> dict[str, str]:
        backend = layer.op_plan.backend or TORCH
        found = None
        if backend is TORCH:  # a check of all products includes that of one
            found = self._right.get((problem, PRODUCTS)) or self._right.get((problem, products))
        if found is None:
            found = self._examine(name, layer, backend, problem, products)
        if backend is TORCH:
            self._right[problem, products] = found
        return found

    def _examine(
        self, name: str, layer: PlannedLayer, backend: Backend, problem: _Problem, products: tuple[str, ...]
    ) -> dict[str, str]:
        """Compare products of a layer, and return the implementation of each; empty on a GPU."""
        used = None if backend is TORCH else layer.forward_weight(layer.weight.detach())
        activation, weight, grad = _operands(problem, used, self.device)
        geometry, implementations = problem.geometry, {}
        of_data, of_weight = (_multiplied(layer, product, grad) for product in ("dgrad", "wgrad"))
        calls: dict[str, Callable[[], Any]] = {
            "forward": lambda: backend.forward(activation, weight, None, geometry),
            "dgrad": lambda: backend.dgrad(of_data, weight, activation, geometry),
            "wgrad": lambda: backend.wgrad(of_weight, activation, weight, geometry, problem.with_bias),
        }
        found = {}
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            for product in products:
                call = calls[product]
                if self.device.type == "cpu":
                    with listening() as heard:
                        found[product] = call()
                    self.log_error = self.log_error or heard.reason
                    implementations[product] = heard.summary()
                else:
                    found[product] = call()
            if "wgrad" in found:
                found["wgrad"], found["bias"] = found["wgrad"]
            dense = [one.dense() if isinstance(one, Compressed) else one for one in (of_data, of_weight)]
            wide = [tensor.double() for tensor in (activation, weight, *dense)]
            wanted = _reference(wide[0], wide[1], wide[2], wide[3], geometry)
        for product, value in found.items():
            if value is None:
                continue
            right = wanted[product]
            if product == "wgrad" and used is not None:
                # A backend may skip the gradients of zero weights.
                right = torch.where((weight == 0) & (value == 0), 0.0, right)
            error, limit = _error(value, right), _limit(self.dtype, self.device)
            if not error <= limit:
                raise WrongProduct(
                    f"layer '{name}': its {NAMES[product]} is wrong by {error:.2g} times the root mean square of the "
                    f"right one (rounding stays below {limit:g}): {problem}, {torch.get_num_threads()} threads; "
                    f"{_library(self.device)}"
                )
        return implementations


def _operands(problem: _Problem, used: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return A, W and dO in dtype and layout of the training: normal random numbers, and in W the zeros of `used`."""
    generator = torch.Generator().manual_seed(0)
    geometry, shape = problem.geometry, problem.shape
    (rows, columns), channels = problem.input, shape[1] * problem.geometry.groups
    weight = torch.randn(shape, generator=generator)
    if geometry.kind == "linear":
        rows = min(ROWS, IMAGES * rows)
        activation, grad = (torch.randn((rows, width), generator=generator) for width in (channels, shape[0]))
        layout = torch.contiguous_format
    else:
        one = torch.empty((1, 1, rows, columns), device="meta"), torch.empty((1, 1, *shape[2:]), device="meta")
        size = F.conv2d(*one, None, geometry.stride, geometry.padding, geometry.dilation).shape[2:]
        pointwise = shape[2:] == (1, 1) and device.type == "cpu"
        fit = int(MACS / max(1, math.prod(shape) * math.prod(size)))
        images = max(FEWEST_IMAGES, min(fit, IMAGES_POINTWISE if pointwise else IMAGES))
        activation = torch.randn((images, channels, rows, columns), generator=generator)
        grad = torch.randn((images, shape[0], *size), generator=generator)
        layout = torch.channels_last
    weight, activation, grad = (
        tensor.to(device, problem.dtype).contiguous(memory_format=layout) for tensor in (weight, activation, grad)
    )
    return activation, weight if used is None else weight * (used != 0), grad


def _multiplied(layer: PlannedLayer, product: str, grad: Tensor) -> Any:
    """Return the dO of a product: as the plan compresses it if the backend takes it so, otherwise `grad` itself."""
    plan = layer.op_plan
    if plan.backend is None or not takes_compressed(plan.backend, product):
        return grad
    own: Operand = "grad_dgrad" if product == "dgrad" else "grad_wgrad"
    operand: Operand = "grad_shared" if getattr(plan, own) is None else own
    transform = getattr(plan, operand)
    found = grad if transform is None else transform(grad, Site(layer.name, operand, 0, 0, 0))
    return found if isinstance(found, Compressed) else grad


def _reference(
    activation: Tensor, weight: Tensor, of_data: Tensor, of_weight: Tensor, geometry: Geometry
) -> dict[str, Tensor]:
    """Return the products in float64, which torch itself computes on the CPU, without another library.

    `of_data` and `of_weight` are the output gradients of the data gradient and of the weight gradient.
    """
    if geometry.kind == "linear":
        return {
            "forward": activation @ weight.t(),
            "dgrad": of_data @ weight,
            "wgrad": of_weight.t() @ activation,
            "bias": of_weight.sum(0),
        }
    numbers = (geometry.stride, geometry.padding, geometry.dilation)

    def gradients(grad: Tensor, mask: tuple[bool, bool, bool]) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
            grad, activation, weight, [len(weight)], *numbers, False, (0, 0), geometry.groups, mask
        )

    _, dw, db = gradients(of_weight, (False, True, True))
    da = gradients(of_data, (True, False, False))[0]
    return {
        "forward": F.conv2d(activation, weight, None, *numbers, geometry.groups),
        "dgrad": da,
        "wgrad": dw,
        "bias": db,
    }


def _error(value: Tensor, right: Tensor) -> float:
    """Return the largest error relative to the root mean square of `right`; infinite if a value is not finite."""
    if not right.numel():
        return 0.0
    scale = right.square().mean().sqrt().item() or 1.0
    error = (value.double() - right).abs().max().item() / scale
    return error if math.isfinite(error) else math.inf


def _limit(dtype: torch.dtype, device: torch.device) -> float:
    """Return the largest error by rounding; float32 products may have fewer bits if torch allows that."""
    if dtype == torch.float32:
        if torch.get_float32_matmul_precision() != "highest":
            return LIMITS[torch.bfloat16]
        if device.type == "cuda":
            return LIMITS[torch.float16]  # TF32 has its mantissa
    return LIMITS[dtype]


def _library(device: torch.device) -> str:
    if device.type == "cuda":
        return f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    return f"torch {torch.__version__}, oneDNN {onednn_version()}, {instruction_set()}"
