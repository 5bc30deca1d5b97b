"""A base class for methods that keep weights at zero by masks which change during training.

A subclass says when masks change and how. The smallest one is a schedule:

    @register("method", "gradual_magnitude")
    class GradualMagnitude(MaskedMethod):
        \"\"\"Gradual magnitude pruning.\"\"\"

        def sparsity_now(self, ctx):
            return self.sparsity * cubic(ctx.progress, begin=0.2, end=0.8)

`methods/gmp.py` and `methods/rigl.py` are complete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from methods.masks.distributions import DISTRIBUTIONS
from methods.masks.scores import magnitude
from methods.masks.structures import STRUCTURES
from suite.method import Context, Density, Method, OpPlan, Site
from suite.plan import Layer

TOLERANCE_OF_TYPED = 1e-3
"""How far from a whole number of weights a sparsity may be that was typed with few digits, such as 0.3333."""


class MaskedMethod(Method):
    """Holds weights at zero with masks. A subclass overrides `sparsity_now`, `score` or `update_masks`.

    All layers are masked except those that read the model's input or produce its output. In every step, gradients and
    updated weights are multiplied by the masks, so that a masked weight is zero in the next step. Masks that are set in
    `setup` apply from the first step on.

    Attributes:
        sparsity: Share of the weights of all masked layers together that is zero at the end, as far as `structure` and
            the rounding in each layer allow.
        distribution: How the remaining weights are divided among layers. `uniform`: the same share in every layer;
            `erdos_renyi`: large layers lose most; `global`: the largest scores of all layers remain.
        structure: Which weights of a layer remain: any (`unstructured`), the same number in every group of m input
            channels (`n:m`), or whole output channels (`channel`).
        m: Consecutive input channels in a group of `n:m`. The sparse tensor cores of GPUs have groups of four.
    """

    sparsity: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    distribution: Literal["uniform", "erdos_renyi", "global"] = "erdos_renyi"
    structure: Literal["unstructured", "n:m", "channel"] = "unstructured"
    m: Annotated[int, Ge(2)] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        kept = (1 - self.sparsity) * self.m
        if self.structure == "n:m" and (abs(kept - round(kept)) > TOLERANCE_OF_TYPED or round(kept) < 1):
            near = sorted({max(1, math.floor(kept)), max(1, math.ceil(kept))}, reverse=True)
            raise ValueError(
                f"sparsity is {self.sparsity}; structure=n:m keeps a whole number of {self.m} weights, at least one: "
                f"{' or '.join(f'{1 - count / self.m:.4g}' for count in near)} is possible, or another m"
            )
        self.masks: dict[str, Tensor] = {}  # by layer, in the weight's shape, true for weights that remain
        self._densities: dict[str, float] = {}
        self._masked_in_place = False  # whether a step has set the masked weights to zero

    def sparsity_now(self, ctx: Context) -> float | None:
        """Return the sparsity that the masks get in the running step; `None` leaves the masks as they are."""
        return None

    def score(self, weight: Tensor) -> Tensor:
        """Return how much each weight of a layer matters, not negative; the default is its magnitude.

        Args:
            weight: (K, C, R, S) or (K, C); `weight.grad` is its gradient.
        """
        return magnitude(weight)

    def update_masks(self, ctx: Context) -> Any:
        """Change the masks with `set_masks`; called in every step, with the gradients of all weights.

        Returns:
            `SKIP_STEP` if the weights are not to be updated in this step.
        """
        sparsity = self.sparsity_now(ctx)
        if sparsity is not None:
            self.set_masks(self.choose_masks(self.scores(ctx), sparsity))
        return None

    def weights(self, ctx: Context) -> dict[str, Tensor]:
        """Return the weights of the layers that get masks, by layer."""
        spaces = ctx.spaces
        return {
            name: layer.weight
            for name, layer in ctx.layers.items()
            if layer.weight.requires_grad
            and spaces.model_input not in spaces.inputs_of(name)
            and not spaces.model_outputs.intersection(spaces.outputs_of(name))
        }

    def scores(self, ctx: Context) -> dict[str, Tensor]:
        """Return the score of every weight of the layers that get masks, by layer."""
        return {name: self.score(weight) for name, weight in self.weights(ctx).items()}

    def choose_masks(self, scores: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
        """Return the masks that keep the largest scores, by `distribution` and `structure`.

        Args:
            scores: Score of every weight, by layer.
            sparsity: Share of all weights to mask.
        """
        few = {name: score.shape[1] for name, score in scores.items() if score.shape[1] < self.m}
        if self.structure == "n:m" and few:
            name = next(iter(few))
            raise ValueError(
                f"'{name}' reads {few[name]} channels, fewer than m={self.m}; use a smaller m, or ignore={name}"
            )
        kept = DISTRIBUTIONS[self.distribution](scores, 1.0 - sparsity)
        more = {"m": self.m} if self.structure == "n:m" else {}
        return {name: STRUCTURES[self.structure](score, kept[name], **more) for name, score in scores.items()}

    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Use these masks from the end of the running step on; in `setup`, from the first step on."""
        self.masks = dict(masks)
        self._densities = {name: float(mask.float().mean()) for name, mask in self.masks.items()}

    def setup(self, ctx: Context) -> None:
        if not self.weights(ctx):
            raise ValueError("this model has no trained layer between its first and its last, so that none is masked")

    def plan(self, name: str, layer: Layer) -> OpPlan | None:
        """Mask the weight where it is used, until a step has set masked weights to zero."""
        return OpPlan(weight_forward=self._mask) if name in self.masks and not self._masked_in_place else None

    def _mask(self, weight: Tensor, site: Site) -> Tensor:
        return weight * self.masks[site.name]

    def before_optimizer_step(self, ctx: Context) -> Any:
        skipped = self.update_masks(ctx)
        for name, mask in self.masks.items():
            gradient = ctx.layers[name].weight.grad
            assert gradient is not None
            gradient.mul_(mask)
        return skipped

    @torch.no_grad()
    def after_optimizer_step(self, ctx: Context) -> None:
        for name, mask in self.masks.items():
            ctx.layers[name].weight.mul_(mask)
        if self.masks and not self._masked_in_place:
            self._masked_in_place = True
            ctx.replan()

    def density(self, name: str, ctx: Context) -> Density:
        """Return the share of remaining weights for all three products."""
        share = self._densities.get(name, 1.0)
        return Density(share, share, share)

    def overhead(self, name: str, samples: int, ctx: Context) -> float:
        """Return two operations per weight of a layer with a mask, by which gradient and weight are multiplied."""
        return 2.0 * self.masks[name].numel() if name in self.masks else 0.0

    def record(self, ctx: Context) -> Mapping[str, Any]:
        """Return the sparsity of all masked layers together."""
        total = sum(mask.numel() for mask in self.masks.values())
        kept = sum(int(mask.count_nonzero()) for mask in self.masks.values())
        return {"sparsity": 1.0 - kept / total if total else 0.0}

    def state_dict(self) -> dict[str, Any]:
        return {"masks": self.masks, "masked_in_place": self._masked_in_place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.set_masks(state["masks"])
        self._masked_in_place = state["masked_in_place"]
