"""Surgery: finding what can be cut out of a model, and carrying out a `ReconfigPlan` on model and optimizer, in place.

A channel that goes is sliced out of every tensor that has it: both axes of weights, biases, normalisation parameters
and statistics, and the optimizer's state for them. Parameters stay the same objects, so that the optimizer keeps
holding them.

A residual branch that goes leaves the constant that it emits when its dead layer's output is zero (the tail's
normalisation turns zero into beta - gamma * mean / sqrt(var + eps)). So taking out a dead branch preserves the model's
output in evaluation. In training it does not: there the normalisation of a zero input would emit beta, its batch's mean
being zero.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from suite.errors import nearest
from suite.index_spaces import Branch, ChannelConstant, IndexSpace, IndexSpaces, Slice
from suite.network.channel_tracing import ChannelLabels, gather_spaces, trace
from suite.network.forward_pass import first_input, first_parameter
from suite.network.gating import GATED, gated_spaces, input_channels, put_gates, why_not_gated
from suite.network.probing import probing
from suite.reconfiguration import IndexMap, ReconfigPlan

__all__ = ["Branch", "ChannelConstant", "IndexSpace", "IndexSpaces", "apply_plan", "find_index_spaces"]

Cuts = dict[str, dict[int, Tensor]]  # tensor's name -> axis -> positions that stay
Shapes = dict[str, tuple[torch.Size, torch.Size]]  # layer's name -> shapes of its input and output


def find_index_spaces(model: nn.Module, input_shape: tuple[int, int, int]) -> IndexSpaces:
    """Find the index spaces of a model by tracing it and running one blank batch through the trace.

    Channels are followed through convolution and linear layers, batch normalisation, elementwise activations, pooling,
    dropout, sums and products of tensors (residual connections), concatenation and flattening. A group of a grouped
    convolution is one channel, with all its inputs and outputs. The model's own input and output are frozen, and so is
    whatever meets something else: attention, splitting, reshaping, a layer whose weight is parametrised; `not_followed`
    says what. If the model cannot be traced at all, every space is frozen. Frozen too are channels whose number the
    forward computes with, and those of a weight that it reads outside of the layer. What the forward does in training
    and what it does in evaluation are both followed. What Python computes out of sight of the trace is not found here;
    `suite.training.trial_cut` finds it by a cut.

    A module whose class has an attribute `residual_branch = "name"` declares that the output of its child `name` is
    only ever added to something of the same shape. Such a child is a removable branch if it is a chain of layers of
    which none behind the second pads its input: only then is what it emits for dead channels one constant a channel.

    Args:
        model: the bare model; its mode, weights and statistics are left as they are.
        input_shape: (C, H, W).
    """
    first = first_parameter(model)
    blank = torch.zeros(2, *input_shape, device=first.device, dtype=first.dtype)
    with probing(model), torch.no_grad():
        spaces, shapes = _followed(model, blank)
    for name, (given, output) in shapes.items():
        spaces.positions[name], spaces.input_sizes[name] = output[2:].numel(), tuple(given[2:])
    for name, module in model.named_modules():
        child = getattr(type(module), "residual_branch", None)
        if isinstance(child, str) and not isinstance(getattr(module, child), ChannelConstant):
            _enter_branch(model, spaces, f"{name}.{child}" if name else child, shapes)
    return spaces


def _followed(model: nn.Module, blank: Tensor) -> tuple[IndexSpaces, Shapes]:
    """The index spaces of a model, whose mode is changed, and its layers' shapes in evaluation and in training."""
    labels: ChannelLabels | None = None
    graphs, reads = [], []
    try:
        for training in (False, True):
            mode = "training" if training else "evaluation"
            model.train(training)
            graph, read = trace(model)
            graphs.append(graph)
            reads += read
    except Exception as error:  # a forward that meets a proxy may raise anything; the reason is kept
        with _layer_shapes(model.eval()) as shapes:
            model(blank)
        return _untraced(model, f"the model cannot be traced in {mode}: {type(error).__name__}: {error}"), shapes
    # Layers compute in evaluation also in the graph of training: the shapes are the same, and no statistics change.
    with _layer_shapes(model.eval()) as shapes:
        labels = ChannelLabels(model, graphs[0])
        labels.run(blank)
    with _layer_shapes(model) as in_training:
        if str(graphs[1]) != str(graphs[0]):
            labels.follow(graphs[1], blank)
    labels.freeze_reads(reads)
    return gather_spaces(labels), shapes | {name: own for name, own in in_training.items() if name not in shapes}


def apply_plan(
    model: nn.Module,
    plan: ReconfigPlan,
    spaces: IndexSpaces,
    optimizer: Optimizer | None,
    extra: Iterable[nn.Module] = (),
) -> IndexMap:
    """Carry out a decision on model, optimizer and index spaces, in place.

    Of the plan, `gated`, `kept` and `removed_branches` are carried out here; the rest is the trainer's.
    Gradients of sliced parameters are dropped. Plans applied in the same order to a newly built model give the same
    architecture, constants of removed branches included (their values come with the state dict).

    Args:
        model: the bare model.
        plan: original indices that stay, by space, and the branches that go. The spaces inside a branch that goes need
            not be named.
        spaces: the model's index spaces; brought up to date.
        optimizer: its state tensors that have a parameter's shape are sliced like it; parameters that go leave it.
        extra: other models with the same tensor names, an average of the weights for instance.

    Returns:
        What became of every tensor, by name.

    Raises:
        ValueError: if the plan names an unknown or frozen space or an unknown branch, if indices do not ascend or are
            not (or no longer) there, if a space would be empty that has to keep a channel, or if an extra model
            differs. Nothing has been changed then.
    """
    models = [model, *extra]
    parts = {name: _parts(name, model, spaces) for name in plan.gated}
    _validate(plan, spaces, parts)
    before = [_tensors(module) for module in models]
    for name, tensor in before[0].items():
        if any(name not in found or found[name].shape != tensor.shape for found in before):
            raise ValueError(f"an extra model has no '{name}' of the model's shape")
    branches = [spaces.removable_branches[name] for name in plan.removed_branches]
    # Before anything is cut, so that a branch whose constant cannot be had leaves everything as it was.
    constants = [[_emitted_constant(module, branch) for branch in branches] for module in models]

    for name, own in parts.items():
        for module in models:
            put_gates(module, spaces[name])
        spaces.part(name, own, GATED)
    inside = {space for branch in branches for space in branch.spaces}
    shrinking = {name: kept for name, kept in plan.kept.items() if name not in inside and len(kept) < spaces[name].size}
    stay = {name: _stay(spaces[name], kept) for name, kept in shrinking.items()}
    tensors = [_tensors(module) for module in models]
    cuts = _cuts(spaces, stay, tensors[0])
    for found in tensors:
        for name, axes in cuts.items():
            _cut(found[name], axes, optimizer if found is tensors[0] else None)
    for name, kept in shrinking.items():
        space = spaces[name]
        gone, space.original = space.size - len(kept), list(kept)
        for module_name, attribute, each in space.counts:
            for module in (found.get_submodule(module_name) for found in models):
                setattr(module, attribute, getattr(module, attribute) - gone * each)
    _renumber(spaces, stay, cuts)
    for index, branch in enumerate(branches):
        # What a gated branch adds has all the channels of its node.
        gated = any(spaces[name].frozen_because == GATED for name in branch.outputs)
        positions = None if gated else cuts.get(f"{branch.layers[-1]}.weight", {}).get(0)
        for module, emitted in zip(models, constants, strict=True):
            constant = emitted[index]
            _replace(module, branch.name, constant if positions is None else constant[positions.to(constant.device)])
        spaces.forget_branch(branch, f"{branch.name}.constant")
    if optimizer is not None and branches:
        _forget_parameters(optimizer, tensors[0].values(), model)
    return IndexMap(cuts, frozenset(plan.removed_branches))


def _stay(space: IndexSpace, kept: Sequence[int]) -> Tensor:
    """Which of a space's channels stay, (size,) bool."""
    return torch.isin(torch.tensor(space.original), torch.tensor(kept, dtype=torch.int64))


def _cuts(spaces: IndexSpaces, stay: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> Cuts:
    """What stays of each tensor when of the spaces `stay` does; an axis may have channels of several spaces."""
    masks: dict[tuple[str, int], Tensor] = {}
    for name, channels in stay.items():
        for one in spaces[name].slices:
            whole = torch.ones(tensors[one.tensor].shape[one.axis], dtype=torch.bool)
            masks.setdefault((one.tensor, one.axis), whole)[one.entries[~channels].flatten()] = False
    cuts: Cuts = {}
    for (tensor, axis), mask in masks.items():
        cuts.setdefault(tensor, {})[axis] = mask.nonzero().flatten()
    return cuts


def _renumber(spaces: IndexSpaces, stay: Mapping[str, Tensor], cuts: Cuts) -> None:
    """Bring the entries of every space up to date, also of those that lost nothing but lie beside others that did."""
    for name, space in spaces.items():
        for number, one in enumerate(space.slices):
            positions = cuts.get(one.tensor, {}).get(one.axis)
            if positions is not None:
                entries = one.entries[stay[name]] if name in stay else one.entries
                space.slices[number] = Slice(one.tensor, one.axis, torch.searchsorted(positions, entries))


def _parts(name: str, model: nn.Module, spaces: IndexSpaces) -> list[IndexSpace]:
    """The spaces that gating makes of one."""
    if name not in spaces:
        raise ValueError(f"there is no index space '{name}' to gate{nearest(name, spaces)}")
    reason = why_not_gated(spaces[name], spaces, dict(model.named_modules()))
    if reason:
        raise ValueError(f"the layers of '{name}' cannot be gated: {reason}")
    return gated_spaces(spaces[name])


def _validate(plan: ReconfigPlan, spaces: IndexSpaces, parts: Mapping[str, Sequence[IndexSpace]]) -> None:
    for name in plan.removed_branches:
        if name not in spaces.removable_branches:
            why = spaces.fixed_branches.get(name)
            hint = f": {why}" if why else nearest(name, spaces.removable_branches)
            raise ValueError(f"branch '{name}' cannot be taken out{hint}")
    if len(set(plan.removed_branches)) < len(plan.removed_branches):
        raise ValueError("a branch is taken out twice")
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
            raise ValueError(f"'{name}' has no channel {absent[0]} (any more), so that it cannot be kept")
        if len(kept) < space.size and space.frozen:
            raise ValueError(f"'{name}' is frozen: {space.frozen_because}")
        if not kept and name not in inside:
            hint = "; take out its branch instead" if space.may_be_empty else ""
            raise ValueError(f"'{name}' has to keep a channel{hint}")


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by every name they have."""
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
    # Autograd's accumulator for a parameter remembers its shape and lives as long as any graph that used it (a loss
    # that the training loop still holds). It is renewed only when the parameter's type changes, hence the detour.
    tensor.data = cut.new_empty(0, dtype=torch.float16 if cut.dtype != torch.float16 else torch.float32)
    tensor.data = cut


def _sliced(tensor: Tensor, axes: dict[int, Tensor]) -> Tensor:
    """The part of a tensor at the given positions of some axes, in the same memory format."""
    part = tensor
    for axis, stay in axes.items():
        part = part.index_select(axis, stay.to(tensor.device))
    if tensor.ndim == 4:
        # `is_contiguous` also says yes to 1x1 kernels of the other format; the strides themselves do not.
        last = torch.empty(tensor.shape, device="meta", memory_format=torch.channels_last)
        if tensor.stride() == last.stride():
            return torch.empty_like(part, memory_format=torch.channels_last).copy_(part)
    return part.contiguous()


def _emitted_constant(model: nn.Module, branch: Branch) -> Tensor:
    """What a branch emits in evaluation when the output of its last dead layer is zero (or its bias), (K,).

    A layer is dead when all its weights are 0. If none is, the last layer is taken for dead.
    """
    weights = [model.get_submodule(layer).weight for layer in branch.layers]
    dead = [layer for layer, weight in zip(branch.layers, weights, strict=True) if not weight.any()]  # type: ignore[operator]
    cut = model.get_submodule(dead[-1] if dead else branch.layers[-1])

    module, first = model.get_submodule(branch.name), weights[0]
    assert isinstance(first, Tensor)
    channels = input_channels(model.get_submodule(branch.layers[0]))
    handle = cut.register_forward_hook(_silence)
    try:
        with _evaluating(module):
            out = module(torch.zeros(1, channels, *branch.input_size, device=first.device, dtype=first.dtype))
    finally:
        handle.remove()
    if not _is_constant(out):
        raise ValueError(f"branch '{branch.name}' cannot be taken out: what it emits is not constant")
    return _places(out)[0, :, 0].clone()


def _silence(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """A forward hook: what a layer gives when its weights are zero."""
    bias = layer.bias
    if not isinstance(bias, Tensor):
        return torch.zeros_like(output)
    return torch.zeros_like(output) + bias.view(1, -1, *[1] * (output.ndim - 2))


def _is_constant(output: Tensor) -> bool:
    """Whether an output, (N, K, ...), has one value a channel for all images and places."""
    values = _places(output)
    # Products round differently at different places; a border that padding makes differs by far more.
    return bool((values - values[:1, :, :1]).abs().max() <= 1e-3 * values.abs().max())


def _places(output: Tensor) -> Tensor:
    """(N, K, places)."""
    return output.flatten(2) if output.ndim > 2 else output[:, :, None]


def _leaves_a_constant(model: nn.Module, name: str, layers: Sequence[str], given: torch.Size) -> bool:
    """Whether a branch emits a constant as soon as all channels between two of its layers are dead.

    A copy is tried out on random images, with normalisation, biases and statistics drawn at random, since new ones have
    zeros for every constant.

    Args:
        model: in any mode; left as it is.
        name: of the branch.
        layers: its convolution and linear layers, in order.
        given: the shape of the branch's input.
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


def _replace(model: nn.Module, name: str, constant: Tensor) -> None:
    parent, _, child = name.rpartition(".")
    replacement = ChannelConstant(constant)
    replacement.train(model.get_submodule(name).training)
    setattr(model.get_submodule(parent), child, replacement)


def _forget_parameters(optimizer: Optimizer, before: Iterable[Tensor], model: nn.Module) -> None:
    """Take those parameters out of an optimizer that the model had `before` and has no longer."""
    gone = {id(tensor) for tensor in before} - {id(parameter) for parameter in model.parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in gone:
                optimizer.state.pop(parameter, None)
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in gone]


def _untraced(model: nn.Module, reason: str) -> IndexSpaces:
    """One frozen space for each layer's output."""
    found = {}
    for name, layer in model.named_modules():
        weight = layer._parameters.get("weight")
        if isinstance(layer, (nn.Conv2d, nn.Linear)) and weight is not None:
            channels = torch.arange(weight.shape[0])
            slices = [Slice(f"{name}.weight", 0, channels[:, None])]
            found[name] = IndexSpace(name, channels.tolist(), [name], slices=slices, frozen_because=reason)
    spaces = IndexSpaces(found)
    spaces.not_followed = (reason,)
    spaces.grouped = frozenset(name for name, layer in model.named_modules() if getattr(layer, "groups", 1) != 1)
    return spaces


def _enter_branch(model: nn.Module, spaces: IndexSpaces, name: str, shapes: Shapes) -> None:
    """Enter a residual branch as removable, or as fixed and why."""
    layers = [layer for layer in shapes if layer.startswith(name + ".")]
    outputs = spaces.outputs_of(layers[-1]) if layers else ()
    inner = tuple(dict.fromkeys(space for layer in layers[:-1] for space in spaces.outputs_of(layer)))
    chained = all(_hands_over(spaces, *pair) for pair in itertools.pairwise(layers)) and all(
        set(spaces[space].producers + spaces[space].consumers) <= set(layers) for space in inner
    )
    frozen = [spaces[space].frozen_because for space in inner if spaces[space].frozen]
    padding = [layer for layer in layers[2:] if _pads(model.get_submodule(layer))]
    if frozen:
        spaces.fixed_branches[name] = "; ".join(dict.fromkeys(frozen))
    elif not outputs or not chained:
        spaces.fixed_branches[name] = "its layers are no chain"
    elif padding:
        spaces.fixed_branches[name] = f"'{padding[0]}' pads, so that dead channels before it leave no constant"
    elif not _leaves_a_constant(model, name, layers, shapes[layers[0]][0]):
        spaces.fixed_branches[name] = (
            "dead channels inside leave no constant: what it emits then differs from place to place (behind a pooling "
            "that pads, for instance) or with its input"
        )
    else:
        size = tuple(shapes[layers[0]][0][2:])
        spaces.removable_branches[name] = Branch(name, tuple(layers), inner, outputs, size)
        for space in inner:
            spaces[space].may_be_empty = True


def _hands_over(spaces: IndexSpaces, layer: str, following: str) -> bool:
    """Whether all that a layer produces is what the following one consumes; of a grouped one, what it produces too."""
    made = set(spaces.outputs_of(layer))
    taken = spaces.outputs_of(following) if following in spaces.grouped else spaces.inputs_of(following)
    return bool(made) and made == set(taken)


def _pads(layer: nn.Module) -> bool:
    padding = getattr(layer, "padding", 0)
    return any(side != 1 for side in getattr(layer, "kernel_size", ())) and padding not in (0, (0, 0), "valid")


@contextlib.contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, each module's own mode restored afterwards."""
    modes = {child: child.training for child in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for child, training in modes.items():
            child.training = training


@contextlib.contextmanager
def _layer_shapes(model: nn.Module) -> Iterator[Shapes]:
    """Notes shapes of input and output of every layer that runs inside, by name, in the order in which they run."""
    shapes: Shapes = {}

    def note(name: str, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> None:
        shapes[name] = (first_input(args, kwargs).shape, output.shape)

    handles = [
        layer.register_forward_hook(
            lambda layer, args, kwargs, output, name=name: note(name, args, kwargs, output), with_kwargs=True
        )
        for name, layer in model.named_modules()
        if isinstance(layer, (nn.Conv2d, nn.Linear))
    ]
    try:
        yield shapes
    finally:
        for handle in handles:
            handle.remove()
