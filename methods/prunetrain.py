"""PruneTrain: a group lasso drives channels to zero, and the network is rebuilt smaller while it trains.

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019. `docs/methods/prunetrain.md` says what differs here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch

from methods.shared.group_lasso import GroupLasso
from suite.errors import UsageError
from suite.method import Context, ReconfigPlan
from suite.registry import register

STEP = 32
"""A batch grows by multiples of this."""
DEVICE_SHARE = 0.9
"""Of a device's memory, with `dynamic_batch=device`: libraries and fragments take some."""


@register("method", "prunetrain")
class PruneTrain(GroupLasso):
    """PruneTrain: group lasso over channels; channels that are zero everywhere are cut out of the network as it trains.

    Attributes:
        interval: epochs between reconfigurations.
        dynamic_batch: as the network shrinks, the batch grows by multiples of 32, and the learning rate with it, as
            long as a step needs no more memory than at the `start`, or than the `device` has; or it is `off`.
    """

    source: ClassVar[str] = "Lym et al., PruneTrain, SC 2019"

    interval: int = 10
    dynamic_batch: Literal["off", "start", "device"] = "off"

    @classmethod
    def defaults(cls, task: str, preset: str) -> dict[str, Any]:
        """As published for `paper`; the short presets cut every epoch, and by a coarser threshold."""
        found = super().defaults(task, preset)
        if preset in ("quick", "smoke"):
            found["interval"] = 1
        elif task == "imagenet":
            found["interval"] = 5
        return found

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.interval < 1:
            raise ValueError(f"interval is {self.interval}; the smallest is 1 epoch")
        self._memory_bound = 0  # bytes; 0 before the first reconfiguration
        self._first_batch_size = 0

    def setup(self, ctx: Context) -> None:
        super().setup(ctx)
        self._first_batch_size = ctx.batch_size
        if self.dynamic_batch == "device" and ctx.device.type != "cuda":
            raise ValueError("dynamic_batch=device needs a CUDA device, whose memory is the bound; take start")
        if self.dynamic_batch != "off" and not ctx.train_images:
            raise UsageError(
                f"dynamic_batch={self.dynamic_batch} needs train_images, the images of an epoch, or the batch could "
                "never grow; the loop then has to follow hooks.ctx.batch_size and hooks.reconfigurations[-1].lr_scale"
            )

    def cuts_now(self, ctx: Context) -> bool:
        """Every `interval` epochs, after the last one too where it divides."""
        return ctx.epochs_done % self.interval == 0

    def reconfigure(self, ctx: Context) -> ReconfigPlan | None:
        plan = super().reconfigure(ctx)
        return plan if plan is None or self.dynamic_batch == "off" else self._with_larger_batch(plan, ctx)

    def _with_larger_batch(self, plan: ReconfigPlan, ctx: Context) -> ReconfigPlan:
        """The plan with the largest batch, by steps of 32, that needs no more memory than is allowed (Sec. 4.3).

        Steps are larger where the recipe's micro-batches ask for it.
        """
        if not self._memory_bound:
            total = torch.cuda.get_device_properties(ctx.device).total_memory if ctx.device.type == "cuda" else 0
            on_device = self.dynamic_batch == "device"
            self._memory_bound = int(DEVICE_SHARE * total) if on_device else ctx.memory_estimate(ReconfigPlan())
        by = math.lcm(STEP, ctx.micro_batches)
        now, more = (
            ctx.memory_estimate(dataclasses.replace(plan, batch_size=ctx.batch_size + extra)) for extra in (0, by)
        )
        steps = (self._memory_bound - now) // (more - now) if more > now else 0
        most = (ctx.train_images - ctx.batch_size) // by  # an epoch has a step
        batch_size = ctx.batch_size + by * max(0, min(steps, most))
        return dataclasses.replace(plan, batch_size=batch_size, lr_scale=batch_size / self._first_batch_size)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "memory_bound": self._memory_bound}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._memory_bound = state["memory_bound"]
