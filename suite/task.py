"""The contract of a task: a data set, a default model and recipes.

`docs/add-a-task.md` shows a complete task. Tasks of images that fit into memory derive from `tasks.pipeline.ImageTask`,
which implements `prepare` and `load`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from suite.errors import UsageError, nearest
from suite.recipe import Recipe, Tuning


@dataclass(frozen=True)
class DataCopy:
    """The copy of a data set that a trial uses, as `Task.prepare` found it.

    Attributes:
        kind: Kind of the copy, for example `original`, `jpeg` or `sample`; the first half of the column `data_copy`.
        checksum: SHA-256, in hex, of the decoded images and labels. It is part of the trial's id.
        path: File or folder that `Task.load` reads; empty if the data is part of a package.
        note: One line for log and report that describes the copy and what follows for its numbers.
        num_classes: Number of classes that `prepare` found; 0 for a task whose classes are fixed.
        image_size: Height and width of images that follow from the images found; 0 for a task of one size.
    """

    kind: str
    checksum: str
    path: str = ""
    note: str = ""
    num_classes: int = 0
    image_size: int = 0

    def fields(self) -> dict[str, Any]:
        """Return every field by name, except numbers that are 0."""
        return {name: value for name, value in vars(self).items() if value != 0}

    @property
    def label(self) -> str:
        """The column `data_copy`: the kind and the first 8 digits of the checksum."""
        return f"{self.kind}-{self.checksum[:8]}"


class Inputs(NamedTuple):
    """What a network receives and returns: images of shape (C, H, W), and the number of classes."""

    shape: tuple[int, int, int]
    classes: int


class Batches(Protocol):
    """Batches of one split, on the training device.

    Attributes:
        num_samples: Number of samples in the split.
    """

    num_samples: int

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of batches per epoch.

        A training split leaves out a smaller last batch if `recipe.drop_last` is set.
        """

    def epoch(self, epoch: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the batches of one epoch.

        A training split is shuffled and augmented. Its random numbers depend only on the trial's seed and on `epoch`. A
        resumed trial therefore sees the same batches as an uninterrupted one. An evaluation split is neither shuffled
        nor augmented.

        Args:
            epoch: Number of the epoch, from 0.
            batch_size: Number of samples per batch.

        Yields:
            Images (n, C, H, W) float32, normalised, channels-last, and labels (n,) int64.
        """


@runtime_checkable
class ShareableBatches(Batches, Protocol):
    """Batches of which a rank can compute its share alone.

    A trial of several processes uses this interface. For other batches, each rank computes the whole batch and takes
    its share.
    """

    def share_of_epoch(self, epoch: int, batch_size: int, rank: int, ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over one rank's share of each batch of `epoch`, for a training in several processes.

        Args:
            epoch, batch_size: As for `epoch`; the batch size is that of all ranks.
            rank: Number of the share, from 0.
            ranks: Number of shares, into which `Tensor.tensor_split` would divide a batch.

        Yields:
            As `epoch`; n may be 0 in a last batch of fewer than `ranks` samples.
        """


@runtime_checkable
class LabelledBatches(Batches, Protocol):
    """Batches whose labels are known before an epoch. The trial's record then has the size of the largest class.

    Attributes:
        labels: (N,) int64, the label of each sample.
    """

    labels: Tensor


@runtime_checkable
class SampledBatches(Batches, Protocol):
    """Batches that return images outside of an epoch, for a model whose initialisation depends on images."""

    def sample(self, count: int, seed: int) -> Tensor:
        """Return images of the split, drawn without replacement, with each class in its proportion.

        Args:
            count: Number of images; all if there are fewer.
            seed: Seed of the trial.

        Returns:
            (n, C, H, W) float32, normalised and not augmented, on the training device.
        """


@dataclass(frozen=True)
class Splits:
    """The splits of a trial.

    Attributes:
        train: Training split.
        test: Test split, on which the reported accuracy is measured; `None` if the recipe does not evaluate it.
        validation: Validation split; `None` if the recipe asks for none.
        train_by_size: Training split with images of each size of the recipe's `train_sizes`; empty without them.
    """

    train: Batches
    test: Batches | None
    validation: Batches | None = None
    train_by_size: Mapping[int, Batches] = field(default_factory=dict)

    def training(self, size: int | None) -> Batches:
        """Return the training split whose images have `size`, one of the recipe's `train_sizes`; `train` for `None`."""
        return self.train if size is None else self.train_by_size[size]


class PaperRecipe(NamedTuple):
    """A recipe with a name, mostly one that a paper publishes.

    Attributes:
        source: Name of the paper; empty for a recipe of this suite.
        preset: The preset that it belongs to.
        model: Default model of trials with this recipe; empty for that of the preset.
    """

    source: str
    recipe: Recipe
    preset: str = "paper"
    model: str = ""


class Task:
    """Base class of every task.

    A task's parameters are the keywords of its constructor, typed in brackets: `imagenette[image_size=160]`.

    Class attributes:
        title: Name of the task in reports, for example "CIFAR-10".
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image.
        source: Origin of the data, for `describe` and the report.
        models: Default model by preset, as typed on the command line: `resnet9[width=0.25]`.
        cuda_models: Default model on CUDA, for presets in which it differs from that of `models`.
        recipes: Recipe by preset: `smoke` takes seconds, `quick` minutes, `paper` is that of a publication.
        paper_recipe: The paper whose recipe preset `paper` uses; `none` if there is no such paper.
        paper_recipes: Recipes by name, mostly those of papers; `--recipe NAME` selects one in its preset. If the name
            is that of a method, the recipe is that of the method's paper.
        tuning: How the values of `recipes` were chosen, and how many trials that cost.
        settings: Values of the task's parameters by preset or by name in `paper_recipes`. A name that is absent has the
            values of its preset.
        detected: What `prepare` detects in the data in place of the class attributes, for `describe`; empty for
            nothing.
    """

    registered_name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    num_classes: ClassVar[int] = 0
    input_shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    source: ClassVar[str] = ""
    models: ClassVar[Mapping[str, str]] = {}
    cuda_models: ClassVar[Mapping[str, str]] = {}
    recipes: ClassVar[Mapping[str, Recipe]] = {}
    paper_recipe: ClassVar[str] = "none"
    paper_recipes: ClassVar[Mapping[str, PaperRecipe]] = {}
    tuning: ClassVar[Sequence[Tuning]] = ()
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    detected: ClassVar[str] = ""

    @classmethod
    def defaults(cls, preset: str, recipe: str = "") -> Mapping[str, Any]:
        """Return default values of the task's parameters in a preset, or with a recipe by its name."""
        return cls.settings.get(recipe, cls.settings.get(preset, {}))

    def default_model(self, preset: str) -> str:
        """Return the model of `models` that a trial uses if `--model` is not given.

        Raises:
            UsageError: If the task has no such preset.
        """
        return self._of_preset("models", preset)

    def model_on(self, device: str, preset: str) -> str:
        """Return the default model on `cpu` or `cuda`: that of `cuda_models`, or `default_model`."""
        own = self.cuda_models.get(preset) if device == "cuda" else None
        return own or self.default_model(preset)

    def recipe(self, preset: str) -> Recipe:
        """Return the recipe of `recipes` for a preset.

        Raises:
            UsageError: If the task has no such preset.
        """
        return self._of_preset("recipes", preset)

    def needs_data_root(self, preset: str) -> bool:
        """Return whether a command has to name the folder of the user's own data with `--data-root`.

        It need not if the default data root has a folder with the task's name. By default, no task needs it.

        Args:
            preset: `smoke`, `quick` or `paper`.
        """
        return False

    def inputs(self, recipe: Recipe, copy: DataCopy | None = None) -> Inputs:
        """Return the shape of the images that a network receives, and the number of classes.

        The default is `input_shape` and `num_classes`. A task whose recipe or data determines them overrides this
        method.

        Args:
            recipe: Recipe of the trial.
            copy: Result of `prepare`; `None` while a command is checked before `prepare`.
        """
        return Inputs(self.input_shape, self.num_classes)

    def prepare(self, data_root: Path, preset: str, recipe: Recipe | None = None) -> DataCopy:
        """Find or download the data, and describe the copy. Each command calls this once, before its first trial.

        A task that decodes slowly decodes here, once, into a file with a checksum (`tasks.sources.cache`).

        Args:
            data_root: Value of `--data-root`.
            preset: `smoke`, `quick` or `paper`.
            recipe: Recipe of the trials; `None` for the recipe of the preset.

        Raises:
            suite.errors.MissingData: The data is missing. One line names the folder that was searched, the option that
                changes it, and an alternative that needs no download.
        """
        raise self._undefined("prepare()")

    def load(self, copy: DataCopy, recipe: Recipe, seed: int, device: torch.device) -> Splits:
        """Put the splits on the device. Every trial calls this.

        Args:
            copy: Result of `prepare`.
            recipe: Recipe of the trial.
            seed: Seed of the trial. It determines shuffling and augmentation, but not the split of an image.
            device: Training device.
        """
        raise self._undefined("load()")

    def _of_preset(self, attribute: str, preset: str) -> Any:
        values = getattr(self, attribute)
        if not values:
            raise self._undefined(attribute)
        if preset not in values:
            raise UsageError(f"task {self.registered_name} has no preset '{preset}'{nearest(preset, values)}")
        return values[preset]

    def _undefined(self, name: str) -> UsageError:
        return UsageError(f"task {self.registered_name}: {type(self).__name__} does not define {name}")
