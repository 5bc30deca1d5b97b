"""Planned convolution and linear layers: torch's own layers, whose three products follow a plan.

`convert` turns a layer in place into a subclass of torch's own, with the same parameter objects and state-dict names.
With an empty plan, the layer computes the same bits as torch's layer. The exception is a 1x1 convolution with a stride
on the CPU, whose sums may be rounded differently (`suite.engine.network.pointwise`). With a plan, one autograd function
computes data gradient and weight gradient by separate calls, so that a method may give each of them its own copy of the
output gradient. A backward hook cannot do this.
"""

from __future__ import annotations

import copyreg
import logging
import math
import types
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from suite.engine.network.forward_pass import copied
from suite.engine.network.planned_layer import ExecutedMeter, PlannedLayer, StepState, new_handle
from suite.engine.network.products import TORCH, is_sampled, planned_op
from suite.errors import UsageError
from suite.plan import EMPTY_PLAN, Geometry

log = logging.getLogger(__name__)


class PlannedConv2d(PlannedLayer, nn.Conv2d):
    """`nn.Conv2d` whose three products follow an `OpPlan`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the output, (N, K, P, Q) or (K, P, Q), of an input (N, C, H, W) or (C, H, W)."""
        sampled = is_sampled(self.weight, self.stride) and input.ndim in (3, 4)  # type: ignore[arg-type]
        through_op = self.planned or self.step_state.clock is not None
        if not (through_op or sampled) or not _types_agree(self, input):
            return super().forward(input)
        activation = input if input.ndim == 4 else input.unsqueeze(0)
        mode, padding = self._explicit_padding(*activation.shape[2:])
        if mode:
            activation = F.pad(activation, padding, mode)
        if through_op:
            out = _planned_product(self, activation)
        else:
            out = TORCH.forward(activation, self.weight, self.bias, self.geometry)
        return out if input.ndim == 4 else out.squeeze(0)

    @property
    def geometry(self) -> Geometry:
        """What the products depend on besides their operands, after explicit padding (`F.pad`)."""
        mode, (left, _, top, _) = self._explicit_padding(1, 1)
        padding = (0, 0) if mode else (top, left)
        return Geometry("conv", self.stride, padding, self.dilation, self.groups)  # type: ignore[arg-type]

    def padded_size(self, rows: int, columns: int) -> tuple[int, int]:
        """Return (H, W) of the activation that the products read, for an input of (rows, columns)."""
        mode, (left, right, top, bottom) = self._explicit_padding(rows, columns)
        return (rows + top + bottom, columns + left + right) if mode else (rows, columns)

    def _explicit_padding(self, rows: int, columns: int) -> tuple[str, list[int]]:
        """Return mode and amounts (left, right, top, bottom) of `F.pad`; the mode is '' if the product pads itself.

        `padding="same"` pads one more at the far edge where the sum is odd, which a convolution itself cannot do.
        """
        padding: list[int] = self._reversed_padding_repeated_twice
        left, right, top, bottom = padding
        if self.padding_mode != "zeros":
            return self.padding_mode, padding
        return ("" if left == right and top == bottom else "constant"), padding


class PlannedConv2dSame(PlannedConv2d):
    """A convolution that pads its input with as many zeros as its size needs, like TensorFlow's padding `SAME`.

    The output has ceil(size / stride) rows and columns. If the number of zeros is odd, the extra one is at the end.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the output, (N, K, P, Q) or (K, P, Q), of an input (N, C, H, W) or (C, H, W)."""
        if (self.planned or self.step_state.clock is not None) and _types_agree(self, input):
            return super().forward(input)
        return padded_same(self, input)

    def _explicit_padding(self, rows: int, columns: int) -> tuple[str, list[int]]:
        return "constant", same_padding(self, rows, columns)


def same_padding(layer: nn.Conv2d, rows: int, columns: int) -> list[int]:
    """Return how many zeros `SAME` adds to an input, as `F.pad` takes them: left, right, top, bottom."""
    zeros: list[int] = []
    for size, kernel, stride, dilation in zip(
        (columns, rows), reversed(layer.kernel_size), reversed(layer.stride), reversed(layer.dilation), strict=True
    ):
        needed = max((math.ceil(size / stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
        zeros += [needed // 2, needed - needed // 2]
    return zeros


def padded_same(layer: nn.Conv2d, input: Tensor) -> Tensor:
    """Return the output of a convolution with the padding `SAME`, (N, K, P, Q)."""
    padded = F.pad(input, same_padding(layer, *input.shape[-2:]))
    return F.conv2d(padded, layer.weight, layer.bias, layer.stride, 0, layer.dilation, layer.groups)


class PlannedLinear(PlannedLayer, nn.Linear):
    """`nn.Linear` whose three products follow an `OpPlan` and see the leading dimensions flattened to rows."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the output, (..., K), of an input (..., C)."""
        through_op = self.planned or self.step_state.clock is not None
        if not through_op or not _types_agree(self, input):
            return super().forward(input)
        out = _planned_product(self, input.reshape(-1, input.shape[-1]))
        return out.reshape(*input.shape[:-1], self.out_features)

    @property
    def geometry(self) -> Geometry:
        """What the products depend on besides their operands."""
        return Geometry("linear")


def _planned_product(layer: PlannedLayer, activation: Tensor) -> Tensor:
    """Cast the activation under autocast as torch does, then call the planned op."""
    # The op saves what it receives: the cast copy of the activation, and the weight before its cast, which is the
    # parameter itself.
    return planned_op(activation.to(_product_type(activation)), layer.weight, layer.bias, layer)


def _types_agree(layer: PlannedLayer, activation: Tensor) -> bool:
    """Return whether torch can multiply these types. If not, torch's own layer raises the usual error."""
    operands: list[Tensor] = [activation, layer.weight]
    if layer.bias is not None:
        operands.append(layer.bias)
    return len({_product_type(operand) for operand in operands}) == 1


def _product_type(operand: Tensor) -> torch.dtype:
    """Return the type of an operand in a product. Autocast casts all floating-point types except float64."""
    device = operand.device.type
    if torch.is_autocast_enabled(device) and operand.is_floating_point() and operand.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return operand.dtype


_PLANNED: dict[type[nn.Module], type[PlannedLayer]] = {nn.Conv2d: PlannedConv2d, nn.Linear: PlannedLinear}

_OF_PLANS = ("name", "_op_plan", "planned", "masked", "step_state", "meter", "handle", "own_class")
"""Attributes that `convert` adds to a layer."""
_OF_CLASSES = ("op_plan", "geometry", "padded_size", "forward_weight", "_explicit_padding")
"""What the classes of planned layers add to torch's."""
_FORWARDS = ("__call__", "forward", "_conv_forward")
_OTHERS = (nn.modules.conv._ConvNd, nn.RNNBase, nn.RNNCellBase, nn.Bilinear)
"""Layers with weights that have no planned class; a model's products in them are dense."""
_REMOVERS = {"weight_norm": "remove_weight_norm", "spectral_norm": "remove_spectral_norm", "prune": "prune.remove"}
"""Modules of `torch.nn.utils` with classes of hooks that compute a tensor of a layer, and what removes the hooks."""
_OWN_METHODS = (types.FunctionType, classmethod, staticmethod)


def planned_as(layer: nn.Module) -> type[PlannedLayer] | None:
    """Return the planned class that computes exactly what a layer does, or `None` if there is none.

    A subclass has to agree with its base class, or with a convolution that pads by `SAME`: both must give the same bits
    of output and gradients for random inputs of two sizes, in training and in evaluation. A subclass with its own
    forward also has to agree for small and large inputs, and must have no attribute of its own, which could later
    change what it computes. The output projection of `nn.MultiheadAttention`, which torch never calls, gets `None`.
    """
    planned = _planned_or_reason(layer)
    return None if isinstance(planned, str) else planned


def _planned_or_reason(layer: nn.Module) -> type[PlannedLayer] | str:
    """Return the planned class of a layer, or why there is none."""
    if isinstance(layer, PlannedLayer):
        return type(layer)
    kind = f"it is a {type(layer).__name__}"
    base = next((known for known in _PLANNED if isinstance(layer, known)), None)
    if base is None:
        return kind
    if "forward" in vars(layer):
        return "its attribute 'forward' replaces the forward of its class"
    if type(layer) is base:
        return _PLANNED[base]
    differs = f"{kind}, whose forward differs from that of its base class"
    if isinstance(layer, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return f"{kind}, the output projection of an nn.MultiheadAttention, which computes without its forward"
    candidates: list[tuple[type[PlannedLayer], Forward]] = [(_PLANNED[base], nn.Linear.forward)]
    if isinstance(layer, nn.Conv2d):
        candidates = [(PlannedConv2d, _convolved), (PlannedConv2dSame, padded_same)]
    inputs = [(0, 1.0), (1, 1.0)]
    overrides = any(getattr(type(layer), name, None) is not getattr(base, name, None) for name in _FORWARDS)
    try:
        with torch.random.fork_rng(), torch.enable_grad():
            if overrides:
                inputs += [(0, 1e-3), (0, 1e3)]
            for planned, forward in candidates:
                duplicate = copied(layer)
                before = _attributes(duplicate)
                if all(_computes_as(duplicate, forward, more, scale) for more, scale in inputs):
                    if overrides and (name := _own_state(layer, base)):
                        return f"{kind}, whose own forward may depend on its attribute '{name}'"
                    if overrides and (name := _changed(before, _attributes(duplicate))):
                        return f"{kind}, whose own forward changes its attribute '{name}'"
                    return planned
    except Exception as error:  # the forward of a subclass may raise anything
        log.debug("%s does not run by itself: %s", type(layer).__name__, error)
    return differs


def _convolved(layer: nn.Conv2d, input: Tensor) -> Tensor:
    """Return the output of torch's own convolution, whose `forward` calls a method that a subclass may replace."""
    return nn.Conv2d._conv_forward(layer, input, layer.weight, layer.bias)


def _attributes(layer: nn.Module) -> dict[str, Any]:
    """Return all attributes, parameters, buffers and submodules of a layer."""
    held = {**layer._parameters, **layer._buffers, **layer._modules}
    return {name: value for name, value in vars(layer).items() if name != "training"} | held


def _own_state(layer: nn.Module, base: type[nn.Module]) -> str:
    """Return the name of an attribute of a layer or its class that its base class does not have, or ''."""
    plain = _attributes(base(1, 1) if base is nn.Linear else base(1, 1, 1))
    of_classes = [
        name
        for kind in type(layer).__mro__[: type(layer).__mro__.index(base)]
        for name, value in vars(kind).items()
        if not (name.startswith(("__", "_abc_")) or hasattr(base, name) or isinstance(value, _OWN_METHODS))
    ]
    return next((name for name in (*_attributes(layer), *of_classes) if name not in plain), "")


def _changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return the name of an attribute that is now another object, is new or is gone; or ''."""
    names = [*after, *before]
    return next((name for name in names if name not in before or before[name] is not after.get(name)), "")


_DERIVED: dict[tuple[type[PlannedLayer], type[nn.Module]], type[PlannedLayer]] = {}


def _planned_class(planned: type[PlannedLayer], own: type[nn.Module]) -> type[PlannedLayer]:
    """Return a planned class that keeps the methods of a subclass of torch's layer."""
    if own in _PLANNED or (planned, own) in _DERIVED:
        return _DERIVED.get((planned, own), planned)
    derived: type[PlannedLayer] = types.new_class(planned.__name__, (planned, own))
    derived.__module__ = planned.__module__

    def reduced(layer: PlannedLayer) -> tuple[Any, ...]:
        return (_empty, (planned, own), *layer.__reduce_ex__(2)[2:])  # pickle cannot import a class made here

    copyreg.pickle(derived, reduced)  # type: ignore[arg-type]
    _DERIVED[planned, own] = derived
    return derived


def _empty(planned: type[PlannedLayer], own: type[nn.Module]) -> PlannedLayer:
    kind = _planned_class(planned, own)
    return kind.__new__(kind)


Forward = Callable[[Any, Tensor], Tensor]


def _computes_as(layer: nn.Module, forward: Forward, more: int, scale: float) -> bool:
    assert isinstance(layer.weight, Tensor)
    if isinstance(layer, nn.Conv2d):
        sides = [8 + more + size * step for size, step in zip(layer.kernel_size, layer.dilation, strict=True)]
        shape = [2, layer.in_channels, *sides]
    else:
        shape = [2 + more, layer.weight.shape[1]]
    given = (scale * torch.randn(shape, device=layer.weight.device)).to(layer.weight.dtype).requires_grad_()
    wanted = [given, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
    for training in (True, False):
        layer.train(training)
        results = []
        for output in (layer(given), forward(layer, given)):
            gradients = torch.autograd.grad(output.square().sum(), wanted, allow_unused=True)
            results.append([output, *gradients])
        if not all(map(_same, *results)):
            return False
    return True


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def plannable(model: nn.Module, called: Collection[str] | None = None) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Find the layers of a model that can be planned, and those that cannot, with the reason.

    A subclass of `nn.Conv2d` or `nn.Linear` can be planned if it computes what its base class does (`planned_as`).
    Convolutions of other dimensions, transposed, recurrent and bilinear layers cannot.

    Args:
        model: The bare model, converted or not.
        called: Names of the modules whose forward is called; only they can be planned. `None`: all are called.

    Returns:
        The layers, and the reasons of the others, both by name and in the model's order.

    Raises:
        UsageError: if the weight of a layer that is called is not a parameter, as under `weight_norm` or `prune`.
    """
    layers: dict[str, nn.Module] = {}
    others: dict[str, str] = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, (nn.Conv2d, nn.Linear)):
            if isinstance(layer, _OTHERS):
                others[name] = f"it is a {type(layer).__name__}, and only Conv2d and Linear layers can be planned"
            continue
        if called is None or name in called:
            refuse_computed(name, layer)
        if isinstance(reason := _planned_or_reason(layer), str):
            others[name] = reason
        elif called is not None and name not in called:
            others[name] = "the model never calls it"
        else:
            layers[name] = layer
    return layers, others


def computed_by(layer: nn.Module, tensor: str) -> str:
    """Return what computes a tensor of a layer before each forward, and how to end it; empty if the layer holds it."""
    if tensor in layer._parameters or tensor in layer._buffers:
        return ""
    if parametrize.is_parametrized(layer, tensor):
        maker = " and ".join(type(one).__name__ for one in layer.parametrizations[tensor])  # type: ignore
        remover = "parametrize.remove_parametrizations"
    else:
        kinds = [kind for hook in layer._forward_pre_hooks.values() for kind in type(hook).__mro__]
        modules = {kind.__module__.removeprefix("torch.nn.utils.") for kind in kinds}
        maker, remover = next((pair for pair in _REMOVERS.items() if pair[0] in modules), ("", ""))
    if not maker:
        return f"set by the code of {type(layer).__name__}"
    return f"computed by {maker} (torch.nn.utils.{remover}(layer, '{tensor}') ends it)"


def refuse_computed(name: str, layer: nn.Module) -> None:
    """Raise a `UsageError` if the weight of a convolution or linear layer is not a parameter."""
    if "weight" not in layer._parameters:
        raise UsageError(
            f"layer '{name}' cannot be planned: its weight is not a parameter, but "
            f"{computed_by(layer, 'weight') or 'a buffer'}; end this, or leave the layer out with "
            f"ignore={name} (in Python ignore=({name!r},))"
        )


def convert(
    model: nn.Module, step_state: StepState | None = None, called: Collection[str] | None = None
) -> dict[str, PlannedLayer]:
    """Convert every layer of a bare model that can be planned, in place, with empty plans.

    The layer objects, their parameters and the names in the state dict stay the same. A layer of a subclass stays an
    instance of it.

    Args:
        model: The bare model.
        step_state: The state that the layers share; a new one if `None`.
        called: Names of the modules whose forward is called, as for `plannable`.

    Returns:
        The planned layers by name, in the model's order.

    Raises:
        UsageError: as `plannable` does; or a layer has an attribute of the same name as one of a planned layer.
    """
    state = step_state or StepState()
    planned: dict[str, PlannedLayer] = {}
    layers = plannable(model, called)[0]
    for name, layer in layers.items():
        if taken := _taken(layer):
            raise UsageError(f"layer '{name}' has an attribute '{taken}', which a planned layer needs; rename it")
    for name, layer in layers.items():
        if not isinstance(layer, PlannedLayer):
            own, planned_class = type(layer), planned_as(layer)
            assert planned_class is not None
            layer.__class__ = _planned_class(planned_class, own)
            vars(layer)["own_class"] = own
        assert isinstance(layer, PlannedLayer)
        layer.name, layer.op_plan, layer.step_state, layer.meter = name, EMPTY_PLAN, state, ExecutedMeter()
        layer.handle = new_handle(layer)
        planned[name] = layer
    return planned


def _taken(layer: nn.Module) -> str:
    """Return the name of an attribute, buffer, child or method of a layer that a planned layer needs itself, or ''."""
    if isinstance(layer, PlannedLayer):
        return ""
    held = _attributes(layer).keys() | {name for kind in type(layer).__mro__ for name in vars(kind)}
    return next((name for name in (*_OF_PLANS, *_OF_CLASSES) if name in held), "")


def restore(model: nn.Module) -> nn.Module:
    """Turn planned layers back into what they were and remove the hooks of the training, in place.

    Raises:
        ValueError: if a layer's plan is not empty.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, PlannedLayer) and not layer.op_plan.empty:
            raise ValueError(f"layer '{name}' still has a plan; call `finish` of its hooks first")
    for layer in model.modules():
        if isinstance(layer, PlannedLayer):
            layer.__class__ = layer.own_class  # type: ignore[assignment]
            for attribute in _OF_PLANS:
                del vars(layer)[attribute]
        for key, hook in [*layer._forward_pre_hooks.items()]:
            if getattr(hook, "of_training", False):
                del layer._forward_pre_hooks[key]
    return model


def backend_name(layer: nn.Module) -> str:
    """Return the name of the backend that computes a layer's products: `torch` unless its plan names another."""
    backend = layer.op_plan.backend if isinstance(layer, PlannedLayer) else None
    return (backend or TORCH).name


def keep_nested_tensors_off(model: nn.Module) -> None:
    """Stop every `nn.TransformerEncoder` with planned layers from using nested tensors, which only fast paths support.

    Outputs of the encoder stay the same, except at positions that a padding mask covers.
    """
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(
            isinstance(layer, PlannedLayer) and layer.planned for layer in module.modules()
        ):
            module.use_nested_tensor = False
