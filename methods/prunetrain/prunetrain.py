"""PruneTrain: a group lasso drives channels to zero, and they are removed from the network during training.

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019. `docs/methods/prunetrain.md` lists the differences from the paper.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge

from methods.prunetrain.group_lasso import GroupLasso
from suite.errors import UsageError
from suite.method import Context, ReconfigPlan
from suite.registry import register

STEP = 32
"""The batch size grows by multiples of this number of images."""
DEVICE_SHARE = 0.9
"""Share of the device's memory that a step may use with `dynamic_batch=device`; libraries need the rest."""


@register("method", "prunetrain")
class PruneTrain(GroupLasso):
    """PruneTrain: a group lasso over channels; channels that are zero everywhere are removed during training.

    Attributes:
        interval: Epochs between reconfigurations.
        dynamic_batch: Whether the batch grows as the network shrinks, by multiples of 32 images and together with the
            learning rate. It does not (`off`), or it grows as long as a step needs no more memory than the first one
            (`start`), or than 0.9 of what the GPU has (`device`).
    """

    source: ClassVar[str] = "Lym et al., PruneTrain, SC 2019"

    interval: Annotated[int, Ge(1)] = 10
    dynamic_batch: Literal["off", "start", "device"] = "off"

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        """Use the published values for `paper`; the short presets reconfigure every epoch, with a larger threshold."""
        found = super().defaults(task, preset)
        if preset in ("quick", "smoke"):
            found["interval"] = 1
        elif task == "imagenet":
            found["interval"] = 5
        return found

    def __post_init__(self) -> None:
        super().__post_init__()
        self._memory_bound = 0  # bytes; 0 before the first reconfiguration
        self._first_batch_size = 0

    def setup(self, ctx: Context) -> None:
        super().setup(ctx)
        self._first_batch_size = ctx.batch_size
        if self.dynamic_batch == "device" and ctx.device.type != "cuda":
            raise ValueError(
                "dynamic_batch=device needs a CUDA device, whose memory is the bound; use dynamic_batch=start"
            )
        if self.dynamic_batch != "off" and not ctx.train_images:
            raise UsageError(
                f"dynamic_batch={self.dynamic_batch} needs train_images, the number of images per epoch; the loop then "
                "has to follow hooks.ctx.batch_size and hooks.reconfigurations[-1].lr_scale"
            )

    def cuts_now(self, ctx: Context) -> bool:
        """Return whether `interval` divides the number of finished epochs; this includes the last epoch."""
        return ctx.epochs_done % self.interval == 0

    def reconfigure(self, ctx: Context) -> ReconfigPlan | None:
        plan = super().reconfigure(ctx)
        return plan if plan is None or self.dynamic_batch == "off" else self._with_larger_batch(plan, ctx)

    def _with_larger_batch(self, plan: ReconfigPlan, ctx: Context) -> ReconfigPlan:
        """Return the plan with the largest batch that needs no more memory than allowed (Sec. 4.3).

        The batch grows by multiples of 32 images, or more if the number of micro-batches requires it.
        """
        # Fix the memory that a step may use.
        if not self._memory_bound:
            total = torch.cuda.get_device_properties(ctx.device).total_memory if ctx.device.type == "cuda" else 0
            on_device = self.dynamic_batch == "device"
            self._memory_bound = int(DEVICE_SHARE * total) if on_device else ctx.memory_estimate(ReconfigPlan())
        # Extrapolate from the memory of the present batch and of the next larger one.
        increment = math.lcm(STEP, ctx.micro_batches)
        sizes = (ctx.batch_size, ctx.batch_size + increment)
        now, more = (ctx.memory_estimate(dataclasses.replace(plan, batch_size=size)) for size in sizes)
        steps = (self._memory_bound - now) // (more - now) if more > now else 0
        most = (ctx.train_images - ctx.batch_size) // increment  # an epoch keeps at least one step
        batch_size = ctx.batch_size + increment * max(0, min(steps, most))
        return dataclasses.replace(plan, batch_size=batch_size, lr_scale=batch_size / self._first_batch_size)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "memory_bound": self._memory_bound}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._memory_bound = state["memory_bound"]
