"""Cases of `search_products.py` and the computation of one case; torch is imported only in that computation."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import asdict, dataclass
from typing import Any

KERNELS, STRIDES = (1, 3, 5), (1, 2, 3)
LAYOUTS, DTYPES, THREADS = ("channels-last", "contiguous"), ("float32", "bfloat16"), (1, 2)
CHANNELS = 33
SIDES = (7, 20)  # smallest and largest side of the images
GROUPINGS = ("1", "2", "3", "each")  # `each`: as many groups as input channels
# Largest error of an element, relative to the root mean square of the product, that counts as rounding. A wrong element
# has an error of about 1.
LIMITS = {"float32": 1e-3, "bfloat16": 0.1}


@dataclass(frozen=True)
class Case:
    """One convolution with padding of half its kernel size.

    Attributes:
        grouping: One of `GROUPINGS`.
        in_channels, out_channels: Total over all groups.
        side, batch: Sizes of the input, (batch, in_channels, side, side).
        seed: Seed of the random operands.
    """

    kernel: int
    stride: int
    grouping: str
    layout: str
    dtype: str
    threads: int
    in_channels: int
    out_channels: int
    side: int
    batch: int
    seed: int

    @property
    def row(self) -> tuple[Any, ...]:
        """Key of the table row that counts this case."""
        return (self.kernel, self.stride, self.grouping, self.layout, self.dtype, self.threads)

    @property
    def groups(self) -> int:
        return self.in_channels if self.grouping == "each" else int(self.grouping)

    def text(self) -> str:
        """Return the case as one line of JSON."""
        return json.dumps(asdict(self))


def channel_pairs(grouping: str, per_count: int, draw: random.Random) -> list[tuple[int, int]]:
    """Return pairs (in, out) of channel counts up to `CHANNELS`, with `per_count` output counts per input count.

    The output counts are drawn without repetition; 0 takes all of them. With groups, one is drawn. Both counts are
    multiples of the number of groups.
    """
    if grouping != "1":
        per_count = min(per_count, 1)
    found = []
    for given in range(1, CHANNELS + 1):
        groups = given if grouping == "each" else int(grouping)
        made = [count for count in range(1, CHANNELS + 1) if count % groups == 0] or [groups]
        if given % groups == 0:
            chosen = made if not per_count else draw.sample(made, min(per_count, len(made)))
            found += [(given, count) for count in sorted(chosen)]
    return found


def all_cases(
    kernels: tuple[int, ...],
    strides: tuple[int, ...],
    groupings: tuple[str, ...],
    layouts: tuple[str, ...],
    dtypes: tuple[str, ...],
    threads: tuple[int, ...],
    per_count: int,
    seed: int,
    sides: tuple[int, int] = SIDES,
) -> list[list[Case]]:
    """Return one list of cases per row of the table. The same arguments give the same cases."""
    rows = []
    for row in itertools.product(kernels, strides, groupings, layouts, dtypes, threads):
        kernel, stride, grouping, layout, dtype, count = row
        draw = random.Random(f"{seed} {row}")
        cases = []
        for given, made in channel_pairs(grouping, per_count, draw):
            # For fewer than 16 images and one thread, torch computes 1x1 convolutions of stride 1 without oneDNN.
            batch = 16 if kernel == 1 else draw.choice((2, 3, 4))
            side = draw.randint(*sides)
            cases.append(Case(kernel, stride, grouping, layout, dtype, count, given, made, side, batch, seed))
        rows.append(cases)
    return rows


def errors_of(case: Case, through_suite: bool) -> dict[str, float]:
    """Return the largest error of each product against float64, relative to the product's root mean square.

    Args:
        case: The convolution.
        through_suite: Whether to use a layer of the suite, once without and once with a transform; otherwise torch's
            own layer is used.
    """
    import torch
    from torch import nn

    torch.set_num_threads(case.threads)
    generator = torch.Generator().manual_seed(case.seed)
    dtype = getattr(torch, case.dtype)
    layer = nn.Conv2d(
        case.in_channels, case.out_channels, case.kernel, case.stride, case.kernel // 2, groups=case.groups
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    layout = torch.channels_last if case.layout == "channels-last" else torch.contiguous_format
    layer = layer.to(dtype).to(memory_format=layout)  # type: ignore[call-overload]
    images = torch.randn((case.batch, case.in_channels, case.side, case.side), generator=generator)
    images = images.to(dtype).contiguous(memory_format=layout)
    size = (case.side - 1) // case.stride + 1
    grad = torch.randn((case.batch, case.out_channels, size, size), generator=generator)
    grad = grad.to(dtype).contiguous(memory_format=layout)

    wide = nn.Conv2d(
        case.in_channels, case.out_channels, case.kernel, case.stride, case.kernel // 2, groups=case.groups
    ).double()
    with torch.no_grad():
        for parameter, given in zip(wide.parameters(), layer.parameters(), strict=True):
            parameter.copy_(given)
    # The reference is a new layer with torch's default layout, since `contiguous` may keep channels-last strides.
    wanted = _products(wide, images.double(), grad.double())
    worst: dict[str, float] = {}
    for planned in (False, True) if through_suite else (None,):
        found = _products(layer if planned is None else _of_suite(layer, planned), images, grad)
        for name, value in found.items():
            scale = wanted[name].square().mean().sqrt().item()
            error = (value.double() - wanted[name]).abs().max().item() / (scale or 1.0)
            worst[name] = max(worst.get(name, 0.0), error if math.isfinite(error) else math.inf)
    return worst


def _products(layer: Any, images: Any, grad: Any) -> dict[str, Any]:
    layer.zero_grad()
    images = images.detach().requires_grad_()
    out = layer(images)
    out.backward(grad)
    return {
        "forward": out.detach(),
        "data gradient": images.grad,
        "weight gradient": layer.weight.grad,
        "bias gradient": layer.bias.grad,
    }


def _of_suite(layer: Any, planned: bool) -> Any:
    """Convert the layer to one of the suite, with an empty plan or with a transform that changes nothing."""
    from suite.method import OpPlan
    from suite.ops import convert

    convert(layer)
    layer.op_plan = OpPlan(grad_dgrad=lambda grad, site: grad) if planned else OpPlan()
    return layer
