"""FreezeOut: layers stop training one after the other, from the input on, so that the backward gets shorter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Interval
from torch import nn

from suite.method import Context, Method
from suite.recipe import Tuning
from suite.registry import register


@register("method", "freezeout")
class FreezeOut(Method):
    """Way without pruning: layers are frozen one after the other, from the input on (FreezeOut).

    The i-th of L layers, counted from 0, is frozen at the share t_i of the training,

        t_i = (start + (1 - start) * i / (L - 1)) ** power,

    rounded to whole epochs, at least one; the last layer never is. In the authors' code, residual blocks are frozen as
    one layer. The learning rate of a layer is that of the recipe times f(p, t_i) at the share p of the training,

        f(p, t) = (1 + cos(pi * p / t)) / (1 + cos(pi * p)) / t,

    which gives the authors' rates if the recipe's schedule is a cosine that falls to 0.

    Attributes:
        start: `t_0` of the paper: the share of the training after which the first layer is frozen, before `power`.
        power: 3 for the paper's cubic schedule, 1 for its linear one. With 3 and 0.8, the first layer ends at 0.51.
        rates: `scaled`: f as above, so that all layers could move equally far. `annealed`: f without the division by t.
            `constant`: the rate of the recipe until the layer is frozen.

    Layers whose weights are not trained, such as airbench's first one, count as frozen from the start.
    """

    prunes: ClassVar[bool] = False
    source: ClassVar[str] = "FreezeOut (A. Brock et al., arXiv 1706.04983, and its code)"
    tuning: ClassVar[Sequence[Tuning]] = (Tuning(trials=0, chosen_on="publication", source="defaults of its code"),)

    start: Annotated[float, Interval(gt=0, lt=1)] = 0.8
    power: Annotated[int, Interval(ge=1, le=3)] = 3
    rates: Literal["scaled", "annealed", "constant"] = "scaled"

    def setup(self, ctx: Context) -> None:
        layers = [name for name, layer in ctx.layers.items() if layer.weight.requires_grad]
        if len(layers) < 2:
            raise ValueError(f"the network has {len(layers)} trained layers, and the last one is never frozen")
        last = len(layers) - 1
        shares = [(self.start + (1 - self.start) * index / last) ** self.power for index in range(len(layers))]
        # Parameters between two layers, those of normalisation above all, belong to the layer before.
        layer, numbers = 0, {name: number for number, name in enumerate(layers)}
        self.parameters: list[list[str]] = [[] for _ in layers]  # names, by layer
        self.layer_of: dict[int, int] = {}  # by id of the parameter
        for name, parameter in ctx.model.named_parameters():
            if not any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") for pattern in self.ignore):
                layer = numbers.get(name.rpartition(".")[0], layer)
                self.parameters[layer].append(name)
                self.layer_of[id(parameter)] = layer
        self.ends = [max(1, round(share * ctx.epochs)) for share in shares]
        self.frozen = 0  # layers

    def factor(self, layer: int, progress: float, epochs: int) -> float:
        """Return the factor of a layer's learning rate at a share of the training."""
        end = self.ends[layer] / epochs
        if self.rates == "constant" or end >= 1:
            return 1.0
        if progress >= end:
            return 0.0
        fall = (1 + math.cos(math.pi * progress / end)) / (1 + math.cos(math.pi * progress))
        return fall / end if self.rates == "scaled" else fall

    def before_optimizer_step(self, ctx: Context) -> None:
        """Divide the optimizers' groups by layer, each with its learning rate, for this step."""
        self.whole = [(optimizer, optimizer.param_groups) for optimizer in _parts(ctx.optimizer)]
        for optimizer, groups in self.whole:
            optimizer.param_groups = [part for group in groups for part in self._divided(group, ctx)]

    def _divided(self, group: dict[str, Any], ctx: Context) -> Iterator[dict[str, Any]]:
        by_factor: dict[float, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            layer = self.layer_of.get(id(parameter))
            factor = 1.0 if layer is None else self.factor(layer, ctx.progress, ctx.epochs)
            by_factor.setdefault(factor, []).append(parameter)
        for factor, parameters in by_factor.items():
            yield {**group, "params": parameters, "lr": group["lr"] * factor}

    def after_optimizer_step(self, ctx: Context) -> None:
        for optimizer, groups in self.whole:
            optimizer.param_groups = groups

    def freeze(self, ctx: Context) -> Sequence[str]:
        if ctx.epochs_done == ctx.epochs:  # nothing is trained any more
            return ()
        before, self.frozen = self.frozen, sum(end <= ctx.epochs_done for end in self.ends)
        return [name for names in self.parameters[before : self.frozen] for name in names]

    def record(self, ctx: Context) -> Mapping[str, Any]:
        return {"frozen_layers": self.frozen}

    def state_dict(self) -> dict[str, Any]:
        return {"frozen": self.frozen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.frozen = state["frozen"]


def _parts(optimizer: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a training loop, which may have attached several."""
    return list(getattr(optimizer, "parts", [optimizer]))
