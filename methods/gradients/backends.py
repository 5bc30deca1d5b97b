"""The backends that multiply an output gradient of which n of every m channels are kept, and the choice among them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.compressed import dispatch
from kernels.compressed.cpu import library
from kernels.prune.compress import MOST_CHANNELS
from methods.backends.autotune import Fastest, Step, choose
from methods.backends.layer_choices import MASKED, LayerChoices, Shape
from methods.backends.sparse_convolution import kernels_version
from suite.method import Backend, Compressed, Context, Geometry, Layer, OpPlan, Site
from suite.ops import TORCH
from suite.plan import GradTransform, Operand, takes_compressed

DTYPES = (torch.float32, torch.bfloat16)


class SkipPruned:
    """Products that skip the channels which a `Compressed` output gradient does not keep; others are torch's.

    Args:
        name: Name of the backend.
        compressed_products: The products that skip, `dgrad` or `wgrad` or both.
    """

    def __init__(self, name: str, compressed_products: Collection[str]) -> None:
        self.name, self.compressed_products = name, tuple(compressed_products)

    def forward(self, activation: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """See `suite.method.Backend`."""
        return TORCH.forward(activation, weight, bias, geometry)

    def dgrad(self, grad: Tensor | Compressed, weight: Tensor, activation: Tensor, geometry: Geometry) -> Tensor:
        """See `suite.method.Backend`; `grad` may be compressed."""
        if not isinstance(grad, Compressed):
            return TORCH.dgrad(grad, weight, activation, geometry)
        size = (activation.shape[2], activation.shape[3]) if activation.ndim == 4 else (1, 1)
        return dispatch.data_gradient(grad, weight, size, geometry)

    def wgrad(
        self, grad: Tensor | Compressed, activation: Tensor, weight: Tensor, geometry: Geometry, with_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """See `suite.method.Backend`; `grad` may be compressed."""
        if not isinstance(grad, Compressed):
            return TORCH.wgrad(grad, activation, weight, geometry, with_bias)
        found = dispatch.weight_gradient(grad, activation, weight, geometry)
        return found, grad.channel_sums() if with_bias else None

    def executed(self, product: str, grad: Tensor | Compressed | None, weight: Tensor, geometry: Geometry) -> float:
        """See `suite.method.Backend`: the share of the channels that is kept, and 1 for a product that skips none."""
        return grad.share if isinstance(grad, Compressed) else 1.0


SKIP, SKIP_DGRAD = "skip", "skip_dgrad"
_BACKENDS: dict[str, Backend] = {
    MASKED: TORCH,
    SKIP: SkipPruned(SKIP, ("dgrad", "wgrad")),
    SKIP_DGRAD: SkipPruned(SKIP_DGRAD, ("dgrad",)),
}


@dataclass(frozen=True)
class Pruning:
    """How a method prunes the output gradient of its layers.

    Attributes:
        prune: dO -> dO with zeros for the channels that are not kept.
        compress: The same dO as a `Compressed`.
        facts: Plain data that determines how long both take and how much they keep.
        both: Whether the weight gradient and the bias gradient use the pruned dO too, not only the data gradient.
    """

    prune: GradTransform
    compress: GradTransform
    facts: Mapping[str, Any]
    both: bool

    @property
    def operand(self) -> Operand:
        """The operand that is pruned."""
        return "grad_shared" if self.both else "grad_dgrad"

    def of(self, backend: str) -> GradTransform:
        """Return the transform for a backend."""
        return self.prune if backend == MASKED else self.compress


class PrunedGradientBackends(LayerChoices):
    """The backend of every layer of a model whose output gradient is pruned to n of every m channels.

    A method creates this object in `setup`, calls `choose` there, returns `plan` for each layer whose gradient it
    prunes, and merges `state_dict` into its own.

    Args:
        wanted: `masked`: torch, with the zeros; `skip`: kernels that skip the channels that are not kept; `auto`: for
            each layer the one that was measured to be the fastest, where `skip_dgrad`, which skips in the data gradient
            only, is a third one if both gradients are pruned. A layer that cannot have the wanted backend is multiplied
            by torch.
        pruning: How output gradients are pruned.
        device: Device of the training.

    Raises:
        ValueError: if `skip` is wanted and no kernel skips channels on this device.
    """

    def __init__(self, wanted: str, pruning: Pruning, device: torch.device) -> None:
        super().__init__(wanted)
        self._pruning, self._device = pruning, device
        if wanted == SKIP and not dispatch.available(device):
            raise ValueError(
                f"backend=skip: no kernels that skip pruned channels are available on {device.type} (they need the CPU "
                "and a C++ compiler); use backend=auto"
            )

    def choose(self, ctx: Context, names: Sequence[str]) -> None:
        """Choose a backend for every layer whose gradient is pruned, once for all layers of equal shape.

        Args:
            ctx: Context of the method.
            names: Names of the layers.
        """

        def key(name: str) -> tuple[Any, ...]:
            layer = ctx.layers[name]
            layout = layer.weight.stride() if layer.weight.ndim == 4 else ()
            return (layer.weight.shape, layout, layer.bias is None, Shape.of(name, layer, ctx))

        def measure(name: str, candidates: Sequence[str]) -> Fastest:
            layer = ctx.layers[name]
            return fastest(candidates, self._pruning, layer, Shape.of(name, layer, ctx), ctx.hardware_id())

        self.choose_for(ctx, names, lambda name: self._candidates(ctx, name), key, measure)
        for name in names:
            if self.of(name) != MASKED:  # compile the kernels before training time is measured
                channels = ctx.layers[name].weight.shape[0]
                blank = torch.zeros(1, channels, device=ctx.device, dtype=torch.float32)
                self._pruning.compress(blank, Site(name, "grad_dgrad", 0, 0, 0))

    def plan(self, name: str) -> OpPlan:
        """Return the plan of a layer whose gradient is pruned."""
        backend = self.of(name)
        transform = self._pruning.of(backend)
        own = None if backend == MASKED else _BACKENDS[backend]
        if self._pruning.both:
            return OpPlan(grad_shared=transform, backend=own)
        return OpPlan(grad_dgrad=transform, backend=own)

    def _candidates(self, ctx: Context, name: str) -> list[str]:
        """Return the backends that a layer can have; the first is the baseline."""
        layer = ctx.layers[name]
        fits = layer.weight.shape[0] <= MOST_CHANNELS and {ctx.dtype, layer.weight.dtype} <= set(DTYPES)
        # A plan with a backend is refused for a weight that another layer reads too.
        shared = sum(other.weight is layer.weight for other in ctx.layers.values()) > 1
        if self.wanted == MASKED or not fits or shared or not dispatch.available(self._device):
            return [MASKED]
        return [MASKED, SKIP, SKIP_DGRAD] if self._pruning.both else [MASKED, SKIP]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the choice of a checkpoint.

        Raises:
            ValueError: if it needs kernels that are not available here.
        """
        super().load_state_dict(state)
        if {SKIP, SKIP_DGRAD} & {*(self.chosen or {}).values()} and not dispatch.available(self._device):
            raise ValueError(
                "the checkpoint of this trial uses kernels that skip pruned channels, which are not available here; "
                "resume it where they are, or start it again"
            )


def fastest(backends: Sequence[str], pruning: Pruning, layer: Layer, shape: Shape, hardware_id: str) -> Fastest:
    """Choose the backend that prunes an output gradient and multiplies it in the least time, on random operands.

    Only the products that use the pruned gradient are measured; the others are torch's with every backend.

    Args:
        backends: Names of the backends; the first is the baseline.
        pruning: How the output gradient is pruned.
        layer: Gives the weight and, if both gradients are pruned, says whether there is a bias.
        shape: What the layer's operands are like.
        hardware_id: Short name of the machine's hardware.
    """
    device, with_bias = layer.weight.device, pruning.both and layer.bias is not None
    question = {
        "what": "the gradients of a layer that use a pruned output gradient, and the pruning",
        **shape.question(layer.weight),
        "pruning": dict(pruning.facts),
        "products": "both" if pruning.both else "dgrad",
        "with_bias": with_bias,
        "kernels": kernels_version(device, library),
    }

    def steps() -> dict[str, Step]:
        activation, weight = shape.operands(layer.weight)
        # Without zeros: behind a ReLU there are some, but how many differs between layers and over a training.
        like = TORCH.forward(activation, weight, None, shape.geometry)
        grad = torch.empty_like(like).copy_(torch.randn(like.shape, generator=torch.Generator().manual_seed(1)))
        site = Site(layer.name, pruning.operand, 0, 0, 0)

        def step(name: str) -> Step:
            transform, backend = pruning.of(name), _BACKENDS[name]

            def run() -> None:
                pruned = transform(grad, site)
                backend.dgrad(_operand(pruned, backend, "dgrad"), weight, activation, shape.geometry)
                if pruning.both:
                    operand = _operand(pruned, backend, "wgrad")
                    backend.wgrad(operand, activation, weight, shape.geometry, with_bias)

            return run

        return {name: step(name) for name in backends}

    return choose(question, backends, steps, device, hardware_id)


def _operand(grad: Tensor | Compressed, backend: Backend, product: str) -> Any:
    """Return the output gradient as a backend takes it in a product."""
    return grad.dense() if isinstance(grad, Compressed) and not takes_compressed(backend, product) else grad
