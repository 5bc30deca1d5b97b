"""Surgery: carry out a `ReconfigPlan` on model and optimizer, in place.

Surgery slices a removed channel out of every tensor that has it: both axes of weights, biases, normalisation parameters
and statistics, and the optimizer's state for them. Parameters stay the same objects, so that the optimizer keeps them.

**Channel gating**: the layers of a residual stage share the channels of a node, the sum that they read and write. By
channel union, the node keeps every channel that any of its layers uses. With gating, each layer is cut individually: a
gate gathers the layer's inputs from the node's channels before it runs, and another scatters its outputs among zeros
afterwards. This saves more FLOPs and costs two copies per layer. `IndexSpaces.why_not_gated` says which spaces can be
gated. Source: PruneTrain (Lym et al., SC 2019), Sec. 4.2 and Fig. 6.

**Residual branches**: a removed branch leaves the constant that it emits if its dead layer's output is zero
(normalisation at the end of the branch turns zero into beta - gamma * mean / sqrt(var + eps)). Removing a dead branch
therefore preserves the model's output in evaluation, but not in training: there, normalisation of a zero input would
emit beta, because the mean of its batch is zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from suite.engine.network.forward_pass import LayerShapes, copied, first_input, probing
from suite.errors import nearest
from suite.index_spaces import GATHER_INDEX, SCATTER_INDEX, Branch, IndexSpace, IndexSpaces, Slice
from suite.reconfiguration import IndexMap, ReconfigPlan

GATHERED_FROM, SCATTERED_INTO = "gathered_from", "scattered_into"
"""Attributes of a gated layer: the number of channels of the node before it, and of the node after it."""
GATED = "its layers are gated"


def add_gates(model: nn.Module, space: IndexSpace) -> None:
    """Give the layers of a space gates that let every channel through.

    Args:
        model: The model of the layers, which get the buffers `gather_index` and `scatter_index`, (channels,) int64.
        space: The space before `IndexSpaces.replace_by_parts`.
    """
    for name in space.consumers:
        layer = model.get_submodule(name)
        layer.register_buffer(GATHER_INDEX, _all_channels(layer, 1))
        setattr(layer, GATHERED_FROM, layer.weight.shape[1])  # type: ignore[union-attr, index]
        layer.register_forward_pre_hook(_gather, with_kwargs=True)
    for name in space.producers:
        layer = model.get_submodule(name)
        layer.register_buffer(SCATTER_INDEX, _all_channels(layer, 0))
        setattr(layer, SCATTERED_INTO, layer.weight.shape[0])  # type: ignore[union-attr, index]
        layer.register_forward_hook(_scatter)


def input_channels(layer: nn.Module) -> int:
    """Return how many channels a convolution or linear layer receives, or its gate if it has one."""
    assert isinstance(layer, (nn.Conv2d, nn.Linear))
    without_gate = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
    channels: int = getattr(layer, GATHERED_FROM, without_gate)
    return channels


def _all_channels(layer: nn.Module, axis: int) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return torch.arange(weight.shape[axis], device=weight.device)


def _gather(
    layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    given, index = first_input(args, kwargs), getattr(layer, GATHER_INDEX)
    if _is_channels_last(given):  # index_select along axis 1 would change the memory format
        return (given.permute(0, 2, 3, 1).index_select(3, index).permute(0, 3, 1, 2),), {}
    return (given.index_select(1, index),), {}


def _scatter(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    node = torch.empty(
        (output.shape[0], getattr(layer, SCATTERED_INTO), *output.shape[2:]),
        dtype=output.dtype,
        device=output.device,
        memory_format=torch.channels_last if _is_channels_last(output) else torch.contiguous_format,
    )
    return node.zero_().index_copy_(1, getattr(layer, SCATTER_INDEX), output)


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


class ChannelConstant(nn.Module):
    """Replacement for a removed residual branch. It emits the constant that the branch emitted.

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
    layers = [layer for layer in shapes if layer.startswith(name + ".")]
    outputs = spaces.outputs_of(layers[-1]) if layers else ()
    inner = tuple(dict.fromkeys(space for layer in layers[:-1] for space in spaces.outputs_of(layer)))
    is_chain = all(_consumes_all(spaces, *pair) for pair in itertools.pairwise(layers)) and all(
        set(spaces[space].producers + spaces[space].consumers) <= set(layers) for space in inner
    )
    frozen = [spaces[space].frozen_because for space in inner if spaces[space].frozen]
    padding = [layer for layer in layers[2:] if _pads(model.get_submodule(layer))]
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
    """Return whether the following layer consumes exactly what a layer produces."""
    # A grouped layer has the same space before and after it, as a producer.
    produced = set(spaces.outputs_of(layer))
    consumed = spaces.outputs_of(following) if following in spaces.grouped else spaces.inputs_of(following)
    return bool(produced) and produced == set(consumed)


def _pads(layer: nn.Module) -> bool:
    padding = getattr(layer, "padding", 0)
    return any(side != 1 for side in getattr(layer, "kernel_size", ())) and padding not in (0, (0, 0), "valid")


def _leaves_a_constant(model: nn.Module, name: str, layers: Sequence[str], given: torch.Size) -> bool:
    """Return whether a branch emits a constant as soon as all channels between two of its layers are dead.

    A copy tries this with random images, and with random normalisation, biases and statistics, because in a new model
    all constants are zero.

    Args:
        model: The model, in any mode; it is not changed.
        name: Name of the branch.
        layers: Its convolution and linear layers, in order.
        given: Shape of the branch's input.
    """
    with probing(model), torch.no_grad():
        torch.manual_seed(0)
        branch = copied(model.get_submodule(name)).eval()
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
    """Return what a branch emits in evaluation if its last dead layer emits only its bias, or zero without one, (K,).

    A layer is dead if all its weights are 0. If no layer is dead, the last one counts as dead.

    Raises:
        ValueError: if the branch does not emit one constant per channel.
    """
    weights = [model.get_submodule(layer).weight for layer in branch.layers]
    dead = [layer for layer, weight in zip(branch.layers, weights, strict=True) if not weight.any()]  # type: ignore[operator]
    # Run a copy, because the forward may count its calls, or keep what it saw.
    module, first = copied(model.get_submodule(branch.name)), weights[0]
    silenced = module.get_submodule((dead[-1] if dead else branch.layers[-1]).removeprefix(f"{branch.name}."))
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
    """Return whether an output, (N, K, ...), has one value per channel for all images and positions."""
    values = _positions(output)
    # Rounding differs between positions; a border from padding differs by far more.
    return bool((values - values[:1, :, :1]).abs().max() <= 1e-3 * values.abs().max())


def _positions(output: Tensor) -> Tensor:
    """Return the output as (N, K, positions)."""
    return output.flatten(2) if output.ndim > 2 else output[:, :, None]


Cuts = dict[str, dict[int, Tensor]]
"""Remaining positions of each axis of each tensor, by the tensor's name."""


def apply_plan(
    model: nn.Module,
    plan: ReconfigPlan,
    spaces: IndexSpaces,
    optimizer: Optimizer | None,
    extra: Iterable[nn.Module] = (),
) -> IndexMap:
    """Carry out a plan on model, optimizer and index spaces, in place.

    Only `gated`, `kept` and `removed_branches` of the plan are carried out here; the rest is the trainer's task. Sliced
    parameters lose their gradients. The same plans in the same order give every newly built model the same
    architecture, including the constants of removed branches (whose values are in the state dict).

    Args:
        model: The bare model.
        plan: Original indices of the remaining channels, by space, and the branches to remove. The spaces inside a
            removed branch need not be named.
        spaces: The model's index spaces, which are updated.
        optimizer: The optimizer, or `None`. Its state tensors with the shape of a parameter are sliced with it, and its
            parameter groups lose removed parameters.
        extra: Other models with the same tensor names, for instance an average of the weights.

    Returns:
        The change of every tensor, by name.

    Raises:
        ValueError: if the plan names an unknown or frozen space or an unknown branch, if indices do not ascend or do
            not exist (any more), if a space would become empty that has to keep a channel, or if an extra model
            differs. In this case nothing was changed.
    """
    models = [model, *extra]
    parts = {name: _parts_by_gating(name, model, spaces) for name in plan.gated}
    _validate(plan, spaces, parts)
    before = [named_tensors(module) for module in models]
    for name, tensor in before[0].items():
        if any(name not in found or found[name].shape != tensor.shape for found in before):
            raise ValueError(f"an extra model has no '{name}' of the model's shape")
    # This may fail, and so comes before the first change.
    branches = [spaces.removable_branches[name] for name in plan.removed_branches]
    constants = [[emitted_constant(module, branch) for branch in branches] for module in models]

    for name, parts_of_space in parts.items():
        for module in models:
            add_gates(module, spaces[name])
        spaces.replace_by_parts(name, parts_of_space, GATED)

    inside = {space for branch in branches for space in branch.spaces}
    shrinking = {name: kept for name, kept in plan.kept.items() if name not in inside and len(kept) < spaces[name].size}
    remaining = {name: _remaining(spaces[name], kept) for name, kept in shrinking.items()}
    tensors = [named_tensors(module) for module in models]
    cuts = _cuts(spaces, remaining, tensors[0])
    for found in tensors:
        for name, axes in cuts.items():
            _cut(found[name], axes, optimizer if found is tensors[0] else None)

    for name, kept in shrinking.items():
        space = spaces[name]
        num_removed, space.original = space.size - len(kept), list(kept)
        for module_name, attribute, each in space.counts:
            for module in (found.get_submodule(module_name) for found in models):
                setattr(module, attribute, getattr(module, attribute) - num_removed * each)
    _update_entries(spaces, remaining, cuts)

    for index, branch in enumerate(branches):
        # The output of a gated branch has all channels of its node.
        gated = any(spaces[name].frozen_because == GATED for name in branch.outputs)
        positions = None if gated else cuts.get(f"{branch.layers[-1]}.weight", {}).get(0)
        for module, emitted in zip(models, constants, strict=True):
            constant = emitted[index]
            if positions is not None:
                constant = constant[positions.to(constant.device)]
            replace_branch(module, branch.name, constant)
        spaces.forget_branch(branch, f"{branch.name}.constant")
    if optimizer is not None and branches:
        _remove_parameters(optimizer, tensors[0].values(), model)
    return IndexMap(cuts, frozenset(plan.removed_branches))


def _remaining(space: IndexSpace, kept: Sequence[int]) -> Tensor:
    """Return which channels of a space remain, (size,) bool."""
    return torch.isin(torch.tensor(space.original), torch.tensor(kept, dtype=torch.int64))


def _cuts(spaces: IndexSpaces, remaining: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> Cuts:
    """Return the remaining positions of each tensor's axes. An axis may have channels of several spaces."""
    masks: dict[tuple[str, int], Tensor] = {}
    for name, channels in remaining.items():
        for part in spaces[name].slices:
            whole = torch.ones(tensors[part.tensor].shape[part.axis], dtype=torch.bool)
            masks.setdefault((part.tensor, part.axis), whole)[part.entries[~channels].flatten()] = False
    cuts: Cuts = {}
    for (tensor, axis), mask in masks.items():
        cuts.setdefault(tensor, {})[axis] = mask.nonzero().flatten()
    return cuts


def _update_entries(spaces: IndexSpaces, remaining: Mapping[str, Tensor], cuts: Cuts) -> None:
    """Update the entries of every space: a space that lost no channel may share an axis with one that did."""
    for name, space in spaces.items():
        for index, part in enumerate(space.slices):
            positions = cuts.get(part.tensor, {}).get(part.axis)
            if positions is not None:
                entries = part.entries[remaining[name]] if name in remaining else part.entries
                space.slices[index] = Slice(part.tensor, part.axis, torch.searchsorted(positions, entries))


def _parts_by_gating(name: str, model: nn.Module, spaces: IndexSpaces) -> list[IndexSpace]:
    """Return the spaces that gating makes of a space."""
    if name not in spaces:
        raise ValueError(f"there is no index space '{name}' to gate{nearest(name, spaces)}")
    reason = spaces.why_not_gated(spaces[name], dict(model.named_modules()))
    if reason:
        raise ValueError(f"the layers of '{name}' cannot be gated: {reason}")
    return spaces.split_by_gating(spaces[name])


def _validate(plan: ReconfigPlan, spaces: IndexSpaces, parts: Mapping[str, Sequence[IndexSpace]]) -> None:
    for name in plan.removed_branches:
        if name not in spaces.removable_branches:
            why = spaces.fixed_branches.get(name)
            hint = f": {why}" if why else nearest(name, spaces.removable_branches)
            raise ValueError(f"branch '{name}' cannot be removed{hint}")
    if len(set(plan.removed_branches)) < len(plan.removed_branches):
        raise ValueError("a branch is removed twice")
    inside = {space for name in plan.removed_branches for space in spaces.removable_branches[name].spaces}
    known = {name: space for name, space in spaces.items() if name not in parts}
    known |= {part.name: part for several in parts.values() for part in several}
    for name, kept in plan.kept.items():
        if name not in known:
            raise ValueError(f"there is no index space '{name}'{nearest(name, known)}")
        space = known[name]
        if any(after <= before for before, after in itertools.pairwise(kept)):
            raise ValueError(f"the kept indices of '{name}' do not ascend")
        absent = sorted(set(kept) - set(space.original))
        if absent:
            raise ValueError(f"'{name}' cannot keep channel {absent[0]}, which it does not have (any more)")
        if len(kept) < space.size and space.frozen:
            raise ValueError(f"'{name}' is frozen: {space.frozen_because}")
        if not kept and name not in inside:
            hint = "; remove its branch instead" if space.may_be_empty else ""
            raise ValueError(f"'{name}' has to keep a channel{hint}")


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers under all of their names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def _cut(tensor: Tensor, axes: dict[int, Tensor], optimizer: Optimizer | None) -> None:
    """Slice a parameter or buffer in place, and with it the optimizer's state for it."""
    state = optimizer.state.get(tensor, {}) if optimizer is not None else {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == tensor.shape:
            state[key] = _sliced(value, axes)
    cut = _sliced(tensor.data, axes)
    tensor.grad = None
    # Autograd keeps a parameter's gradient accumulator, with the old shape, as long as any graph that used it exists (a
    # loss that the training loop still holds). Only a change of the parameter's type renews it, hence the detour.
    tensor.data = cut.new_empty(0, dtype=torch.float16 if cut.dtype != torch.float16 else torch.float32)
    tensor.data = cut


def _sliced(tensor: Tensor, axes: dict[int, Tensor]) -> Tensor:
    """Return a tensor at the given positions of some axes, in the same memory format."""
    part = tensor
    for axis, positions in axes.items():
        part = part.index_select(axis, positions.to(tensor.device))
    if tensor.ndim == 4:
        # `is_contiguous` does not tell the formats of 1x1 kernels apart, but strides do.
        last = torch.empty(tensor.shape, device="meta", memory_format=torch.channels_last)
        if tensor.stride() == last.stride():
            return torch.empty_like(part, memory_format=torch.channels_last).copy_(part)
    return part.contiguous()


def _remove_parameters(optimizer: Optimizer, before: Iterable[Tensor], model: nn.Module) -> None:
    """Remove those parameters from an optimizer that the model had `before` and does not have any more."""
    removed = {id(tensor) for tensor in before} - {id(parameter) for parameter in model.parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in removed:
                optimizer.state.pop(parameter, None)
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in removed]
