"""Cost of the network that a reconfiguration would leave, measured and counted on a copy of the model."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from suite.cost.flops import count_model
from suite.cost.memory import StepMemory, measure_step
from suite.method import Context, ReconfigPlan
from suite.network.channels.surgery import apply_plan
from suite.training.ranks import Ranks


class Estimates:
    """Answers what a method asks before it decides on a reconfiguration (`ctx.memory_estimate`, `ctx.inference_flops`).

    Args:
        ctx: Context of the method; its model is copied and stays unchanged.
        ranks: Processes that train the model together.
    """

    def __init__(self, ctx: Context, ranks: Ranks) -> None:
        self._ctx, self._ranks, self._input_shape = ctx, ranks, ctx.input_shape
        self._measured: tuple[Any, float, StepMemory] | None = None

    def network_changed(self) -> None:
        """Discard measurements, because the model was reconfigured."""
        self._measured = None

    def memory(self, plan: ReconfigPlan) -> int:
        """Return the bytes of a training step after `plan`.

        They comprise parameters, gradients, buffers, optimizer state (as much per parameter as now), and what a
        micro-batch keeps for backward.
        """
        ctx = self._ctx
        cut = (plan.kept, plan.removed_branches, plan.gated)
        # The same network with another batch size needs no new measurement.
        if self._measured is None or self._measured[0] != cut:
            model = self._cut_copy(plan)
            before, after = (_bytes(one.parameters()) for one in (ctx.model, model))
            states = [] if ctx.optimizer is None else [*ctx.optimizer.state.values()]
            held = _bytes(value for state in states for value in state.values() if isinstance(value, Tensor))
            fixed = after * (2 + held / before) + _bytes(model.buffers())
            devices = [ctx.device] if ctx.device.type == "cuda" else []
            with torch.random.fork_rng(devices):  # dropout draws random numbers
                images = self._images_at_once(ctx.batch_size)
                self._measured = cut, fixed, measure_step(model, self._input_shape, ctx.dtype, images)
        _, fixed, step = self._measured
        found = fixed + step.of(self._images_at_once(plan.batch_size or ctx.batch_size))
        # Devices measure slightly different values, but all ranks must make the same decision.
        return int(self._ranks.mean(torch.tensor(found, dtype=torch.float64, device=ctx.device)))

    def inference_flops(self, plan: ReconfigPlan) -> float:
        """Return the FLOPs of one image's inference after `plan`."""
        return float(count_model(self._cut_copy(plan), self._input_shape)["inference_flops"])

    def _images_at_once(self, batch_size: int) -> int:
        """Return the number of images in a micro-batch on one rank."""
        return -(-batch_size // (self._ctx.micro_batches * self._ranks.size))

    def _cut_copy(self, plan: ReconfigPlan) -> nn.Module:
        """Return a copy of the model after `plan`."""
        model, spaces = copy.deepcopy(self._ctx.model), copy.deepcopy(self._ctx.spaces)
        cut = ReconfigPlan(kept=plan.kept, removed_branches=plan.removed_branches, gated=plan.gated)
        apply_plan(model, cut, spaces, None)
        return model


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
