"""Residual branches: which of them can be removed, and the constant that remains of a removed one.

A removed branch leaves the constant that it emits if its dead layer's output is zero (normalisation at the end of the
branch turns zero into beta - gamma * mean / sqrt(var + eps)). Removing a dead branch therefore preserves the model's
output in evaluation. In training it does not: there, the normalisation of a zero input would emit beta, because the
mean of its batch is zero.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from suite.index_spaces import Branch, IndexSpaces
from suite.network.channels.gating import input_channels
from suite.network.forward_pass import LayerShapes, probing


class ChannelConstant(nn.Module):
    """Replacement of a removed residual branch: it emits the constant that the branch emitted.

    Buffers:
        constant: (K,), one value per channel.
    """

    constant: Tensor

    def __init__(self, constant: Tensor) -> None:
        super().__init__()
        self.register_buffer("constant", constant)

    def forward(self, x: Tensor) -> Tensor:
        """Return the constant in the type of x, (1, K, 1, 1) or (1, K), so that it can be added to the shortcut."""
        return self.constant.to(x.dtype).view(1, -1, *[1] * (x.ndim - 2))


def register_branches(model: nn.Module, spaces: IndexSpaces, shapes: LayerShapes) -> None:
    """Enter all declared residual branches of a model in its index spaces, as removable or as fixed.

    A module whose class has an attribute `residual_branch = "name"` declares that the output of its child `name` is
    only ever added to a tensor of the same shape.

    Args:
        model: The bare model.
        spaces: Its index spaces, which are changed.
        shapes: Shapes of each layer's input and output, in the order in which the layers run.
    """
    for name, module in model.named_modules():
        child = getattr(type(module), "residual_branch", None)
        if isinstance(child, str) and not isinstance(getattr(module, child), ChannelConstant):
            _register(model, spaces, f"{name}.{child}" if name else child, shapes)


def _register(model: nn.Module, spaces: IndexSpaces, name: str, shapes: LayerShapes) -> None:
    # Collect the branch's layers and the index spaces between them.
    layers = [layer for layer in shapes if layer.startswith(name + ".")]
    outputs = spaces.outputs_of(layers[-1]) if layers else ()
    inner = tuple(dict.fromkeys(space for layer in layers[:-1] for space in spaces.outputs_of(layer)))
    is_chain = all(_consumes_all(spaces, *pair) for pair in itertools.pairwise(layers)) and all(
        set(spaces[space].producers + spaces[space].consumers) <= set(layers) for space in inner
    )
    frozen = [spaces[space].frozen_because for space in inner if spaces[space].frozen]
    padding = [layer for layer in layers[2:] if _pads(model.get_submodule(layer))]
    # Enter it as fixed, with the first reason that applies, or else as removable.
    if frozen:
        spaces.fixed_branches[name] = "; ".join(dict.fromkeys(frozen))
    elif not outputs or not is_chain:
        spaces.fixed_branches[name] = "its layers do not form a chain"
    elif padding:
        spaces.fixed_branches[name] = f"'{padding[0]}' pads its input, so that dead channels leave no constant"
    elif not _leaves_a_constant(model, name, layers, shapes[layers[0]][0]):
        spaces.fixed_branches[name] = (
            "dead channels inside it leave no constant: its output then varies with the position (behind a pooling "
            "that pads, for instance) or with the input"
        )
    else:
        size = tuple(shapes[layers[0]][0][2:])
        spaces.removable_branches[name] = Branch(name, tuple(layers), inner, outputs, size)
        for space in inner:
            spaces[space].may_be_empty = True


def _consumes_all(spaces: IndexSpaces, layer: str, following: str) -> bool:
    """Whether the following layer consumes exactly what a layer produces; a grouped one also produces it."""
    produced = set(spaces.outputs_of(layer))
    consumed = spaces.outputs_of(following) if following in spaces.grouped else spaces.inputs_of(following)
    return bool(produced) and produced == set(consumed)


def _pads(layer: nn.Module) -> bool:
    padding = getattr(layer, "padding", 0)
    return any(side != 1 for side in getattr(layer, "kernel_size", ())) and padding not in (0, (0, 0), "valid")


def _leaves_a_constant(model: nn.Module, name: str, layers: Sequence[str], given: torch.Size) -> bool:
    """Whether a branch emits a constant as soon as all channels between two of its layers are dead.

    This is tried on a copy with random images, and with random normalisation, biases and statistics: in a new model all
    constants are zero.

    Args:
        model: The model, in any mode; it is not changed.
        name: Name of the branch.
        layers: Its convolution and linear layers, in order.
        given: Shape of the branch's input.
    """
    with probing(model), torch.no_grad():
        torch.manual_seed(0)
        branch = copy.deepcopy(model.get_submodule(name)).eval()
        for key, tensor in (*branch.named_parameters(), *branch.named_buffers()):
            if tensor.ndim == 1 and tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5) if key.endswith("running_var") else tensor.normal_(0.5, 0.5)
        first = next(branch.parameters())
        images = torch.randn(given, device=first.device).to(first.dtype)
        for layer in layers[1:]:
            handle = branch.get_submodule(layer.removeprefix(f"{name}.")).register_forward_hook(_silence)
            constant = _is_constant(branch(images))
            handle.remove()
            if not constant:
                return False
    return True


def emitted_constant(model: nn.Module, branch: Branch) -> Tensor:
    """Return what a branch emits in evaluation if the output of its last dead layer is zero (or its bias), (K,).

    A layer is dead if all its weights are 0. If no layer is dead, the last one is treated as dead.

    Raises:
        ValueError: if the branch does not emit one constant per channel.
    """
    weights = [model.get_submodule(layer).weight for layer in branch.layers]
    dead = [layer for layer, weight in zip(branch.layers, weights, strict=True) if not weight.any()]  # type: ignore[operator]
    silenced = model.get_submodule(dead[-1] if dead else branch.layers[-1])

    module, first = model.get_submodule(branch.name), weights[0]
    assert isinstance(first, Tensor)
    channels = input_channels(model.get_submodule(branch.layers[0]))
    handle = silenced.register_forward_hook(_silence)
    try:
        with probing(module), torch.no_grad():
            blank = torch.zeros(1, channels, *branch.input_size, device=first.device, dtype=first.dtype)
            out = module.eval()(blank)
    finally:
        handle.remove()
    if not _is_constant(out):
        raise ValueError(f"branch '{branch.name}' cannot be removed: its output is not constant")
    return _positions(out)[0, :, 0].clone()


def replace_branch(model: nn.Module, name: str, constant: Tensor) -> None:
    """Replace a branch by the constant that it emits, (K,)."""
    parent, _, child = name.rpartition(".")
    replacement = ChannelConstant(constant)
    replacement.train(model.get_submodule(name).training)
    setattr(model.get_submodule(parent), child, replacement)


def _silence(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """A forward hook that returns the layer's output for a weight of zero."""
    bias = layer.bias
    if not isinstance(bias, Tensor):
        return torch.zeros_like(output)
    return torch.zeros_like(output) + bias.view(1, -1, *[1] * (output.ndim - 2))


def _is_constant(output: Tensor) -> bool:
    """Whether an output, (N, K, ...), has one value per channel for all images and positions."""
    values = _positions(output)
    # Products are rounded differently at different positions; a border that padding makes differs by far more.
    return bool((values - values[:1, :, :1]).abs().max() <= 1e-3 * values.abs().max())


def _positions(output: Tensor) -> Tensor:
    """Return the output as (N, K, positions)."""
    return output.flatten(2) if output.ndim > 2 else output[:, :, None]
