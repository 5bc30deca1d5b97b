"""Recipes: optimizer, schedule, batch size, epochs, splits and augmentation; and how default values were chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from annotated_types import Ge, Gt, Interval

from suite.parameters import Search, check, takes_leaves

EPOCH_PERCENTAGES: Final = (55, 70, 80, 90)
"""Lengths of the dense budget curve (part of `--controls`), in percent of the recipe's epochs."""
FEWEST_BUDGETS: Final = 4
"""Number of lengths of dense training that a verdict at equal cost needs, the whole training among them."""
WIDEST_GAP: Final = 0.20
"""Widest gap between neighbouring lengths, as a share of the whole dense training."""
FLUSH: Final = "flush"
IEEE: Final = "ieee"
"""Arithmetic of a trial: subnormal numbers are zero, or numbers as IEEE 754 defines them."""
FOR_ONE_METHOD: Final = ("epochs", "learning_rate", "precise_bn")
"""Fields that can be typed for one method: `sdgp[recipe.learning_rate=0.1]`. Others would make it another training."""

_ROUNDING = 1e-9
_SharesOfEpochs = Annotated[tuple[Annotated[float, Interval(gt=0, le=1)], ...], "as a share of the epochs"]


class Phase(NamedTuple):
    """What the cost of a dense step depends on in an epoch.

    Attributes:
        image_size: Side of the training images in pixels; `None` for the side that an evaluation uses.
        frozen: Whether the parameters of `recipe.freeze` are frozen.
    """

    image_size: int | None = None
    frozen: bool = False

    def in_words(self) -> str:
        """Return in words what the steps of this phase have: `training images of 32 pixels and frozen parameters`."""
        size = "the size of an evaluation" if self.image_size is None else f"{self.image_size} pixels"
        return f"training images of {size} and {'frozen' if self.frozen else 'no frozen'} parameters"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How default values were chosen, and what that cost: data of a method or a task.

    Attributes:
        trials: Number of trials of this project that were compared for the choice; `None` if it was not recorded.
        chosen_on: What decided: a `publication`, the accuracy on `validation images` or on `test images`, or `other`
            reasons, such as the time that a trial may take.
        source: The publication, or the file with the trials, and what else a reader needs to judge the choice.
        presets: The presets that have these defaults; empty for all.
    """

    trials: Annotated[int, Ge(0)] | None
    chosen_on: Literal["publication", "validation images", "test images", "other"]
    source: str
    presets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(Tuning, vars(self), prefix="tuning.")

    def in_words(self) -> str:
        """Return one line: `quick: 8 trials on validation images (results/...)`."""
        chosen = {"publication": "published values", "other": "not by accuracy"}.get(self.chosen_on, "")
        trials = "1 trial" if self.trials == 1 else f"{self.trials} trials"
        count = "trials not recorded" if self.trials is None else trials
        if not chosen and self.trials is None:
            chosen = f"chosen on {self.chosen_on}"
        what = f"{chosen}, {count}" if chosen else f"{count} on {self.chosen_on}"
        return f"{', '.join(self.presets)}{': ' if self.presets else ''}{what} ({self.source})"


class _Checked:
    """Base class of a recipe and its groups, which check the types and bounds of their own fields."""

    def __post_init__(self) -> None:
        check(type(self), vars(self), prefix="recipe.")


@dataclass(frozen=True, kw_only=True)
class LearningRateSchedule(_Checked):
    """How the learning rate changes during a training.

    Attributes:
        schedule: Learning rate schedule. `linear`: linear from `lr_start` to the highest value at `peak_at`, then
            linear to `lr_end`, interpolated at every step. `cosine`: the same rise, then half a cosine. `step`: the
            highest value, multiplied by `step_factor` at each of `milestones`. `constant`: the highest value.
        warmup_epochs: Epochs in which the learning rate of any schedule rises linearly from `lr_start`. For `linear`
            and `cosine` it replaces `peak_at`, and `--epochs` does not stretch it.
        lr_start, lr_end: First and last learning rate, relative to the highest one.
        peak_at: Position of the highest learning rate, as a share of all epochs, so that `--epochs` stretches the
            schedule.
        milestones: Shares of all epochs at which `step` changes the learning rate.
        step_factor: Factor of `step`.
    """

    schedule: Literal["linear", "cosine", "step", "constant"] = "linear"
    warmup_epochs: Annotated[float, Ge(0)] = 0.0
    lr_start: Annotated[float, Ge(0)] = 0.0
    lr_end: Annotated[float, Ge(0)] = 0.0
    peak_at: Annotated[float, Interval(ge=0, le=1)] = 0.0
    milestones: _SharesOfEpochs = ()
    step_factor: Annotated[float, Gt(0)] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_epochs and self.peak_at:
            raise ValueError("recipe.warmup_epochs and recipe.peak_at both set the warm-up; set one of them to 0")

    def factor_at(self, progress: float, epochs: float) -> float:
        """Return the learning rate, relative to the highest one, after the share `progress`, in [0, 1], of `epochs`."""
        peak = self.warmup_epochs / epochs if self.warmup_epochs else self.peak_at
        rises = self.warmup_epochs > 0 or self.schedule in ("linear", "cosine")
        if rises and progress < peak:
            return self.lr_start + (1 - self.lr_start) * progress / peak
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "step":
            return self.step_factor ** sum(progress >= milestone for milestone in self.milestones)
        fall = (progress - peak) / (1 - peak) if peak < 1 else 1.0
        if self.schedule == "cosine":
            fall = (1 - math.cos(math.pi * fall)) / 2
        return 1 - (1 - self.lr_end) * fall


@dataclass(frozen=True, kw_only=True)
class Averaging(_Checked):
    """An average of the weights over steps: an exponential one, Lookahead, or none.

    Attributes:
        ema: Decay per step of an exponential moving average of the weights; 0 for none. The average is evaluated and
            saved in place of the weights. It covers about the last 1 / (1 - `ema`) steps. It also averages the
            statistics of batch normalisation.
        lookahead_steps: Number of steps after which an average is updated and the network becomes the average; 0 for
            none. An update moves the average towards the weights by a factor of 1 - `lookahead_decay` **
            `lookahead_steps` * p ** 3, where p is the finished part of the training. The network also becomes the
            average at the end of each epoch. The average includes the statistics of batch normalisation. (K. Jordan,
            arXiv 2404.00498; after M. R. Zhang et al., arXiv 1907.08610.)
        lookahead_decay: Decay of this average per step, at the end of the training.
        lookahead_after: Epochs after which this average begins, as a copy of the weights after the next step. A
            training that ends earlier has no average.
    """

    ema: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    lookahead_steps: Annotated[int, Ge(0)] = 0
    lookahead_decay: Annotated[float, Interval(gt=0, lt=1)] = 0.95
    lookahead_after: Annotated[float, Ge(0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lookahead_steps and self.ema:
            raise ValueError("recipe.lookahead_steps and recipe.ema are two averages of the weights; set one to 0")


@dataclass(frozen=True, kw_only=True)
class Augmentation(_Checked):
    """Random changes of training images, and their normalisation.

    Attributes:
        flip: Whether images are mirrored with probability 1/2.
        alternating_flip: Whether each image is mirrored in every other epoch instead (K. Jordan, arXiv 2404.00498). A
            draw for each image says whether it begins in the first or second epoch.
        translate: Largest random translation in pixels, in each direction; equal to a random crop of the padded image.
        crop_padding: Colour of pixels that a translation leaves empty: `mean`, the mean colour of the training images;
            `black`, as in torchvision's `RandomCrop(size, padding)`; or `reflect`, the image mirrored at its border.
        cutout: Side in pixels of a square inside the image that is overwritten by the mean colour; 0 for none.
        mixup: Both parameters of the Beta distribution for mixing pairs of training images and their labels; 0 for
            none. The training loss is then that of mixed images.
        cutmix: Both parameters of the Beta distribution for replacing a rectangle of a training image by that of
            another image; 0 for none. With `mixup`, each batch is changed by one of the two, with probability 1/2.
        pixel_std: Standard deviation of each channel, of pixels in [0, 1]. All images are divided by it after their
            mean was subtracted; none for the standard deviations of the task.
    """

    flip: bool = True
    alternating_flip: bool = False
    translate: Annotated[int, Ge(0)] = 0
    crop_padding: Literal["mean", "black", "reflect"] = "mean"
    cutout: Annotated[int, Ge(0)] = 0
    mixup: Annotated[float, Ge(0)] = 0.0
    cutmix: Annotated[float, Ge(0)] = 0.0
    pixel_std: tuple[Annotated[float, Gt(0)], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alternating_flip and not self.flip:
            raise ValueError("recipe.alternating_flip needs recipe.flip=true")


@dataclass(frozen=True, kw_only=True)
class GrowingImages(_Checked):
    """Sizes of training images, if they differ from that of an evaluation.

    Attributes:
        train_sizes: Heights and widths of training images, one after the other, none of them larger than the images of
            an evaluation; none for the size of an evaluation in all epochs. Tasks of images in memory need square
            images for it.
        size_milestones: Shares of all epochs after which the next of `train_sizes` is used, from the next epoch.
        shrink_by: How the training images of a task of images in memory get a size of `train_sizes` below that of the
            task, after all other augmentation. `crop`: a window at a random position, drawn for each image and epoch.
            `resize`: bilinearly with antialiasing. Tasks of image files make random resized crops of each size.
    """

    train_sizes: tuple[Annotated[int, Interval(ge=8, le=4096)], ...] = ()
    size_milestones: _SharesOfEpochs = ()
    shrink_by: Literal["crop", "resize"] = "crop"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.size_milestones) != max(len(self.train_sizes) - 1, 0):
            raise ValueError("recipe.size_milestones needs one value between each two of recipe.train_sizes")
        if list(self.size_milestones) != sorted(set(self.size_milestones)):
            raise ValueError(f"recipe.size_milestones is {self.size_milestones}; the values must increase")

    def size_at(self, progress: float) -> int | None:
        """Return the side of training images at the share `progress`; `None` for that of an evaluation."""
        passed = sum(progress >= milestone for milestone in self.size_milestones)
        return self.train_sizes[passed] if self.train_sizes else None


@dataclass(frozen=True, kw_only=True)
class Evaluations(_Checked):
    """When and how the model is evaluated.

    Attributes:
        eval_batch_size: Number of images per forward pass of an evaluation.
        eval_every: Number of epochs from one evaluation to the next; the model of the last epoch is always evaluated.
        flip_tta: Whether an evaluation averages the logits of an image and of its mirror image.
        six_views: Whether the last evaluation averages the logits of six views of an image (K. Jordan, arXiv
            2404.00498). The image and its mirror image have weight 1/4 each. Both are also moved by one pixel over a
            reflected border, up and to the left, and down and to the right, with weight 1/8 each.
        evaluate_test: Whether the model is evaluated on the test images. If not, they are not loaded, and only the
            validation split is evaluated, as in the trials of `tune`.
    """

    eval_batch_size: Annotated[int, Ge(1)] = 500
    eval_every: Annotated[int, Ge(1)] = 1
    flip_tta: bool = False
    six_views: bool = False
    evaluate_test: bool = True

    def count(self, epochs: int) -> int:
        """Return the number of evaluations in a training that ends after `epochs` epochs, the last one included.

        With `six_views`, the last evaluation counts six views in addition: six more evaluations of one view, or three
        of two.
        """
        more = (3 if self.flip_tta else 6) if self.six_views else 0
        return -(-epochs // self.eval_every) + more


@takes_leaves
@dataclass(frozen=True, kw_only=True)
class Recipe(_Checked):
    """How a network is trained. Each field can be set by `--set recipe.FIELD=VALUE` and is part of the trial's id.

    Fields that belong together are in a group. Code reads `recipe.augmentation.flip`. A field is set by its own name
    alone, here as on the command line: `Recipe(epochs=8, batch_size=64, learning_rate=0.1, flip=False)`.

    Attributes:
        epochs: Number of passes over the training images. The last one may be partial, as in 9.9.
        batch_size: Global batch size, over all ranks and micro-batches.
        learning_rate: Highest learning rate of the schedule.
        lr_schedule: How the learning rate changes: `LearningRateSchedule`.
        optimizer: `sgd`, or `adamw`, whose weight decay is multiplied by the learning rate as SGD's is, but not by
            Adam's scaling.
        momentum: Momentum of SGD; decay rate of the mean of gradients (beta1) of AdamW.
        nesterov: Whether the momentum of SGD is Nesterov's; setting another optimizer sets it to false.
        second_momentum: Decay rate of the mean of squared gradients (beta2) of AdamW.
        weight_decay: Weight decay of the optimizer.
        decay_norm_and_bias: Whether weight decay also applies to normalisation layers and biases.
        relative_decay: Whether the weight decay is divided by the highest learning rate of its parameters. Their
            product then does not change with that rate.
        norm_bias_lr: Factor of the learning rate for biases of normalisation layers.
        freeze: Names of parameters that are frozen after `freeze_after` epochs; weights of layers cannot be. Frozen
            parameters have no gradient, weight decay or momentum.
        freeze_after: Epochs after which they are frozen; above 0 if there are any.
        label_smoothing: Label smoothing of the cross entropy.
        clip_norm: Largest norm of the gradient; `none` does not clip.
        averaging: An average of the weights: `Averaging`.
        precise_bn: Number of training images from which the running statistics of batch normalisation are estimated
            again after the last step, with the final weights and unmixed images; 0 for none. It is rounded up to whole
            batches, at most an epoch. Running averages lag behind weights that change fast. The passes count as
            training FLOPs and as training time; `plan` leaves them out. (Y. Wu and J. Johnson, arXiv 2105.07576.)
        micro_batches: Number of parts into which a batch is split for forward and backward.
        execution: How every method executes forward and backward of a step: `eager`; `compile`, as one graph made by
            `torch.compile`; or `cuda_graph`, captured once and replayed. `cuda_graph` needs CUDA and a method that
            allows it. Compiled kernels round differently, so the execution is part of the trial's id. Times of
            different executions must not be compared.
        validation_images: Number of training images in the validation split, stratified by class. `split_seed` selects
            them.
        split_seed: Seed that selects splits and subsets of images.
        train_images, test_images: Size of a stratified subset of the images; `none` uses all of them.
        drop_last: Whether an epoch drops the last batch if fewer than `batch_size` images are left for it.
        augmentation: Random changes of training images: `Augmentation`.
        growing: Sizes of training images: `GrowingImages`.
        evaluation: When and how the model is evaluated: `Evaluations`.
    """

    epochs: Annotated[int | float, Interval(ge=1, le=100_000)]
    batch_size: Annotated[int, Ge(1)]
    learning_rate: Annotated[float, Ge(0), Search(0.25, 4, log=True, relative=True)]
    lr_schedule: LearningRateSchedule = LearningRateSchedule()
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    second_momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.999
    weight_decay: Annotated[float, Ge(0)] = 5e-4
    decay_norm_and_bias: bool = True
    relative_decay: bool = False
    norm_bias_lr: Annotated[float, Gt(0)] = 1.0
    freeze: tuple[str, ...] = ()
    freeze_after: Annotated[int, Ge(0)] = 0
    label_smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    clip_norm: Annotated[float, Gt(0)] | None = None
    averaging: Averaging = Averaging()
    precise_bn: Annotated[int, Interval(ge=0, le=1_000_000_000)] = 0
    micro_batches: Annotated[int, Ge(1)] = 1
    execution: Literal["eager", "compile", "cuda_graph"] = "eager"
    validation_images: Annotated[int, Ge(0)] = 0
    split_seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 0
    train_images: Annotated[int, Ge(1)] | None = None
    test_images: Annotated[int, Ge(1)] | None = None
    drop_last: bool = True
    augmentation: Augmentation = Augmentation()
    growing: GrowingImages = GrowingImages()
    evaluation: Evaluations = Evaluations()

    if TYPE_CHECKING:

        def __init__(self, **values: Any) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs == int(self.epochs):
            object.__setattr__(self, "epochs", int(self.epochs))  # 7.0 and 7 are one recipe, with one id
        if self.batch_size % self.micro_batches:
            raise ValueError(f"recipe.batch_size must be a multiple of recipe.micro_batches={self.micro_batches}")
        if not self.evaluation.evaluate_test and not self.validation_images:
            raise ValueError("recipe.evaluate_test=false needs recipe.validation_images above 0")
        if self.nesterov and not self.momentum:
            raise ValueError("recipe.nesterov needs a recipe.momentum above 0")
        if self.nesterov and self.optimizer != "sgd":
            raise ValueError(f"recipe.nesterov is of SGD; with recipe.optimizer={self.optimizer} set it to false")
        if self.relative_decay and not self.learning_rate:
            raise ValueError("recipe.relative_decay needs a recipe.learning_rate above 0")
        if bool(self.freeze) != bool(self.freeze_after):
            raise ValueError("recipe.freeze and recipe.freeze_after belong together: set both, or none")
        if self.lr_schedule.warmup_epochs >= self.epochs:
            raise ValueError(f"recipe.warmup_epochs must be below recipe.epochs, which is {self.epochs}")

    def changed(self, **values: Any) -> Recipe:
        """Return the recipe with other values. AdamW, which has no Nesterov momentum, switches that of SGD off."""
        of_sgd = values.get("optimizer", "sgd") != "sgd" and "nesterov" not in values
        return replace(self, **{**({"nesterov": False} if of_sgd else {}), **values})

    def fields(self) -> dict[str, Any]:
        """Return every field by its own name, those of groups too."""
        flat: dict[str, Any] = {}
        for name, value in vars(self).items():
            flat |= vars(value) if isinstance(value, _Checked) else {name: value}
        return flat

    @property
    def whole_epochs(self) -> int:
        """Number of epochs, rounded up."""
        return math.ceil(self.epochs)

    def steps_in(self, epoch: int, whole: int) -> int:
        """Return the steps of the `epoch`th epoch of the schedule, from 0, if whole epochs have `whole` steps."""
        left = self.epochs - epoch
        return whole if left >= 1 else math.ceil(left * whole - _ROUNDING)

    def length(self, whole: int) -> float:
        """Return the length of the schedule in epochs of `whole` steps, its last epoch rounded to whole steps."""
        last = self.whole_epochs - 1
        return last + self.steps_in(last, whole) / whole

    def phase_of(self, epoch: int) -> Phase:
        """Return the phase of an epoch of the schedule, counted from 0."""
        return Phase(self.growing.size_at(epoch / self.epochs), bool(self.freeze) and epoch >= self.freeze_after)

    def phases(self) -> list[Phase]:
        """Return the phase of each epoch of one schedule."""
        return [self.phase_of(epoch) for epoch in range(self.whole_epochs)]

    def weight_decay_at(self, factor: float) -> float:
        """Return the weight decay of parameters whose learning rate is multiplied by `factor`."""
        return self.weight_decay / (self.learning_rate * factor) if self.relative_decay else self.weight_decay

    def learning_rate_at(self, progress: float) -> float:
        """Return the learning rate after the share `progress`, in [0, 1], of the training."""
        return self.learning_rate * self.lr_schedule.factor_at(progress, self.epochs)


def control_epochs(epochs: float) -> list[float]:
    """Return the lengths in epochs of the dense budget curve: ascending, each once, fewer than `epochs`.

    They are `EPOCH_PERCENTAGES`, rounded to whole epochs. A length is added between two neighbours that differ by more
    than `WIDEST_GAP` of the whole training, which is itself a neighbour. A shorter length is added if there are fewer
    than a verdict needs.
    """
    counts: set[float] = {epochs, *(max(1, int((epochs * percentage + 50) // 100)) for percentage in EPOCH_PERCENTAGES)}
    for low, high in pairwise(sorted(counts)):
        if high - low > max(1, WIDEST_GAP * epochs):
            counts.add(int((low + high) // 2))
    shortest = min(counts)
    if len(counts) == FEWEST_BUDGETS - 1 and shortest > 1 and WIDEST_GAP * epochs >= 1:
        counts.add(shortest - 1)
    return sorted(counts - {epochs})
