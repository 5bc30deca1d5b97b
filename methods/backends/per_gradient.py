"""Sharing of work between the two gradients of a layer, which start from the same output gradient."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from torch import Tensor

Made = TypeVar("Made")


class PerGradient(Generic[Made]):
    """Computes something from an output gradient for the first caller and returns it again to the second.

    The two gradients of a layer are computed one after the other. The result is kept until the second one has taken
    it, and no longer than the output gradient itself.
    """

    def __init__(self) -> None:
        self._grad: weakref.ref[Tensor] | None = None
        self._version = 0  # changes when the values are overwritten
        self._made: Made | None = None

    def of(self, grad: Tensor, make: Callable[[], Made]) -> Made:
        """Return `make()`, or its result of the first call for the same values of `grad`."""
        is_known = self._grad is not None and self._grad() is grad and self._version == grad._version
        if self._made is not None and is_known:
            found, self._made = self._made, None
            return found
        found = make()
        self._grad, self._version, self._made = weakref.ref(grad, lambda _: self._forget()), grad._version, found
        return found

    def _forget(self) -> None:
        self._made = None
