"""Entry points for a training loop of your own, and what a backend of your own needs.

`apply` plans a model by a method; `convert` only makes its layers plannable; `restore` undoes both. With several
processes, `reduce_gradients` sums only the gradients that the method uses. `TORCH` is the default backend, for backends
that leave part of the work to torch.
"""

from __future__ import annotations

import operator
from textwrap import shorten
from typing import Any

from torch import nn

from suite import registry
from suite.engine.network.layers import PlannedConv2d, PlannedLinear, convert, restore
from suite.engine.network.planned_layer import PlannedLayer
from suite.engine.network.products import TORCH
from suite.engine.training.data_parallel import reduce_gradients
from suite.engine.training.own_loop import OwnLoop
from suite.errors import UsageError, nearest
from suite.method import EMPTY_PLAN, Context, Method

__all__ = ["TORCH", "PlannedConv2d", "PlannedLinear", "apply", "convert", "reduce_gradients", "restore"]


registry.check_own_packages()

REQUIRED = {"input_shape": (3, 32, 32), "num_classes": 10, "epochs": 2, "batch_size": 16}
"""Attributes of a context that a training loop must give, with values for an example."""
GIVEN = (*REQUIRED, "seed", "device", "dtype", "task", "network", "preset", "train_images", "micro_batches", "others",
         "rehearsal", "untimed")  # fmt: skip
"""Attributes of a context that a training loop may give; a runner fills in the others."""


def apply(model: nn.Module, method: Method, train_size: int | None = None, **context: Any) -> OwnLoop:
    """Plan the layers of a model by a method, for a training loop of your own.

    Args:
        model: The bare model, on its device; its layers are converted in place. One that an earlier `apply` has planned
            is refused until `restore` has been called; it may be cut.
        method: An instance of the method, with its parameters.
        train_size: Height and width of the first training images, if they differ from those of `input_shape`.
        context: Attributes of the method's context (`suite.method.Context`): `input_shape`, `num_classes`, `epochs` and
            `batch_size` are required; others of `GIVEN` are optional.

    Returns:
        The hooks, which the loop calls; `docs/your-own-loop.md` shows where.

    Raises:
        TypeError: An argument is missing, unknown or of the wrong kind.
        UsageError: The method cannot train the model, or not in a loop of your own.
    """
    for name in context.keys() - set(GIVEN):
        raise TypeError(f"apply() got an unexpected keyword argument '{name}'{nearest(name, GIVEN)}")
    _check_kinds(model, method, {"micro_batches": 1, "train_size": 1 if train_size is None else train_size, **context})
    if method.defines("recipe_fields"):
        raise UsageError(
            f"{type(method).__name__} only sets fields of the suite's recipes, which a loop of your own does not follow"
        )
    if planned := next((name for name, layer in model.named_modules() if isinstance(layer, PlannedLayer)), None):
        raise UsageError(
            f"layer '{planned}' of the model was planned by an earlier apply() or convert(): call finish() of its "
            "hooks, then suite.ops.restore(model)"
        )
    try:
        return OwnLoop(method, Context(model, **context), train_size)
    except Exception:
        # A method that was refused leaves no plans, so that another one can be applied.
        for layer in model.modules():
            if isinstance(layer, PlannedLayer):
                layer.op_plan = EMPTY_PLAN
        restore(model)
        raise


def _check_kinds(model: Any, method: Any, sizes: dict[str, Any]) -> None:
    """Refuse arguments of `apply` of a wrong kind, with a call that can be pasted where `model` is the model."""
    wrong = [name for name in (*REQUIRED, "micro_batches", "train_size") if not _is_size(name, sizes.get(name))]
    given = ((model, nn.Module, "a model"), (method, Method, "an instance of a method"))
    expected = [f"{what}, not {shorten(repr(one), 60)}" for one, kind, what in given if not isinstance(one, kind)]
    expected += [f"{name} in whole numbers above 0, not {sizes[name]!r}" if name in sizes else name for name in wrong]
    if expected:
        named = registry.get("method", method.partition("[")[0]) if isinstance(method, str) else method
        kinds = (one for one in (named, type(named)) if isinstance(one, type) and issubclass(one, Method))
        kind = next(kinds, registry.get("method", "dense"))
        shown = ", ".join(f"{name}={example if name in wrong else sizes[name]}" for name, example in REQUIRED.items())
        raise TypeError(
            f"apply() expects {'; '.join(expected)}, as in: from suite.ops import apply; from {kind.__module__} "
            f"import {kind.__name__}; hooks = apply(model, {kind.__name__}(), {shown})"
        )


def _is_size(name: str, value: Any) -> bool:
    """Return whether a value is an integer above 0, or several of them for `input_shape`."""
    try:
        return min(map(operator.index, value if name == "input_shape" else [value])) > 0
    except (TypeError, ValueError):
        return False
