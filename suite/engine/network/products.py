"""The op of a planned layer, which computes each of its three products from the operand that the plan gives it.

The default backend of every layer is torch's own implementation.

Eager training runs an autograd function. A compiled graph contains two custom ops instead, one for the forward and one
for the backward. They take tensors and the handle of the layer, and look up the layer's plan when they run. Transforms
therefore stay plain Python and are called in every step with the site of that step. A new plan needs no new graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.engine.network import pointwise
from suite.engine.network.planned_layer import PlannedLayer, layer_of
from suite.errors import UsageError
from suite.plan import Backend, Compact, Compressed, Geometry, Operand, OpPlan, Pair, Site, takes_compressed


def is_sampled(weight: Tensor, stride: Pair) -> bool:
    """Return whether a convolution with this weight, (K, C, R, S), reads a sampled input (see `pointwise`)."""
    return weight.device.type == "cpu" and weight.shape[2:] == (1, 1) and tuple(stride) != (1, 1)


class TorchBackend:
    """Torch's own dense products: every multiply-add is executed, including those with a zero.

    1x1 convolutions with a stride on the CPU are computed from a sampled input (see `suite.engine.network.pointwise`).
    """

    name = "torch"

    def forward(self, activation: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """Return O = A * W + b, (N, K, P, Q) or (rows, K)."""
        if geometry.kind == "linear":
            return F.linear(activation, weight, bias)
        if is_sampled(weight, geometry.stride):
            activation = pointwise.sample(activation, geometry.stride, geometry.padding)
            geometry = _of_sampled(geometry)
        return F.conv2d(activation, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor, geometry: Geometry) -> Tensor:
        """Return dA, with the shape of A."""
        if geometry.kind == "linear":
            return grad @ weight
        if is_sampled(weight, geometry.stride):
            stride, padding = geometry.stride, geometry.padding
            sampled = pointwise.sampled_like(activation, stride, padding)
            small = _convolution_backward(grad, sampled, weight, _of_sampled(geometry), (True, False, False))[0]
            return pointwise.spread(small, (activation.shape[2], activation.shape[3]), stride, padding)
        return _convolution_backward(grad, activation, weight, geometry, (True, False, False))[0]

    def wgrad(
        self, grad: Tensor, activation: Tensor, weight: Tensor, geometry: Geometry, with_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return dW, with the shape of W, and the bias gradient, (K,), if `with_bias`."""
        if geometry.kind == "linear":
            return grad.t() @ activation, grad.sum(0) if with_bias else None
        if is_sampled(weight, geometry.stride):
            activation = pointwise.sample(activation, geometry.stride, geometry.padding)
            geometry = _of_sampled(geometry)
        # In one call, the bias gradient is free, and both gradients equal those of torch's own backward bit for bit.
        gradients = _convolution_backward(grad, activation, weight, geometry, (False, True, with_bias))
        return gradients[1], gradients[2] if with_bias else None

    def executed(self, product: str, grad: Tensor | None, weight: Tensor, geometry: Geometry) -> float:
        """Return 1: every multiply-add is executed."""
        return 1.0


TORCH = TorchBackend()


def _of_sampled(geometry: Geometry) -> Geometry:
    """Return the geometry of a 1x1 convolution over the sampled input."""
    return replace(geometry, stride=(1, 1), padding=(0, 0))


def _convolution_backward(
    grad: Tensor, activation: Tensor, weight: Tensor, geometry: Geometry, mask: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten.convolution_backward(
        grad,
        activation,
        weight,
        [weight.shape[0]] if mask[2] else None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        False,
        (0, 0),
        geometry.groups,
        mask,
    )


_UNTIMED = nullcontext()


def planned_op(activation: Tensor, weight: Tensor, bias: Tensor | None, layer: PlannedLayer) -> Tensor:
    """Return O = A * W + b, (N, K, P, Q) or (rows, K), by the layer's plan; A is already cast and padded.

    In eager mode, the backward uses plan, step and micro-batch of its forward. In a compiled graph, it uses the present
    ones when it runs.

    Raises:
        UsageError: under transforms of `torch.func`, and in a second or forward-mode differentiation.
    """
    if torch.compiler.is_compiling():
        out: Tensor = _forward_op(activation, weight, bias, layer.handle, layer.masked)[0]
        return out
    if torch._C._are_functorch_transforms_active():
        raise _refusal(layer, "the transforms of torch.func (grad, vmap, jvp and combinations of them)")
    return _PlannedOp.apply(activation, weight, bias, layer)  # type: ignore[no-any-return]


def _refusal(layer: PlannedLayer, what: str) -> UsageError:
    return UsageError(
        f"layer '{layer.name}' follows a method's plan, which does not support {what}; use the model without a plan "
        "for this (method 'dense', or after the training has finished)"
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a planned layer, with the plan, step and micro-batch that its backward uses too."""

    layer: PlannedLayer
    plan: OpPlan
    geometry: Geometry
    step: int
    micro_batch_index: int

    @classmethod
    def of(cls, layer: PlannedLayer) -> _Call:
        state = layer.step_state
        return cls(layer, layer.op_plan, layer.geometry, state.step, state.micro_batch_index)

    @property
    def backend(self) -> Backend:
        return self.plan.backend or TORCH

    def timed(self, part: str) -> AbstractContextManager[None]:
        """Return a context that times a product or pruning while the step is profiled."""
        return _UNTIMED if (clock := self.layer.step_state.clock) is None else clock.span(part, self.layer.name)

    def transformed(self, operand: Operand, tensor: Tensor) -> Any:
        """Return an operand after the plan's transform for it, if there is one."""
        transform = getattr(self.plan, operand)
        if transform is None:
            return tensor
        state = self.layer.step_state
        with self.timed("pruning"):
            result = transform(
                tensor, Site(self.layer.name, operand, self.step, self.micro_batch_index, state.seed, state.keys)
            )
        if isinstance(result, Compressed):
            self._check(result, operand, tensor)
        return result

    def _check(self, found: Compressed, operand: Operand, tensor: Tensor) -> None:
        """Refuse a compressed operand that is not dO, or that differs from it in shape, type or device."""
        what = f"{operand} of layer '{self.layer.name}' returned a Compressed"
        if operand == "weight_forward":
            raise UsageError(f"{what}; only output gradients can be compressed")
        given = (tuple(found.shape), found.dtype, found.values.device)
        wanted = (tuple(tensor.shape), tensor.dtype, tensor.device)
        if given != wanted:
            shape, dtype, device = given
            raise UsageError(
                f"{what} of shape {shape} and {dtype} on {device}, but the gradient that it was given has shape "
                f"{wanted[0]} and {wanted[1]} on {wanted[2]}"
            )

    def meter(self, product: str, grad: Any, weight: Tensor) -> None:
        """Meter what a backend executed. An unmetered product counts as fully executed, which is right for torch."""
        if self.plan.backend is not None:
            self.layer.meter.add(product, self.plan.backend.executed(product, grad, weight, self.geometry))


class _PlannedOp(torch.autograd.Function):
    """O = A * W + b, with the plan's operands in forward and backward."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, activation: Tensor, weight: Tensor, bias: Tensor | None, layer: PlannedLayer
    ) -> Tensor:
        ctx.call = call = _Call.of(layer)
        out, used = _multiply(call, activation, weight, bias)
        ctx.activation_like = (activation.shape, activation.stride(), activation.dtype, activation.device)
        ctx.weight_dtype, ctx.bias_dtype = weight.dtype, None if bias is None else bias.dtype
        # Save only what the gradients need: A for dW, and W for dA. For an unmasked weight that is the parameter, and
        # for a masked one the weight that was used, so that no mask is computed twice.
        needs_activation, needs_weight, _ = ctx.needs_input_grad[:3]
        masked = call.plan.weight_forward is not None and needs_activation
        ctx.save_for_backward(activation if needs_weight else None, used if masked else weight)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        # Torch enables gradients here only to differentiate the backward itself. Without this check, it would later
        # return a gradient of zero, or raise an error without the layer and the reason.
        if torch.is_grad_enabled():
            raise _refusal(ctx.call.layer, "a second backward through its gradients (create_graph=True)")
        activation, weight = ctx.saved_tensors
        if activation is None:
            activation = _empty_like(ctx.activation_like)
        gradients = _gradients(ctx.call, grad, activation, weight, ctx.needs_input_grad[:3])
        return (*_in_types_of(ctx, gradients), None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise _refusal(ctx.call.layer, "forward-mode differentiation")


def _multiply(call: _Call, activation: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the output and the weight as it was used, both in the type of A."""
    with torch.autocast(activation.device.type, enabled=False):
        # The transform gets the weight before its cast, without autocast, as in a compiled graph and `forward_weight`.
        used = call.transformed("weight_forward", weight)
        with call.timed("forward"):
            used = used.to(activation.dtype)
            bias = None if bias is None else bias.to(activation.dtype)
            out = call.backend.forward(activation, used, bias, call.geometry)
    if call.layer.training:  # an evaluation is not part of a training step
        call.meter("forward", None, used)
    return out, used


def _gradients(
    call: _Call, grad: Tensor, activation: Tensor, weight: Tensor, needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return dA, dW and the bias gradient, each from its own operand; `None` for those that are not needed."""
    with torch.autocast(grad.device.type, enabled=False):
        weight = weight.to(activation.dtype)
        shared = call.transformed("grad_shared", grad)
        if isinstance(shared, Compact):
            # Multiply the slices, unless another transform, a backend or unequal groups need the dense form.
            plan = call.plan
            needs_dense = plan.grad_dgrad or plan.grad_wgrad or plan.backend
            if not needs_dense and _balanced(shared, weight, call.geometry.groups):
                return _compact_gradients(call, shared, activation, weight, needs)
            with call.timed("pruning"):
                shared = torch.zeros_like(grad).index_copy_(1, shared.kept, shared.values)
        return _full_gradients(call, _Shared(shared), activation, weight, needs)


class _Shared:
    """dO after `grad_shared`. If something needs the dense form of a compressed dO, it is expanded once."""

    def __init__(self, grad: Tensor | Compressed) -> None:
        self._grad = grad

    @cached_property
    def dense(self) -> Tensor:
        return self._grad.dense() if isinstance(self._grad, Compressed) else self._grad

    def operand_of(self, call: _Call, product: str) -> Any:
        """Return the dO that `dgrad` or `wgrad` multiplies: dense unless the backend takes a compressed one."""
        operand: Operand = "grad_dgrad" if product == "dgrad" else "grad_wgrad"
        grad = self._grad if getattr(call.plan, operand) is None else call.transformed(operand, self.dense)
        if not isinstance(grad, Compressed) or takes_compressed(call.backend, product):
            return grad
        with call.timed("pruning"):
            return self.dense if grad is self._grad else grad.dense()

    def bias_gradient(self) -> Tensor:
        """Return the sum of each channel, (K,)."""
        if isinstance(self._grad, Compressed):
            return self._grad.channel_sums()
        return self._grad.sum([axis for axis in range(self._grad.ndim) if axis != 1])


def _full_gradients(
    call: _Call, shared: _Shared, activation: Tensor, weight: Tensor, needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients from a dO with all of its channels, dense or compressed."""
    needs_activation, needs_weight, needs_bias = needs
    grad_activation = grad_weight = grad_bias = None
    if needs_activation:
        operand = shared.operand_of(call, "dgrad")
        with call.timed("dgrad"):
            grad_activation = call.backend.dgrad(operand, weight, activation, call.geometry)
        call.meter("dgrad", operand, weight)
    # The bias gradient is a sum of the shared dO. If dW is a product of the same dO, one call computes both.
    with_bias = needs_bias and needs_weight and call.plan.grad_wgrad is None
    if needs_weight:
        operand = shared.operand_of(call, "wgrad")
        with call.timed("wgrad"):
            grad_weight, grad_bias = call.backend.wgrad(operand, activation, weight, call.geometry, with_bias)
        call.meter("wgrad", operand, weight)
    if needs_bias and not with_bias:
        with call.timed("wgrad"):
            grad_bias = shared.bias_gradient()
    return grad_activation, grad_weight, grad_bias


def _compact_gradients(
    call: _Call, shared: Compact, activation: Tensor, weight: Tensor, needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients from the kept channels of dO only, by smaller dense products."""
    needs_activation, needs_weight, needs_bias = needs
    kept, values, out_channels = shared.kept, shared.values, weight.shape[0]
    share = kept.numel() / out_channels
    grad_activation = grad_weight = grad_bias = None
    with call.timed("pruning"):
        small = weight.index_select(0, kept)
    if needs_activation:
        with call.timed("dgrad"):
            grad_activation = (
                TORCH.dgrad(values, small, activation, call.geometry) if kept.numel() else torch.zeros_like(activation)
            )
        call.layer.meter.add("dgrad", share)
    if needs_weight:
        with call.timed("wgrad"):
            grad_weight = torch.zeros_like(weight)
            if kept.numel():
                part, _ = TORCH.wgrad(values, activation, small, call.geometry, False)
                grad_weight.index_copy_(0, kept, part)
        call.layer.meter.add("wgrad", share)
    if needs_bias:
        sums = values.sum([axis for axis in range(values.ndim) if axis != 1])
        grad_bias = values.new_zeros(out_channels).index_copy_(0, kept, sums)
    return grad_activation, grad_weight, grad_bias


def _balanced(compact: Compact, weight: Tensor, groups: int) -> bool:
    """Return whether all groups of a convolution keep the same number of channels."""
    if groups == 1:
        return True
    counts = torch.bincount(compact.kept // (weight.shape[0] // groups), minlength=groups)
    return bool((counts == counts[0]).all())


def _empty_like(description: tuple[Any, ...]) -> Tensor:
    """Return a substitute for the A of a frozen weight: the data gradient needs only its shape and strides."""
    shape, strides, dtype, device = description
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _in_types_of(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Return dA as it is, and the other gradients in the types of weight and bias."""
    grad_activation, *rest = gradients
    types = (ctx.weight_dtype, ctx.bias_dtype)
    return (grad_activation, *(None if grad is None else grad.to(to) for grad, to in zip(rest, types, strict=True)))


@torch.library.custom_op("pdt::planned_forward", mutates_args=())
def _forward_op(
    activation: Tensor, weight: Tensor, bias: Tensor | None, handle: int, masked: bool
) -> tuple[Tensor, Tensor]:
    """Return O, and the masked weight as it was used; an empty tensor in its place if nothing masks the weight."""
    layer = layer_of(handle)
    out, used = _multiply(_Call.of(layer), activation, weight, bias)
    if not masked:
        return _laid_out_as(activation, out), weight.new_empty(0)
    # The outputs of a custom op must not share memory with its inputs.
    shares_memory = used.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()
    used = torch.empty_like(weight, dtype=used.dtype).copy_(used) if shares_memory else _strided_as(weight, used)
    return _laid_out_as(activation, out), used


@_forward_op.register_fake
def _forward_op_shapes(
    activation: Tensor, weight: Tensor, bias: Tensor | None, handle: int, masked: bool
) -> tuple[Tensor, Tensor]:
    used = torch.empty_like(weight, dtype=activation.dtype)
    out = TORCH.forward(activation, used, None, layer_of(handle).geometry)
    return torch.empty_like(_laid_out_as(activation, out)), used if masked else weight.new_empty(0)


@torch.library.custom_op("pdt::planned_backward", mutates_args=())
def _backward_op(grad: Tensor, activation: Tensor, weight: Tensor, handle: int, needs: Sequence[bool]) -> list[Tensor]:
    """Return those of dA, dW and the bias gradient that are needed, in this order and in the type of A."""
    layer = layer_of(handle)
    gradients = _gradients(_Call.of(layer), grad, activation, weight, needs)
    return [
        _strided_as(like, gradient)
        for like, gradient in zip((activation, weight, None), gradients, strict=True)
        if gradient is not None
    ]


@_backward_op.register_fake
def _backward_op_shapes(
    grad: Tensor, activation: Tensor, weight: Tensor, handle: int, needs: Sequence[bool]
) -> list[Tensor]:
    gradients = (
        torch.empty_like(activation),
        torch.empty_like(weight, dtype=activation.dtype),
        activation.new_empty(weight.shape[0]),
    )
    return [gradient for gradient, needed in zip(gradients, needs, strict=True) if needed]


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    activation, weight, bias, ctx.handle, masked = inputs
    needs_activation, needs_weight, _ = ctx.needs = tuple(ctx.needs_input_grad[:3])
    ctx.activation_like = (activation.shape, activation.stride(), activation.dtype, activation.device)
    ctx.weight_dtype, ctx.bias_dtype = weight.dtype, None if bias is None else bias.dtype
    ctx.save_for_backward(activation if needs_weight else None, output[1] if masked and needs_activation else weight)


def _backward_in_graph(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    activation, weight = ctx.saved_tensors
    if activation is None:
        activation = _empty_like(ctx.activation_like)
    computed = iter(_backward_op(grad, activation, weight, ctx.handle, ctx.needs))
    gradients = [next(computed) if needed else None for needed in ctx.needs]
    return (*_in_types_of(ctx, gradients), None, None)


_forward_op.register_autograd(_backward_in_graph, setup_context=_keep_for_backward)


def _laid_out_as(activation: Tensor, out: Tensor) -> Tensor:
    """Return O in the memory format of A, for which the graph was compiled; a backend may return another format."""
    channels_last = activation.ndim == 4 and activation.is_contiguous(memory_format=torch.channels_last)
    return out.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def _strided_as(like: Tensor | None, tensor: Tensor) -> Tensor:
    """Return a tensor with the strides of `like`, or contiguous if `like` is `None`."""
    if like is None:
        return tensor.contiguous()
    return tensor if tensor.stride() == like.stride() else torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)
