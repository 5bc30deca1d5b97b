"""The contract of a task: data, a default model, and recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from suite.errors import UsageError
from suite.recipe import Recipe


@dataclass(frozen=True)
class DataCopy:
    """Which copy of a data set a trial uses, found and made ready.

    Attributes:
        kind: `original`, `jpeg`, `sample`, ...: the first half of the column `data_copy`.
        checksum: SHA-256, in hex, of the decoded images and labels.
        path: the file that `Task.load` opens; empty where the data is part of a package.
        note: one line for log and report that says what the copy is and what that means for its numbers.
    """

    kind: str
    checksum: str
    path: str = ""
    note: str = ""

    @property
    def label(self) -> str:
        """The column `data_copy`: the kind and the checksum's first 8 digits."""
        return f"{self.kind}-{self.checksum[:8]}"


class Batches(Protocol):
    """Batches of one split, on the training device."""

    num_samples: int

    def steps_per_epoch(self, batch_size: int) -> int:
        """How many batches an epoch has; in a training split without the last, smaller one if `recipe.drop_last`."""

    def epoch(self, epoch: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch: images (n, C, H, W) float32, normalised, channels-last, and labels (n,) int64.

        A training split is shuffled and augmented by numbers that depend on the trial's seed and `epoch` alone, so
        that a resumed trial sees what an undisturbed one does; an evaluation split is neither.
        """


@dataclass(frozen=True)
class Splits:
    """What a trial trains and is judged on; `validation` is `None` where the recipe asks for none."""

    train: Batches
    test: Batches
    validation: Batches | None = None


class PaperRecipe(NamedTuple):
    """A recipe as a paper has it, and the paper."""

    source: str
    recipe: Recipe


class Task:
    """Base class of every task.

    Class attributes:
        title: how a report names the task ("CIFAR-10").
        num_classes, input_shape: input_shape is (C, H, W).
        source: where the data comes from.
        paper_recipe: the paper whose recipe `--preset paper` is.
        paper_recipes: recipes of papers by name; `--recipe NAME` chooses one in preset `paper`. A recipe that is named
            after a method is that of the method's paper.
    """

    registered_name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    num_classes: ClassVar[int] = 0
    input_shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    source: ClassVar[str] = ""
    paper_recipe: ClassVar[str] = ""
    paper_recipes: ClassVar[Mapping[str, PaperRecipe]] = {}

    def default_model(self, preset: str) -> str:
        """The model a trial uses when none is typed, as one would type it: `resnet9[width=0.25]`."""
        raise self._lacks("default_model")

    def recipe(self, preset: str) -> Recipe:
        """The recipe of `smoke`, `quick` or `paper`."""
        raise self._lacks("recipe")

    def prepare(self, data_root: Path, preset: str) -> DataCopy:
        """Find the data (or fetch it), decode it into a checksummed cache once, and say which copy it is.

        Raises:
            suite.errors.MissingData: one line with the folder looked in, the option, and what needs no download.
        """
        raise self._lacks("prepare")

    def load(self, copy: DataCopy, recipe: Recipe, seed: int, device: torch.device) -> Splits:
        """Put the splits on the device. The seed decides shuffling and augmentation, never which image is in which."""
        raise self._lacks("load")

    def _lacks(self, method: str) -> UsageError:
        return UsageError(f"task {self.registered_name}: {type(self).__name__} does not define {method}()")
