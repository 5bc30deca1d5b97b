"""Surgery: carrying out a `ReconfigPlan` on model and optimizer, in place.

A removed channel is sliced out of every tensor that has it: both axes of weights, biases, normalisation parameters and
statistics, and the optimizer's state for them. Parameters stay the same objects, so that the optimizer keeps holding
them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from suite.errors import nearest
from suite.index_spaces import IndexSpace, IndexSpaces, Slice
from suite.network.channels.branches import emitted_constant, replace_branch
from suite.network.channels.gating import GATED, add_gates
from suite.reconfiguration import IndexMap, ReconfigPlan

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

    Only `gated`, `kept` and `removed_branches` of the plan are carried out here; the rest is the trainer's task.
    Gradients of sliced parameters are dropped. The same plans in the same order give the same architecture for every
    newly built model, including the constants of removed branches (whose values are in the state dict).

    Args:
        model: The bare model.
        plan: Original indices of the remaining channels, by space, and the branches to remove. The spaces inside a
            removed branch need not be named.
        spaces: The model's index spaces, which are updated.
        optimizer: State tensors with the shape of a parameter are sliced with it; removed parameters are removed from
            its parameter groups.
        extra: Other models with the same tensor names, for instance an average of the weights.

    Returns:
        The change of every tensor, by name.

    Raises:
        ValueError: if the plan names an unknown or frozen space or an unknown branch, if indices do not ascend or do
            not exist (any more), if a space would become empty that has to keep a channel, or if an extra model
            differs. In this case nothing was changed.
    """
    # Check everything before the first change.
    models = [model, *extra]
    parts = {name: _parts_by_gating(name, model, spaces) for name in plan.gated}
    _validate(plan, spaces, parts)
    before = [_tensors(module) for module in models]
    for name, tensor in before[0].items():
        if any(name not in found or found[name].shape != tensor.shape for found in before):
            raise ValueError(f"an extra model has no '{name}' of the model's shape")
    # Compute the constants of the branches before anything is cut: it may fail.
    branches = [spaces.removable_branches[name] for name in plan.removed_branches]
    constants = [[emitted_constant(module, branch) for branch in branches] for module in models]

    # Add gates, which split their spaces.
    for name, own in parts.items():
        for module in models:
            add_gates(module, spaces[name])
        spaces.replace_by_parts(name, own, GATED)

    # Slice the tensors.
    inside = {space for branch in branches for space in branch.spaces}
    shrinking = {name: kept for name, kept in plan.kept.items() if name not in inside and len(kept) < spaces[name].size}
    remaining = {name: _remaining(spaces[name], kept) for name, kept in shrinking.items()}
    tensors = [_tensors(module) for module in models]
    cuts = _cuts(spaces, remaining, tensors[0])
    for found in tensors:
        for name, axes in cuts.items():
            _cut(found[name], axes, optimizer if found is tensors[0] else None)

    # Update the numbers of modules and the index spaces.
    for name, kept in shrinking.items():
        space = spaces[name]
        num_removed, space.original = space.size - len(kept), list(kept)
        for module_name, attribute, each in space.counts:
            for module in (found.get_submodule(module_name) for found in models):
                setattr(module, attribute, getattr(module, attribute) - num_removed * each)
    _update_entries(spaces, remaining, cuts)

    # Replace the branches by their constants.
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
    """Return the remaining positions of each tensor's axes; an axis may have channels of several spaces."""
    masks: dict[tuple[str, int], Tensor] = {}
    for name, channels in remaining.items():
        for one in spaces[name].slices:
            whole = torch.ones(tensors[one.tensor].shape[one.axis], dtype=torch.bool)
            masks.setdefault((one.tensor, one.axis), whole)[one.entries[~channels].flatten()] = False
    cuts: Cuts = {}
    for (tensor, axis), mask in masks.items():
        cuts.setdefault(tensor, {})[axis] = mask.nonzero().flatten()
    return cuts


def _update_entries(spaces: IndexSpaces, remaining: Mapping[str, Tensor], cuts: Cuts) -> None:
    """Update the entries of every space, including spaces that lost no channel but share an axis with others."""
    for name, space in spaces.items():
        for index, one in enumerate(space.slices):
            positions = cuts.get(one.tensor, {}).get(one.axis)
            if positions is not None:
                entries = one.entries[remaining[name]] if name in remaining else one.entries
                space.slices[index] = Slice(one.tensor, one.axis, torch.searchsorted(positions, entries))


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
    known |= {own.name: own for several in parts.values() for own in several}
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


def _tensors(model: nn.Module) -> dict[str, Tensor]:
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
    # Autograd's gradient accumulator of a parameter keeps its shape and exists as long as any graph that used it (a
    # loss that the training loop still holds). It is renewed only if the parameter's type changes, hence the detour.
    tensor.data = cut.new_empty(0, dtype=torch.float16 if cut.dtype != torch.float16 else torch.float32)
    tensor.data = cut


def _sliced(tensor: Tensor, axes: dict[int, Tensor]) -> Tensor:
    """Return a tensor at the given positions of some axes, in the same memory format."""
    part = tensor
    for axis, positions in axes.items():
        part = part.index_select(axis, positions.to(tensor.device))
    if tensor.ndim == 4:
        # `is_contiguous` is also true for 1x1 kernels in the other format, whose strides differ.
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
