"""The masks of a model whose 3x3 kernels keep patterns and whose least important kernels are pruned whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from methods.clicktrain.patterns import (
    NUM_BLOCKS,
    POSITIONS,
    PruneMask,
    choose_patterns,
    dynamic_pool,
    generic_pool,
    outside_patterns,
)
from methods.masks.structures import least_important_kernels
from suite.plan import Layer


class PatternMasks(Mapping[str, PruneMask]):
    """What is pruned from each layer, by name; empty until `choose` is called.

    Args:
        percents: Percentage of kernels to prune, by layer.
        pool_size: Size of the generic pool, or `dynamic` for a pool made for the network.
        one_per_filter: Whether all kernels of a filter keep the same pattern.
        equal_in_filters: Whether every filter loses the same number of kernels.
    """

    def __init__(
        self,
        percents: Mapping[str, float],
        pool_size: int | Literal["dynamic"],
        *,
        one_per_filter: bool,
        equal_in_filters: bool,
    ) -> None:
        self._percents, self._pool_size = percents, pool_size
        self._one_per_filter, self._equal_in_filters = one_per_filter, equal_in_filters
        self._pool = torch.empty(0, POSITIONS, dtype=torch.bool)
        self._patterns: dict[str, Tensor] = {}  # by 3x3 layer, (K, C) indices into the pool
        self._masks: dict[str, PruneMask] = {}
        self._factors: list[Tensor] = []  # 1 and 0, from the first call of `apply` on
        self._kept: dict[str, Tensor] = {}  # bool, from the first call of `kept` on

    @property
    def has_blocks(self) -> bool:
        """Whether every filter with 3x3 kernels keeps one 2x2 block."""
        return self._one_per_filter and self._pool_size == NUM_BLOCKS

    def __getitem__(self, name: str) -> PruneMask:
        return self._masks[name]

    def __iter__(self) -> Any:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    def choose(self, saliencies: Mapping[str, Tensor]) -> None:
        """Choose what is pruned.

        Args:
            saliencies: Saliency of every weight, (K, C, R, S), by layer.
        """
        self._pool = self._make_pool(*saliencies.values())
        for name, saliency in saliencies.items():
            kernels, patterns = self._prune(name, saliency, self._pool)
            if patterns is not None:
                self._patterns[name] = patterns
            self._enter(name, kernels)

    def example(self, name: str, weight: Tensor) -> Tensor:
        """Return a mask of random kernels with as many weights as remain in a layer, (K, C, R, S) bool."""
        saliency = torch.rand(weight.shape, generator=torch.Generator().manual_seed(0))
        pool = self._make_pool(saliency)
        kernels, patterns = self._prune(name, saliency, pool)
        return PruneMask(None if patterns is None else outside_patterns(patterns, pool), kernels).kept(weight).bool()

    @torch.no_grad()
    def apply(self, weights: Sequence[Tensor], momenta: Sequence[Tensor | None]) -> None:
        """Set to zero what is pruned, in place.

        Args:
            weights: Weight of every layer, in order.
            momenta: Momentum of every layer, in order; `None` where there is none, or where it stays unchanged.
        """
        if not self._factors:
            masks = zip(self._masks.values(), weights, strict=True)
            self._factors = [mask.kept(weight.detach()) for mask, weight in masks]
        torch._foreach_mul_([*weights], self._factors)
        if held := [pair for pair in zip(momenta, self._factors, strict=True) if pair[0] is not None]:
            torch._foreach_mul_(*map(list, zip(*held, strict=True)))

    def kept(self, layers: Mapping[str, Layer]) -> Mapping[str, Tensor]:
        """Return which weights remain, (K, C, R, S) bool, by layer: the same tensors in each call."""
        if not self._kept:
            self._kept = {name: mask.kept(layers[name].weight.detach()).bool() for name, mask in self._masks.items()}
        return self._kept

    def count_patterns(self) -> dict[str, int]:
        """Return the number of remaining kernels with each pattern; `000011011` is a pattern, row by row."""
        counts = torch.zeros(len(self._pool), dtype=torch.int64)
        for name, patterns in self._patterns.items():
            counts += torch.bincount(patterns[~self._masks[name].kernels].cpu(), minlength=len(counts))
        names = ["".join("1" if kept else "0" for kept in pattern) for pattern in self._pool.tolist()]
        return dict(zip(names, counts.tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return pool, patterns and pruned kernels."""
        return {
            "pool": self._pool,
            "patterns": {name: patterns.to(torch.uint8) for name, patterns in self._patterns.items()},
            "kernels": {name: mask.kernels for name, mask in self._masks.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the masks of a checkpoint."""
        self._pool, self._masks, self._factors, self._kept = state["pool"], {}, [], {}
        self._patterns = {name: patterns.long() for name, patterns in state["patterns"].items()}
        for name, kernels in state["kernels"].items():
            self._enter(name, kernels)

    def _make_pool(self, *saliencies: Tensor) -> Tensor:
        with_patterns = [saliency for saliency in saliencies if saliency.shape[2:] == (3, 3)]
        if self._pool_size != "dynamic":
            return generic_pool(self._pool_size)
        return dynamic_pool(with_patterns) if with_patterns else self._pool

    def _prune(self, name: str, saliency: Tensor, pool: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return which kernels are pruned, and the patterns of the kernels; `None` unless these are 3x3."""
        kernels = least_important_kernels(saliency, self._percents[name], equal_in_filters=self._equal_in_filters)
        if saliency.shape[2:] != (3, 3):
            return kernels, None
        return kernels, choose_patterns(saliency, pool, one_per_filter=self._one_per_filter)

    def _enter(self, name: str, kernels: Tensor) -> None:
        patterns = self._patterns.get(name)
        self._masks[name] = PruneMask(None if patterns is None else outside_patterns(patterns, self._pool), kernels)
