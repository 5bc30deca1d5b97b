"""Times of convolutions that skip ClickTrain's masked weights, of weight conversion, and of training steps.

    python -m benchmarks.steps.bench_patterns [layers] [conversion] [steps] [--device cpu] [--pairs 30] [--json FILE]

All parts of a run are measured in alternation. Parts (default: all; on CUDA only `layers`):

    layers       forward, data gradient and weight gradient of every pruned convolution of resnet32_wide at the 8.6x
                 ratios, including layout changes, relative to torch's dense products in channels-last or contiguous
                 layout, whichever is faster; by product, by layer, and summed over the network
    conversion   `Tensor.to_sparse_csr` relative to packing a dense weight: with the index of a known mask, and with the
                 index and the lists of all products rebuilt
    steps        training steps of vgg11_click[width=0.5] after hard pruning, with masked weights skipped or multiplied;
                 steps under the lasso relative to dense steps; dense steps in bfloat16; and, for vgg11_click too, steps
                 with one pattern per filter computed as blocks, relative to multiplying by zeros

With --json each number is saved as soon as it is measured, and the same command continues with the missing ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.partial_results import OtherRunError, PartialResults, kept
from benchmarks.steps.training_steps import Setting, random_splits, trainer_steps
from benchmarks.stopwatch import Watch, watch_of
from benchmarks.trial_environment import enter_trial_environment
from kernels.cuda import library as cuda
from kernels.sparse_conv.dispatch import available, sparse_convolution
from methods.clicktrain import ClickTrain, settings
from methods.clicktrain.patterns import PruneMask, choose_patterns, generic_pool, outside_patterns
from methods.masks.structures import least_important_kernels
from reports.papers.timed_calls import Layer
from reports.papers.timed_calls import conversions as ways_to_convert
from suite.choices import build_model
from suite.engine.cost.interleaved import Ratio, interleaved_ratio, ratio_of
from suite.engine.network.channels.spaces import find_index_spaces
from suite.errors import UsageError
from suite.method import Geometry
from suite.ops import TORCH
from suite.recipe import Recipe
from suite.trials.devices import resolve_device

PARTS = ("layers", "conversion", "steps")
PRODUCTS = ("forward", "data gradient", "weight gradient")
NETWORK, RATIOS = "resnet32_wide", "cifar10-resnet32_wide-2"
STEP_NETWORK, WIDE_NETWORK, STEP_RATIOS = "vgg11_click[width=0.5]", "vgg11_click", "cifar10-vgg11_click-2"
SHAPE, CLASSES, BATCH, STEPS = (3, 32, 32), 10, 128, 2
CPU = torch.device("cpu")
# Comparisons by kind of device: type of both sides, and whether dense products may use TF32.
COMPARED = {
    "cpu": {"float32": (torch.float32, False)},
    "cuda": {
        "float32": (torch.float32, False),
        "float32, dense in TF32": (torch.float32, True),
        "bfloat16": (torch.bfloat16, False),
    },
}
LAYOUTS = (torch.channels_last, torch.contiguous_format)


@dataclasses.dataclass(frozen=True)
class Shape:
    """A pruned convolution: channels, side of its input, stride, and percentage of removed kernels."""

    in_channels: int
    out_channels: int
    side: int
    stride: int
    percent: float

    def __str__(self) -> str:
        return (
            f"{self.in_channels} to {self.out_channels}, {self.side}x{self.side}, stride {self.stride}, "
            f"{self.percent:g} %"
        )

    @property
    def geometry(self) -> Geometry:
        return Geometry("conv", (self.stride, self.stride), (1, 1))

    def kept(self) -> Tensor:
        """Return the mask that ClickTrain creates for a random saliency."""
        generator = torch.Generator().manual_seed(0)
        saliency = torch.rand(self.out_channels, self.in_channels, 3, 3, generator=generator)
        pool = generic_pool(4)
        outside = outside_patterns(choose_patterns(saliency, pool), pool)
        return PruneMask(outside, least_important_kernels(saliency, self.percent)).kept(saliency).bool()


def pruned_shapes() -> Counter[Shape]:
    """Return the pruned convolutions of the network and how often each occurs."""
    model = build_model(NETWORK, SHAPE, CLASSES)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))}
    sizes = find_index_spaces(model, SHAPE).input_sizes
    found: Counter[Shape] = Counter()
    for name, percent in settings.by_layer(settings.find("", "", RATIOS).ratios, layers).items():
        layer = layers[name]
        assert isinstance(layer, nn.Conv2d)
        found[Shape(layer.in_channels, layer.out_channels, sizes[name][0], layer.stride[0], percent)] += 1
    return found


Product = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Operands:
    """Mask and operands of the three products of a layer."""

    kept: Tensor
    activation: Tensor
    weight: Tensor
    grad: Tensor

    @staticmethod
    def of(shape: Shape, device: torch.device, dtype: torch.dtype, layout: torch.memory_format) -> Operands:
        torch.manual_seed(0)
        kept = shape.kept().to(device)
        made = {"device": device, "dtype": dtype}
        activation = torch.randn(BATCH, shape.in_channels, shape.side, shape.side, **made)
        activation = activation.contiguous(memory_format=layout)
        weight = (torch.randn(kept.shape, **made) * kept).contiguous(memory_format=layout)
        grad = torch.randn_like(TORCH.forward(activation, weight, None, shape.geometry))
        return Operands(kept, activation, weight, grad)


def dense_products(shape: Shape, given: Operands, tf32: bool) -> list[Product]:
    """Return the three products of a layer computed by torch, including multiplications by zero."""
    activation, weight, grad, geometry = given.activation, given.weight, given.grad, shape.geometry

    def by(product: Product) -> Product:
        def run() -> object:
            torch.backends.cudnn.allow_tf32 = tf32
            return product()

        return run

    return [
        by(lambda: TORCH.forward(activation, weight, None, geometry)),
        by(lambda: TORCH.dgrad(grad, weight, activation, geometry)),
        by(lambda: TORCH.wgrad(grad, activation, weight, geometry, False)),
    ]


def skipping_products(shape: Shape, given: Operands) -> list[Product]:
    """Return the three products of a layer computed without the masked weights."""
    activation, weight, grad, geometry = given.activation, given.weight, given.grad, shape.geometry
    taps = sparse_convolution(given.kept, geometry.stride, geometry.padding)
    # Both gradients share one conversion into blocks, as in training; its time counts for the data gradient.
    blocks = [taps.blocks_of_grad(grad, activation)]

    def data_gradient() -> None:
        blocks[0] = taps.blocks_of_grad(grad, activation)
        taps.dgrad(blocks[0], weight, activation)

    return [
        lambda: taps.forward(activation, weight),
        data_gradient,
        lambda: taps.wgrad(blocks[0], activation, weight),
    ]


def alternating(first: Product, second: Product, pairs: int, watch: Watch) -> Ratio:
    """Return the ratio of the times of two products, in alternating order, after two warm-up runs of each."""
    for product in (first, second, first, second):
        product()
    times = []
    for index in range(pairs):
        order = (first, second) if index % 2 == 0 else (second, first)
        pair = [watch.time(product) for product in order]
        times.append(pair if index % 2 == 0 else pair[::-1])
    ours, theirs = zip(*times, strict=True)
    return ratio_of(ours, theirs)


def measure_layers(pairs: int, found: PartialResults, device: torch.device = CPU) -> None:
    """Measure every shape and product in every comparison of the device."""
    for name, (dtype, tf32) in COMPARED[device.type].items():
        print(f"-- {name}")
        compare_layers(pairs, found if device.type == "cpu" else found.part(name), device, dtype, tf32)


def compare_layers(pairs: int, found: PartialResults, device: torch.device, dtype: torch.dtype, tf32: bool) -> None:
    """Measure all shapes in one type, then sum them, weighted by how often each occurs."""
    watch = watch_of(device)
    for shape, count in pruned_shapes().items():
        if str(shape) in found:
            print(f"{shape!s:42} x{count:2}  already measured")
            continue
        last, contiguous = (Operands.of(shape, device, dtype, layout) for layout in LAYOUTS)
        mine_each = skipping_products(shape, last)
        theirs_each = [dense_products(shape, given, tf32) for given in (last, contiguous)]
        whole: dict[str, Ratio] = {}
        for number, product in enumerate(PRODUCTS):
            with_each = [alternating(mine_each[number], side[number], pairs, watch) for side in theirs_each]
            whole[product] = min(with_each, key=lambda ratio: ratio.second_s)
        mine, theirs = (sum(getattr(one, side) for one in whole.values()) for side in ("first_s", "second_s"))
        print(f"{shape!s:42} x{count:2}  " + "; ".join(f"{name} {ratio}" for name, ratio in whole.items())
              + f"; all products: speedup {theirs / mine:.2f}")  # fmt: skip
        found[str(shape)] = {
            "count": count, "times_as_fast": theirs / mine,
            **{name: dataclasses.asdict(ratio) for name, ratio in whole.items()},
        }  # fmt: skip
    ours, dense = (
        sum(one["count"] * one[product][side] for name, one in found.items() if name != NETWORK for product in PRODUCTS)
        for side in ("first_s", "second_s")
    )
    print(f"all pruned convolutions of {NETWORK}: {1e3 * ours:.2f} ms, dense {1e3 * dense:.2f} ms, "
          f"speedup {dense / ours:.2f}")  # fmt: skip
    found[NETWORK] = {"ours_s": ours, "dense_s": dense, "times_as_fast": dense / ours}


def measure_conversion(pairs: int, found: PartialResults) -> None:
    """Measure torch's conversion to CSR relative to packing, for every shape."""
    for shape in pruned_shapes():
        if str(shape) in found:
            continue
        known, rebuilt = conversions(shape, pairs)
        print(f"{shape!s:42} to_sparse_csr / packed form: {known}; with index and lists rebuilt {rebuilt}")
        found[str(shape)] = {"known": dataclasses.asdict(known), "anew": dataclasses.asdict(rebuilt)}


def conversions(shape: Shape, pairs: int) -> tuple[Ratio, Ratio]:
    """Return the time of torch's conversion relative to ours, with a known index and with everything rebuilt."""
    kept, geometry = shape.kept(), shape.geometry
    weight = torch.randn(kept.shape) * kept
    layer = Layer(str(shape), weight, geometry.stride, geometry.padding, geometry.dilation, (shape.side, shape.side))
    theirs, known, rebuilt = ways_to_convert(layer).values()
    return interleaved_ratio(theirs, known, pairs), interleaved_ratio(theirs, rebuilt, pairs)


def measure_steps(pairs: int, found: PartialResults) -> None:
    """Measure steps of the trainer: with masks, under the lasso (both from the first step), and dense."""
    recipe = Recipe(epochs=190, batch_size=BATCH, learning_rate=0.01, schedule="step", weight_decay=5e-4, translate=4)

    def steps(dtype: torch.dtype, network: str = STEP_NETWORK, **given: Any) -> Callable[[], None]:
        setting = Setting(network, recipe, "quick", CPU, dtype, STEPS, random_splits(recipe, STEPS, CPU))
        if not given:
            return trainer_steps(setting)
        return trainer_steps(setting, method=ClickTrain(ratios=STEP_RATIOS, warmup=0.0, mixup=0.0, **given))

    def compare(name: str, first: Callable[[], None], second: Callable[[], None]) -> None:
        if name in found:
            return
        ratio = interleaved_ratio(first, second, pairs)
        each = [1e3 * seconds / STEPS for seconds in (ratio.first_s, ratio.second_s)]
        print(f"step of {name:72} {ratio}  ({each[0]:.0f} and {each[1]:.0f} ms)")
        found[name] = dataclasses.asdict(ratio)

    single, half = torch.float32, torch.bfloat16
    masked = {backend: steps(single, hard_prune=0.0, backend=backend) for backend in ("skipping", "auto", "masked")}
    compare(f"{STEP_NETWORK}: skipping / masked", masked["skipping"], masked["masked"])
    compare(f"{STEP_NETWORK}: auto / masked", masked["auto"], masked["masked"])
    compare(f"{STEP_NETWORK}: lasso / dense", steps(single, hard_prune=0.9, backend="masked"), steps(single))
    compare(f"{STEP_NETWORK}: skipping, float32 / dense, bfloat16", masked["skipping"], steps(half))
    compare(f"{STEP_NETWORK}: auto / dense, both bfloat16", steps(half, hard_prune=0.0, backend="auto"), steps(half))
    for network in (STEP_NETWORK, WIDE_NETWORK):
        for dtype in (single, half):
            first, second = (
                steps(dtype, network, hard_prune=0.0, scope="filter", backend=backend)
                for backend in ("blocks", "masked")
            )
            compare(f"{network}, a pattern a filter: blocks / masked, {str(dtype)[6:]}", first, second)


def main() -> None:
    """Measure and print; optionally save the numbers as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps.bench_patterns", description=__doc__.splitlines()[0]
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (all)")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N (cpu)")
    parser.add_argument("--pairs", type=int, default=30, help="number of interleaved pairs per comparison (30)")
    parser.add_argument("--json", type=Path, help="file for the results; results are added to an existing file")
    chosen = parser.parse_args()
    if unknown := [part for part in chosen.parts if part not in PARTS]:
        parser.error(f"unknown part '{unknown[0]}'; known: {', '.join(PARTS)}")
    if chosen.pairs < 2:
        parser.error(f"--pairs {chosen.pairs}: an interval needs at least 2")
    try:
        kind, index = resolve_device(chosen.device)
    except UsageError as error:
        parser.error(str(error))
    device = torch.device(kind, index) if kind == "cuda" else CPU
    if kind == "cuda":
        measure_on_cuda(parser, chosen, device)
        return
    if not available(CPU):
        parser.error("no kernels that skip weights: no C++ compiler is found, or PDT_CPU_KERNEL=0")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads, batch {BATCH}; load {os.getloadavg()[0]:.2f}")
    print(f"{chosen.pairs} pairs; ratio: from minimum times, median [95 %]")
    found = kept_numbers(parser, chosen.json, {"threads": threads, "pairs": chosen.pairs})
    measures = {"layers": measure_layers, "conversion": measure_conversion, "steps": measure_steps}
    for part in chosen.parts or PARTS:
        measures[part](chosen.pairs, found.part(part))


def measure_on_cuda(parser: argparse.ArgumentParser, chosen: argparse.Namespace, device: torch.device) -> None:
    """Measure the layers in every comparison; cuDNN benchmarks its algorithms."""
    if other := [part for part in chosen.parts if part != "layers"]:
        parser.error(f"part '{other[0]}' is not available on CUDA; available: layers")
    torch.cuda.set_device(device)
    if not available(device):
        parser.error(f"no kernels that skip weights: {cuda.load().description}")
    torch.backends.cudnn.benchmark = True
    name = torch.cuda.get_device_name(device)
    print(f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {name}, batch {BATCH}")
    print(f"{chosen.pairs} pairs; ratio: from minimum times, median [95 %]")
    facts = {"device": name, "cudnn": torch.backends.cudnn.version(), "pairs": chosen.pairs}
    measure_layers(chosen.pairs, kept_numbers(parser, chosen.json, facts).part("layers"), device)


def kept_numbers(parser: argparse.ArgumentParser, path: Path | None, facts: dict[str, Any]) -> PartialResults:
    """Return the numbers of this run that the file already has."""
    try:
        return kept(path, {"torch": torch.__version__, "machine": platform.machine(), **facts}, "found")
    except OtherRunError as error:
        parser.error(str(error))


if __name__ == "__main__":
    enter_trial_environment()
    main()
