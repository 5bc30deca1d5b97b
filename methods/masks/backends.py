"""The backends that can multiply by masked weights, and the choice among them for every layer of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernels.sparse_conv.cpu import FORMATS, library
from kernels.sparse_conv.dispatch import available
from methods.backends.autotune import Fastest, Step, choose
from methods.backends.blocks import BlockConvolutions
from methods.backends.layer_choices import MASKED, LayerChoices, Shape
from methods.backends.sparse_convolution import Skipping, kernels_version
from suite.method import Backend, Context, Geometry, OpPlan
from suite.ops import TORCH, PlannedConv2d


class MaskedBackends(LayerChoices):
    """The backend of every masked convolution of a model, for methods whose masks no longer change.

    A method creates this object in `setup`, calls `choose` before its masks apply (in the first epoch, so that the
    checkpoint holds the choice), returns `plan` for each masked layer, and merges `state_dict` into its own.

    Args:
        wanted: `masked`: torch, with the zeros; `skipping`: kernels that skip masked weights; `blocks`: smaller dense
            convolutions of the filters that keep the same 2x2 block; `auto`: for each layer the one that was measured
            to be the fastest. A layer that cannot have the wanted backend is multiplied by torch.
        device: Device of the training.
        has_blocks: Whether every filter of a masked 3x3 layer keeps one 2x2 block.

    Raises:
        ValueError: if `blocks` is wanted and masks have none, or `skipping` and no kernel skips weights on this device.
    """

    def __init__(self, wanted: str, device: torch.device, *, has_blocks: bool) -> None:
        super().__init__(wanted)
        self._device, self._has_blocks = device, has_blocks
        if wanted == "blocks" and not has_blocks:
            raise ValueError("backend=blocks needs scope=filter and pool=4: every filter keeps one 2x2 block")
        if wanted == "skipping" and not available(device):
            raise ValueError(
                f"backend=skipping: no kernels that skip weights are available on {device.type} (they are switched "
                "off, or no compiler was found); use backend=auto"
            )
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

        def layer_of(name: str) -> PlannedConv2d:
            layer = ctx.layers[name]
            assert isinstance(layer, PlannedConv2d)
            return layer

        def key(name: str) -> tuple[Any, ...]:
            return (layer_of(name).weight.shape, Shape.of(name, layer_of(name), ctx), *structures[name].items())

        def measure(name: str, candidates: Sequence[str]) -> Fastest:
            layer = layer_of(name)

            def prepare() -> tuple[Tensor, dict[str, Backend]]:
                kept = example(name, layer.weight.detach())
                return kept, {backend: _backend(backend, kept, layer) for backend in candidates}

            return fastest(candidates, prepare, layer, *Shape.of(name, layer, ctx), structures[name], ctx.hardware_id())

        self.choose_for(ctx, structures, lambda name: self._candidates(ctx, layer_of(name)), key, measure)

    def plan(self, name: str, layer: nn.Module, kept: Callable[[Tensor], Tensor]) -> OpPlan | None:
        """Return the plan of a masked layer; `None` if torch computes its products.

        Args:
            name: Name of the layer.
            layer: The layer.
            kept: Returns the mask of its weight, (K, C, R, S) bool; called once per layer.
        """
        chosen = self.of(name)
        if chosen == MASKED:
            return None
        if name not in self._backends:
            assert isinstance(layer, PlannedConv2d)
            self._backends[name] = _backend(chosen, kept(layer.weight.detach()), layer)
        return OpPlan(backend=self._backends[name])

    def _candidates(self, ctx: Context, layer: PlannedConv2d) -> list[str]:
        """Return the backends that a layer can have; the first is the baseline."""
        candidates = [MASKED]
        if available(layer.weight.device) and {ctx.dtype, layer.weight.dtype} <= FORMATS.keys():
            candidates.append("skipping")
        if self._has_blocks and layer.kernel_size == (3, 3):
            candidates.append("blocks")
        return candidates

    def forget(self) -> None:
        """Let the next call of `choose` choose again."""
        super().forget()
        self._backends = {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the choice of a checkpoint.

        Raises:
            ValueError: if it needs kernels that are not available here.
        """
        super().load_state_dict(state)
        self._backends = {}
        if "skipping" in (self.chosen or {}).values() and not available(self._device):
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
) -> Fastest:
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
    device, shape = layer.weight.device, Shape(geometry, images, size, dtype)
    question = {
        "what": "the three products of a convolution with masked weights",
        **shape.question(layer.weight),
        "mask": dict(structure),
        "kernels": kernels_version(device, library),
    }

    def steps() -> dict[str, Step]:
        return _steps(*prepare(), layer.weight, shape)

    return choose(question, backends, steps, device, hardware_id)


def _steps(kept: Tensor, backends: Mapping[str, Backend], weight: Tensor, shape: Shape) -> dict[str, Step]:
    """Return, for each backend, a function that computes all three products once."""
    activation, weight = shape.operands(weight)
    weight, geometry = weight * kept.to(weight.device), shape.geometry
    grad = TORCH.forward(activation, weight, None, geometry)  # has the right shape; its values do not matter

    def step(backend: Backend) -> Step:
        def run() -> None:
            backend.forward(activation, weight, None, geometry)
            backend.dgrad(grad, weight, activation, geometry)
            backend.wgrad(grad, activation, weight, geometry, False)

        return run

    return {name: step(backend) for name, backend in backends.items()}
