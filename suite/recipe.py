"""A recipe: everything about a training run that belongs neither to the method, the task's data nor the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

ADDED: Final = {"crop_padding": "mean", "drop_last": True}
"""Fields that came later, each with its default, by which recipes without it were trained. A trial's spec leaves out a
field with that value, so that earlier results keep their names."""

MOST_EPOCHS = 100_000
LARGEST_SPLIT_SEED = 2**32 - 1  # of the frozen generator that draws the splits


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train. Every field may be set by `--set recipe.FIELD=VALUE`, and all of them name the trial.

    Attributes:
        epochs: passes over the training images.
        batch_size: global batch size.
        drop_last: whether the last batch of an epoch is left out where fewer than `batch_size` images remain for it.
        eval_batch_size: images a forward pass of an evaluation.
        learning_rate: at the peak of the schedule.
        schedule: `linear`: from `lr_start` up to the peak at `peak_at`, down to `lr_end` at the end, interpolated at
            every step; `cosine`: the same rise, then half a cosine; `step`: times `step_factor` at each of
            `milestones`.
        lr_start, lr_end: learning rates relative to the peak's.
        peak_at: where the peak stands, as a share of all epochs, so that `--epochs` stretches the schedule.
        milestones: shares of all epochs, for `step`.
        momentum, nesterov, weight_decay: of SGD.
        decay_norm_and_bias: whether weight decay also applies to normalisation layers and biases.
        label_smoothing: of the cross entropy.
        micro_batches: parts into which a batch is split for forward and backward.
        execution: of a step's forward and backward, for every method alike: `eager`; `compile`, one graph made by
            `torch.compile`; `cuda_graph`, captured once and replayed, for methods that allow it, on CUDA alone. It
            belongs to the recipe, although it describes the same training: compiled kernels round differently, so that
            it decides the trial's bits, and times of different executions are no comparison of methods.
        clip_norm: largest norm of the gradient; `None` does not clip.
        validation_images: size of the split taken from the training images by `split_seed`, stratified by class;
            0: none.
        train_images, test_images: use only the first so many of a seeded stratified order; `None`: all.
        flip: whether images are mirrored at random.
        translate: pixels of random translation in each direction, which is a random crop of the padded image.
        crop_padding: colour of the pixels that a translation leaves empty: `mean`, the mean colour of the training
            images, or `black`, as torchvision's `RandomCrop(size, padding)` has it.
        cutout: side of a square that is overwritten by the mean colour; 0: none.
        flip_tta: whether an evaluation takes the mean of an image's logits and its mirror image's.
    """

    epochs: int
    batch_size: int
    eval_batch_size: int = 500
    learning_rate: float
    schedule: Literal["linear", "cosine", "step"] = "linear"
    lr_start: float = 0.0
    lr_end: float = 0.0
    peak_at: float = 0.0
    milestones: tuple[float, ...] = ()
    step_factor: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    decay_norm_and_bias: bool = True
    label_smoothing: float = 0.0
    micro_batches: int = 1
    execution: Literal["eager", "compile", "cuda_graph"] = "eager"
    clip_norm: float | None = None
    validation_images: int = 0
    split_seed: int = 0
    train_images: int | None = None
    test_images: int | None = None
    flip: bool = True
    translate: int = 0
    cutout: int = 0
    flip_tta: bool = False
    crop_padding: Literal["mean", "black"] = "mean"
    drop_last: bool = True

    def __post_init__(self) -> None:
        for name, smallest in (("epochs", 1), ("batch_size", 1), ("eval_batch_size", 1), ("micro_batches", 1)):
            if getattr(self, name) < smallest:
                raise ValueError(f"recipe.{name} is {getattr(self, name)}; the smallest is {smallest}")
        if self.epochs > MOST_EPOCHS:
            raise ValueError(f"recipe.epochs is {self.epochs}; the largest is {MOST_EPOCHS}")
        for name in ("train_images", "test_images"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"recipe.{name} is {getattr(self, name)}; the smallest is 1")
        if self.validation_images < 0:
            raise ValueError(f"recipe.validation_images is {self.validation_images}; it must not be negative")
        if any(not 0 < milestone <= 1 for milestone in self.milestones):
            raise ValueError(f"recipe.milestones are {self.milestones}; each is a share of all epochs, in (0, 1]")
        for name in ("learning_rate", "momentum", "weight_decay", "lr_start", "lr_end", "translate", "cutout"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"recipe.{name} is {value}; it must be finite and not negative")
        if self.momentum >= 1:
            raise ValueError(f"recipe.momentum is {self.momentum}; it lies in [0, 1)")
        if not (math.isfinite(self.step_factor) and self.step_factor > 0):
            raise ValueError(f"recipe.step_factor is {self.step_factor}; it must be positive")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"recipe.clip_norm is {self.clip_norm}; it must be positive")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"recipe.label_smoothing is {self.label_smoothing}; it lies in [0, 1)")
        if not 0 <= self.peak_at <= 1:
            raise ValueError(f"recipe.peak_at is {self.peak_at}; it is a share of all epochs, in [0, 1]")
        if self.batch_size % self.micro_batches:
            raise ValueError(
                f"recipe.batch_size {self.batch_size} is no multiple of micro_batches {self.micro_batches}"
            )
        if not 0 <= self.split_seed <= LARGEST_SPLIT_SEED:
            raise ValueError(f"recipe.split_seed is {self.split_seed}; it lies in 0 .. {LARGEST_SPLIT_SEED}")
        if self.nesterov and not self.momentum:
            raise ValueError("recipe.nesterov needs a recipe.momentum above 0")
        if self.schedule not in ("linear", "cosine", "step"):
            raise ValueError(f"recipe.schedule is '{self.schedule}'; known: cosine, linear, step")
        if self.crop_padding not in ("mean", "black"):
            raise ValueError(f"recipe.crop_padding is '{self.crop_padding}'; known: black, mean")
        if self.execution not in ("eager", "compile", "cuda_graph"):
            raise ValueError(f"recipe.execution is '{self.execution}'; known: compile, cuda_graph, eager")

    def fields(self) -> dict[str, Any]:
        """Every field by name, without those of `ADDED` that have the value there."""
        return {name: value for name, value in vars(self).items() if name not in ADDED or value != ADDED[name]}

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate when the share `progress` in [0, 1] of the training is done."""
        if self.schedule == "step":
            return self.learning_rate * self.step_factor ** sum(progress >= milestone for milestone in self.milestones)
        if progress < self.peak_at:
            return self.learning_rate * (self.lr_start + (1 - self.lr_start) * progress / self.peak_at)
        fall = (progress - self.peak_at) / (1 - self.peak_at) if self.peak_at < 1 else 1.0
        if self.schedule == "cosine":
            fall = (1 - math.cos(math.pi * fall)) / 2
        return self.learning_rate * (1 - (1 - self.lr_end) * fall)
