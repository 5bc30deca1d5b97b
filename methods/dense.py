"""Dense training: nothing is pruned. The baseline that every other method is held against."""

from __future__ import annotations

from typing import ClassVar

from suite.method import Method
from suite.registry import register


@register("method", "dense")
class Dense(Method):
    """Dense training, the baseline: a method with nothing in it."""

    source: ClassVar[str] = "none: ordinary training"
    replayable: ClassVar[bool] = True
