"""Plans: how one layer's three products are computed, and the interface of the backends that compute them.

Backends and this module use one notation. A is the activation, (N, C, H, W) for a convolution or (rows, C) for a linear
layer. W is the weight, (K, C / groups, R, S) or (K, C). O is the output and dO the output gradient, (N, K, P, Q) or
(rows, K). A layer has three products: the forward O = A * W, the data gradient dA (`dgrad`) from dO and W, and the
weight gradient dW (`wgrad`) from dO and A.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

Operand = Literal["weight_forward", "grad_shared", "grad_dgrad", "grad_wgrad"]
Pair = tuple[int, int]


def random_key(seed: int, step: int, slot: int, operand: str, name: str) -> int:
    """Return a key in 0 .. 2**63 - 1, derived from all arguments, that seeds a counter-based generator."""
    packed = struct.pack("<qqq", seed, step, slot) + f"{operand}\0{name}".encode()
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


class Keys(Protocol):
    """Source of random keys while a CUDA graph captures a step."""

    def of(self, name: str, operand: str, slot: int) -> int | Tensor:
        """Return the key of one layer, operand and slot as a kernel takes it: a number or a tensor."""


@dataclass(frozen=True, slots=True)
class Site:
    """The layer, operand and step for which a transform is called.

    Attributes:
        name: Name of the layer in the bare model.
        operand: Field of `OpPlan` whose transform is called.
        step: Number of optimizer steps attempted since the trial began.
        micro_batch_index: `rank * micro_batches + micro_batch`. Two ranks equal one rank with two micro-batches.
        seed: Seed of the trial.
        keys: Source of the random keys while a CUDA graph captures the step; otherwise `None`.
    """

    name: str
    operand: Operand
    step: int
    micro_batch_index: int
    seed: int
    keys: Keys | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> int:
        """A random key in 0 .. 2**63 - 1, derived from all fields, that seeds a counter-based generator.

        A resumed trial and a recomputed activation draw the same numbers, without any saved state.

        Raises:
            RuntimeError: A CUDA graph captures the step. Every replay would repeat the same number.
        """
        if self.keys is not None:
            raise RuntimeError(
                f"{self.operand} of '{self.name}': a replayed step cannot use site.key, which is a Python number; pass "
                "site.kernel_seed to a kernel, or leave `replayable` False"
            )
        return random_key(self.seed, self.step, self.micro_batch_index, self.operand, self.name)

    @property
    def kernel_seed(self) -> int | Tensor:
        """The key as a kernel takes it: a number, or a tensor if a CUDA graph replays the step.

        The tensor is 0-dimensional, int64 and on the device. It changes before each replay, so the kernel must read it.
        """
        return self.key if self.keys is None else self.keys.of(self.name, self.operand, self.micro_batch_index)

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a torch generator that is seeded with `key`."""
        return torch.Generator(device).manual_seed(self.key)


@dataclass(frozen=True, slots=True)
class Compact:
    """An output gradient that stores only the channels that are kept.

    Attributes:
        values: (N, K', P, Q) or (rows, K'), the kept channels of dO.
        kept: (K',) int64, ascending: indices of the kept channels among the K output channels. A grouped convolution
            expands the gradient to its dense form if its groups keep different numbers of channels.
    """

    values: Tensor
    kept: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Compressed:
    """An output gradient that keeps n of every m consecutive channels of each pixel, and stores only those.

    Backends that take it (see `Backend`) skip the other channels. For all other backends it is expanded.

    Attributes:
        values: float32, (N, P, Q, J) or (rows, J): the kept values of each pixel. A kept value may be 0. J is the sum
            over the groups of n, or of min(n, size) for a short last group.
        channels: int16, in the shape of `values`: the channel, 0 .. K - 1, of each value, ascending within a pixel.
        shape: Shape of the dense gradient, (N, K, P, Q) or (rows, K).
        dtype: Number type of the dense gradient.
        n: Number of channels kept in each group.
        m: Number of consecutive channels that form a group.

    Raises:
        ValueError: Shapes or number types do not agree, or n is not in 1 .. m. The constructor does not read the
            channels. `check` reads them, and the kernels refuse a channel outside the group of its value.
    """

    values: Tensor
    channels: Tensor
    shape: tuple[int, ...]
    dtype: torch.dtype
    n: int
    m: int

    def __post_init__(self) -> None:
        if not 1 <= self.n <= self.m:
            raise ValueError(f"Compressed: n must be in 1 .. m, got n={self.n} and m={self.m}")
        outer, channels = (self.shape[0], *self.shape[2:]), self.shape[1]
        wanted = (*outer, channels // self.m * self.n + min(self.n, channels % self.m))
        for name, dtype in (("values", torch.float32), ("channels", torch.int16)):
            tensor = getattr(self, name)
            if (tuple(tensor.shape), tensor.dtype, tensor.device) != (wanted, dtype, self.values.device):
                raise ValueError(
                    f"Compressed: a gradient of shape {tuple(self.shape)} that keeps {self.n}:{self.m} needs {name} of "
                    f"shape {wanted} and {dtype} on {self.values.device}, got {tuple(tensor.shape)} and {tensor.dtype} "
                    f"on {tensor.device}"
                )

    @property
    def share(self) -> float:
        """The share of the channels that is kept."""
        return self.values.shape[-1] / self.shape[1]

    def dense(self) -> Tensor:
        """Return the dense gradient, in channels-last order or with contiguous rows."""
        outer, channels = self.values.shape[:-1], self.shape[1]
        grad = self.values.new_zeros((*outer, channels), dtype=self.dtype)
        return grad.scatter_(-1, self.channels.long(), self.values.to(self.dtype)).movedim(-1, 1)

    def channel_sums(self) -> Tensor:
        """Return the sum of each channel, (K,), added in float64. It is the bias gradient."""
        sums = self.values.new_zeros(self.shape[1], dtype=torch.float64)
        return sums.index_add_(0, self.channels.flatten().int(), self.values.flatten().double()).to(self.dtype)


Transform = Callable[[Tensor, Site], Tensor]
GradTransform = Callable[[Tensor, Site], "Tensor | Compressed"]
SharedTransform = Callable[[Tensor, Site], "Tensor | Compact | Compressed"]


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a layer's products depend on besides their operands.

    Attributes:
        kind: `conv` or `linear`. A linear layer uses none of the other fields; its operands are matrices.
        stride, padding, dilation: Those of the convolution, (rows, columns).
        groups: Number of groups of the convolution.
    """

    kind: str
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1


class Backend(Protocol):
    """Computes the three products of a layer.

    The operands share one dtype. They are already masked, transformed and cast. A backend may have the attribute
    `compressed_products`, a collection of `dgrad` and `wgrad`. It names the products that also take a `Compressed`
    output gradient. All other products take a dense tensor.
    """

    name: str

    def forward(self, activation: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """Return O = A * W + b, (N, K, P, Q) or (rows, K)."""

    def dgrad(self, grad: Tensor, weight: Tensor, activation: Tensor, geometry: Geometry) -> Tensor:
        """Return dA from dO and W. A backend may use shape and strides of `activation` but not its values."""

    def wgrad(
        self, grad: Tensor, activation: Tensor, weight: Tensor, geometry: Geometry, with_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return dW, and the bias gradient if `with_bias`, from dO and A. Only the shape of `weight` may be used."""

    def executed(self, product: str, grad: Tensor | None, weight: Tensor, geometry: Geometry) -> float:
        """Return the share of the dense multiply-adds that `product` executed on these operands.

        `product` is `forward`, `dgrad` or `wgrad`. `grad` is `None` for `forward`.
        """


def takes_compressed(backend: Backend, product: str) -> bool:
    """Return whether a backend computes `product`, `dgrad` or `wgrad`, from a `Compressed` output gradient."""
    return product in getattr(backend, "compressed_products", ())


@dataclass(frozen=True, slots=True)
class OpPlan:
    """How one layer's three products are computed. A field that is `None` leaves its operand unchanged.

    Attributes:
        weight_forward: W -> W, for the forward and the data gradient, for example a mask. It receives the master weight
            outside autocast; its result is cast.
        grad_shared: dO -> dO (or `Compact` or `Compressed`), for the data gradient, the weight gradient and the bias
            gradient.
        grad_dgrad: dO -> dO (or `Compressed`), for the data gradient only.
        grad_wgrad: dO -> dO (or `Compressed`), for the weight gradient only; the bias gradient does not use it.
        backend: Implementation of the three products; `None` for torch.

    `grad_shared` runs first; `grad_dgrad` and `grad_wgrad` receive its result in dense form. A transform returns a new
    tensor of the same shape, or its argument unchanged. It must not write into its argument, which other layers may
    share. No transform runs for a product that is not needed. The first layer, for example, has no data gradient.
    """

    weight_forward: Transform | None = None
    grad_shared: SharedTransform | None = None
    grad_dgrad: GradTransform | None = None
    grad_wgrad: GradTransform | None = None
    backend: Backend | None = None

    @property
    def empty(self) -> bool:
        """Whether the plan changes nothing."""
        return self == EMPTY_PLAN

    def __deepcopy__(self, memo: dict[int, Any]) -> OpPlan:
        return self  # a copy of the model, for example an average of the weights, follows the same plan


EMPTY_PLAN = OpPlan()


class Density(NamedTuple):
    """The share of each product's multiply-adds whose operands are both nonzero, each in [0, 1].

    Only zeros that the method creates in weights and output gradients count. A weight that is masked again after the
    step needs no gradient, so its gradient counts as zero. The contract check compares these shares with the operands
    of a training.
    """

    forward: float = 1.0
    dgrad: float = 1.0
    wgrad: float = 1.0


class Layer(nn.Module):
    """A layer that follows a plan. Every instance is also an `nn.Conv2d` or an `nn.Linear`.

    Attributes:
        name: Name of the layer in the bare model.
        weight: (K, C / groups, R, S) or (K, C).
        bias: (K,), or `None`.
        op_plan: The plan that the layer follows. The hooks set it to what `Method.plan` returns.
    """

    name: str
    weight: Tensor
    bias: Any  # `Tensor | None`; torch's own layers declare it in incompatible ways
    op_plan: OpPlan

    @property
    def geometry(self) -> Geometry:
        """What the layer's products depend on besides their operands."""
        raise NotImplementedError
