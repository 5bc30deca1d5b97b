"""What every method must keep. Behind `check METHOD`, and inherited by the tests of every registered method.

Each contract is a function here, with the sentence it holds a method to. They train on the digits task, which needs no
download: a narrow ResNet-9, a few hundred images, seconds.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from suite import registry
from suite.choices import build_method, build_model
from suite.cost.flops import count_model, weight_density
from suite.method import Compact, Method, OtherTrial, ReconfigPlan, Site
from suite.network import model_files
from suite.network.channels.spaces import find_index_spaces
from suite.network.channels.surgery import apply_plan
from suite.network.planned_layer import PlannedLayer
from suite.parameters import resolve
from suite.random_keys import random_key
from suite.recipe import Recipe
from suite.task import Splits
from suite.training.density_check import DensityCheck
from suite.training.product_check import ProductCheck, WrongProduct
from suite.training.trainer import Record, Trainer

TASK, MODEL, PRESET = "digits", "resnet9[width=0.125]", "smoke"
EPOCHS = 4
TIMES = ("train_time_s", "eval_time_s", "reconfigure_time_s")


class Broken(Exception):
    """A method breaks a contract; the text says how."""


@dataclass(frozen=True)
class Result:
    """What one contract found."""

    name: str
    passed: bool
    message: str


class Subject:
    """A method under examination, and the runs that the contracts share."""

    density: DensityCheck  # of the undisturbed run

    def __init__(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        self.name = name
        thing = registry.get("method", name)
        self.parameters = resolve(thing, thing.defaults(TASK, PRESET), parameters or {})
        task = registry.get("task", TASK)()
        self._task = task
        self._data = task.prepare(Path(), PRESET)
        self.recipe: Recipe = replace(
            task.recipe(PRESET), epochs=EPOCHS, batch_size=64, train_images=512, test_images=200
        )

    @cached_property
    def splits(self) -> Splits:
        return self._task.load(self._data, self.recipe, 0, torch.device("cpu"))

    def method(self) -> Method:
        return build_method(self.name, self.parameters)

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model = build_model(MODEL, self._task.input_shape, self._task.num_classes)
        return model.to(memory_format=torch.channels_last)

    def trainer(self, **callbacks: Any) -> Trainer:
        """A trainer at the start of its run."""
        return Trainer(
            self.model(),
            self.method(),
            self.recipe,
            self.splits,
            input_shape=self._task.input_shape,
            num_classes=self._task.num_classes,
            seed=0,
            device=torch.device("cpu"),
            task=TASK,
            network=MODEL.partition("[")[0],
            preset=PRESET,
            others=dict.fromkeys(self.method().depends_on(), self._other),
            **callbacks,
        )

    @cached_property
    def undisturbed(self) -> tuple[Trainer, list[Record], list[bytes]]:
        """A whole run: its trainer, its records, and the checkpoint of every epoch as a file's bytes."""
        records: list[Record] = []
        checkpoints: list[bytes] = []
        with tempfile.TemporaryDirectory() as folder:

            def keep(state: Callable[[], dict[str, Any]]) -> None:
                path = Path(folder) / "checkpoint.pt"
                model_files.save(path, state())
                checkpoints.append(path.read_bytes())

            trainer = self.trainer(on_epoch=records.append, on_checkpoint=keep)
            self.density = DensityCheck(trainer)  # it disturbs nothing: resumed runs without it end with the same bits
            trainer.fit()
        return trainer, records, checkpoints

    @cached_property
    def _other(self) -> OtherTrial:
        """A trial that left half of the channels, and a file with the whole network, for a method that depends on one.

        Some methods take over what was cut, others the weights.
        """
        model = self.model()
        self._folder = tempfile.TemporaryDirectory()  # as long as this object
        path = Path(self._folder.name) / "model.pt"
        name, classes, shape = self.architecture.values()
        model_files.save_model(path, model, name=name, num_classes=classes, input_shape=shape, reconfigurations=[])
        spaces = find_index_spaces(model, self._task.input_shape)
        half = {space.name: space.original[::2] for space in spaces.values() if not space.frozen}
        plan = ReconfigPlan(kept=half)
        apply_plan(model, plan, spaces, None)
        return OtherTrial((plan,), float(count_model(model, self._task.input_shape)["inference_flops"]), path)

    def begun(self) -> nn.Module:
        """The bare model as the method begins with it."""
        model, trainer = self.model(), self.trainer()
        spaces = find_index_spaces(model, self._task.input_shape)
        for plan in trainer.hooks.reconfigurations:
            apply_plan(model, plan, spaces, None)
        return model

    @property
    def architecture(self) -> dict[str, Any]:
        return {"name": MODEL, "num_classes": self._task.num_classes, "input_shape": self._task.input_shape}


def trains(subject: Subject) -> str:
    """It trains: every loss is a number, and the last is below the first."""
    _, records, _ = subject.undisturbed
    first, last = records[0]["train_loss"], records[-1]["train_loss"]
    if not last < first:
        raise Broken(f"the training loss went from {first:.3f} to {last:.3f}")
    return f"training loss {first:.3f} to {last:.3f}, test accuracy {records[-1]['test_accuracy']:.3f}"


def resumes(subject: Subject) -> str:
    """A run resumed from any epoch's checkpoint ends with the same bits as the undisturbed one."""
    trainer, records, checkpoints = subject.undisturbed
    wanted = trainer.model.state_dict()
    for done, content in enumerate(checkpoints, start=1):
        again: list[Record] = []
        resumed = subject.trainer(on_epoch=again.append)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint.pt"
            path.write_bytes(content)
            resumed.load_state_dict(model_files.load(path))
        resumed.fit()
        got = resumed.model.state_dict()
        if list(got) != list(wanted):
            raise Broken(
                f"resumed after epoch {done}, the model has other tensors: {sorted(set(got) ^ set(wanted))[:3]}"
            )
        for name, tensor in wanted.items():
            if not torch.equal(got[name], tensor):
                raise Broken(f"resumed after epoch {done}, '{name}' differs at the end; is it missing in state_dict?")
        for new, old in zip(again, records[done:], strict=True):
            if _without_times(new) != _without_times(old):
                raise Broken(f"resumed after epoch {done}, the record of epoch {old['epoch']} differs")
    return f"from each of {len(checkpoints)} epochs"


def products_are_right(subject: Subject) -> str:
    """The products of each layer agree with float64, as the network begins and as it ends, in both number formats."""
    layers = 0
    for trainer in (subject.trainer(), subject.undisturbed[0]):
        for dtype in (torch.float32, torch.bfloat16):
            try:
                layers += ProductCheck(dtype, trainer.device).check(trainer.ctx.layers, trainer.ledger.current)
            except WrongProduct as wrong:
                raise Broken(str(wrong)) from wrong
    return f"{layers} layers at the start and at the end, in float32 and bfloat16"


def leaves_the_rest_alone(subject: Subject) -> str:
    """Planning an initialised model keeps its weights; layers left alone compute what torch's own do, bit for bit."""
    bare = subject.begun().eval()
    trainer = subject.trainer()
    planned = trainer.model.eval()
    for (name, before), after in zip(bare.state_dict().items(), planned.state_dict().values(), strict=True):
        if not torch.equal(before, after):
            raise Broken(f"'{name}' is changed before the first step")
    plans = [layer.op_plan for layer in trainer.ctx.layers.values() if isinstance(layer, PlannedLayer)]
    if any(plan.weight_forward or plan.backend for plan in plans):
        return "its forward is another than torch's by plan; weights are kept"
    images = next(iter(subject.splits.test.epoch(0, 8)))[0]
    if not torch.equal(bare(images), planned(images)):
        raise Broken("the outputs differ from the bare model's, and no plan changes a forward")
    return "same weights, same outputs"


def transforms_are_pure(subject: Subject) -> str:
    """A transform keeps shape and type, writes nothing into its argument, and depends on site and values alone."""
    seen = 0
    for name, operand, transform, tensor in _transforms(subject):
        seen += 1
        site = Site(name, operand, 3, 0, 0)
        before = tensor.clone()
        result = transform(tensor, site)
        if not torch.equal(tensor, before):
            raise Broken(f"{operand} of '{name}' writes into its argument")
        if isinstance(result, Compact):
            if result.values.shape[1] != result.kept.numel() or not bool((result.kept.diff() > 0).all()):
                raise Broken(f"{operand} of '{name}' returns a Compact whose values and ascending indices do not agree")
        elif (result.shape, result.dtype) != (tensor.shape, tensor.dtype):
            raise Broken(f"{operand} of '{name}' returns {tuple(result.shape)} {result.dtype}, not what it was given")
        again = _dense(transform(tensor, site), tensor)
        if not torch.equal(_dense(result, tensor), again):
            raise Broken(f"{operand} of '{name}' gives two results for one site; draw with site.key")
        if tensor.ndim == 4 and operand != "weight_forward":
            other_layout = _dense(transform(tensor.contiguous(), site), tensor)
            if not torch.allclose(other_layout, again, rtol=1e-5, atol=0):
                raise Broken(f"{operand} of '{name}' depends on the memory format")
    return f"{seen} transforms" if seen else "it has no transform"


def replays(subject: Subject) -> str:
    """If it says that a step may be replayed, its transforms know the step by `kernel_seed` alone."""
    if not subject.method().replayable:
        return "it does not say that a step may be replayed"
    seen = 0
    captured, replayed = 3, 8
    for name, operand, transform, tensor in _transforms(subject):
        seen += 1
        # What a replay in step 8 computes: the step that was captured, with the keys of the step that runs.
        result = transform(tensor, Site(name, operand, captured, 0, 0, _KeysOf(replayed)))
        if not torch.equal(
            _dense(result, tensor), _dense(transform(tensor, Site(name, operand, replayed, 0, 0)), tensor)
        ):
            raise Broken(f"{operand} of '{name}' would be another if it were replayed; leave `replayable` False")
    return f"{seen} transforms" if seen else "it has no transform"


@dataclass(frozen=True)
class _KeysOf:
    """The keys of one step of a trial with seed 0."""

    step: int

    def of(self, name: str, operand: str, slot: int) -> int:
        return random_key(0, self.step, slot, operand, name)


def density_is_true(subject: Subject) -> str:
    """`density` lies in [0, 1], and in no step a product needs a larger share of its multiply-adds than it states."""
    trainer, _, _ = subject.undisturbed
    density = subject.density
    assert density.steps == trainer.ctx.step
    if density.findings:
        more = len(density.findings) - 1
        raise Broken(density.findings[0] + (f"; and {more} more of layers and products" if more else ""))
    return f"stated and observed agree in {density.steps} steps"


def never_grows(subject: Subject) -> str:
    """What is gone stays gone: no layer's channels grow, and executed FLOPs never exceed the current shapes'."""
    _, records, _ = subject.undisturbed
    for before, after in itertools.pairwise(records):
        for name, layer in after["layers"].items():
            if name not in before["layers"]:
                raise Broken(f"layer '{name}' came back in epoch {after['epoch']}")
            if layer["out"] > before["layers"][name]["out"] or layer["in"] > before["layers"][name]["in"]:
                raise Broken(f"layer '{name}' grew in epoch {after['epoch']}")
    for record in records:
        flops = record["step_flops"]
        if (
            not max(flops["effective"], flops["executed"])
            <= flops["current"] * (1 + 1e-9)
            <= flops["dense"] * (1 + 2e-9)
        ):
            raise Broken(f"FLOPs of epoch {record['epoch']} are out of order: {flops}")
    return f"{records[0]['params']:,} to {records[-1]['params']:,} parameters"


def final_model_stands_alone(subject: Subject) -> str:
    """The final model opens without the method, gives the same outputs, and has the weight density that was stated."""
    trainer, _, _ = subject.undisturbed
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        plans = trainer.hooks.reconfigurations
        model_files.save_model(path, trainer.model, reconfigurations=plans, **subject.architecture)
        opened = model_files.load_model(path)
    images = next(iter(subject.splits.test.epoch(0, 32)))[0]
    with torch.no_grad():
        if not torch.equal(opened.to(memory_format=torch.channels_last)(images), trainer.model.eval()(images)):
            raise Broken("the opened model's outputs differ from the trained one's")
    for name, layer in trainer.ctx.layers.items():
        observed = weight_density(layer)
        stated = trainer.hooks.method.density(name, trainer.ctx).forward
        if observed > stated + 1e-6:
            raise Broken(f"weights of '{name}' came back: density {observed:.4f} at the end, stated {stated:.4f}")
    return f"{sum(p.numel() for p in opened.parameters()):,} parameters"


def copies(subject: Subject) -> str:
    """A planned model can be copied (for an average of weights), and the copy computes the same."""
    trainer = subject.trainer()
    images = next(iter(subject.splits.test.epoch(0, 8)))[0]
    duplicate = copy.deepcopy(trainer.model).eval()
    with torch.no_grad():
        if not torch.equal(duplicate(images), trainer.model.eval()(images)):
            raise Broken("a deep copy of the planned model computes something else")
    return "deep copies compute the same"


CONTRACTS: tuple[Callable[[Subject], str], ...] = (
    trains,
    resumes,
    products_are_right,
    leaves_the_rest_alone,
    transforms_are_pure,
    replays,
    density_is_true,
    never_grows,
    final_model_stands_alone,
    copies,
)


def check(name: str, parameters: Mapping[str, Any] | None = None) -> list[Result]:
    """Hold a registered method to every contract.

    Returns:
        A result a contract, in order; a broken one's message says what was found.

    Raises:
        UsageError: if no method has that name, or its parameters are wrong.
    """
    subject = Subject(name, parameters)
    subject.method()
    return [_examine(contract, subject) for contract in CONTRACTS]


def _examine(contract: Callable[[Subject], str], subject: Subject) -> Result:
    try:
        return Result(contract.__name__, True, contract(subject))
    except Broken as broken:
        return Result(contract.__name__, False, str(broken))
    except Exception as error:  # the method's own code, which this examines: its failure is the finding
        return Result(contract.__name__, False, f"{type(error).__name__}: {error}")


def _transforms(subject: Subject, trainer: Trainer | None = None) -> list[tuple[str, Any, Any, Tensor]]:
    """Every transform that a fresh run plans, with an operand of the right shape, channels-last."""
    trainer = trainer or subject.trainer()
    found = []
    outputs: dict[str, Tensor] = {}
    handles = [
        layer.register_forward_hook(lambda layer, inputs, output, name=name: outputs.__setitem__(name, output.detach()))
        for name, layer in trainer.ctx.layers.items()
    ]
    images = next(iter(subject.splits.test.epoch(0, 4)))[0]
    with torch.no_grad():
        trainer.model.eval()(images)
    for handle in handles:
        handle.remove()
    generator = torch.Generator().manual_seed(0)
    for name, layer in trainer.ctx.layers.items():
        assert isinstance(layer, PlannedLayer)
        for operand in ("weight_forward", "grad_shared", "grad_dgrad", "grad_wgrad"):
            transform = getattr(layer.op_plan, operand)
            if transform is None:
                continue
            if operand == "weight_forward":
                tensor = trainer.model.get_parameter(f"{name}.weight").detach().clone()
            else:
                tensor = torch.randn(outputs[name].shape, generator=generator)
            if tensor.ndim == 4:
                tensor = tensor.contiguous(memory_format=torch.channels_last)
            found.append((name, operand, transform, tensor))
    return found


def _dense(result: Tensor | Compact, like: Tensor) -> Tensor:
    if isinstance(result, Compact):
        return torch.zeros_like(like).index_copy_(1, result.kept, result.values)
    return result


def _without_times(record: Record) -> Record:
    return {key: value for key, value in record.items() if key not in TIMES}
