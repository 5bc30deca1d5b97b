"""Training steps on random images and the clock that measures them, for the programs in this package."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch
from torch import nn

from suite.choices import build_method, build_model
from suite.method import Method
from suite.recipe import Recipe
from suite.task import Splits
from suite.training.trainer import Trainer
from tasks.cifar import NORMALIZATION
from tasks.images.augmentation import Augmentation
from tasks.pipeline import DeviceBatches

SHAPE, CLASSES = (3, 32, 32), 10


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all steps of a run share; `steps` are in one measurement."""

    model: str
    recipe: Recipe
    preset: str
    device: torch.device
    dtype: torch.dtype
    steps: int
    splits: Splits

    def new_model(self) -> nn.Module:
        """The same weights each time."""
        torch.manual_seed(0)
        model = build_model(self.model, SHAPE, CLASSES).to(self.device)
        return model.to(memory_format=torch.channels_last)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)


def random_splits(recipe: Recipe, steps: int, device: torch.device) -> Splits:
    """As many random images as one measurement takes, behind the task's own pipeline."""

    count = steps * recipe.batch_size
    batches = DeviceBatches(
        torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8),
        torch.arange(count) % CLASSES,
        normalization=NORMALIZATION,
        device=device,
        training=True,
        augmentation=Augmentation(recipe.flip, recipe.translate, recipe.cutout, recipe.crop_padding),
    )
    return Splits(batches, batches)


def trainer_steps(setting: Setting, execution: str = "eager", method: Method | None = None) -> Callable[[], None]:
    """A function that does the steps of one measurement by the trainer, with everything that belongs to them."""
    trainer = Trainer(
        setting.new_model(),
        method or build_method("dense", {}),
        dataclasses.replace(setting.recipe, execution=execution),
        setting.splits,
        input_shape=SHAPE,
        num_classes=CLASSES,
        seed=0,
        device=setting.device,
        dtype=setting.dtype,
        task="cifar10",
        preset=setting.preset,
    )

    def run() -> None:
        trainer.train_epoch()
        trainer.ctx.batch_index = 0  # the same epoch again and again

    return run


def device_clock(device: torch.device) -> Callable[[], float]:
    """Seconds by the device's own clock, after all that was asked of it is done; the current one, if it is a GPU."""
    if device.type != "cuda":
        return time.perf_counter
    last, total = torch.cuda.Event(enable_timing=True), 0.0
    last.record()

    def now() -> float:
        nonlocal last, total
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        event.synchronize()
        total += last.elapsed_time(event) / 1e3  # milliseconds, from one event to the next: a long sum would be coarse
        last = event
        return total

    return now
