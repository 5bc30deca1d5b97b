"""What both gradients of a layer make of the same output gradient, made once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from torch import Tensor

Made = TypeVar("Made")


class PerGradient(Generic[Made]):
    """Hands out what is made of an output gradient to the first who asks and, for the same tensor, to the second.

    A layer's two gradients are asked for one after the other. What was made is kept no longer than the second needs it,
    and not after the gradient is gone.
    """

    def __init__(self) -> None:
        self._grad: weakref.ref[Tensor] | None = None
        self._version = 0  # of its values, which someone may overwrite
        self._made: Made | None = None

    def of(self, grad: Tensor, make: Callable[[], Made]) -> Made:
        """What `make` makes of `grad`."""
        is_known = self._grad is not None and self._grad() is grad and self._version == grad._version
        if self._made is not None and is_known:
            found, self._made = self._made, None
            return found
        found = make()
        self._grad, self._version, self._made = weakref.ref(grad, lambda _: self._forget()), grad._version, found
        return found

    def _forget(self) -> None:
        self._made = None
