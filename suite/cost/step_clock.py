"""Divides the time of a training step among its parts: products of layers, normalisation, pruning, optimizer, input.

At each moment exactly one part is running, so that the parts of a step add up to its time. A span inside another
interrupts it: normalisation that runs inside the forward of the network is not counted as the network's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from suite.cost.timing import Stamps, stamps_of

PARTS = ("forward", "dgrad", "wgrad", "normalization", "pruning", "optimizer", "input", "network", "rest")
"""Parts of a step.

forward, dgrad, wgrad: The three products of planned layers, in the operands that the plan gives them.
normalization: Normalisation and activation functions, forward and backward.
pruning: The method's own work: transforms of operands, the regularization term and its gradient, and its hooks.
optimizer: The step of the optimizer, and the removal of gradients.
input: Reading and augmenting the batch.
network: Everything else in forward and backward: pooling, sums, the loss, attention, layers that cannot be planned, the
    accumulation of gradients, and Python between operations.
rest: Everything else in a step: the norm of the gradients, counting of FLOPs, the training loop.
"""
CLOCKS = "clocks"
"""What the clocks themselves take where it is known; it belongs to no part."""

Key = tuple[str, str]
"""Part, and name of the layer; the name is empty if the part belongs to no layer."""

_NORMALIZATION = re.compile(
    r"(batch|layer|group|instance|rms)_?norm|relu|[gscp]?elu|silu|swish|mish|sigmoid|tanh|softplus",
    re.IGNORECASE,
)


class NoClock:
    """Stands for a `StepClock` in steps that are not profiled, at the cost of a call."""

    def span(self, part: str, layer: str = "") -> AbstractContextManager[None]:
        return _NOTHING

    def forward(self) -> AbstractContextManager[None]:
        return _NOTHING

    def time_backward(self, loss: Tensor) -> None: ...

    def time_term(self, term: Tensor) -> None: ...


_NOTHING = nullcontext()
NO_CLOCK = NoClock()


class _Span:
    """A part of a step. Inside the network's, no function is looked at, since none of them is the network's own."""

    __slots__ = ("_clock", "_key", "_unseen")

    def __init__(self, clock: StepClock, key: Key) -> None:
        self._clock, self._key = clock, key
        self._unseen = _NOTHING if key[0] == "network" else torch._C.DisableTorchFunction()

    def __enter__(self) -> None:
        self._unseen.__enter__()
        self._clock.enter(*self._key)

    def __exit__(self, *error: Any) -> None:
        self._clock.leave()
        self._unseen.__exit__(*error)


class StepClock:
    """Measures the parts of steps, one after another.

    Args:
        device: Device of the training.
        stamps: Source of the points in time; that of the device if `None`.
    """

    def __init__(self, device: torch.device, stamps: Stamps | None = None) -> None:
        self._stamps = stamps or stamps_of(device)
        self._marks: list[tuple[Key, Any]] = []  # the part that starts, and when
        self._open: list[Key] = []
        self._normalization, self._backward = NormalizationClock(self), BackwardClock(self)

    @property
    def part(self) -> str:
        """The part that is running."""
        return self._open[-1][0]

    def begin(self) -> None:
        """Begin a step, whose first part is the rest."""
        self._marks, self._open = [], []
        self._backward.forget()
        self.enter("rest")

    def enter(self, part: str, layer: str = "") -> None:
        """Interrupt the running part by another."""
        self._open.append((part, layer))
        self._marks.append((self._open[-1], self._stamps.now()))

    def leave(self) -> None:
        """Continue the part that was interrupted last."""
        self._open.pop()
        self._marks.append((self._open[-1], self._stamps.now()))

    def span(self, part: str, layer: str = "") -> _Span:
        """Return a context for a part, which may belong to a layer."""
        return _Span(self, (part, layer))

    def forward(self) -> NormalizationClock:
        """Return a context for the forward of the network, which finds its functions that normalise or activate."""
        return self._normalization

    def time_backward(self, loss: Tensor) -> None:
        """Let the coming backward of a loss time its functions that normalise or activate."""
        with self.span(CLOCKS):
            self._backward.time_normalization(loss)

    def time_term(self, term: Tensor) -> None:
        """Let the coming backward of a method's term be timed as pruning."""
        with self.span(CLOCKS):
            self._backward.time_pruning(term)

    def end(self) -> dict[Key, float]:
        """End the step, and return the seconds of its parts. They add up to the time since `begin`."""
        last = self._stamps.now()
        found: dict[Key, float] = {}
        points = [*self._marks, (("", ""), last)]
        for (key, start), (_, stop) in pairwise(points):
            found[key] = found.get(key, 0.0) + self._stamps.seconds(start, stop)
        return found


class NormalizationClock(TorchFunctionMode):
    """While it is entered, adds the time of functions that normalise or activate to `normalization`.

    It leaves functions inside another part alone, such as those that a method's transform calls.
    """

    def __init__(self, clock: StepClock) -> None:
        super().__init__()
        self._clock = clock
        self._known: dict[Hashable, bool] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        known = self._known.get(func)
        if known is None:
            known = self._known[func] = is_normalization(getattr(func, "__name__", ""))
        if not known or self._clock.part != "network":
            return func(*args, **(kwargs or {}))
        with self._clock.span("normalization"):
            return func(*args, **(kwargs or {}))


def is_normalization(name: str) -> bool:
    """Whether a function of torch, or a node of a backward graph, normalises or is an activation function."""
    return _NORMALIZATION.search(name) is not None


class BackwardClock:
    """Times the nodes of a backward graph by hooks on them."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._seen: set[Any] = set()

    def forget(self) -> None:
        """Begin with another step."""
        self._seen.clear()

    def time_normalization(self, loss: Tensor) -> None:
        """Add the backward of normalisation and activation functions before a loss to `normalization`."""
        for node in self._new_nodes(loss):
            if is_normalization(node.name()):
                self._time(node, "normalization")

    def time_pruning(self, term: Tensor) -> None:
        """Add the backward of a method's term to `pruning`, without what it shares with a loss that was seen."""
        for node in self._new_nodes(term):
            if not node.name().endswith("AccumulateGrad"):
                self._time(node, "pruning")

    def _time(self, node: Any, part: str) -> None:
        node.register_prehook(lambda *_: self._clock.enter(part))
        node.register_hook(lambda *_: self._clock.leave())

    def _new_nodes(self, root: Tensor) -> Iterator[Any]:
        left = [root.grad_fn]
        while left:
            node = left.pop()
            if node is None or node in self._seen:
                continue
            self._seen.add(node)
            yield node
            left += [following for following, _ in node.next_functions]
