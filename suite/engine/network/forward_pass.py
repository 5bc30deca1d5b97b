"""Run a model to learn which layers it calls, what else reads their weights, and what else multiplies.

Hooks watch the modules, and torch's dispatcher the operations, so that nothing in a model's own `forward` is missed.
`suite.engine.network.arithmetic` counts the multiply-adds of an operation, independently of the ledger
(`suite.engine.cost.flops`).
"""

from __future__ import annotations

import copy
import logging
import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suite.engine.network.arithmetic import attention_of, is_dense, multiply_adds, name_of
from suite.engine.network.planned_layer import PlannedLayer
from suite.errors import UsageError

log = logging.getLogger(__name__)

Module = TypeVar("Module", bound=nn.Module)

LAYERS = (nn.Conv2d, nn.Linear)
"""Classes whose products the ledger counts by their shapes."""
_OF_TORCH = ("_parameters", "_buffers", "_modules")
_OF_MODULES = frozenset(vars(nn.Module()))
LayerShapes = dict[str, tuple[torch.Size, torch.Size]]
"""Shapes of input and output of each convolution and linear layer, by name, in the order in which they run."""
OnLayer = Callable[[str, nn.Module, Tensor, Tensor], None]
"""Receives name, layer, input and output."""


@dataclass(frozen=True)
class Operand:
    """A tensor that an operation reads.

    Attributes:
        shape: Its shape.
        has_grad: Whether it needs a gradient.
        parameter: Name of the model's parameter with the same memory; empty if there is none.
    """

    shape: tuple[int, ...]
    has_grad: bool
    parameter: str


@dataclass(frozen=True)
class Product:
    """An operation outside of planned layers that multiplies, or that may multiply.

    Attributes:
        op: Name of the operation in torch's dispatcher, with its library unless that is torch's own.
        module: Name of the innermost module whose forward was running; empty for the model itself.
        macs: Multiply-adds of the whole batch; `None` if there is no formula.
        attention: Whether it is one of the two products of scaled dot-product attention (queries by keys, weights by
            values), or both in one operation.
        operands: The dense tensors that it reads. In `mm`, `addmm`, `bmm` and `baddbmm`, the last two are the factors.
            In fused attention, they are queries, keys and values, (N, H, T, D).
        layer: Name of the convolution or linear layer in whose forward it ran; empty outside of them.
    """

    op: str
    module: str
    macs: int | None
    attention: bool
    operands: tuple[Operand, ...]
    layer: str = ""

    @property
    def has_grad(self) -> bool:
        """Whether an operand needs a gradient."""
        return any(operand.has_grad for operand in self.operands)


class ForwardPass:
    """Records what happens in the forward of a model.

    Meanwhile torch takes no fast path, which would run several modules as one operation with the same result.

    Attributes:
        called: Names of the modules whose forward was called.
        readers: For each convolution and linear layer whose weight was read outside of its own forward, the names of
            the modules that were running.
        products: The operations outside of planned layers that multiplied, or that may have, in order.
    """

    def __init__(self, model: nn.Module) -> None:
        self.called: set[str] = set()
        self.readers: dict[str, set[str]] = defaultdict(set)
        self.products: list[Product] = []
        self._model = model
        self._layers = {name for name, module in model.named_modules() if isinstance(module, LAYERS)}
        self._owners: dict[int, list[str]] = defaultdict(list)  # by storage: layers may share a weight
        for name in self._layers:
            weight = model.get_submodule(name)._parameters.get("weight")
            if weight is not None:
                self._owners[_storage(weight)].append(name)
        self._parameters = {_storage(parameter): name for name, parameter in model.named_parameters()}
        self._running: list[str] = []
        self._in_attention = self._in_multi_head = False

    @contextmanager
    def watching(self) -> Iterator[ForwardPass]:
        """Record everything that runs inside the context."""
        handles = []
        for name, module in self._model.named_modules():
            # `named_modules` gives a module with several names only under its first one.
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: self._enter(name)))
            handles.append(module.register_forward_hook(lambda *_: self._leave(), always_call=True))
        try:
            with _Operations(self), _Attention(self):
                yield self
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> None:
        self._running.append(name)
        self.called.add(name)

    def _leave(self) -> None:
        self._running.pop()

    def record(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> None:
        """Record one operation of torch's dispatcher."""
        leaves = tree_leaves((args, {key: value for key, value in kwargs.items() if not key.startswith("out")}))
        tensors = [value for value in leaves if isinstance(value, Tensor) and is_dense(value)]
        inside = [name for name in self._running if name in self._layers]
        layer = inside[-1] if inside else ""
        if not getattr(func, "is_view", False):  # a view reads no values; whatever reads the view is recorded
            for tensor in tensors:
                for owner in self._owners.get(_storage(tensor), ()):
                    if owner not in inside:
                        self.readers[owner].add(layer or self._module)
        planned = bool(layer) and isinstance(self._model.get_submodule(layer), PlannedLayer)
        name, macs = name_of(func), multiply_adds(func, args, kwargs, out)
        if planned or macs == 0:
            return
        fused = None if name.endswith("_backward") else attention_of(func, args, kwargs)
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if fused is not None:
            tensors, shapes = list(fused.tensors), [fused.query, fused.key, fused.value]
        operands = tuple(
            Operand(shape, tensor.requires_grad, self._parameters.get(_storage(tensor), ""))
            for tensor, shape in zip(tensors, shapes, strict=True)
        )
        # In multi-head attention, only the products of attention itself are batched; the projections are not.
        attends = fused is not None or self._in_attention or (self._in_multi_head and name in ("bmm", "baddbmm"))
        self.products.append(Product(name, self._module, macs, attends, operands, layer))

    @property
    def _module(self) -> str:
        return self._running[-1] if self._running else ""


class _Operations(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, watch: ForwardPass) -> None:
        super().__init__()
        self._watch = watch

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # With True, torch would import its compiler at the first operation, which takes seconds.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Torch decomposes composite operations before they arrive here, but not in inference mode.
        if torch.is_inference_mode_enabled() and not isinstance(func, HigherOrderOperator):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        self._watch.record(func, args, kwargs, out)
        return out


class _Attention(TorchFunctionMode):
    """Tracks whether one of torch's two attention functions is running. Being active, it also prevents fast paths."""

    def __init__(self, watch: ForwardPass) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        watch, before = self._watch, (self._watch._in_attention, self._watch._in_multi_head)
        watch._in_attention |= func is F.scaled_dot_product_attention
        watch._in_multi_head |= func is F.multi_head_attention_forward
        try:
            return func(*args, **(kwargs or {}))
        finally:
            watch._in_attention, watch._in_multi_head = before


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


@dataclass(frozen=True)
class Survey:
    """How a model uses its layers, in training and in evaluation.

    Attributes:
        called: Names of the modules whose forward is called in training or in evaluation.
        readers: As in `ForwardPass`, in either mode.
        shapes: Shapes of each layer's input and output for two images.
    """

    called: frozenset[str]
    readers: Mapping[str, frozenset[str]]
    shapes: Mapping[str, tuple[torch.Size, torch.Size]]


def survey(model: nn.Module, input_shape: tuple[int, int, int]) -> Survey:
    """Run two blank images through copies of a model, once in training mode and once in evaluation mode."""
    shapes: LayerShapes = {}
    passes = []
    for training in (True, False):
        duplicate = copied(model)
        with probing(model), recording_shapes(duplicate) as shapes_in_mode:
            passes.append(run_blank(duplicate, input_shape, 2, training))
        shapes |= shapes_in_mode
    readers: dict[str, frozenset[str]] = {}
    for watch in passes:
        for name, modules in watch.readers.items():
            readers[name] = readers.get(name, frozenset()) | modules
    return Survey(frozenset().union(*(watch.called for watch in passes)), readers, shapes)


def run_blank(
    model: nn.Module,
    input_shape: tuple[int, int, int],
    images: int,
    training: bool = False,
    on_layer: OnLayer | None = None,
) -> ForwardPass:
    """Run blank images through a model and record the forward pass.

    Args:
        model: The model; its mode, buffers and random states are restored afterwards. In training mode, planned layers
            meter what they execute: pass a copy to avoid this.
        input_shape: (C, H, W).
        images: Number of images.
        training: Whether the model runs in training mode.
        on_layer: As for `hooked_layers`.
    """
    watch = ForwardPass(model)
    with hooked_layers(model, on_layer), probing(model), _uncompiled(), torch.enable_grad(), watch.watching():
        model.train(training)
        model(blank_images(model, input_shape, images))
    return watch


def _uncompiled() -> AbstractContextManager[Any]:
    """Return a context in which compiled parts of a model run eagerly."""
    # Nothing is compiled unless one of these was imported. `set_stance` imports the compiler, which takes seconds.
    compiles = {"torch._dynamo", "torch.nn.attention.flex_attention"} & sys.modules.keys()
    return torch.compiler.set_stance("force_eager") if compiles else nullcontext()


def blank_images(model: nn.Module, input_shape: tuple[int, int, int], images: int) -> Tensor:
    """Return zeros, (images, C, H, W), of the type of a model's parameters and on their device."""
    first = first_parameter(model)
    return torch.zeros(images, *input_shape, device=first.device, dtype=first.dtype)


@contextmanager
def probing(model: nn.Module) -> Iterator[None]:
    """Restore a model's modes, buffers and attributes and the random states of Python and torch when the context ends.

    Lists, sets and dictionaries of the model get their entries back too, because a hook of a copy may add to those of
    the model. Do not modify parameters inside this context.
    """
    modes = {module: module.training for module in model.modules()}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    named_buffers = [(module._buffers, dict(module._buffers)) for module in model.modules()]
    attributes, state = [(module, _own_attributes(module)) for module in model.modules()], random.getstate()
    kept = {id(value): value for _, before_context in attributes for value in before_context.values()}.values()
    entries = [(value, [*value]) for value in kept if isinstance(value, (list, deque, set))]
    items = [(value, dict(value)) for value in kept if isinstance(value, dict)]
    devices = {buffer.device for buffer in (*model.parameters(), *model.buffers()) if buffer.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(state)
        for module, before_context in attributes:
            for name in _own_attributes(module).keys() - before_context.keys():
                del vars(module)[name]
            vars(module).update(before_context)
        for value, held in entries:
            value.clear()
            value.update(held) if isinstance(value, set) else value.extend(held)
        for names, own_items in (*items, *named_buffers):
            names.clear()
            names.update(own_items)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for module, training in modes.items():
            module.training = training


def copied(model: Module) -> Module:
    """Return a deep copy of a model. The copy shares with the model the attributes that cannot be copied.

    Examples are activations that a forward keeps, locks, open files and generators. The copy gets its own list or
    dictionary of such objects, so that a forward of the copy does not add to that of the model.
    """
    try:
        return copy.deepcopy(model)
    except Exception as error:  # copying runs the attributes' own code; an error of other code comes again below
        log.debug("%s is copied without its attributes that cannot be: %s", type(model).__name__, error)
    modules = {id(module): module for module in model.modules()}
    shared: dict[int, Any] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if name not in _OF_TORCH and not _can_be_copied(value, modules):
                shared[id(value)] = copy.copy(value) if isinstance(value, (list, dict)) else value
    return copy.deepcopy(model, shared)


def _can_be_copied(value: Any, modules: dict[int, nn.Module]) -> bool:
    try:
        copy.deepcopy(value, {**modules})
    except Exception:  # as above
        return False
    return True


def _own_attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _OF_MODULES}


@contextmanager
def hooked_layers(model: nn.Module, on_layer: OnLayer | None) -> Iterator[None]:
    """Call `on_layer(name, layer, input, output)` whenever a convolution or linear layer runs inside the context."""
    handles = []
    if on_layer is not None:
        for name, layer in model.named_modules():
            if isinstance(layer, LAYERS):
                handles.append(layer.register_forward_hook(_forward_hook(name, on_layer), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _forward_hook(name: str, on_layer: OnLayer) -> Callable[..., None]:
    def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor) -> None:
        on_layer(name, layer, first_input(args, kwargs), output)

    return hook


@contextmanager
def recording_shapes(model: nn.Module) -> Iterator[LayerShapes]:
    """Record the shapes of input and output of every convolution and linear layer that runs inside the context."""
    shapes: LayerShapes = {}

    def record(name: str, layer: nn.Module, given: Tensor, output: Tensor) -> None:
        shapes[name] = (given.shape, output.shape)

    with hooked_layers(model, record):
        yield shapes


def first_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the input of a convolution or linear layer, which may be passed by name, `layer(input=x)`."""
    given: Tensor = args[0] if args else kwargs["input"]
    return given


def first_parameter(model: nn.Module) -> nn.Parameter:
    """Return the first parameter of a model; callers take its device and type for those of the whole model.

    Raises:
        UsageError: if the model has no parameters.
    """
    for parameter in model.parameters():
        return parameter
    raise UsageError(f"the model ({type(model).__name__}) has no parameters, so it cannot be trained")
