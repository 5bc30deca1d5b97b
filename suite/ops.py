"""The one planned convolution and linear op: separate operands for output, data gradient and weight gradient.

A layer is converted in place to a subclass of torch's own, with the same parameter objects and state-dict names. With
an empty plan it *is* torch's layer, bit for bit. With a plan, one autograd function computes data gradient and weight
gradient by separate calls, so that a method may give each of them its own copy of the output gradient: what no
backward hook can express.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils import parametrize

from suite.backends import TORCH, Geometry
from suite.errors import UsageError
from suite.method import Compact, Density, Method, Operand, OpPlan, Site

if TYPE_CHECKING:
    from suite.hooks import Hooks


@dataclass
class StepState:
    """Which step is running; one object for all planned layers of a model, copies of the model included."""

    seed: int = 0
    step: int = 0
    slot: int = 0

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

    def take(self) -> Density:
        """The means, 1 for a product that was not metered, and start again."""
        means = {product: total / self.calls[product] for product, total in self.totals.items()}
        self.totals.clear()
        self.calls.clear()
        return Density(**means)


class PlannedLayer:
    """What `PlannedConv2d` and `PlannedLinear` have in common; set by `convert`."""

    name: str
    op_plan: OpPlan
    step_state: StepState
    meter: ExecutedMeter
    training: bool  # of `nn.Module`

    def site(self, operand: Operand) -> Site:
        state = self.step_state
        return Site(self.name, operand, state.step, state.slot, state.seed)

    def forward_weight(self, weight: Tensor) -> Tensor:
        """The weight that the forward multiplies with: W itself, or what `weight_forward` makes of it."""
        transform = self.op_plan.weight_forward
        return weight if transform is None else transform(weight, self.site("weight_forward"))


class PlannedConv2d(PlannedLayer, nn.Conv2d):
    """`nn.Conv2d` whose three products follow an `OpPlan`."""

    def forward(self, input: Tensor) -> Tensor:
        if self.op_plan.empty:
            return super().forward(input)
        activation = input if input.ndim == 4 else input.unsqueeze(0)
        padding: tuple[int, int]
        if self.padding_mode != "zeros":
            activation = F.pad(activation, self._reversed_padding_repeated_twice, self.padding_mode)
            padding = (0, 0)
        elif isinstance(self.padding, str):
            # `same` pads at the far edge by one more where the sum is odd, which a convolution's own padding cannot
            # say.
            left, right, top, bottom = self._reversed_padding_repeated_twice
            if left == right and top == bottom:
                padding = (top, left)
            else:
                activation = F.pad(activation, (left, right, top, bottom))
                padding = (0, 0)
        else:
            padding = (self.padding[0], self.padding[1])
        geometry = Geometry("conv", self.stride, padding, self.dilation, self.groups)  # type: ignore[arg-type]
        out = _run(self, activation, self.weight, self.bias, geometry)
        return out if input.ndim == 4 else out.squeeze(0)


class PlannedLinear(PlannedLayer, nn.Linear):
    """`nn.Linear` whose three products follow an `OpPlan`. Leading dimensions are flattened to rows."""

    def forward(self, input: Tensor) -> Tensor:
        if self.op_plan.empty:
            return super().forward(input)
        out = _run(self, input.reshape(-1, input.shape[-1]), self.weight, self.bias, Geometry("linear"))
        return out.reshape(*input.shape[:-1], self.out_features)


EMPTY = OpPlan()
_PLANNED = {nn.Conv2d: PlannedConv2d, nn.Linear: PlannedLinear}


def convert(model: nn.Module, step_state: StepState | None = None) -> dict[str, nn.Module]:
    """Convert every `nn.Conv2d` and `nn.Linear` of a bare model in place, with empty plans.

    The layer objects, their parameters and the state dict's names stay. Subclasses are left alone: their forward is not
    torch's (the output projection of `nn.MultiheadAttention`, for one, is never called).

    Returns:
        The planned layers by name, in the model's order.

    Raises:
        UsageError: for a layer with a parametrisation (`weight_norm`), whose weight is not a parameter; it is named.
    """
    state = step_state or StepState()
    layers: dict[str, nn.Module] = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, (nn.Conv2d, nn.Linear)):
            continue
        if parametrize.is_parametrized(layer) or "weight" not in layer._parameters:
            raise UsageError(f"layer '{name}' has a parametrised weight, which cannot be planned; remove it first")
        planned = _PLANNED.get(type(layer))
        if planned is not None:
            layer.__class__ = planned
        elif not isinstance(layer, PlannedLayer):
            continue
        assert isinstance(layer, PlannedLayer)  # which the type checker cannot see after the change of class
        layer.name, layer.op_plan, layer.step_state, layer.meter = name, EMPTY, state, ExecutedMeter()
        layers[name] = layer  # type: ignore[assignment]
    return layers


def restore(model: nn.Module) -> nn.Module:
    """Turn planned layers back into torch's own, in place; their plans must be empty."""
    plain = {planned: original for original, planned in _PLANNED.items()}
    for name, layer in model.named_modules():
        if isinstance(layer, PlannedLayer):
            if not layer.op_plan.empty:
                raise ValueError(f"layer '{name}' still has a plan")
            for attribute in ("name", "op_plan", "step_state", "meter"):
                delattr(layer, attribute)
            layer.__class__ = plain[type(layer)]  # type: ignore[index]
    return model


def apply(model: nn.Module, method: Method, **context: Any) -> Hooks:
    """Plan a model's layers by a method, for a training loop of one's own.

    Args:
        model: the bare model, on its device; its layers are converted in place.
        method: a method, constructed with its parameters.
        context: what hooks may ask for and a loop of one's own has to tell: `input_shape`, `num_classes`, `epochs`,
            `batch_size`, `seed` (see `suite.hooks.Hooks`).

    Returns:
        The hooks, to be called at their places in the loop; `docs/your-own-loop.md` shows them in 20 lines.
    """
    from suite.hooks import Hooks  # hooks stand on this module

    return Hooks(model, method, **context)


def _run(
    layer: PlannedConv2d | PlannedLinear, activation: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
) -> Tensor:
    """Cast under autocast as torch would, then call the planned op."""
    device = activation.device.type
    if torch.is_autocast_enabled(device) and activation.is_floating_point() and activation.dtype != torch.float64:
        # The activation is cast outside the function, so that its cast copy is what is kept; the weight inside, so
        # that the parameter is kept and no copy of it.
        activation = activation.to(torch.get_autocast_dtype(device))
    return _PlannedOp.apply(activation, weight, bias, layer, geometry)  # type: ignore[no-any-return]


class _PlannedOp(torch.autograd.Function):
    """O = product(A, W) with a plan's operands in forward and backward."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, activation: Tensor, weight: Tensor, bias: Tensor | None, layer: PlannedLayer, geometry: Geometry
    ) -> Tensor:
        plan = layer.op_plan
        backend = plan.backend or TORCH
        used = layer.forward_weight(weight).to(activation.dtype)
        ctx.layer, ctx.geometry, ctx.plan = layer, geometry, plan
        ctx.step, ctx.slot = layer.step_state.step, layer.step_state.slot
        ctx.activation_like = (activation.shape, activation.stride(), activation.dtype, activation.device)
        ctx.weight_dtype, ctx.bias_dtype = weight.dtype, None if bias is None else bias.dtype
        # Only what a gradient asks for is kept: A for that of W, W for that of A. An unmasked weight is kept as the
        # parameter; a masked one as it was used, so that no mask is computed twice.
        needs_activation, needs_weight, _ = ctx.needs_input_grad[:3]
        masked = plan.weight_forward is not None and needs_activation
        ctx.save_for_backward(activation if needs_weight else None, used if masked else weight)
        with torch.autocast(activation.device.type, enabled=False):
            out = backend.forward(activation, used, None if bias is None else bias.to(activation.dtype), geometry)
        if layer.training:  # an evaluation is no part of a training step
            _meter(layer, plan, "forward", None, used, geometry)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        with torch.autocast(grad.device.type, enabled=False):
            grad_activation, grad_weight, grad_bias = _gradients(ctx, grad)
        return (
            grad_activation,
            None if grad_weight is None else grad_weight.to(ctx.weight_dtype),
            None if grad_bias is None else grad_bias.to(ctx.bias_dtype),
            None,
            None,
        )


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dA, dW and the bias's gradient, each from its own operand of dO and only where it is needed."""
    layer, plan, geometry = ctx.layer, ctx.plan, ctx.geometry
    backend = plan.backend or TORCH
    needs_activation, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    activation, weight = ctx.saved_tensors
    if activation is None:  # a frozen weight: the data gradient asks for the shape and strides of A, not its values
        shape, strides, dtype, device = ctx.activation_like
        activation = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    weight = weight.to(activation.dtype)

    def transformed(operand: Operand, tensor: Tensor) -> Any:
        transform = getattr(plan, operand)
        if transform is None:
            return tensor
        return transform(tensor, Site(layer.name, operand, ctx.step, ctx.slot, layer.step_state.seed))

    shared = transformed("grad_shared", grad)
    if isinstance(shared, Compact):
        # Slices are multiplied where nobody asks for the dense form: another transform, a backend, unequal groups.
        if not (plan.grad_dgrad or plan.grad_wgrad or plan.backend) and _balanced(shared, weight, geometry.groups):
            return _compact_gradients(ctx, shared, activation, weight)
        shared = torch.zeros_like(grad).index_copy_(1, shared.kept, shared.values)

    grad_activation = grad_weight = grad_bias = None
    if needs_activation:
        operand = transformed("grad_dgrad", shared)
        grad_activation = backend.dgrad(operand, weight, activation, geometry)
        _meter(layer, plan, "dgrad", operand, weight, geometry)
    # The bias takes the gradient that both share. It comes with the weight's for nothing, unless the weight's is
    # another.
    bias_along = needs_bias and needs_weight and plan.grad_wgrad is None
    if needs_weight:
        operand = transformed("grad_wgrad", shared)
        grad_weight, grad_bias = backend.wgrad(operand, activation, weight, geometry, bias_along)
        _meter(layer, plan, "wgrad", operand, weight, geometry)
    if needs_bias and not bias_along:
        grad_bias = shared.sum([axis for axis in range(shared.ndim) if axis != 1])
    return grad_activation, grad_weight, grad_bias


def _compact_gradients(
    ctx: Any, shared: Compact, activation: Tensor, weight: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients from the kept channels of dO alone: smaller dense products, scattered into place."""
    needs_activation, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    kept, values, out_channels = shared.kept, shared.values, weight.shape[0]
    share = kept.numel() / out_channels
    grad_activation = grad_weight = grad_bias = None
    small = weight.index_select(0, kept)
    if needs_activation:
        empty = kept.numel() == 0
        grad_activation = (
            torch.zeros_like(activation) if empty else TORCH.dgrad(values, small, activation, ctx.geometry)
        )
        ctx.layer.meter.add("dgrad", share)
    if needs_weight:
        grad_weight = torch.zeros_like(weight)
        if kept.numel():
            part, _ = TORCH.wgrad(values, activation, small, ctx.geometry, False)
            grad_weight.index_copy_(0, kept, part)
        ctx.layer.meter.add("wgrad", share)
    if needs_bias:
        sums = values.sum([axis for axis in range(values.ndim) if axis != 1])
        grad_bias = values.new_zeros(out_channels).index_copy_(0, kept, sums)
    return grad_activation, grad_weight, grad_bias


def _meter(
    layer: PlannedLayer, plan: OpPlan, product: str, grad: Tensor | None, weight: Tensor, geometry: Geometry
) -> None:
    """Note what a backend executed; torch executes everything, and an unmetered product counts as that."""
    if plan.backend is not None:
        layer.meter.add(product, plan.backend.executed(product, grad, weight, geometry))


def _balanced(compact: Compact, weight: Tensor, groups: int) -> bool:
    """Whether each convolution group keeps equally many channels."""
    if groups == 1:
        return True
    counts = torch.bincount(compact.kept // (weight.shape[0] // groups), minlength=groups)
    return bool((counts == counts[0]).all())
