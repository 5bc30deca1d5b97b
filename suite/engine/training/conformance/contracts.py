"""The contracts of a method: functions that take a `Subject` and return what they measured, or raise `Broken`."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from suite import files
from suite.engine.cost.flops import weight_density
from suite.engine.cost.ledger import KeptGradients
from suite.engine.cost.memory import SavedTensors
from suite.engine.network import model_files
from suite.engine.training.conformance.density import expanded
from suite.engine.training.conformance.subject import Broken, Subject
from suite.engine.training.product_check import ProductCheck, WrongProduct
from suite.engine.training.steps import Outcome
from suite.engine.training.trainer import Record, Trainer
from suite.method import Compact, Compressed, Site
from suite.plan import random_key

TIMES = ("train_time_s", "eval_time_s", "reconfigure_time_s")


def trains(subject: Subject) -> str:
    """The method trains: all losses are finite, and the last training loss is below the first."""
    trainer, records, _ = subject.undisturbed
    first, last = records[0]["train_loss"], records[-1]["train_loss"]
    if not last < first:
        raise Broken(f"the training loss rises from {first:.3f} to {last:.3f}")
    accuracy = records[-1]["test_accuracy"]
    text = f"training loss {first:.3f} to {last:.3f}, test accuracy {accuracy:.3f}"
    assert subject.splits.test is not None
    classes, images = trainer.ctx.num_classes, subject.splits.test.num_samples
    if accuracy <= guess(classes, images):
        text += f", which is no more than guessing among {classes} classes reaches: the network has learned nothing"
    return text


def guess(classes: int, images: int) -> float:
    """Return an accuracy that guessing seldom exceeds: two standard deviations above its mean, as a fraction."""
    share = 1 / classes
    return share + 2 * math.sqrt(share * (1 - share) / images)


def resumes(subject: Subject) -> str:
    """A training that is resumed from any epoch's checkpoint ends with the same bits as the undisturbed one."""
    trainer, records, checkpoints = subject.undisturbed
    wanted = trainer.model.state_dict()
    hint = "does state_dict return all state (masks, scores, counters), and load_state_dict restore it?"
    for done, content in enumerate(checkpoints, start=1):
        again: list[Record] = []
        resumed = subject.resumed(content, on_epoch=again.append)
        resumed.fit()
        got = resumed.model.state_dict()
        if list(got) != list(wanted):
            different = sorted(set(got) ^ set(wanted))[:3]
            raise Broken(f"resumed after epoch {done}, the model has other tensors: {different}; {hint}", "state_dict")
        for name, tensor in wanted.items():
            if not torch.equal(got[name], tensor):
                raise Broken(f"resumed after epoch {done}, '{name}' differs at the end; {hint}", "state_dict")
        for new, old in zip(again, records[done:], strict=True):
            before, after = _without_times(old), _without_times(new)
            if after != before:
                keys = ", ".join(key for key in before if after.get(key) != before[key])
                raise Broken(
                    f"resumed after epoch {done}, the record of epoch {old['epoch']} differs in {keys}; {hint}",
                    "state_dict",
                )
    return f"from each of {len(checkpoints)} epochs"


def products_are_right(subject: Subject) -> str:
    """Each layer's products agree with float64 before and after training, in float32 and bfloat16."""
    counts = []  # of layers
    for trainer in (subject.trainer(), subject.undisturbed[0]):
        for dtype in (torch.float32, torch.bfloat16):
            try:
                count = ProductCheck(dtype, trainer.device).check(trainer.ctx.layers, trainer.ledger.current)
            except WrongProduct as wrong:
                raise Broken(str(wrong), "plan") from wrong
        counts.append(count)
    return f"{counts[0]} layers at the start and {counts[1]} at the end, in float32 and bfloat16"


def leaves_the_rest_alone(subject: Subject) -> str:
    """Before the first step, weights are unchanged or masked. If nothing changes a forward, outputs keep their bits."""
    bare = subject.initial_model().eval()
    trainer = subject.trainer()
    planned = trainer.model.eval()
    masked = False
    for (name, before), after in zip(bare.state_dict().items(), planned.state_dict().values(), strict=True):
        changed = before != after
        if (after[changed] != 0).any():
            raise Broken(f"'{name}' is changed before the first step, and not only masked by zeros", "setup")
        masked |= bool(changed.any())
    if masked:
        return "the weights are kept, but for those that are set to zero"
    plans = [layer.op_plan for layer in trainer.ctx.layers.values()]
    if any(plan.weight_forward or plan.backend for plan in plans):
        return "the weights are kept; the forward follows a plan and is not compared"
    images = subject.images(8)
    if not torch.equal(bare(images), planned(images)):
        raise Broken("the outputs differ from the bare model's, although no plan changes a forward", "setup")
    return "same weights, same outputs"


def transforms_are_pure(subject: Subject) -> str:
    """A transform keeps shape and dtype, does not write into its argument, and depends only on site and values."""
    seen = 0
    for name, operand, transform, tensor in _transforms(subject):
        seen += 1
        site = Site(name, operand, 3, 0, 0)
        before = tensor.clone()
        result = transform(tensor, site)
        what = f"{operand} of '{name}'"
        if not torch.equal(tensor, before):
            raise Broken(f"{what} writes into its argument", code=transform)
        if isinstance(result, Compact):
            if result.values.shape[1] != result.kept.numel() or not bool((result.kept.diff() > 0).all()):
                raise Broken(
                    f"{what} returns a Compact whose values and ascending indices do not agree", code=transform
                )
        elif isinstance(result, Compressed) and not _channels_agree(result):
            raise Broken(
                f"{what} returns a Compressed whose channels are not ascending, with {result.n} in each group of "
                f"{result.m}",
                code=transform,
            )
        elif (tuple(result.shape), result.dtype) != (tuple(tensor.shape), tensor.dtype):
            raise Broken(
                f"{what} returns shape {tuple(result.shape)} and {result.dtype} for an argument of shape "
                f"{tuple(tensor.shape)} and {tensor.dtype}",
                code=transform,
            )
        again = expanded(transform(tensor, site), tensor)
        if not torch.equal(expanded(result, tensor), again):
            raise Broken(f"{what} returns two results for one site; draw random numbers with site.key", code=transform)
        if tensor.ndim == 4 and operand != "weight_forward":
            other_layout = expanded(transform(tensor.contiguous(), site), tensor)
            if not torch.allclose(other_layout, again, rtol=1e-5, atol=0):
                raise Broken(f"{what} depends on the memory format", code=transform)
    return f"{seen} transforms" if seen else "the method has no transform"


def replays(subject: Subject) -> str:
    """If the method is `replayable`, its transforms depend on the step only through `site.kernel_seed`."""
    if not subject.method().replayable:
        return "the method is not replayable"
    seen = 0
    captured, replayed = 3, 8
    for name, operand, transform, tensor in _transforms(subject):
        seen += 1
        # The replay in step 8 repeats the step that was captured in step 3, with the random keys of step 8.
        result = transform(tensor, Site(name, operand, captured, 0, 0, _KeysOf(replayed)))
        eager = transform(tensor, Site(name, operand, replayed, 0, 0))
        if not torch.equal(expanded(result, tensor), expanded(eager, tensor)):
            raise Broken(f"{operand} of '{name}' would differ in a replay; leave `replayable` False", code=transform)
    return f"{seen} transforms" if seen else "the method has no transform"


@dataclass(frozen=True)
class _KeysOf:
    """The random keys of one step of a trial with seed 0."""

    step: int

    def of(self, name: str, operand: str, slot: int) -> int:
        return random_key(0, self.step, slot, operand, name)


def density_is_true(subject: Subject) -> str:
    """In every step of the training, no product needs a larger share of its multiply-adds than `density` states."""
    trainer, records, _ = subject.undisturbed
    density = subject.density
    assert density.steps == trainer.ctx.step
    if density.findings:
        more = len(density.findings) - 1
        raise Broken(density.findings[0] + (f"; {more} more products are wrong" if more else ""), "density")
    saved = "none of them saves any FLOPs"
    for which, flops in (("all of them need", "train_flops"), ("the last one needs", "step_flops")):
        needed = records[-1][flops]["effective"] / records[-1][flops]["dense"]
        if needed < 1:
            saved = f"{which} {needed:.1%} of dense FLOPs"
    return f"stated and observed agree in {density.steps} steps; {saved}"


class _OnlyKept(Trainer):
    """A trainer that sets the gradients to zero that the method does not use."""

    def gradients(self, images: Tensor, labels: Tensor, saved: SavedTensors | None = None) -> Outcome:
        self.kept.update(self.ctx)
        outcome = super().gradients(images, labels, saved)
        for layer in self.ctx.layers.values():
            mask, gradient = self.kept.masks.get(id(layer.weight)), layer.weight.grad
            if mask is not None and gradient is not None:
                gradient.mul_(mask)
        return outcome

    @cached_property
    def kept(self) -> KeptGradients:
        return KeptGradients(self.runner.method)


def kept_gradients_suffice(subject: Subject) -> str:
    """If the method names the gradients that it uses, the weights of a training do not depend on the others."""
    trainer, _, _ = subject.undisturbed
    if not trainer.runner.method.kept_gradients(trainer.ctx):
        return "the method uses all gradients"
    without = subject.trainer_of(_OnlyKept)
    without.fit()
    for (name, wanted), got in zip(trainer.model.named_parameters(), without.model.parameters(), strict=True):
        if not torch.equal(wanted, got):
            raise Broken(f"'{name}' differs at the end if the gradients that are not used are zero", "kept_gradients")
    elements = sum(parameter.numel() for parameter in trainer.model.parameters())
    return f"{without.kept.left_out // 4:,} of {elements:,} gradients are not used at the end"


def never_grows(subject: Subject) -> str:
    """No layer gains channels, and executed FLOPs never exceed those of the current shapes."""
    _, records, _ = subject.undisturbed
    for before, after in itertools.pairwise(records):
        for name, layer in after["layers"].items():
            if name not in before["layers"]:
                raise Broken(f"layer '{name}' is back in epoch {after['epoch']}", "reconfigure")
            if layer["out"] > before["layers"][name]["out"] or layer["in"] > before["layers"][name]["in"]:
                raise Broken(f"layer '{name}' has more channels in epoch {after['epoch']} than before", "reconfigure")
    for record in records:
        flops = record["step_flops"]
        current, dense = flops["current"] * (1 + 1e-9), flops["dense"] * (1 + 2e-9)
        if not max(flops["effective"], flops["executed"]) <= current <= dense:
            raise Broken(f"the FLOPs of epoch {record['epoch']} are out of order: {flops}", "plan")
    return f"{records[0]['params']:,} to {records[-1]['params']:,} parameters"


def final_model_stands_alone(subject: Subject) -> str:
    """The saved model opens without the method, has the same outputs, and has the weight density that was stated."""
    trainer, _, _ = subject.undisturbed
    with files.temporary_folder("pdt-check-") as folder:
        path = folder / "model.pt"
        plans = trainer.runner.reconfigurations
        model_files.save_model(path, trainer.model, reconfigurations=plans, **subject.architecture)
        opened = model_files.load_model(path)
    images = subject.images(32)
    with torch.no_grad():
        if not torch.equal(opened.to(memory_format=torch.channels_last)(images), trainer.model.eval()(images)):
            raise Broken("the opened model's outputs differ from the trained one's")
    for name, layer in trainer.ctx.layers.items():
        observed = weight_density(layer)
        stated = trainer.runner.method.density(name, trainer.ctx).forward
        if observed > stated + 1e-6:
            raise Broken(
                f"at the end, {observed:.4f} of the weights of '{name}' are nonzero, but density states "
                f"forward={stated:.4f}",
                "density",
            )
    return f"{sum(p.numel() for p in opened.parameters()):,} parameters"


def copies(subject: Subject) -> str:
    """A deep copy of a planned model (for an average of weights, for instance) computes the same."""
    trainer = subject.trainer()
    images = subject.images(8)
    duplicate = copy.deepcopy(trainer.model).eval()
    with torch.no_grad():
        if not torch.equal(duplicate(images), trainer.model.eval()(images)):
            raise Broken("a deep copy of the planned model computes something else", "plan")
    return "deep copies compute the same"


CONTRACTS: tuple[Callable[[Subject], str], ...] = (
    trains,
    resumes,
    products_are_right,
    leaves_the_rest_alone,
    transforms_are_pure,
    replays,
    density_is_true,
    kept_gradients_suffice,
    never_grows,
    final_model_stands_alone,
    copies,
)


def _transforms(subject: Subject) -> Iterator[tuple[str, Any, Any, Tensor]]:
    """Yield all transforms at the start and before the last epoch, as (layer, operand, transform, tensor)."""
    yield from _transforms_of(subject.trainer(), subject)
    _, _, checkpoints = subject.undisturbed
    if len(checkpoints) > 1:
        yield from _transforms_of(subject.resumed(checkpoints[-2]), subject)


def _transforms_of(trainer: Trainer, subject: Subject) -> Iterator[tuple[str, Any, Any, Tensor]]:
    """Yield the transforms that a trainer's layers follow now, each with a channels-last tensor for its operand."""
    outputs: dict[str, Tensor] = {}
    handles = [
        layer.register_forward_hook(lambda layer, inputs, output, name=name: outputs.__setitem__(name, output.detach()))
        for name, layer in trainer.ctx.layers.items()
    ]
    images = subject.images(4)
    with torch.no_grad():
        trainer.model.eval()(images)
    for handle in handles:
        handle.remove()
    generator = torch.Generator().manual_seed(0)
    for name, layer in trainer.ctx.layers.items():
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
            yield name, operand, transform, tensor


def _channels_agree(compressed: Compressed) -> bool:
    """Return whether the channels of each pixel are distinct, in order and in the groups that their positions say."""
    channels = compressed.channels
    groups = torch.arange(channels.shape[-1], device=channels.device) // compressed.n
    in_range = (channels // compressed.m == groups) & (channels < compressed.shape[1])
    return bool(in_range.all() and (channels.diff(dim=-1) > 0).all())


def _without_times(record: Record) -> Record:
    return {key: value for key, value in record.items() if key not in TIMES}
