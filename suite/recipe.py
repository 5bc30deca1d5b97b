"""A recipe: everything about a training run that belongs neither to the method, the task's data nor the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Gt, Interval

from suite.parameters import check

ADDED: Final = {"crop_padding": "mean", "drop_last": True}
"""Fields that came later, each with its default, by which recipes without it were trained. A trial's spec leaves out a
field with that value, so that earlier results keep their names."""


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

    epochs: Annotated[int, Interval(ge=1, le=100_000)]
    batch_size: Annotated[int, Ge(1)]
    eval_batch_size: Annotated[int, Ge(1)] = 500
    learning_rate: Annotated[float, Ge(0)]
    schedule: Literal["linear", "cosine", "step"] = "linear"
    lr_start: Annotated[float, Ge(0)] = 0.0
    lr_end: Annotated[float, Ge(0)] = 0.0
    peak_at: Annotated[float, Interval(ge=0, le=1)] = 0.0
    milestones: tuple[Annotated[float, Interval(gt=0, le=1)], ...] = ()
    step_factor: Annotated[float, Gt(0)] = 0.1
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, Ge(0)] = 5e-4
    decay_norm_and_bias: bool = True
    label_smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    micro_batches: Annotated[int, Ge(1)] = 1
    execution: Literal["eager", "compile", "cuda_graph"] = "eager"
    clip_norm: Annotated[float, Gt(0)] | None = None
    validation_images: Annotated[int, Ge(0)] = 0
    split_seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 0
    train_images: Annotated[int, Ge(1)] | None = None
    test_images: Annotated[int, Ge(1)] | None = None
    flip: bool = True
    translate: Annotated[int, Ge(0)] = 0
    cutout: Annotated[int, Ge(0)] = 0
    flip_tta: bool = False
    crop_padding: Literal["mean", "black"] = "mean"
    drop_last: bool = True

    def __post_init__(self) -> None:
        check(Recipe, vars(self), prefix="recipe.")
        if self.batch_size % self.micro_batches:
            raise ValueError(
                f"recipe.batch_size is {self.batch_size}; it must be a multiple of recipe.micro_batches, which is "
                f"{self.micro_batches}"
            )
        if self.nesterov and not self.momentum:
            raise ValueError("recipe.nesterov needs a recipe.momentum above 0")

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
