"""Times of gradients that skip pruned channels, by layer of a network, relative to torch's dense gradients.

    python -m benchmarks.gradients [--models LIST] [--ratios 1:4 2:16] [--dtypes float32 bfloat16] [--batch-size N]
        [--pairs 9] [--json FILE]

The time of a gradient that skips includes pruning and compression (`compress_nm`) and the product
(`kernels/compressed`). It is measured in alternation with torch's product of the gradient that is not pruned (`dense`)
in every number type, and with `prune_nm` and torch's product of its result (`masked`). The ratio is that to the dense
product in the type in which it is faster. A product is timed only if its result agrees with torch's product of what
`prune_nm` keeps: the largest difference is at most 1e-4 of the largest element in float32, and 1e-2 in bfloat16.

Models that torchvision has too receive 32 images of 224x224 pixels, others 128 images of 32x32 pixels (--batch-size).
Only layers with a data gradient are measured, each shape once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

from benchmarks.measured import Results, enter_trial_environment
from kernels import PruneRule, compress_nm, prune_nm
from kernels.compressed.dispatch import available, data_gradient, weight_gradient
from suite.choices import build_model
from suite.engine.cost.flops import LayerCost, count_layers
from suite.engine.cost.interleaved import interleaved_times, ratio_of
from suite.errors import UsageError
from suite.method import Compressed, Geometry
from suite.ops import TORCH
from suite.parameters import split

CPU = torch.device("cpu")
KEY = 1  # of random masks
DTYPES, PRODUCTS = ("float32", "bfloat16"), ("dgrad", "wgrad")
ERRORS = {torch.float32: 1e-4, torch.bfloat16: 1e-2}
CIFAR, IMAGENET = ((3, 32, 32), 10, 128), ((3, 224, 224), 1000, 32)  # image, classes, images of a batch


class WrongProduct(Exception):
    """A product that skips differs from torch's; the message is one line."""


@dataclass(frozen=True)
class Layer:
    """A layer and the random operands of its gradients: dO, A and W; channels-last for a convolution.

    Attributes:
        names: Names of the layers of this shape.
        size: (H, W) of the input.
    """

    names: list[str]
    size: tuple[int, int]
    geometry: Geometry
    grad: Tensor
    activation: Tensor
    weight: Tensor

    def dense(self, product: str, grad: Tensor) -> Tensor:
        """Return a gradient (`dgrad` or `wgrad`) by torch."""
        if product == "dgrad":
            return TORCH.dgrad(grad, self.weight, self.activation, self.geometry)
        return TORCH.wgrad(grad, self.activation, self.weight, self.geometry, False)[0]

    def compress(self, rule: PruneRule) -> Compressed:
        values, channels = compress_nm(self.grad, rule, KEY)
        return Compressed(values, channels, tuple(self.grad.shape), self.grad.dtype, rule.n, rule.m)

    def skip(self, product: str, rule: PruneRule) -> Tensor:
        """Return a gradient from kept values and their channels."""
        pruned = self.compress(rule)
        if product == "dgrad":
            return data_gradient(pruned, self.weight, self.size, self.geometry)
        return weight_gradient(pruned, self.activation, self.weight, self.geometry)

    def to(self, dtype: torch.dtype) -> Layer:
        tensors = (tensor.to(dtype) for tensor in (self.grad, self.activation, self.weight))
        return Layer(self.names, self.size, self.geometry, *tensors)

    def check(self, product: str, rule: PruneRule) -> float:
        """Return the largest difference of a skipping product to torch's, relative to torch's largest element.

        Torch multiplies in float32 what `prune_nm` keeps of the same gradient.

        Raises:
            WrongProduct: It exceeds its bound, or the result has NaN.
        """
        expected = self.to(torch.float32).dense(product, prune_nm(self.grad, rule, KEY).float())
        difference = (self.skip(product, rule).float() - expected).abs().max()
        error, dtype = float(difference / expected.abs().max()), self.grad.dtype
        if not error <= ERRORS[dtype]:
            raise WrongProduct(
                f"{self.names[0]}: {product} at {rule.n}:{rule.m} in {dtype}: relative error {error:.2g}"
            )
        return error


def layers(text: str, batch: int | None) -> Iterator[tuple[str, Layer]]:
    """Yield the distinct layers of a model that have a data gradient, with a description.

    Raises:
        UsageError: The model is unknown.
    """
    is_large = text.partition("[")[0] in torchvision.models.list_models(module=torchvision.models)
    images, classes, usual = IMAGENET if is_large else CIFAR
    with torch.device("meta"):
        model = build_model(text, images, classes)
    found: dict[tuple[str, Any, int], list[LayerCost]] = {}
    for cost in count_layers(model, images).values():
        if cost.has_dgrad and cost.is_layer:
            found.setdefault((str(model.get_submodule(cost.name)), cost.input, cost.macs), []).append(cost)
    for (_, size, _), same in found.items():
        layer = _layer([one.name for one in same], model.get_submodule(same[0].name), same[0], batch or usual)
        kernel, side = (f"{pair[0]}x{pair[1]}" for pair in (same[0].kernel, size))
        stride = "" if layer.geometry.stride == (1, 1) else f", stride {layer.geometry.stride[0]}"
        shape = "linear" if layer.geometry.kind == "linear" else f"{kernel}{stride}, {side}"
        yield f"{layer.names[0]} ({same[0].in_channels} to {same[0].out_channels}, {shape})", layer


def _layer(names: list[str], module: nn.Module, cost: LayerCost, batch: int) -> Layer:
    generator = torch.Generator().manual_seed(0)
    layout, geometry = torch.contiguous_format, Geometry("linear")
    shape: tuple[int, ...] = (batch * cost.macs // (cost.in_channels * cost.out_channels), cost.in_channels)
    if isinstance(module, nn.Conv2d):
        layout, shape = torch.channels_last, (batch, cost.in_channels, *cost.input)
        geometry = Geometry("conv", module.stride, module.padding, module.dilation, module.groups)

    def normal(size: tuple[int, ...]) -> Tensor:
        return torch.randn(size, generator=generator).contiguous(memory_format=layout)

    weight = normal(tuple(module.weight.shape))
    weight *= weight[0].numel() ** -0.5
    activation = normal(shape).relu_()
    grad = normal(tuple(TORCH.forward(activation, weight, None, geometry).shape))
    return Layer(names, cost.input, geometry, grad, activation, weight)


def measure(product: str, layer: Layer, rules: list[PruneRule], dtypes: list[torch.dtype], pairs: int) -> np.ndarray:
    """Check and measure one gradient of a layer.

    Returns:
        Seconds, (pairs, dtypes, 1 + 3 * rules): dense; then masked, compression alone, and skip of each rule.

    Raises:
        WrongProduct: A product is wrong; nothing is timed.
    """
    calls: list[Callable[[], object]] = []
    for given in (layer.to(dtype) for dtype in dtypes):
        calls.append(lambda given=given: given.dense(product, given.grad))
        for rule in rules:
            given.check(product, rule)
            calls += [
                lambda given=given, rule=rule: given.dense(product, prune_nm(given.grad, rule, KEY)),
                lambda given=given, rule=rule: given.compress(rule),
                lambda given=given, rule=rule: given.skip(product, rule),
            ]
    return interleaved_times(calls, pairs).reshape(pairs, len(dtypes), -1)


def measure_model(model: str, typed: argparse.Namespace, results: Results) -> None:
    """Measure and print all layers of a model, and the sums over them."""
    rules = typed.ratios
    for product in PRODUCTS:
        whole: list[np.ndarray] = []  # seconds of all layers: dense, and skip of each rule
        for label, layer in layers(model, typed.batch_size):
            times = measure(product, layer, rules, [getattr(torch, name) for name in typed.dtypes], typed.pairs)
            medians = np.median(times, axis=0)
            fastest = medians[:, 0].argmin()
            for number, rule in enumerate(rules):
                for index, name in enumerate(typed.dtypes):
                    masked, compressed, skip = times[:, index, 1 + 3 * number : 4 + 3 * number].T
                    results.add(
                        f"{model}, {product}, {label}: {rule.n}:{rule.m} {name} / dense {typed.dtypes[fastest]}",
                        ratio_of(skip, times[:, fastest, 0]),
                        layers=layer.names,
                        masked_s=float(np.median(masked)),
                        compress_s=float(np.median(compressed)),
                        dense_s=float(medians[index, 0]),
                    )
            whole.append(len(layer.names) * medians.min(axis=0)[::3])
        dense, *skips = np.sum(whole, axis=0)
        each = ", ".join(f"{rule.n}:{rule.m} {1e3 * skip:.1f}" for rule, skip in zip(rules, skips, strict=True))
        print(f"{model}, {product}, all layers in their fastest type, ms: dense {1e3 * dense:.1f}, {each}", flush=True)


def ratio(text: str) -> PruneRule:
    """Return the rule of a ratio n:m, rescaled by sample and channel as SDGP's."""
    n, m = map(int, text.split(":"))
    return PruneRule(n, m, "magnitude", "sample_channel")


def main() -> None:
    """Measure, print, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet9,resnet9[width=0.25]", help="comma list (default: %(default)s)")
    rules = [ratio("1:4"), ratio("2:16")]
    parser.add_argument("--ratios", metavar="N:M", nargs="+", type=ratio, default=rules, help="default: 1:4 2:16")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="default: both")
    parser.add_argument("--batch-size", type=int, help="images (default: 128; 32 of 224x224 pixels)")
    parser.add_argument("--pairs", type=int, default=9, help="interleaved rounds of a layer (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="file for the results")
    typed = parser.parse_args()
    if not available(CPU):
        parser.error("no kernels that skip channels: no C++ compiler is found, or PDT_CPU_KERNEL=0")
    try:
        results = Results(CPU, typed.json)
        for model in split(typed.models):
            measure_model(model, typed, results)
    except UsageError as error:
        parser.error(str(error))


if __name__ == "__main__":
    enter_trial_environment()
    main()
