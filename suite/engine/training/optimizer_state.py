"""The optimizers of the suite, and which optimizers can continue after channels were cut."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from suite.errors import UsageError
from suite.method import Method
from suite.recipe import Recipe

_KEEPS = {
    "LBFGS": "its history is one vector of all parameters",
    "Adafactor": "its statistics are those of rows and columns",
    "ZeroRedundancyOptimizer": "its state is spread over the ranks",
}


_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


def why_not_cut(optimizer: Optimizer) -> str:
    """Return why an optimizer's state cannot be cut together with its parameters; empty if it can.

    It can if each tensor of the state has its parameter's shape or holds one number. State that an optimizer creates in
    its first step is seen only after that step.
    """
    for kind in type(optimizer).__mro__:
        if kind.__name__ in _KEEPS:
            return _KEEPS[kind.__name__]
    for inner in vars(optimizer).values():
        if isinstance(inner, Optimizer) and inner.state is not optimizer.state:
            return f"it is around {type(inner).__name__}, which has a state of its own"
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, (list, tuple, dict)) and value:
                return f"its '{key}' is a {type(value).__name__}"
            if isinstance(value, Tensor) and value.numel() > 1 and value.shape != parameter.shape:
                return f"its '{key}' has shape {tuple(value.shape)} for a parameter of shape {tuple(parameter.shape)}"
    return ""


def refuse_uncut_state(method: Method, optimizer: Optimizer) -> None:
    """Check that an optimizer can train a method that reconfigures the network.

    Raises:
        UsageError: if the optimizer's state cannot be cut.
    """
    if reason := why_not_cut(optimizer):
        raise UsageError(
            f"{type(method).__name__} reconfigures the network, and the state of {type(optimizer).__name__} cannot be "
            f"cut with it: {reason}; use an optimizer whose state has its parameters' shapes, such as SGD"
        )


class Optimizers:
    """Several optimizers that act as one: hooks read their groups and states together.

    Args:
        parts: The optimizers, in the order of their steps.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = tuple(parts)
        self.state: MutableMapping[Tensor, dict[str, Any]] = _States(self.parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all optimizers, which may be changed."""
        return [group for one in self.parts for group in one.param_groups]

    def step(self) -> None:
        """Run the step of each optimizer."""
        for one in self.parts:
            one.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters."""
        for one in self.parts:
            one.zero_grad(set_to_none=set_to_none)


class _States(MutableMapping[Tensor, "dict[str, Any]"]):
    """The states of the parameters of several optimizers; as in torch's own, reading a missing one creates it."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self._parts = parts

    def __getitem__(self, parameter: Tensor) -> dict[str, Any]:
        found: dict[str, Any] = self._owner(parameter).state[parameter]
        return found

    def __setitem__(self, parameter: Tensor, state: dict[str, Any]) -> None:
        self._owner(parameter).state[parameter] = state

    def __delitem__(self, parameter: Tensor) -> None:
        del self._owner(parameter).state[parameter]

    def __contains__(self, parameter: object) -> bool:
        return any(parameter in one.state for one in self._parts)

    def get(self, parameter: Tensor, default: Any = None) -> Any:
        return next((one.state[parameter] for one in self._parts if parameter in one.state), default)

    def __iter__(self) -> Iterator[Tensor]:
        for one in self._parts:
            yield from one.state

    def __len__(self) -> int:
        return sum(len(one.state) for one in self._parts)

    def _owner(self, parameter: Tensor) -> Optimizer:
        for one in self._parts:
            if parameter in one.state or any(parameter is own for group in one.param_groups for own in group["params"]):
                return one
        raise KeyError(parameter)


def refuse_missing_parameters(
    method: Method,
    model: nn.Module,
    optimizer: Optimizer | Optimizers,
    before: Optimizer | Optimizers | None,
    cuttable: Collection[str],
) -> None:
    """Refuse optimizers without a parameter that another optimizer of the loop has.

    Args:
        method: The method.
        model: The model.
        optimizer: The optimizers that are attached now.
        before: Those that were attached before, or `None`.
        cuttable: Names of parameters that the method may cut.

    Raises:
        UsageError: a trained parameter that can be cut, or one of the optimizers attached before, is in none.
    """
    held = _parameters_of(optimizer)
    held_before = set() if before is None else _parameters_of(before)
    remedy = "attach all optimizers of the model in one call, as in hooks.attach(first, second)"
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in held or not parameter.requires_grad:
            continue
        if id(parameter) in held_before:
            raise UsageError(f"attach was called again, without the optimizer that has parameter '{name}': {remedy}")
        if name in cuttable:
            raise UsageError(
                f"{type(method).__name__} may cut parameter '{name}', which no attached optimizer has: {remedy}, or "
                "freeze the parameter (requires_grad_(False)) before"
            )


def _parameters_of(optimizer: Optimizer | Optimizers) -> set[int]:
    """Return the ids of an optimizer's parameters."""
    return {id(one) for group in optimizer.param_groups for one in group["params"]}


def refuse_twice(optimizers: Iterable[Optimizer]) -> None:
    """Refuse optimizers that share a parameter, which both would move and only one of which would be cut."""
    owners: dict[int, Optimizer] = {}
    for one in optimizers:
        for parameter in (parameter for group in one.param_groups for parameter in group["params"]):
            if (other := owners.setdefault(id(parameter), one)) is not one:
                raise UsageError(
                    f"a parameter of shape {tuple(parameter.shape)} is in two of the attached optimizers, "
                    f"{type(other).__name__} and {type(one).__name__}"
                )


class _Plain(Optimizer):
    """An optimizer of torch without torch's compiler.

    torch wraps these methods in calls that keep `torch.compile` out of them, and the first of these calls imports the
    compiler, which takes longer than importing torch. The suite compiles forward and backward only, so that the plain
    methods do the same.
    """

    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)


class SGD(_Plain, torch.optim.SGD):
    """`torch.optim.SGD` without torch's compiler."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))  # type: ignore[assignment]


class AdamW(_Plain, torch.optim.AdamW):
    """`torch.optim.AdamW` without torch's compiler."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))  # type: ignore[assignment]


def make_optimizer(model: nn.Module, recipe: Recipe) -> SGD | AdamW:
    """Return the recipe's optimizer of all parameters.

    Each of its groups has an `lr_factor`, by which the learning rate of the schedule is multiplied; 1 in the first.
    """
    groups = _parameter_groups(model, recipe)
    if recipe.optimizer == "adamw":
        return AdamW(groups, lr=recipe.learning_rate_at(0.0), betas=(recipe.momentum, recipe.second_momentum))
    return SGD(groups, lr=recipe.learning_rate_at(0.0), momentum=recipe.momentum, nesterov=recipe.nesterov)


def _parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Return groups of parameters with the same weight decay and the same factor of the learning rate."""
    biases = {
        id(module.bias)
        for module in model.modules()
        if isinstance(module, _NORMS) and isinstance(module.bias, nn.Parameter)
    }
    # By factor and whether they decay; the first two are there even if they are empty, as in earlier checkpoints.
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {(1.0, True): []}
    if not recipe.decay_norm_and_bias:
        groups[1.0, False] = []
    for parameter in model.parameters():
        factor = recipe.norm_bias_lr if id(parameter) in biases else 1.0
        groups.setdefault((factor, recipe.decay_norm_and_bias or parameter.ndim > 1), []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": recipe.weight_decay_at(factor) if decays else 0.0,
            "lr_factor": factor,
        }
        for (factor, decays), parameters in groups.items()
    ]


def tensors_per_parameter(recipe: Recipe) -> int:
    """Return how many tensors of its size the optimizer keeps for each parameter, after its first step."""
    return 2 if recipe.optimizer == "adamw" else int(recipe.momentum > 0)
