"""Whether a method's density is true: in every step of a training, what the operands of each product need.

The multiply-adds that a product needs are those whose operands are both not zero:

    forward     W is what `weight_forward` made of the weight; activations count as dense
    dgrad       dO is what the plan leaves of the output gradient, W is as in the forward
    wgrad       dO is what the plan leaves of it; a gradient counts only for weights that are not zero after the step,
                since that of a weight which is masked again changes nothing

Zeros that are in the data and not in the method (behind a ReLU, for example) would let a wrong density pass by luck.
So the plan's transforms are given dense random gradients, of the shape and at the site of the real ones.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from suite.method import Compact, Density, OpPlan, Site
from suite.network.planned_layer import PlannedLayer
from suite.training.trainer import Trainer

IMAGES = 8
"""Of a batch, at most so many have their random gradients pruned."""
DRAWS, ERRORS = 32, 6
"""How often a share that depends on random numbers is drawn, and by how many standard errors its mean may be above what
is stated: so many that no comparison of a training's thousands fails by chance."""
EXACT = 1e-6
PRODUCTS = {"forward": "the forward", "dgrad": "the data gradient", "wgrad": "the weight gradient"}


@dataclass
class _Seen:
    """What one layer's operands were in the running step."""

    stated: Density
    plan: OpPlan
    weight: Tensor  # (K,): how many weights of each output channel are not zero, as they were used
    weights: int
    grad: Tensor  # dense and random
    site: Site


class DensityCheck:
    """Compares density and operands in every step of a trainer that is about to train; changes nothing.

    Attributes:
        findings: a line for each product of each layer whose density is wrong, with the first step where it is.
        steps: how many steps were looked at.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.steps = 0
        self._trainer = trainer
        self._wrong: dict[tuple[str, str], str] = {}
        self._outputs: dict[str, tuple[int, ...]] = {}
        self._seen: dict[str, _Seen] = {}
        for name, layer in trainer.ctx.layers.items():
            layer.register_forward_hook(lambda layer, inputs, output, name=name: self._note(name, layer, output))
        gradients, end_step = trainer.step.gradients, trainer.hooks.end_step

        def look_after_gradients(*arguments: Any) -> Any:
            self._outputs.clear()
            outcome = gradients(*arguments)
            self._look()
            return outcome

        def compare_before_the_next_step() -> None:
            self._compare()
            end_step()

        trainer.step.gradients = look_after_gradients  # type: ignore[method-assign, assignment]
        trainer.hooks.end_step = compare_before_the_next_step  # type: ignore[method-assign]

    @property
    def findings(self) -> list[str]:
        return list(self._wrong.values())

    def _note(self, name: str, layer: Any, output: Tensor) -> None:
        # Not the output's own channels: those of a gated layer are scattered among others.
        channels = layer.weight.shape[0]
        if output.ndim == 4:
            self._outputs[name] = (min(len(output), IMAGES), channels, *output.shape[2:])
        else:
            self._outputs[name] = (min(output.numel() // output.shape[-1], IMAGES), channels)

    @torch.no_grad()
    def _look(self) -> None:
        """Before any hook of the step: what is stated, and what was multiplied."""
        ctx, self._seen = self._trainer.ctx, {}
        for name, layer in ctx.layers.items():
            assert isinstance(layer, PlannedLayer)
            stated = self._trainer.hooks.method.density(name, ctx)
            if not (isinstance(stated, Density) and all(0 <= share <= 1 for share in stated)):
                self._wrong.setdefault((name, ""), f"density of '{name}' in step {ctx.step} is {stated}")
            elif name in self._outputs:
                generator = torch.Generator().manual_seed(ctx.step)
                grad = torch.randn(self._outputs[name], generator=generator)
                if grad.ndim == 4:
                    grad = grad.contiguous(memory_format=torch.channels_last)
                used = layer.forward_weight(layer.weight)
                site = Site(name, "grad_shared", ctx.step, layer.step_state.slot, ctx.seed)
                self._seen[name] = _Seen(stated, layer.op_plan, _nonzeros(used, 0), used.numel(), grad, site)

    @torch.no_grad()
    def _compare(self) -> None:
        """After the step: hold what is stated to what was multiplied."""
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
                        f"'{name}', step {seen.site.step}: the operands of {PRODUCTS[product]} need {needed:.4f} of "
                        f"its multiply-adds, but density states {stated:.4f}",
                    )


def _needed(seen: _Seen, product: str, trained: Tensor, seed: int | None = None) -> float:
    """The share of a product's multiply-adds whose operands are not zero; `seed` draws other random numbers."""
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
    """Whether a share is random, and its mean over several draws not above what is stated."""
    draws = [_needed(seen, product, trained, seen.site.seed + 1 + draw) for draw in range(DRAWS)]
    spread = statistics.stdev(draws)
    return spread > EXACT and statistics.fmean(draws) <= stated + ERRORS * spread / math.sqrt(DRAWS)


def _transformed(transform: Any, operand: Any, tensor: Tensor, site: Site) -> Tensor:
    if transform is None:
        return tensor
    result = transform(tensor, dataclasses.replace(site, operand=operand))
    if isinstance(result, Compact):
        return torch.zeros_like(tensor).index_copy_(1, result.kept, result.values)
    assert isinstance(result, Tensor)
    return result


def _nonzeros(tensor: Tensor, axis: int) -> Tensor:
    """How many values are not zero at each place of an axis."""
    return tensor.detach().movedim(axis, 0).flatten(1).count_nonzero(1)
