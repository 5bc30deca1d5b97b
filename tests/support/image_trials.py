"""Small trials on a folder of image files of noise, in two classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from suite.choices import MethodChoice, TaskChoice
from suite.recipe import Recipe
from suite.trials.spec import TrialSpec


def write_images(folder: Path, count: int = 6) -> None:
    """Write so many images for each class and split; half of them are JPEG files."""
    random = np.random.RandomState(0)
    for place in ("train/cat", "train/dog", "val/cat", "val/dog"):
        (folder / place).mkdir(parents=True)
        for number in range(count):
            noise = random.randint(0, 256, (40, 48, 3)).astype(np.uint8)
            Image.fromarray(noise).save(folder / place / f"{number}.{'png' if number % 2 else 'jpg'}")


def spec(
    folder: Path,
    method: str = "dense",
    model: str = "mlp[width=8,depth=1]",
    task: str = "imagefolder[image_size=32]",
    **changes: Any,
) -> TrialSpec:
    """Return the spec of a trial on a folder; `changes` are fields of the recipe."""
    typed = TaskChoice.read(task)
    parameters = typed.parameters("quick")
    images = typed.build(parameters)
    recipe = Recipe(**images.recipe("quick").fields() | {"batch_size": 4} | changes)
    choice = MethodChoice.read(method)
    return TrialSpec(
        method=choice.name,
        variant=choice.variant,
        parameters=choice.parameters("imagefolder", "quick"),
        task=task,
        task_parameters=parameters,
        model=model,
        preset="quick",
        recipe=recipe.fields(),
        seed=1,
        device="cpu",
        dtype="float32",
        data_copy=vars(images.prepare(folder, "quick", recipe)),
    )
