"""The state of a planned layer: its plan, the step that is running, and a meter of what its products executed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from suite.plan import EMPTY_PLAN, Density, Keys, Layer, OpPlan, Site


class ProductClock(Protocol):
    """Measures the parts of a step (`suite.engine.cost.clock`)."""

    def span(self, part: str, layer: str) -> AbstractContextManager[None]:
        """Return a context whose time is added to a part of the step, for one layer."""


@dataclass
class StepState:
    """The step that is running. All planned layers of a model and of its copies share one object.

    Attributes:
        seed: Seed of the trial.
        step: Number of optimizer steps attempted since the trial began.
        micro_batch_index: `rank * micro_batches + micro_batch`.
        keys: Source of the random keys while a step is captured in a CUDA graph; otherwise `None`.
        clock: Clock that times each product while a step is profiled; otherwise `None`. With a clock, layers with an
            empty plan also compute their gradients by separate calls.
    """

    seed: int = 0
    step: int = 0
    micro_batch_index: int = 0
    keys: Keys | None = None
    clock: ProductClock | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> StepState:
        return self


@dataclass
class ExecutedMeter:
    """The mean share of the dense multiply-adds that a layer's products executed since the last `take`."""

    totals: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def add(self, product: str, share: float) -> None:
        """Add the share that one call of a product executed."""
        self.totals[product] = self.totals.get(product, 0.0) + share
        self.calls[product] = self.calls.get(product, 0) + 1

    def add_all(self, other: ExecutedMeter) -> None:
        """Add all calls of another meter."""
        for product, total in other.totals.items():
            self.totals[product] = self.totals.get(product, 0.0) + total
            self.calls[product] = self.calls.get(product, 0) + other.calls[product]

    def copy(self) -> ExecutedMeter:
        """Return an independent copy."""
        return ExecutedMeter(dict(self.totals), dict(self.calls))

    def take(self) -> Density:
        """Return the means, 1 for a product that was not metered, and reset the meter."""
        means = {product: total / self.calls[product] for product, total in self.totals.items()}
        self.totals.clear()
        self.calls.clear()
        return Density(**means)


# A compiled graph refers to a layer by its handle. The references are weak, so that a graph keeps no layer alive.
_LAYERS: MutableMapping[int, PlannedLayer] = WeakValueDictionary()
_handles = itertools.count()


def new_handle(layer: PlannedLayer) -> int:
    """Return a new handle, by which a compiled graph finds the layer."""
    handle = next(_handles)
    _LAYERS[handle] = layer
    return handle


def layer_of(handle: int) -> PlannedLayer:
    """Return the layer with this handle."""
    return _LAYERS[handle]


@contextmanager
def without_plans(layers: Iterable[PlannedLayer]) -> Iterator[None]:
    """Remove the plans of layers inside the context, so that a copy does not copy the method, to which plans refer."""
    plans = [(layer, layer.op_plan) for layer in layers]
    for layer, _ in plans:
        layer.op_plan = EMPTY_PLAN
    try:
        yield
    finally:
        for layer, plan in plans:
            layer.op_plan = plan


_PLAN_IS_FOLLOWED = -1  # key of the hook below; torch numbers its own hooks from 0


def _follow_plan(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Do nothing: only the presence of this forward pre-hook matters."""


class PlannedLayer(Layer):
    """What `PlannedConv2d` and `PlannedLinear` have in common; `convert` sets the attributes.

    Attributes:
        step_state: The step that is running.
        meter: Share of the multiply-adds that the layer's products executed.
        planned, masked: Whether the plan has any entry, and whether it has a `weight_forward`. A compiled graph depends
            on nothing else of a plan.
        handle: Number by which a compiled graph finds the layer.
        own_class: Class of the layer before it was planned.
    """

    step_state: StepState
    meter: ExecutedMeter
    planned: bool
    masked: bool
    handle: int
    own_class: type[nn.Module]

    def __init_subclass__(cls) -> None:
        """Skip the `__init_subclass__` of a user's class, which might register or refuse the planned class."""

    @property
    def op_plan(self) -> OpPlan:  # type: ignore[override]
        """The plan that the layer follows."""
        return self._op_plan

    @op_plan.setter
    def op_plan(self, plan: OpPlan) -> None:
        self._op_plan: OpPlan = plan
        self.planned, self.masked = not plan.empty, plan.weight_forward is not None
        # Some modules of torch compute several layers in one fused operation, directly from their weights (for example
        # the inference fast path of nn.TransformerEncoderLayer). They do so only if none of these layers has a hook.
        if self.planned:
            self._forward_pre_hooks[_PLAN_IS_FOLLOWED] = _follow_plan
        else:
            self._forward_pre_hooks.pop(_PLAN_IS_FOLLOWED, None)

    def forward_weight(self, weight: Tensor) -> Tensor:
        """Return the weight that the forward uses, before its cast: W, or the result of `weight_forward`."""
        transform, state = self.op_plan.weight_forward, self.step_state
        if transform is None:
            return weight
        with torch.autocast(weight.device.type, enabled=False):
            return transform(weight, Site(self.name, "weight_forward", state.step, state.micro_batch_index, state.seed))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.handle = new_handle(self)  # a copy is a different layer
