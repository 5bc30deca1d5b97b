"""Descriptions of models: size and cost, counted in the network itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from suite.choices import ModelChoice, TaskChoice
from suite.engine.cost.flops import PRODUCTS, LayerCost, count, count_model
from suite.engine.cost.paper_conventions import CONVENTIONS
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.trial_cut import counted_reasons
from suite.engine.network.layers import plannable
from suite.parameters import REQUIRED

DEFAULT_SHAPE, DEFAULT_CLASSES = (3, 32, 32), 10  # for models that do not declare them


def describe_model(text: str, task: str, data_root: Path | None = None) -> dict[str, Any]:
    """Return size and cost of a network.

    Args:
        text: The model, written as on the command line.
        task: Task whose images and classes the network is built for; empty for the network's own default.
        data_root: Folder of the user's images, for a task that reads them; `None` without one.
    """
    choice = ModelChoice.read(text)
    parameters = inspect.signature(choice.definition).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in parameters if parameter.default is not REQUIRED}
    shape, classes = defaults.get("input_shape", DEFAULT_SHAPE), defaults.get("num_classes", DEFAULT_CLASSES)
    if task:
        chosen = TaskChoice.read(task)
        described = chosen.build(chosen.parameters("quick"))
        recipe = described.recipe("quick")
        copy = None if data_root is None else described.prepare(data_root, "quick", recipe)
        shape, classes = described.inputs(recipe, copy)
    choice.check_size(shape, classes)
    model = choice.build(shape, classes)
    counts = count(model, shape)
    return {
        **count_model(model, shape),
        **_training_flops(counts.layers.values()),
        "not_counted": list(counts.not_counted),
        **_channels(model, shape),
        "input_shape": list(shape),
        "classes": classes,
        "conventions": {name: convention(counts.layers.values()) for name, convention in CONVENTIONS.items()},
    }


def _channels(model: nn.Module, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Return how many channels can be followed, why the others stay, and which layers no method plans.

    The trial cut before a training may find more channels that have to stay.
    """
    spaces = find_index_spaces(model, shape)
    kept = {space.name: space for space in spaces.values() if space.name != spaces.model_input}
    free = sum(space.size for space in kept.values() if not space.frozen)
    return {
        "channels": {"followed": free, "all": sum(space.size for space in kept.values())},
        "frozen": counted_reasons(space.frozen_because for space in kept.values() if space.frozen),
        "not_planned": plannable(model)[1],
    }


def _training_flops(costs: Iterable[LayerCost]) -> dict[str, Any]:
    """Return the FLOPs of one image's training by layer and product, and the share of the data gradient."""
    layers = {cost.name: {product: cost.flops(product) for product in PRODUCTS} for cost in costs}
    total = {product: sum(flops[product] for flops in layers.values()) for product in PRODUCTS}
    everything = sum(total.values())
    return {
        "training_flops": everything,
        "data_gradient_share": total["dgrad"] / everything if everything else 0.0,
        "layers": layers,
    }
