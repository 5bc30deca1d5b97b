"""The method that is checked, and the trainings that the contracts share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from suite import files, registry
from suite.choices import TaskChoice, build_method, build_model
from suite.engine.cost.flops import count_model
from suite.engine.network import model_files
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import apply_plan
from suite.engine.training.conformance.density import ComparedTrainer, DensityCheck
from suite.engine.training.trainer import Record, Trainer
from suite.method import Method, OtherTrial, ReconfigPlan
from suite.parameters import resolve
from suite.recipe import Recipe
from suite.task import Inputs, Splits

TASK, MODEL, PRESET = "digits", "resnet9[width=0.125]", "smoke"
EPOCHS, BATCH_SIZE, TRAIN_IMAGES, TEST_IMAGES = 4, 64, 512, 200

AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)


class Broken(Exception):
    """A method breaks a contract; the text says how.

    Args:
        message: What is wrong, in one line.
        hook: Hook of the method that the contract is about.
        code: Function or transform that is wrong, if it is known more precisely than the hook.
    """

    def __init__(self, message: str, hook: str = "", code: Any = None) -> None:
        super().__init__(message)
        self.hook, self.code = hook, code


class Subject:
    """A method that is checked: its parameters, a small task and model, and the trainings that contracts share.

    The training takes 4 epochs of at most 512 images in batches of 64.

    Args:
        name: Registered name of the method.
        parameters: Values of its parameters; the others have their defaults for the task.
        task: Registered name of the task. The default needs no download.
        model: Model, written as on the command line; empty for the task's default model.
        data_root: Folder of the data sets.
        dtype: Number format to train in: `float32` or `bfloat16`.

    Attributes:
        density: Comparison of stated and observed densities in the undisturbed training.
    """

    density: DensityCheck

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, Any] | None = None,
        task: str = TASK,
        model: str = MODEL,
        data_root: Path = Path(),
        dtype: str = "float32",
    ) -> None:
        self.name = name
        self._dtype: torch.dtype = getattr(torch, dtype)
        choice = TaskChoice.read(task)
        self._task = choice.build(choice.parameters(PRESET))
        self._task_name, self._model_text = choice.name, model or self._task.default_model(PRESET)
        thing = registry.get("method", name)
        self.parameters = resolve(thing, thing.defaults(choice.name, PRESET), parameters or {})
        self._data = self._task.prepare(data_root, PRESET)
        self._inputs: Inputs = self._task.inputs(self._task.recipe(PRESET), self._data)

    @cached_property
    def recipe(self) -> Recipe:
        """The task's smoke recipe with fewer images."""
        recipe: Recipe = self._task.recipe(PRESET).changed(epochs=EPOCHS, batch_size=BATCH_SIZE)
        if self._task_name == TASK:
            return recipe.changed(train_images=TRAIN_IMAGES, test_images=TEST_IMAGES)
        # Another task may have fewer images than these limits.
        splits = self._task.load(self._data, recipe, 0, torch.device("cpu"))
        sizes = {"train_images": (splits.train, TRAIN_IMAGES), "test_images": (splits.test, TEST_IMAGES)}
        most: dict[str, Any] = {name: limit for name, (split, limit) in sizes.items() if split.num_samples > limit}
        return recipe.changed(batch_size=min(BATCH_SIZE, max(2, splits.train.num_samples // 8)), **most)

    @cached_property
    def splits(self) -> Splits:
        """Training and test images."""
        splits: Splits = self._task.load(self._data, self.recipe, 0, torch.device("cpu"))
        return splits

    def images(self, count: int) -> Tensor:
        """Return the first test images, (count, C, H, W)."""
        assert self.splits.test is not None
        return next(iter(self.splits.test.epoch(0, count)))[0]

    def method(self) -> Method:
        """Return a new instance of the method."""
        method: Method = build_method(self.name, self.parameters)
        return method

    def model(self) -> nn.Module:
        """Return the initialised model, with the same weights each time."""
        torch.manual_seed(0)
        model = build_model(self._model_text, *self._inputs)
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def starts_alike(self) -> bool:
        """Return whether the model begins with the same weights for every seed."""
        return model_files.starts_alike(self._model_text, self._inputs)

    def trainer(self, **callbacks: Any) -> Trainer:
        """Return a trainer before its first step."""
        return self.trainer_of(Trainer, **callbacks)

    def trainer_of(self, kind: type[AnyTrainer], **callbacks: Any) -> AnyTrainer:
        """Return a trainer of a class before its first step."""
        return kind(
            self.model(),
            self.method(),
            self.recipe,
            self.splits,
            input_shape=self._inputs.shape,
            num_classes=self._inputs.classes,
            seed=0,
            device=torch.device("cpu"),
            dtype=self._dtype,
            task=self._task_name,
            network=self._model_text.partition("[")[0],
            preset=PRESET,
            others=dict.fromkeys(self.method().depends_on(), self._other),
            **callbacks,
        )

    def resumed(self, content: bytes, **callbacks: Any) -> Trainer:
        """Return a trainer that was resumed from the content of a checkpoint file."""
        trainer = self.trainer(**callbacks)
        with files.temporary_folder("pdt-check-") as folder:
            path = folder / "checkpoint.pt"
            path.write_bytes(content)
            trainer.load_state_dict(model_files.load(path))
        return trainer

    @property
    def undisturbed(self) -> tuple[Trainer, list[Record], list[bytes]]:
        """A complete training: its trainer, the record of each epoch, and each epoch's checkpoint file as bytes.

        If it fails, every contract that needs it fails with the same exception.
        """
        if isinstance(self._training, Exception):
            raise self._training
        return self._training

    @cached_property
    def _training(self) -> tuple[Trainer, list[Record], list[bytes]] | Exception:
        records: list[Record] = []
        checkpoints: list[bytes] = []
        with files.temporary_folder("pdt-check-") as folder:

            def keep(state: Callable[[], dict[str, Any]]) -> None:
                path = folder / "checkpoint.pt"
                model_files.save(path, state())
                checkpoints.append(path.read_bytes())

            try:
                # This training compares its steps and resumed ones do not, but the results are the same.
                trainer = self.trainer_of(ComparedTrainer, on_epoch=records.append, on_checkpoint=keep)
                self.density = trainer.density
                trainer.fit()
            except Exception as error:  # raised again by `undisturbed`, for each contract
                return error
        return trainer, records, checkpoints

    @cached_property
    def _other(self) -> OtherTrial:
        """Result of a trial for a method that depends on another: half of the channels removed, and complete weights.

        The channels were removed after the first epoch. Some methods use what was removed, others the weights.
        """
        model = self.model()
        folder = files.temporary_folder("pdt-check-")
        path = folder.__enter__() / "model.pt"
        weakref.finalize(self, folder.__exit__, None, None, None)  # it exists as long as this object
        name, classes, shape = self.architecture.values()
        model_files.save_model(path, model, name=name, num_classes=classes, input_shape=shape, reconfigurations=[])
        spaces = find_index_spaces(model, self._inputs.shape)
        half = {space.name: space.original[::2] for space in spaces.values() if not space.frozen}
        plan = ReconfigPlan(kept=half)
        apply_plan(model, plan, spaces, None)
        flops = float(count_model(model, self._inputs.shape)["inference_flops"])
        return OtherTrial((plan,), flops, path, epochs=(1,))

    def initial_model(self) -> nn.Module:
        """Return the bare model after the changes that the method makes before training."""
        model, trainer = self.model(), self.trainer()
        spaces = find_index_spaces(model, self._inputs.shape)
        for plan in trainer.runner.reconfigurations:
            apply_plan(model, plan, spaces, None)
        return model

    @property
    def architecture(self) -> dict[str, Any]:
        """What `model_files.save_model` stores of the model: name, classes and input shape."""
        return {"name": self._model_text, "num_classes": self._inputs.classes, "input_shape": self._inputs.shape}
