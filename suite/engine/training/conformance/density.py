"""Compare the density that a method states with the operands of each product, in every step of a training.

A product needs the multiply-adds whose operands are both nonzero:

    forward     W is the result of `weight_forward`; activations count as dense
    dgrad       dO is the result of the plan's transforms; W is as in the forward
    wgrad       dO is the result of the plan's transforms; a weight's gradient counts only if the weight is nonzero
                after the step, because the gradient of a weight that is masked again changes nothing

Zeros that come from the data (after a ReLU, for example) could hide a wrong density. The check therefore applies the
transforms to dense random gradients, with the shape and the site of the real ones.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from suite.engine.cost.memory import SavedTensors
from suite.engine.network.planned_layer import PlannedLayer
from suite.engine.training.data_parallel import Batch
from suite.engine.training.records import StepRecord
from suite.engine.training.steps import Outcome
from suite.engine.training.trainer import Trainer
from suite.method import Compact, Compressed, Density, OpPlan, Site

IMAGES = 8
"""Largest number of images in the random gradients."""
DRAWS, ERRORS = 32, 6
"""Draws of a share that depends on random numbers, and the number of standard errors by which the mean of these draws
may exceed the stated share. With 6, none of the thousands of comparisons in a training fails by chance."""
EXACT = 1e-6
PRODUCTS = {"forward": "the forward", "dgrad": "the data gradient", "wgrad": "the weight gradient"}
HINTS = {
    "forward": "density has to describe the mask of the running step",
    "dgrad": "it needs the weights of the forward times the output gradient after its transforms",
    "wgrad": "set masked weights to zero in after_optimizer_step, or state the share of gradients that are used",
}


@dataclass
class _Seen:
    """The operands of one layer in the running step."""

    stated: Density
    plan: OpPlan
    weight: Tensor  # (K,): number of nonzero weights of each output channel in the forward
    weights: int
    grad: Tensor  # dense and random
    site: Site


class DensityCheck:
    """Compares stated density and operands in every step of a training, whose results stay the same.

    Args:
        trainer: A trainer before its first step.

    Attributes:
        findings: One line for each product of a layer whose density is wrong, with the first such step.
        steps: Number of steps that were compared.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.steps = 0
        self._trainer = trainer
        self._wrong: dict[tuple[str, str], str] = {}
        self._outputs: dict[str, tuple[int, ...]] = {}
        self._seen: dict[str, _Seen] = {}
        for name, layer in trainer.ctx.layers.items():
            layer.register_forward_hook(lambda layer, inputs, output, name=name: self._note(name, layer, output))

    @property
    def findings(self) -> list[str]:
        return list(self._wrong.values())

    def begin_step(self) -> None:
        """Forget the outputs of the step before."""
        self._outputs.clear()

    def _note(self, name: str, layer: Any, output: Tensor) -> None:
        # The output of a gated layer has more channels, among which those of the layer are scattered.
        channels = layer.weight.shape[0]
        if output.ndim == 4:
            self._outputs[name] = (min(len(output), IMAGES), channels, *output.shape[2:])
        else:
            self._outputs[name] = (min(output.numel() // output.shape[-1], IMAGES), channels)

    @torch.no_grad()
    def observe(self) -> None:
        """Store what is stated and what was multiplied, before any hook of the step."""
        ctx, self._seen = self._trainer.ctx, {}
        for name, layer in ctx.layers.items():
            assert isinstance(layer, PlannedLayer)
            stated = self._trainer.runner.method.density(name, ctx)
            if not (isinstance(stated, Density) and all(0 <= share <= 1 for share in stated)):
                self._wrong.setdefault(
                    (name, ""), f"density of '{name}' in step {ctx.step} is {stated}, not a Density of shares in [0, 1]"
                )
            elif name in self._outputs:
                generator = torch.Generator().manual_seed(ctx.step)
                grad = torch.randn(self._outputs[name], generator=generator)
                if grad.ndim == 4:
                    grad = grad.contiguous(memory_format=torch.channels_last)
                used = layer.forward_weight(layer.weight)
                site = Site(name, "grad_shared", ctx.step, layer.step_state.micro_batch_index, ctx.seed)
                self._seen[name] = _Seen(stated, layer.op_plan, _nonzeros(used, 0), used.numel(), grad, site)

    @torch.no_grad()
    def compare(self) -> None:
        """After the step, compare what was stated with what was multiplied."""
        self.steps += 1
        costs = self._trainer.ledger.current
        for name, seen in self._seen.items():
            layer = self._trainer.ctx.layers[name]
            weight = layer.weight
            assert isinstance(weight, Tensor)
            products = ["forward"]
            if costs[name].has_dgrad:
                products.append("dgrad")
            if weight.requires_grad:
                products.append("wgrad")
            trained = _nonzeros(weight, 0)
            for product in products:
                stated = getattr(seen.stated, product)
                needed = _needed(seen, product, trained)
                exactly = product == "forward" and seen.plan.weight_forward is not None
                wrong = abs(needed - stated) > EXACT if exactly else needed > stated + EXACT
                if wrong and not (product != "forward" and _agrees_in_the_mean(seen, product, trained, stated)):
                    self._wrong.setdefault(
                        (name, product),
                        f"'{name}', step {seen.site.step}: {PRODUCTS[product]} needs {needed:.4f} of its "
                        f"multiply-adds, but density states {product}={stated:.4f} ({HINTS[product]})",
                    )


class ComparedTrainer(Trainer):
    """A trainer that compares each of its steps. The results stay the same."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.density = DensityCheck(self)

    def gradients(self, images: Tensor, labels: Tensor, saved: SavedTensors | None = None) -> Outcome:
        self.density.begin_step()
        outcome = super().gradients(images, labels, saved)
        self.density.observe()
        return outcome

    def train_step(self, batch: Batch) -> StepRecord:
        step = super().train_step(batch)
        self.density.compare()
        return step


def _needed(seen: _Seen, product: str, trained: Tensor, seed: int | None = None) -> float:
    """Return the share of a product's multiply-adds with two nonzero operands; `seed` draws other random numbers."""
    if product == "forward":
        return seen.weight.sum().item() / seen.weights
    site = seen.site if seed is None else dataclasses.replace(seen.site, seed=seed)
    grad = _transformed(seen.plan.grad_shared, "grad_shared", seen.grad, site)
    operand = "grad_dgrad" if product == "dgrad" else "grad_wgrad"
    grad = _transformed(getattr(seen.plan, operand), operand, grad, site)
    weights = seen.weight if product == "dgrad" else trained
    channels = len(weights)
    pairs = (_nonzeros(grad, 1).double() * weights.double()).sum().item()
    return pairs * channels / (grad.numel() * seen.weights)


def _agrees_in_the_mean(seen: _Seen, product: str, trained: Tensor, stated: float) -> bool:
    """Return whether a share is random and its mean over several draws is not above the stated share."""
    draws = [_needed(seen, product, trained, seen.site.seed + 1 + draw) for draw in range(DRAWS)]
    spread = statistics.stdev(draws)
    return spread > EXACT and statistics.fmean(draws) <= stated + ERRORS * spread / math.sqrt(DRAWS)


def _transformed(transform: Any, operand: Any, tensor: Tensor, site: Site) -> Tensor:
    if transform is None:
        return tensor
    return expanded(transform(tensor, dataclasses.replace(site, operand=operand)), tensor)


def expanded(result: Tensor | Compact | Compressed, like: Tensor) -> Tensor:
    """Return the result of a transform in the shape of its argument, with zeros for the channels that it left out."""
    if isinstance(result, Compressed):
        return result.dense()
    if isinstance(result, Compact):
        return torch.zeros_like(like).index_copy_(1, result.kept, result.values)
    return result


def _nonzeros(tensor: Tensor, axis: int) -> Tensor:
    """Count the nonzero values at each position of an axis."""
    return tensor.detach().movedim(axis, 0).flatten(1).count_nonzero(1)
