"""Event files for TensorBoard, as a callback. No other module of the project imports the library."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from typing import Any

from suite.errors import UsageError
from suite.registry import register
from suite.trials.callbacks.calls import CallbackTrial

FOLDER = "tensorboard"
_GROUPS = {
    "loss": ("train_loss", "regularization", "test_loss", "val_loss"),
    "accuracy": ("test_accuracy", "test_accuracy_one_view", "val_accuracy"),
    "time": ("train_time_s", "eval_time_s", "reconfigure_time_s", "compile_time_s", "energy_j"),
    "training": ("learning_rate", "batch_size", "steps", "skipped_steps", "loss_scale", "step_memory_bytes"),
    "network": ("params", "inference_flops"),
}
_PRODUCTS = ("forward", "dgrad", "wgrad")


@register("callback", "tensorboard")
class TensorBoard:
    """Writes event files for TensorBoard into the folder of each trial, with a point per epoch.

    The step of a point is the epoch. A resumed trial writes a new file whose first step hides later points of earlier
    files (`purge_step`). Every epoch therefore has one point.
    """

    def __init__(self) -> None:
        self._writer: Any = None

    @staticmethod
    def check() -> None:
        """Check that the library is installed.

        Raises:
            UsageError: The library is not installed.
        """
        if importlib.util.find_spec("tensorboard") is None:
            raise UsageError(
                "--log tensorboard: the package tensorboard is not installed; install it with "
                "pip install -e '.[tensorboard]'"
            )

    def on_epoch(self, trial: CallbackTrial, record: Mapping[str, Any]) -> None:
        """Write the scalars of an epoch's record."""
        step = int(record["epoch"])
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # an optional package

            self._writer = SummaryWriter(str(trial.folder / FOLDER), purge_step=step)
        for tag, value in scalars(record):
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()  # a killed trial keeps the points so far

    def on_trial(self, trial: CallbackTrial, record: Mapping[str, Any]) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


def scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield tag and value of each number in an epoch's record (`docs/development/file-formats.md` describes it).

    Tags are `GROUP/KEY`, `flops_step/VARIANT` and `flops_train/VARIANT`. Each layer has `channels_out/LAYER`,
    `channels_in/LAYER`, `density_PRODUCT/LAYER` and `weight_density/LAYER`.
    """
    for group, names in _GROUPS.items():
        for name in names:
            yield from _number(f"{group}/{name}", record.get(name))
    for group, name in (("flops_step", "step_flops"), ("flops_train", "train_flops")):
        for variant, value in (record.get(name) or {}).items():
            yield from _number(f"{group}/{variant}", value)
    for layer, facts in (record.get("layers") or {}).items():
        yield from _number(f"channels_out/{layer}", facts.get("out"))
        yield from _number(f"channels_in/{layer}", facts.get("in"))
        for product, density in zip(_PRODUCTS, facts.get("density") or (), strict=False):
            yield from _number(f"density_{product}/{layer}", density)
        yield from _number(f"weight_density/{layer}", facts.get("weight_density"))


def _number(tag: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, (int, float)) and math.isfinite(value):
        yield tag, float(value)
