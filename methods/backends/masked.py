"""The backends that can multiply by masked weights, and the choice among them for every layer of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from methods.backends.autotune import Choice, Step, choose
from methods.backends.blocks import BlockConvolutions
from methods.backends.sparse_convolution import Skipping, can_skip, kernels_version
from suite.method import Backend, Context, Geometry, OpPlan
from suite.ops import TORCH, PlannedConv2d

MASKED = "masked"
"""torch's dense products, which also multiply by the zeros of masked weights."""


class MaskedBackends:
    """The backend of every masked convolution of a model, for methods whose masks no longer change.

    A method creates this object in `setup`, calls `choose` before its masks apply (in the first epoch, so that the
    checkpoint holds the choice), returns `plan` for each masked layer, and merges `state_dict` into its own.

    Args:
        wanted: `masked`: torch, with the zeros; `skipping`: kernels that skip masked weights; `blocks`: smaller dense
            convolutions of the filters that keep the same 2x2 block; `auto`: for each layer the one that was measured
            to be the fastest. A layer that cannot have the wanted backend is multiplied by torch.
        device: Device of the training.
        has_blocks: Whether every filter of a masked 3x3 layer keeps one 2x2 block.

    Attributes:
        chosen: Name of the backend by layer; `None` until `choose` is called.
        choices: By layer, what was measured for the choice; empty unless `wanted` is `auto`.

    Raises:
        ValueError: if `blocks` is wanted and masks have none, or `skipping` and no kernel skips weights on this device.
    """

    def __init__(self, wanted: str, device: torch.device, *, has_blocks: bool) -> None:
        self._wanted, self._device, self._has_blocks = wanted, device, has_blocks
        if wanted == "blocks" and not has_blocks:
            raise ValueError("backend=blocks needs scope=filter and pool=4: every filter keeps one 2x2 block")
        if wanted == "skipping" and not can_skip(device):
            raise ValueError(
                f"backend=skipping: no kernels that skip weights are available on {device.type} (they are switched "
                "off, or no compiler was found); use backend=auto"
            )
        self.chosen: dict[str, str] | None = None
        self.choices: dict[str, dict[str, Any]] = {}
        self._backends: dict[str, Backend] = {}

    def choose(
        self, ctx: Context, structures: Mapping[str, Mapping[str, Any]], example: Callable[[str, Tensor], Tensor]
    ) -> None:
        """Choose a backend for every masked layer, once for all layers of equal shape and structure.

        A second call changes nothing.

        Args:
            ctx: Context of the method.
            structures: By layer, plain data that determines how fast a mask of this kind is, such as its density. It
                must not differ between seeds.
            example: Returns a mask like those of a layer, (K, C, R, S) bool, from its name and weight. Called only if
                something has to be measured.
        """
        if self.chosen is not None:
            return
        self.chosen = {}
        found: dict[Any, Choice] = {}
        for name, structure in structures.items():
            layer = ctx.layers[name]
            assert isinstance(layer, PlannedConv2d)
            candidates = self._candidates(layer)
            if self._wanted != "auto":
                self.chosen[name] = self._wanted if self._wanted in candidates else MASKED
                continue
            size = layer.padded_size(*ctx.spaces.input_sizes[name])
            key = (layer.weight.shape, layer.geometry, size, *structure.items())
            if key not in found and len(candidates) > 1:

                def prepare(
                    name: str = name, layer: PlannedConv2d = layer, candidates: Sequence[str] = candidates
                ) -> tuple[Tensor, dict[str, Backend]]:
                    kept = example(name, layer.weight.detach())
                    return kept, {backend: _backend(backend, kept, layer) for backend in candidates}

                images = ctx.batch_size // ctx.micro_batches
                with ctx.untimed():
                    found[key] = fastest(
                        *(candidates, prepare, layer, layer.geometry, images, size, ctx.dtype, structure),
                        ctx.hardware_id(),
                    )
            if key in found:
                self.choices[name] = found[key].to_json()
            self.chosen[name] = found[key].name if key in found else MASKED

    def plan(self, name: str, layer: nn.Module, kept: Callable[[Tensor], Tensor]) -> OpPlan | None:
        """Return the plan of a masked layer; `None` if torch computes its products.

        Args:
            name: Name of the layer.
            layer: The layer.
            kept: Returns the mask of its weight, (K, C, R, S) bool; called once per layer.
        """
        chosen = (self.chosen or {}).get(name, MASKED)
        if chosen == MASKED:
            return None
        if name not in self._backends:
            assert isinstance(layer, PlannedConv2d)
            self._backends[name] = _backend(chosen, kept(layer.weight.detach()), layer)
        return OpPlan(backend=self._backends[name])

    def _candidates(self, layer: PlannedConv2d) -> list[str]:
        """Return the backends that a layer can have; the first is the baseline."""
        candidates = [MASKED]
        if can_skip(layer.weight.device):
            candidates.append("skipping")
        if self._has_blocks and layer.kernel_size == (3, 3):
            candidates.append("blocks")
        return candidates

    def record(self, ctx: Context) -> dict[str, Any]:
        """Return the backend by layer and, in the first epoch, what was measured for the choice."""
        chosen = {"backends": self.chosen or {}}
        return {**chosen, "choices": self.choices} if ctx.epochs_done <= 1 and self.choices else chosen

    def state_dict(self) -> dict[str, Any]:
        """Return the choice and what was measured for it."""
        return {"backends": self.chosen, "choices": self.choices}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the choice of a checkpoint.

        Raises:
            ValueError: if it needs kernels that are not available here.
        """
        self.chosen, self.choices, self._backends = state["backends"], dict(state["choices"]), {}
        if "skipping" in (self.chosen or {}).values() and not can_skip(self._device):
            raise ValueError(
                "the checkpoint of this trial uses kernels that skip weights, which are not available here; resume it "
                "where they are, or start it again"
            )


def _backend(name: str, kept: Tensor, layer: PlannedConv2d) -> Backend:
    if name == "blocks":
        return BlockConvolutions(kept)
    return Skipping(kept, layer.geometry) if name == "skipping" else TORCH


def fastest(
    backends: Sequence[str],
    prepare: Callable[[], tuple[Tensor, Mapping[str, Backend]]],
    layer: nn.Conv2d,
    geometry: Geometry,
    images: int,
    size: tuple[int, int],
    dtype: torch.dtype,
    structure: Mapping[str, Any],
    hardware_id: str,
) -> Choice:
    """Choose the backend that computes the three products of a layer in the least time, on random operands.

    The question covers the layer's shape and the structure of its mask, not the mask itself, which differs between
    seeds. The draws use no generator of torch's own.

    Args:
        backends: Names of the backends; the first is the baseline.
        prepare: Returns an example of the mask, (K, C, R, S) bool, and the backends by name, built for it. It is called
            only if no kept choice answers the question.
        layer: Gives shape, memory format and device.
        geometry: Geometry of the layer.
        images: Images in a micro-batch.
        size: (H, W) of the layer's padded input.
        dtype: Type of the products.
        structure: Plain data that determines how fast a mask of this kind is, such as its density.
        hardware_id: Short name of the machine's hardware.
    """
    device = layer.weight.device
    question = {
        "what": "the three products of a convolution with masked weights",
        "weight": [*layer.weight.shape],
        "channels_last": layer.weight.is_contiguous(memory_format=torch.channels_last),
        "geometry": dataclasses.asdict(geometry),
        "images": images,
        "size": [*size],
        "dtype": str(dtype),
        "mask": dict(structure),
        "kernels": kernels_version(device),
    }

    def steps() -> dict[str, Step]:
        return _steps(*prepare(), layer, geometry, images, size, dtype)

    return choose(question, backends, steps, device, hardware_id)


def _steps(
    kept: Tensor,
    backends: Mapping[str, Backend],
    layer: nn.Conv2d,
    geometry: Geometry,
    images: int,
    size: tuple[int, int],
    dtype: torch.dtype,
) -> dict[str, Step]:
    """Return, for each backend, a function that computes all three products once."""
    weight = layer.weight.detach().to(dtype) * kept.to(layer.weight.device)
    generator = torch.Generator().manual_seed(0)
    shape = (images, layer.in_channels, *size)
    activation = torch.randn(shape, generator=generator).to(weight).contiguous(memory_format=torch.channels_last)
    grad = TORCH.forward(activation, weight, None, geometry)  # has the right shape; its values do not matter

    def step(backend: Backend) -> Step:
        def run() -> None:
            backend.forward(activation, weight, None, geometry)
            backend.dgrad(grad, weight, activation, geometry)
            backend.wgrad(grad, activation, weight, geometry, False)

        return run

    return {name: step(backend) for name, backend in backends.items()}
