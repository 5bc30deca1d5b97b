"""Find the index spaces of a model."""

from __future__ import annotations

import traceback
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from suite.engine.network.channels.surgery import register_branches
from suite.engine.network.channels.tracing import ChannelLabels, trace
from suite.engine.network.forward_pass import LayerShapes, blank_images, copied, probing, recording_shapes
from suite.index_spaces import IndexSpace, IndexSpaces, Slice

_NOT_OF_MODELS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
"""Folders of the code that traces models, which is no model's own."""


def find_index_spaces(model: nn.Module, input_shape: tuple[int, int, int]) -> IndexSpaces:
    """Find the index spaces of a model by tracing it and running one blank batch through the trace.

    The trace covers the forward in training and the forward in evaluation. It follows channels through convolution and
    linear layers, batch, instance and group normalisation, elementwise activations, pooling, dropout, sums and products
    of tensors (residual connections) and parameters, concatenation, division into equal parts, transpositions and views
    whose sizes follow the number of channels, and pixel and channel shuffles. A group of a grouped convolution is one
    channel, with all its inputs and outputs. So is a group of a group normalisation, and so are the channels in the
    same place of equal parts of a tensor. A module whose class has an attribute `channel_groups = "heads"` declares
    that it divides the last axis of its inputs and its output, tokens (N, T, C), into as many equal groups as its
    attribute `heads` says. It computes with each group independently, so that a group is one channel.

    The model's input and output are frozen, and so are all channels that meet an operation which is not followed:
    attention, layer normalisation over the channels, parts of a fixed size, a layer with a parametrised weight, and the
    input of a transposed convolution. `not_followed` names these operations. Channels are also frozen if the forward
    computes with their number, or reads their weight outside of the layer. If the model cannot be traced at all, every
    space is frozen. A trial cut (`suite.engine.network.channels.trial_cut`) finds Python code that the trace misses.

    A module whose class has an attribute `residual_branch = "name"` declares that the output of its child `name` is
    only ever added to a tensor of the same shape. Such a child is a removable branch if it is a chain of layers in
    which only the first two may pad their input. Only then does it emit one constant per channel once its channels are
    dead.

    Args:
        model: The bare model; its mode, weights and statistics are not changed.
        input_shape: (C, H, W).

    Raises:
        UsageError: if the model has no parameters. An error of its forward for blank images is raised as it is.
    """
    with probing(model), torch.no_grad():
        spaces, shapes = _followed(model, blank_images(model, input_shape, 2))
    for name, (given, output) in shapes.items():
        spaces.enter_sizes(name, model.get_submodule(name), given, output)
    register_branches(model, spaces, shapes)
    return spaces


def _followed(model: nn.Module, blank: Tensor) -> tuple[IndexSpaces, LayerShapes]:
    """Return the index spaces of a model and its layers' shapes in evaluation and training, by running copies."""
    graphs, reads = [], []
    try:
        own = copied(model)
        for training in (False, True):
            mode = "training" if training else "evaluation"
            graph, read = trace(own.train(training), blank)
            graphs.append(graph)
            reads += read
        mode = "evaluation"
        # The graph of training also runs in evaluation mode: shapes are the same, and no statistics change.
        with recording_shapes(own.eval()) as shapes:
            labels = ChannelLabels(own, graphs[0])
            labels.run(blank)
        mode = "training"
        with recording_shapes(own) as in_training:
            if str(graphs[1]) != str(graphs[0]):
                labels.follow(graphs[1], blank)
    except Exception as error:  # a forward that is given a proxy may raise anything; the reason is kept
        own = copied(model).eval()
        with recording_shapes(own) as shapes:
            own(blank)
        return _untraced(model, f"the model cannot be traced in {mode}: {in_a_line(error)}"), shapes
    labels.freeze_reads(reads)
    return _gathered(labels), shapes | {name: own for name, own in in_training.items() if name not in shapes}


def in_a_line(error: Exception) -> str:
    """Return type and text of an error, and the last line of a model's own code that it passed through (FILE:LINE)."""
    frames = traceback.extract_tb(error.__traceback__)
    of_model = [frame for frame in frames if not frame.filename.startswith((*_NOT_OF_MODELS, "<"))]
    place = f" ({Path(of_model[-1].filename).name}:{of_model[-1].lineno})" if of_model else ""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{place}"


def _untraced(model: nn.Module, reason: str) -> IndexSpaces:
    """Return one frozen space for each layer's output."""
    by_name = {}
    for name, layer in model.named_modules():
        weight = layer._parameters.get("weight")
        if isinstance(layer, (nn.Conv2d, nn.Linear)) and weight is not None:
            channels = torch.arange(weight.shape[0])
            slices = [Slice(f"{name}.weight", 0, channels[:, None])]
            by_name[name] = IndexSpace(name, channels.tolist(), [name], slices=slices, frozen_because=reason)
    spaces = IndexSpaces(by_name)
    spaces.not_followed = (reason,)
    spaces.grouped = frozenset(name for name, layer in model.named_modules() if getattr(layer, "groups", 1) != 1)
    return spaces


def _gathered(labels: ChannelLabels) -> IndexSpaces:
    """Form index spaces: united channels are one channel, and channels with the same uses are one space."""
    channel = labels.united_channels()
    # Channels of one space have the same uses, equally often, and the same reasons for being frozen.
    signatures: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, (_, _, label) in enumerate(labels.uses):
        used, counts = np.unique(channel[label], return_counts=True)
        for number_of_channel, count in zip(used.tolist(), counts.tolist(), strict=True):
            signatures[number_of_channel].append((number, count))
    for number, (_, label) in enumerate(labels.reasons):
        for number_of_channel in np.unique(channel[label]).tolist():
            signatures[number_of_channel].append((-1 - number, 1))
    members: dict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
    for number_of_channel in sorted(signatures):
        members[tuple(signatures[number_of_channel])].append(number_of_channel)

    space_of = np.full(labels.count, -1)  # by channel
    position = np.zeros(labels.count, dtype=np.int64)  # position within its space
    spaces: list[IndexSpace] = []
    for channels in members.values():
        space_of[channels], position[channels] = len(spaces), np.arange(len(channels))
        spaces.append(IndexSpace("", list(range(len(channels)))))
    for name, axis, label in labels.uses:
        where = space_of[channel[label]]
        for number in np.unique(where).tolist():
            entries = np.flatnonzero(where == number)
            owners = position[channel[label[entries]]]
            by_channel = entries[np.argsort(owners, kind="stable")].reshape(spaces[number].size, -1)
            if axis < 0:
                module, _, attribute = name.rpartition(".")
                spaces[number].counts.append((module, attribute, by_channel.shape[1]))
            else:
                spaces[number].slices.append(Slice(name, axis, torch.from_numpy(by_channel)))
    for table, entry in ((labels.producers, "producers"), (labels.consumers, "consumers")):
        for name, label in table:
            for number in np.unique(space_of[channel[label]]).tolist():
                layers = getattr(spaces[number], entry)
                if name not in layers:
                    layers.append(name)
    reasons_of: dict[int, dict[str, None]] = defaultdict(dict)
    for reason, label in labels.reasons:
        for number in np.unique(space_of[channel[label]]).tolist():
            reasons_of[number][reason] = None
    for number, reasons in reasons_of.items():
        spaces[number].frozen_because = "; ".join(reasons)
    return _named(labels, spaces, space_of[channel])


def _named(labels: ChannelLabels, spaces: list[IndexSpace], space_of: NDArray[np.int64]) -> IndexSpaces:
    """Return the spaces by name, without those of which no tensor has an entry."""
    inputs = set(space_of[labels.model_input].tolist())
    named: dict[str, IndexSpace] = {}
    for number, space in enumerate(spaces):
        if space.producers:
            name = space.producers[0]
        elif number in inputs:
            name = "input"
        elif space.slices:
            part = space.slices[0]
            owner = labels.module.get_submodule(part.module)
            name = part.module if isinstance(owner, nn.ConvTranspose2d) else f"{part.module or part.tensor}:input"
        else:
            continue
        # Parts of one layer's output with different uses get numbered names.
        parts = sum(known == name or known.startswith(f"{name}#") for known in named)
        space.name = f"{name}#{parts + 1}" if parts else name
        named[space.name] = space
    result = IndexSpaces(named)
    result.not_followed = tuple(dict.fromkeys(labels.not_followed))
    result.grouped = frozenset(labels.grouped)
    result.heads = frozenset(labels.heads)
    first = spaces[int(space_of[labels.model_input[0]])].name if len(labels.model_input) else ""
    result.model_input = first or None
    outputs = {number for label in labels.model_outputs for number in space_of[label].tolist()}
    result.model_outputs = frozenset(spaces[number].name for number in outputs if spaces[number].name)
    return result
