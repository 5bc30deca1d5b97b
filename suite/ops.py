"""The one planned convolution and linear op: separate operands for output, data gradient and weight gradient.

A layer is converted in place to a subclass of torch's own, with the same parameter objects and state-dict names. With
an empty plan it *is* torch's layer, bit for bit; but for 1x1 convolutions with a stride on the CPU, whose sums may be
rounded differently (`suite.network.pointwise`). With a plan, one autograd function computes data gradient and weight
gradient
by separate calls, so that a method may give each of them its own copy of the output gradient: what no backward hook
can express.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from suite.errors import UsageError
from suite.method import Density, Method, OpPlan, Site
from suite.network import pointwise
from suite.network.backends import TORCH, Geometry
from suite.network.products import number, planned_op
from suite.random_keys import Keys

if TYPE_CHECKING:
    from suite.training.hooks import Hooks


@dataclass
class StepState:
    """Which step is running; one object for all planned layers of a model, copies of the model included.

    `keys` stands for the random keys while a step is captured in order to be replayed.
    """

    seed: int = 0
    step: int = 0
    slot: int = 0
    keys: Keys | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> StepState:
        return self


@dataclass
class ExecutedMeter:
    """Mean share of the dense multiply-adds that a layer's products executed since the last `take`."""

    totals: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def add(self, product: str, share: float) -> None:
        self.totals[product] = self.totals.get(product, 0.0) + share
        self.calls[product] = self.calls.get(product, 0) + 1

    def add_all(self, other: ExecutedMeter) -> None:
        """Add what another meter holds."""
        for product, total in other.totals.items():
            self.totals[product] = self.totals.get(product, 0.0) + total
            self.calls[product] = self.calls.get(product, 0) + other.calls[product]

    def copy(self) -> ExecutedMeter:
        return ExecutedMeter(dict(self.totals), dict(self.calls))

    def take(self) -> Density:
        """The means, 1 for a product that was not metered, and start again."""
        means = {product: total / self.calls[product] for product, total in self.totals.items()}
        self.totals.clear()
        self.calls.clear()
        return Density(**means)


_PLAN_IS_FOLLOWED = -1  # torch numbers its own hooks from 0


def _follow_plan(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Change nothing; that this hook is there is what counts."""


class PlannedLayer:
    """What `PlannedConv2d` and `PlannedLinear` have in common; set by `convert`.

    Attributes:
        planned, masked: whether the plan is not empty, and whether it has a `weight_forward`. A compiled graph depends
            on nothing else of a plan.
        handle: the layer's number, by which a compiled graph finds it.
        geometry: what the products need to know of the layer, after `F.pad` has done its part.
    """

    name: str
    step_state: StepState
    meter: ExecutedMeter
    planned: bool
    masked: bool
    handle: int
    weight: Tensor  # this and what follows of torch's layer
    bias: Any
    training: bool
    _forward_pre_hooks: dict[int, Any]

    @property
    def op_plan(self) -> OpPlan:
        return self._op_plan

    @op_plan.setter
    def op_plan(self, plan: OpPlan) -> None:
        self._op_plan, self.planned, self.masked = plan, not plan.empty, plan.weight_forward is not None
        # Modules of torch that compute several layers as one operation, from their weights (the inference fast path of
        # nn.TransformerEncoderLayer), do so only while none of these has a hook.
        if self.planned:
            self._forward_pre_hooks[_PLAN_IS_FOLLOWED] = _follow_plan
        else:
            self._forward_pre_hooks.pop(_PLAN_IS_FOLLOWED, None)

    @property
    def geometry(self) -> Geometry:
        raise NotImplementedError

    def forward_weight(self, weight: Tensor) -> Tensor:
        """The weight that the forward multiplies with, before its cast: W, or what `weight_forward` makes of it."""
        transform, state = self.op_plan.weight_forward, self.step_state
        if transform is None:
            return weight
        with torch.autocast(weight.device.type, enabled=False):
            return transform(weight, Site(self.name, "weight_forward", state.step, state.slot, state.seed))

    def _types_agree(self, activation: Tensor) -> bool:
        """Whether torch multiplies these types; where it does not, its own layer raises what it raises."""
        operands = [activation, self.weight] if self.bias is None else [activation, self.weight, self.bias]
        return len({_type_in_product(operand) for operand in operands}) == 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self.handle = number(self)  # a copy is another layer


class PlannedConv2d(PlannedLayer, nn.Conv2d):
    """`nn.Conv2d` whose three products follow an `OpPlan`."""

    def forward(self, input: Tensor) -> Tensor:
        sampled = pointwise.is_sampled(self.weight, self.stride) and input.ndim in (3, 4)  # type: ignore[arg-type]
        if not (self.planned or sampled) or not self._types_agree(input):
            return super().forward(input)
        activation = input if input.ndim == 4 else input.unsqueeze(0)
        mode, padding = self._padded_before()
        if mode:
            activation = F.pad(activation, padding, mode)
        if self.planned:
            out = _run(self, activation, self.weight, self.bias)
        else:
            out = TORCH.forward(activation, self.weight, self.bias, self.geometry)
        return out if input.ndim == 4 else out.squeeze(0)

    @property
    def geometry(self) -> Geometry:
        mode, (left, _, top, _) = self._padded_before()
        padding = (0, 0) if mode else (top, left)
        return Geometry("conv", self.stride, padding, self.dilation, self.groups)  # type: ignore[arg-type]

    def padded_size(self, rows: int, columns: int) -> tuple[int, int]:
        """(H, W) of what the product reads, of an input of so many rows and columns."""
        mode, (left, right, top, bottom) = self._padded_before()
        return (rows + top + bottom, columns + left + right) if mode else (rows, columns)

    def _padded_before(self) -> tuple[str, list[int]]:
        """The mode by which the input is padded before the product, empty where the product pads; and by how much.

        `same` pads at the far edge by one more where the sum is odd, which a convolution's own padding cannot say.
        """
        padding: list[int] = self._reversed_padding_repeated_twice
        left, right, top, bottom = padding
        if self.padding_mode != "zeros":
            return self.padding_mode, padding
        return ("" if left == right and top == bottom else "constant"), padding


class PlannedLinear(PlannedLayer, nn.Linear):
    """`nn.Linear` whose three products follow an `OpPlan`. Leading dimensions are flattened to rows."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.planned or not self._types_agree(input):
            return super().forward(input)
        out = _run(self, input.reshape(-1, input.shape[-1]), self.weight, self.bias)
        return out.reshape(*input.shape[:-1], self.out_features)

    @property
    def geometry(self) -> Geometry:
        return Geometry("linear")


EMPTY = OpPlan()
_PLANNED = {nn.Conv2d: PlannedConv2d, nn.Linear: PlannedLinear}


def plannable(model: nn.Module, ran: Collection[str] | None = None) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The layers of a model that can be planned, and those that cannot, with the reason; by name, in the model's order.

    Subclasses of `nn.Conv2d` and `nn.Linear` cannot: their forward is not torch's (the output projection of
    `nn.MultiheadAttention`, for example, is never called).

    Args:
        model: bare, or converted already.
        ran: names of the modules whose forward runs; the others cannot be planned. `None`: all of them run.

    Raises:
        UsageError: for a layer with a parametrisation (`weight_norm`), whose weight is not a parameter; it is named.
    """
    layers: dict[str, nn.Module] = {}
    others: dict[str, str] = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, (nn.Conv2d, nn.Linear)):
            continue
        if parametrize.is_parametrized(layer) or "weight" not in layer._parameters:
            raise UsageError(f"layer '{name}' has a parametrised weight, which cannot be planned; remove it first")
        if type(layer) not in _PLANNED and not isinstance(layer, PlannedLayer):
            others[name] = f"a {type(layer).__name__}, whose forward need not be that of its base class"
        elif ran is not None and name not in ran:
            others[name] = "the model never calls it"
        else:
            layers[name] = layer
    return layers, others


def convert(
    model: nn.Module, step_state: StepState | None = None, ran: Collection[str] | None = None
) -> dict[str, nn.Module]:
    """Convert every layer of a bare model that can be planned (`plannable`) in place, with empty plans.

    The layer objects, their parameters and the state dict's names stay.

    Returns:
        The planned layers by name, in the model's order.

    Raises:
        UsageError: as `plannable`.
    """
    state = step_state or StepState()
    layers, _ = plannable(model, ran)
    for name, layer in layers.items():
        layer.__class__ = _PLANNED.get(type(layer), type(layer))
        assert isinstance(layer, PlannedLayer)  # which the type checker cannot see after the change of class
        layer.name, layer.op_plan, layer.step_state, layer.meter = name, EMPTY, state, ExecutedMeter()
        layer.handle = number(layer)
    return layers


def backend_name(layer: nn.Module) -> str:
    """Who multiplies in a layer, by its plan: `torch` where the plan says nothing, and in what is no planned layer."""
    backend = layer.op_plan.backend if isinstance(layer, PlannedLayer) else None
    return (backend or TORCH).name


def keep_nested_tensors_off(model: nn.Module) -> None:
    """Let no `nn.TransformerEncoder` hand nested tensors to layers that follow a plan, which only fast paths take.

    What it computes stays the same, but for places that a padding mask covers.
    """
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(
            isinstance(layer, PlannedLayer) and layer.planned for layer in module.modules()
        ):
            module.use_nested_tensor = False


def restore(model: nn.Module) -> nn.Module:
    """Turn planned layers back into torch's own, in place; their plans must be empty."""
    plain = {planned: original for original, planned in _PLANNED.items()}
    for name, layer in model.named_modules():
        if isinstance(layer, PlannedLayer):
            if not layer.op_plan.empty:
                raise ValueError(f"layer '{name}' still has a plan")
            for attribute in ("name", "_op_plan", "planned", "masked", "step_state", "meter", "handle"):
                delattr(layer, attribute)
            layer.__class__ = plain[type(layer)]  # type: ignore[index]
    return model


def apply(model: nn.Module, method: Method, **context: Any) -> Hooks:
    """Plan a model's layers by a method, for a training loop of one's own.

    Args:
        model: the bare model, on its device; its layers are converted in place.
        method: a method, constructed with its parameters.
        context: what hooks may ask for and a loop of one's own has to tell: `input_shape`, `num_classes`, `epochs`,
            `batch_size`, `seed` (see `suite.training.hooks.Hooks`).

    Returns:
        The hooks, to be called at their places in the loop; `docs/your-own-loop.md` shows them in 20 lines.
    """
    from suite.training.hooks import Hooks  # hooks stand on this module

    return Hooks(model, method, **context)


def _run(layer: PlannedConv2d | PlannedLinear, activation: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Cast under autocast as torch would, then call the planned op."""
    # The activation is cast outside the function, so that its cast copy is what is kept; the weight inside, so that the
    # parameter is kept and no copy of it.
    return planned_op(activation.to(_type_in_product(activation)), weight, bias, layer)


def _type_in_product(operand: Tensor) -> torch.dtype:
    """The type that an operand has in a product: autocast casts floating-point numbers, those of float64 excepted."""
    device = operand.device.type
    if torch.is_autocast_enabled(device) and operand.is_floating_point() and operand.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return operand.dtype
