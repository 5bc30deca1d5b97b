"""Training steps on random images and the clock that measures them, for the programs in this package."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from suite import registry
from suite.choices import build_method, build_model
from suite.engine.training.trainer import Trainer
from suite.method import Method
from suite.recipe import Recipe
from suite.task import Splits
from tasks.cifar import NORMALIZATION
from tasks.images.augmentation import Augmentation
from tasks.pipeline import DeviceBatches

SHAPE, CLASSES = (3, 32, 32), 10


@dataclasses.dataclass(frozen=True)
class Setting:
    """Settings that all steps of a run share; one measurement takes `steps` steps on images of `shape`."""

    model: str
    recipe: Recipe
    preset: str
    device: torch.device
    dtype: torch.dtype
    steps: int
    splits: Splits
    shape: tuple[int, int, int] = SHAPE

    def new_model(self) -> nn.Module:
        """Return a new model with the same initial weights each time."""
        torch.manual_seed(0)
        model = build_model(self.model, self.shape, CLASSES).to(self.device)
        return model.to(memory_format=torch.channels_last)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)


def quick_recipe(**changes: Any) -> tuple[str, Recipe]:
    """Return model and recipe of `--preset quick --recipe resnet9` on CIFAR-10, which suits networks of all kinds."""
    named = registry.get("task", "cifar10")().paper_recipes["resnet9"]
    return named.model, dataclasses.replace(named.recipe, **changes)


def random_splits(recipe: Recipe, steps: int, device: torch.device, shape: tuple[int, int, int] = SHAPE) -> Splits:
    """Return random images for one measurement, with the data pipeline of CIFAR-10.

    Args:
        recipe: Gives the batch size and the augmentation.
        steps: Number of batches.
        device: Device of the batches.
        shape: (channels, rows, columns) of an image.
    """
    count = steps * recipe.batch_size
    batches = DeviceBatches(
        torch.randint(0, 256, (count, *shape[1:], shape[0]), dtype=torch.uint8),
        torch.arange(count) % CLASSES,
        normalization=NORMALIZATION,
        device=device,
        training=True,
        augmentation=Augmentation(
            recipe.flip, recipe.translate, recipe.cutout, recipe.crop_padding, recipe.alternating_flip
        ),
    )
    return Splits(batches, batches)


def new_trainer(setting: Setting, execution: str = "eager", method: Method | None = None) -> Trainer:
    """Return a trainer of a new model."""
    return Trainer(
        setting.new_model(),
        method or build_method("dense", {}),
        dataclasses.replace(setting.recipe, execution=execution),
        setting.splits,
        input_shape=setting.shape,
        num_classes=CLASSES,
        seed=0,
        device=setting.device,
        dtype=setting.dtype,
        task="cifar10",
        preset=setting.preset,
    )


def trainer_steps(setting: Setting, execution: str = "eager", method: Method | None = None) -> Callable[[], None]:
    """Return a function that runs the steps of one measurement in a new trainer."""
    return steps_of(new_trainer(setting, execution, method))


def steps_of(trainer: Trainer) -> Callable[[], None]:
    """Return a function that runs the steps of one measurement in a trainer."""

    def run() -> None:
        trainer.train_epoch()
        trainer.ctx.batch_index = 0  # repeat the same epoch

    return run
