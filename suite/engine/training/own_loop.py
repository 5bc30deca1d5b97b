"""The hooks of a method for a training loop of one's own, which is not trusted to call them as the trainer does.

Its files are its state, with which it goes on with equal bits, and its final model.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from suite import files
from suite.engine.network import model_files
from suite.engine.network.planned_layer import PlannedLayer
from suite.engine.training.averages import bare
from suite.engine.training.data_parallel import random_state, set_random_state
from suite.engine.training.method_runner import MethodRunner
from suite.errors import UsageError, in_words, nearest
from suite.method import Context, Method, ReconfigPlan

log = logging.getLogger(__name__)

KIND = "training loop"
NAMES = ("attach", "transform_batch", "begin_micro_batch", "regularization", "optimizer_step", "end_epoch", "finish",
         "save", "load", "save_model")  # fmt: skip
"""What the examples of the guide call, in this order."""
_SIMPLE = (type(None), bool, int, float, complex, str, bytes)


class OwnLoop(MethodRunner):
    """A method on a bare model, for your own loop, which calls:

        hooks.attach(optimizer)
        for each epoch:
            for each batch:
                images, labels = hooks.transform_batch(images, labels)
                loss = criterion(model(images), labels)
                loss.backward()
                hooks.regularization(loss).backward()
                hooks.optimizer_step()
                optimizer.zero_grad()
            hooks.end_epoch()
        hooks.finish()

    and if it needs them, `begin_micro_batch` before the forward of each part of a batch, `save` and `load` to go on
    after a stop, and `save_model` at the end. `dir(hooks)` lists these.

    Arguments, attributes and errors are those of `MethodRunner`.

    Attributes:
        settings: Arguments of `apply` that a training which goes on must have again.
    """

    def __init__(self, method: Method, ctx: Context, train_size: int | None = None) -> None:
        super().__init__(method, ctx, train_size)
        self._began: int | None = None  # the step whose batch was transformed last
        self._term_of: int | None = None  # the step whose term was returned last
        self._term_waits = False  # whether that term had no backward yet
        self._warned_of_term = False
        self.settings = {
            "input_shape": [*ctx.input_shape], "num_classes": ctx.num_classes, "epochs": ctx.epochs,
            "batch_size": ctx.batch_size, "micro_batches": ctx.micro_batches, "seed": ctx.seed,
        }  # fmt: skip

    def __dir__(self) -> list[str]:
        return [*NAMES]

    def transform_batch(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self._began = self.ctx.step
        return super().transform_batch(images, labels)

    def begin_micro_batch(self, micro_batch: int, micro_batches: int) -> None:
        if not 0 <= micro_batch < micro_batches:
            raise UsageError(
                f"hooks.begin_micro_batch({micro_batch}, {micro_batches}): micro-batches are counted from 0 to "
                f"{micro_batches - 1}"
            )
        super().begin_micro_batch(micro_batch, micro_batches)

    def regularization(self, task_loss: Tensor | float) -> Tensor:
        """Return the method's term of a step, whose backward adds its gradient; call it once a step.

        After the backwards of all micro-batches, `hooks.regularization(sum_of_losses).backward()` is right for every
        method; with a gradient scaler, `scaler.scale(hooks.regularization(sum_of_losses)).backward()`.

        Args:
            task_loss: Loss of the whole batch on this rank, a number: the sum of what the micro-batches' backwards
                began with, without a scaler's factor.

        Returns:
            The term, (); 0 with an empty gradient if the method has none. Autocast is off in it.

        Raises:
            UsageError: if it was called in this step already, or inside `torch.no_grad()`.
        """
        if not torch.is_grad_enabled():
            raise UsageError("hooks.regularization was called inside torch.no_grad(), where its term has no gradient")
        if self._term_of == self.ctx.step:
            raise UsageError(
                f"hooks.regularization was called twice in step {self.ctx.step}: call it once a step, with the "
                "sum of the losses after the backwards of all micro-batches, and end each step with "
                "hooks.optimizer_step(), or with hooks.end_step() if it is skipped"
            )
        loss = torch.as_tensor(task_loss, device=self.ctx.device)
        loss = loss if loss.is_floating_point() else loss.float()
        if loss.numel() != 1:
            raise UsageError(f"hooks.regularization takes the mean loss of a batch, not {loss.numel()} numbers")
        self._term_of = self.ctx.step
        term = self.term_of_step(loss.reshape(()))
        if term is None or not term.requires_grad:
            # The loop can call the backward of this, too, whatever the method.
            return (torch.zeros_like(loss) if term is None else term.detach()).requires_grad_()
        self._term_waits = True
        term.register_hook(self._note_backward)
        return term

    def _note_backward(self, gradient: Tensor) -> None:
        self._term_waits = False

    def optimizer_step(self, step: Callable[[], Any] | None = None) -> bool:
        """Run the optimizers and the two hooks around them, as `MethodRunner.optimizer_step` does.

        Raises:
            UsageError: if the method's term of this step had no backward, or the method leaves out branches or keeps
                statistics and `transform_batch` was not called in this step: the method would have no effect.
        """
        if self._began != self.ctx.step and (self.frozen_norms or self.method.defines("branch_factors")):
            raise UsageError(
                f"hooks.transform_batch was not called in step {self.ctx.step}, so that {type(self.method).__name__} "
                "has no effect: begin each step with images, labels = hooks.transform_batch(images, labels)"
            )
        if self._term_waits:
            raise UsageError(
                "the term that hooks.regularization returned had no backward, so that the method would have no effect: "
                "call hooks.regularization(loss).backward()"
            )
        return super().optimizer_step(step)

    def end_step(self) -> None:
        super().end_step()
        self._term_waits = False

    def plan_epoch_end(self) -> ReconfigPlan | None:
        if self._term_of is None and not self._warned_of_term and self.ctx.step:
            self._warned_of_term = True
            if self.method.defines("regularization"):
                log.warning(
                    f"hooks.regularization was not called in epoch {self.ctx.epochs_done + 1}: "
                    f"{type(self.method).__name__} has a term, whose gradient is missing"
                )
        return super().plan_epoch_end()

    def save(self, path: str | Path, **others: Any) -> None:
        """Write all that the training needs to go on with equal bits to a file; every rank calls it.

        The file has model, optimizers, averages, the state of the method, its reconfigurations, and the states of
        torch's and Python's generators of random numbers on every rank. An existing file is replaced at once, so that a
        killed process leaves the old one or the new one.

        Args:
            path: The file, which rank 0 writes.
            others: What else to save, by name: objects with a `state_dict`, such as a scheduler or a gradient scaler,
                or plain data: numbers, texts, tensors, and lists and dictionaries of these.

        Raises:
            UsageError: on every rank, if something is neither or the file cannot be written; after five minutes,
                if rank 0 calls it alone. An existing file stays.
        """
        _save(Path(path), self, others)

    def load(self, path: str | Path, **others: Any) -> dict[str, Any]:
        """Continue a training that `save` wrote: cut the new model and load everything; every rank calls it.

        Call it after `attach`, and wrap or compile the model afterwards.

        Args:
            path: The file, which every rank reads.
            others: Objects with a `load_state_dict`, by the names that `save` was given.

        Returns:
            The others that were saved and have no object here, such as plain data, by name.

        Raises:
            UsageError: if the file cannot be read, or was written for another model, method or arguments of `apply`, or
                for another number of optimizers, averages or ranks.
        """
        return _load(Path(path), self, others)

    def save_model(self, path: str | Path, average: nn.Module | None = None) -> None:
        """Write the network as it is used in evaluation to a file that needs neither the method nor the training.

        `suite.checkpoint.load_model(path, model)` reads it into a newly built model.

        Args:
            path: The file, which rank 0 writes.
            average: Write this one of `averages` in place of the model.

        Raises:
            UsageError: if the average was not attached, the model has a state that is not a tensor, or the file cannot
                be written.
        """
        if average is not None and not any(average is one for one in self.averages):
            raise UsageError(
                "hooks.save_model got an average that does not follow the model; attach it: "
                "hooks.attach(optimizer, averages=[average])"
            )
        _save_model(Path(path), self, self.model if average is None else bare(average, self.model))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._term_of = None


def _save(path: Path, runner: OwnLoop, others: Mapping[str, Any]) -> None:
    """Write the state of a training; `OwnLoop.save` describes it."""
    # Every rank needs its own random numbers again, in a single file, so that no kill leaves files of two steps.
    runner.ranks.meet("hooks.save")
    generators = runner.ranks.gather(_random_state(runner.ctx.device))
    failure = ""
    cause = None
    if runner.ranks.rank == 0:
        try:
            state = _state(runner, others) | {"random": generators}
            files.remove_parts(path)
            model_files.save(path, state)
        except Exception as error:  # the other ranks wait for the end of the save
            cause = error
            failure = in_words(error) if isinstance(error, OSError) else str(error)
            failure = failure if isinstance(error, (UsageError, OSError)) else f"{type(error).__name__}: {failure}"
    if failure := runner.ranks.from_first(failure):
        raise UsageError(failure) from cause


def _state(runner: OwnLoop, others: Mapping[str, Any]) -> dict[str, Any]:
    state = {
        "kind": KIND,
        "method": _method(runner),
        "settings": runner.settings,
        "counts": _counts(runner),
        "reconfigurations": [plan.to_json() for plan in runner.reconfigurations],
        "model": runner.model.state_dict(),
        "optimizers": [one.state_dict() for one in _optimizers(runner)],
        "averages": [average.state_dict() for average in runner.averages],
        "hooks": runner.state_dict(),
    }
    plain = {what: _plain(what, value) for what, value in state.items()}
    return plain | {"others": {name: _plain(name, _state_of(value)) for name, value in others.items()}}


def _state_of(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value


def _load(path: Path, runner: OwnLoop, others: Mapping[str, Any]) -> dict[str, Any]:
    """Continue from `_save`; `OwnLoop.load` describes it."""
    for name, value in others.items():
        if not hasattr(value, "load_state_dict"):
            raise UsageError(
                f"load has to get objects with a load_state_dict; {name} is a {type(value).__name__}: leave it out, "
                "and take it from what load returns"
            )
    if len(runner.reconfigurations) > runner.begun_with:
        raise UsageError("the model was cut already; build it again and apply the method, then load")
    state = model_files.load(path, runner.ctx.device)
    if state.get("kind") != KIND:
        raise UsageError(f"{path}: was not written by hooks.save")
    # What it lacks is found before anything is changed.
    for what, value in {**_state(runner, {}), "random": []}.items():
        if not isinstance(state.get(what), dict if isinstance(value, dict) else type(value)):
            raise UsageError(f"{path}: is damaged: its '{what}' is missing, or is no {type(value).__name__}")
    for what, value in _counts(runner).items():
        if not _equal(saved := state["counts"].get(what), value):
            raise UsageError(f"{path}: was saved with {saved} {what}, here there are {value}")
    theirs, ours = state["method"] | state["settings"], _method(runner) | runner.settings
    for what in {**ours, **theirs}:
        if not _equal(theirs.get(what), ours.get(what)):
            raise UsageError(f"{path}: was saved with {what} {theirs.get(what)}, here it is {ours.get(what)}")
    for name in others:
        if name not in state["others"]:
            raise UsageError(f"{path}: has no '{name}'{nearest(name, state['others'])}")
    try:
        _continue(path, runner, others, state)
    except UsageError:
        raise
    except Exception as error:  # the content may make a method's own code raise anything
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"{path}: is damaged, or of another version ({type(error).__name__}: {reason}); build the model again "
            "before another load"
        ) from error
    return {name: value for name, value in state["others"].items() if name not in others}


def _equal(saved: Any, value: Any) -> bool:
    """Return whether a saved value is that of here. A damaged file may have a tensor, which compares with nothing."""
    return type(saved) is type(value) and bool(saved == value)


def _continue(path: Path, runner: OwnLoop, others: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Change the model and everything else as a file says that was checked."""
    # Cut the model first, so that everything has the shapes that were saved.
    _replay(path, runner, state)
    _load_into(path, "the model", runner.model, state["model"])
    optimizers = _optimizers(runner)
    for number, (optimizer, own) in enumerate(zip(optimizers, state["optimizers"], strict=True), start=1):
        _load_into(path, f"optimizer {number}, {type(optimizer).__name__},", optimizer, own)
    for average, own in zip(runner.averages, state["averages"], strict=True):
        _load_into(path, f"the average, {type(average).__name__},", average, own)
    runner.load_state_dict(state["hooks"])
    for name, value in others.items():
        _load_into(path, name, value, state["others"][name])
    _set_random_state(state["random"][runner.ranks.rank], runner.ctx.device)


def _save_model(path: Path, runner: OwnLoop, model: nn.Module) -> None:
    """Write a bare model, or a bare average of its weights, with the weights that its forward uses."""
    if runner.ranks.rank:
        return
    tensors = model.state_dict()
    if other := next((name for name, value in tensors.items() if not isinstance(value, Tensor)), ""):
        raise UsageError(f"the model cannot be saved: its state '{other}' is not a tensor (get_extra_state)")
    with torch.no_grad():
        for name, layer in model.named_modules():
            if isinstance(layer, PlannedLayer):
                tensors[f"{name}.weight"] = layer.forward_weight(layer.weight)
    ctx = runner.ctx
    try:
        model_files.save_model(
            path,
            model,
            tensors=tensors,
            name="",
            num_classes=ctx.num_classes,
            input_shape=ctx.input_shape,
            reconfigurations=runner.reconfigurations,
        )
    except OSError as error:
        raise UsageError(in_words(error)) from error


def _optimizers(runner: OwnLoop) -> list[torch.optim.Optimizer]:
    optimizer = runner.ctx.optimizer
    if optimizer is None:
        raise UsageError("no optimizer is attached; call hooks.attach(optimizer) first")
    return list(getattr(optimizer, "parts", [optimizer]))


def _method(runner: OwnLoop) -> dict[str, str]:
    """Return the method's name and its parameters, as text."""
    method = runner.method
    # `Method` itself is not a dataclass.
    names: list[str] = [one.name for one in dataclasses.fields(method)] if dataclasses.is_dataclass(method) else []
    return {"method": type(method).__name__, **{name: repr(getattr(method, name)) for name in names}}


def _counts(runner: OwnLoop) -> dict[str, int]:
    return {
        "optimizers": len(_optimizers(runner)),
        "averages": len(runner.averages),
        "ranks": runner.ranks.size,
    }


def _plain(where: str, value: Any) -> Any:
    """Return data with Python's numbers in place of NumPy's, which `load` could not read.

    Args:
        where: Name of the value, for the message.
        value: Numbers, texts, tensors, and lists and dictionaries of these.

    Raises:
        UsageError: `load` could not read the value, because it has an object of another class.
    """
    if isinstance(value, np.generic):
        return value.item()
    kind: Any = type(value)
    if kind in (dict, OrderedDict):
        return kind((_plain(where, key), _plain(f"{where}[{key!r}]", one)) for key, one in value.items())
    if kind in (list, tuple):
        return kind(_plain(f"{where}[{index}]", one) for index, one in enumerate(value))
    if not isinstance(value, Tensor) and kind not in _SIMPLE:
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            buffer.seek(0)
            torch.load(buffer, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever the object's own code raises
            raise UsageError(
                f"{where} cannot be saved: a {type(value).__name__} is not plain data (numbers, texts, tensors, lists "
                "and dictionaries of these) and has no state_dict of plain data"
            ) from error
    return value


def _replay(path: Path, runner: OwnLoop, state: Mapping[str, Any]) -> None:
    try:
        runner.replay([ReconfigPlan.from_json(plan) for plan in state["reconfigurations"]])
    except ValueError as error:
        raise UsageError(f"{path}: does not fit this model: {error}") from error
    _compare(path, state["model"], runner.model.state_dict())


def _compare(path: Path, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> None:
    """Raise a `UsageError` that names the first tensor by which two models differ."""
    for name in {**ours, **theirs}:
        if not all(isinstance(tensors.get(name, Tensor()), Tensor) for tensors in (theirs, ours)):
            continue  # an extra state, which the module itself reads
        shapes = [tuple(tensors[name].shape) if name in tensors else "absent" for tensors in (theirs, ours)]
        if shapes[0] != shapes[1]:
            raise UsageError(f"{path}: is of another model: its '{name}' is {shapes[0]}, here {shapes[1]}")


def _load_into(path: Path, what: str, target: Any, state: Any) -> None:
    try:
        target.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError) as error:
        raise UsageError(f"{path}: does not fit {what}: {str(error).splitlines()[0]}") from error


def _random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of torch's and Python's generators in this process."""
    return {**random_state(device), "python": random.getstate()}


def _set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    set_random_state(state, device)
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
