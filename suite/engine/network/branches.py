"""Residual branches in a training step: their outputs are multiplied by factors, and some are not computed at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from suite.errors import UsageError, nearest
from suite.index_spaces import IndexSpaces


class ScaledBranches:
    """The residual branches of a model whose outputs are multiplied by a factor until `restore`.

    The `forward` of a branch's module is replaced by an attribute of the module. So module, names and hooks stay the
    same, and everything that a left-out branch contains keeps its gradients (`None`) and its statistics. A module in
    evaluation mode computes as usual.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[nn.Module, Any]] = []  # with the attribute that the module had before, or `None`

    def scale(self, model: nn.Module, spaces: IndexSpaces, factors: Mapping[str, float]) -> frozenset[str]:
        """Multiply the outputs of branches, in the place of an earlier call.

        Args:
            model: The bare model.
            spaces: Its index spaces, which list the branches.
            factors: Factors by name of the branch; 1 for absent ones. A branch with 0 is not computed.

        Returns:
            Names of the modules that are not computed: branches with 0 and all that they contain.

        Raises:
            UsageError: if the model has no such branch, or a factor is infinite or NaN.
        """
        self.restore()
        left_out: set[str] = set()
        for name, factor in factors.items():
            known = (*spaces.removable_branches, *spaces.fixed_branches)
            if name not in known:
                raise UsageError(f"branch_factors names '{name}'; the model has no such branch{nearest(name, known)}")
            if not math.isfinite(factor):
                raise UsageError(f"branch_factors has {factor} for '{name}'; factors must be finite")
            if factor == 1:
                continue
            module = model.get_submodule(name)
            self._replaced.append((module, vars(module).get("forward")))
            module.forward = _scaled(module, factor)
            if factor == 0:
                left_out |= {inner for inner, _ in module.named_modules(prefix=name)}
        return frozenset(left_out)

    def restore(self) -> None:
        """Let all branches compute as usual."""
        while self._replaced:
            module, before = self._replaced.pop()
            if before is None:
                del module.forward
            else:
                module.forward = before


def _scaled(module: nn.Module, factor: float) -> Callable[..., Tensor]:
    """Return a forward for training with another factor than 1."""
    whole: Callable[..., Tensor] = module.forward

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not module.training:
            return whole(x, *args, **kwargs)
        if factor == 0:
            return x.new_zeros(())  # which adds nothing to a shortcut of any shape and keeps its type
        return whole(x, *args, **kwargs) * factor

    return forward
