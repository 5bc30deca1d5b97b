"""What one forward pass of a model does: which layers run, who else reads their weights, and which products are not
those of a convolution or linear layer.

Modules are watched by hooks, operations by torch's dispatcher, so that nothing which a model does in its own `forward`
goes unseen. How many multiply-adds an operation takes says `torch.utils.flop_counter`, whose count is independent of
the ledger's.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from suite.errors import UsageError
from suite.network.probing import probing

LAYERS = (nn.Conv2d, nn.Linear)
"""The classes whose products the ledger counts by their shapes."""
# Operations that multiply and for which torch knows no count.
_UNCOUNTED = {
    "_cdist_forward", "_cudnn_rnn", "_euclidean_dist", "_fft_c2c", "_fft_c2r", "_fft_r2c", "_trilinear", "addbmm",
    "addmv", "addr", "dot", "miopen_rnn", "mkldnn_rnn_layer", "mv", "vdot",
}  # fmt: skip
_TORCHS_OWN = ("aten", "prim", "prims")
# The products of multi-head attention that are not its projections.
_BATCHED = ("bmm", "baddbmm")


@dataclass(frozen=True)
class Product:
    """An operation that multiplies, outside of every convolution and linear layer.

    Attributes:
        op: its name in torch's dispatcher.
        module: the innermost module whose forward was running; empty for the model itself.
        macs: multiply-adds, of the whole batch; `None` where torch has no formula.
        attention: whether it is one of the two products of scaled dot-product attention (queries by keys, weights by
            values), or both in one operation.
        shapes: of the operands.
        has_grad: whether an operand needs a gradient.
    """

    op: str
    module: str
    macs: int | None
    attention: bool
    shapes: tuple[tuple[int, ...], ...]
    has_grad: bool


class ForwardPass:
    """Watches a model's forward while it is entered.

    Fast paths of torch that run several modules as one operation are off meanwhile: they compute the same.

    Attributes:
        ran: names of the modules whose forward ran.
        readers: for each convolution and linear layer whose weight was read outside of its own forward, the names of
            the modules that were running.
        products: what multiplied outside of every convolution and linear layer, in order.
    """

    def __init__(self, model: nn.Module) -> None:
        self.ran: set[str] = set()
        self.readers: dict[str, set[str]] = defaultdict(set)
        self.products: list[Product] = []
        self._model = model
        self._layers = {name for name, module in model.named_modules() if isinstance(module, LAYERS)}
        self._owners: dict[int, list[str]] = defaultdict(list)  # by storage: layers may share a weight
        for name in self._layers:
            weight = model.get_submodule(name)._parameters.get("weight")
            if weight is not None:
                self._owners[_storage(weight)].append(name)
        self._running: list[str] = []
        self._in_attention = self._in_multi_head = False

    @contextmanager
    def watching(self) -> Iterator[ForwardPass]:
        """What runs inside is noted."""
        handles = []
        for name, module in self._model.named_modules():
            # A shared module has its first name.
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
        self.ran.add(name)

    def _leave(self) -> None:
        self._running.pop()

    def note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> None:
        """Note an operation of torch's dispatcher."""
        leaves = tree_leaves((args, kwargs))
        tensors = [value for value in leaves if isinstance(value, Tensor) and value.layout is torch.strided]
        inside = [name for name in self._running if name in self._layers]
        if not func.is_view:  # a view reads nothing; who reads it is seen
            for tensor in tensors:
                for owner in self._owners.get(_storage(tensor), ()):
                    if owner not in inside:
                        self.readers[owner].add(inside[-1] if inside else self._module)
        if inside:
            return
        name = func._schema.name.partition("::")[2]
        formula = flop_registry.get(func.overloadpacket)
        if formula is None and name not in _UNCOUNTED and func.namespace in _TORCHS_OWN:
            return
        macs = None if formula is None else int(formula(*args, **kwargs, out_val=out)) // 2
        attention = formula is not None and (self._in_attention or (self._in_multi_head and _of_attention(name)))
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        has_grad = any(tensor.requires_grad for tensor in tensors)
        self.products.append(Product(name, self._module, macs, attention, shapes, has_grad))

    @property
    def _module(self) -> str:
        return self._running[-1] if self._running else ""


class _Operations(TorchDispatchMode):
    def __init__(self, watch: ForwardPass) -> None:
        super().__init__()
        self._watch = watch

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch imports its compiler at the first operation, which takes seconds; nothing is compiled here.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._watch.note(func, args, kwargs or {}, out)
        return out


class _Attention(TorchFunctionMode):
    """Says when one of torch's two functions of attention is running; that it is entered turns fast paths off."""

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


def _of_attention(name: str) -> bool:
    return name in _BATCHED or name.startswith("_scaled_dot_product")


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


@dataclass(frozen=True)
class Survey:
    """How a model uses its layers, in training and in evaluation.

    Attributes:
        ran: names of the modules that run in one of the two.
        readers: as of `ForwardPass`.
        shapes: of input and output of each convolution and linear layer that runs, for two images.
    """

    ran: frozenset[str]
    readers: Mapping[str, frozenset[str]]
    shapes: Mapping[str, tuple[torch.Size, torch.Size]]


def survey(model: nn.Module, input_shape: tuple[int, int, int]) -> Survey:
    """Run two blank images through a copy of a model, once in training mode and once in evaluation mode."""
    shapes: dict[str, tuple[torch.Size, torch.Size]] = {}

    def note(name: str, layer: nn.Module, given: Tensor, output: Tensor) -> None:
        shapes[name] = (given.shape, output.shape)

    watches = [run_blank(copy.deepcopy(model), input_shape, 2, training, note) for training in (True, False)]
    readers: dict[str, frozenset[str]] = {}
    for watch in watches:
        for name, found in watch.readers.items():
            readers[name] = readers.get(name, frozenset()) | found
    return Survey(frozenset().union(*(watch.ran for watch in watches)), readers, shapes)


def run_blank(
    model: nn.Module,
    input_shape: tuple[int, int, int],
    images: int,
    training: bool = False,
    on_layer: Callable[[str, nn.Module, Tensor, Tensor], None] | None = None,
) -> ForwardPass:
    """Run blank images through a model and watch it.

    Args:
        model: its mode, buffers and random numbers are as before afterwards. What planned layers executed is metered
            in training mode; give a copy for it.
        input_shape: (C, H, W).
        images: how many.
        training: the mode in which it runs.
        on_layer: receives name, layer, input and output of every convolution and linear layer that runs.
    """
    first = first_parameter(model)
    watch = ForwardPass(model)
    handles = []
    if on_layer is not None:
        for name, layer in model.named_modules():
            if isinstance(layer, LAYERS):
                handles.append(layer.register_forward_hook(_handing_over(name, on_layer), with_kwargs=True))
    try:
        with probing(model), torch.enable_grad(), watch.watching():
            model.train(training)
            model(torch.zeros(images, *input_shape, device=first.device, dtype=first.dtype))
    finally:
        for handle in handles:
            handle.remove()
    return watch


def _handing_over(name: str, on_layer: Callable[[str, nn.Module, Tensor, Tensor], None]) -> Callable[..., None]:
    def hand_over(layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor) -> None:
        on_layer(name, layer, first_input(args, kwargs), output)

    return hand_over


def first_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The input of a convolution or linear layer, which may be given by its name, `layer(input=x)`."""
    found: Tensor = args[0] if args else kwargs["input"]
    return found


def first_parameter(model: nn.Module) -> nn.Parameter:
    """The first parameter of a model, which tells its device and type.

    Raises:
        UsageError: if there is none.
    """
    for parameter in model.parameters():
        return parameter
    raise UsageError(f"the model ({type(model).__name__}) has no parameters, so that there is nothing to train")
