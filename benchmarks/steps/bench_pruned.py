"""Times of PruneTrain's smaller networks relative to their FLOPs, and of its own work.

    python -m benchmarks.steps.bench_pruned [steps] [lasso] [surgery] [gating] [--pairs 30] [--device cpu] [--json FILE]

Each part is measured in alternation, on random images of CIFAR-10's shape with batch size 128. Parts (default: all):

    steps     training steps of a network that was cut to the paper's final share of inference FLOPs, relative to dense
              steps, with channel counts rounded to 1, 8 and 16; then a profile of both
    lasso     steps with the penalty and without cuts, relative to dense steps
    surgery   time of one reconfiguration of ImageNet's ResNets, with momentum
    gating    the same dead channels cut by union and by gating: FLOPs, outputs, and time of a step

`steps` draws the remaining share of each index space around a common share, with a fixed seed; with --model-file it
uses the remaining channels of a trial's `model.pt`. `surgery` runs on the CPU. With --json each number is saved as soon
as it is measured, and the same command continues with the missing ones.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.partial_results import OtherRunError, kept
from benchmarks.steps.cut_networks import by_prunetrain, cut, final_plan, smaller
from benchmarks.steps.training_steps import SHAPE, Setting, random_splits, trainer_steps
from benchmarks.trial_environment import enter_trial_environment
from methods.prunetrain import PruneTrain
from suite.choices import build_model
from suite.engine.cost.clock import stamps_of
from suite.engine.cost.flops import PRODUCTS, count_layers, count_model
from suite.engine.cost.interleaved import interleaved_ratio
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import apply_plan
from suite.engine.network.model_files import load, read_reconfigurations
from suite.errors import UsageError
from suite.method import ReconfigPlan
from suite.recipe import Recipe
from suite.trials.devices import resolve_device, resolve_dtype
from suite.trials.spec import DTYPES, read_device

PARTS = ("steps", "lasso", "surgery", "gating")
# Share of inference FLOPs that PruneTrain leaves on CIFAR-10, by network (Table 1).
FINAL_SHARES = {"vgg11": 0.35, "resnet32": 0.34, "resnet50_cifar": 0.30}
ROUNDINGS = (1, 8, 16)
LASSO_MODELS = ("resnet32", "resnet50_cifar", "vgg11")
SURGERY_MODELS = ("resnet18", "resnet34", "resnet50", "resnet101")
DEAD, SHARED = 0.4, 0.85  # threshold of dead channels; weight of the random value that layers of an index space share
BATCH, STEPS = 128, 2
CPU = torch.device("cpu")
# Kind of an operation by prefixes of its name in a profile; the first match counts.
KINDS = {
    "linear layers": ("aten::addmm", "aten::mm", "aten::linear"),
    "convolution": (
        "aten::convolution",
        "aten::conv",
        "aten::mkldnn_conv",
        "aten::cudnn_conv",
        "mkldnn",
        "onednn",
        "pdt::",
        "_PlannedOp",
    ),
    "normalisation": ("aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::batch_norm", "aten::_batch_norm"),
    "activation": ("aten::relu", "aten::threshold", "aten::clamp"),
    "pooling": ("aten::max_pool", "aten::avg_pool", "aten::adaptive", "aten::mean"),
    "sums of branches": ("aten::add", "aten::sum"),
    "optimizer and gradients' norm": ("Optimizer", "aten::_foreach", "aten::linalg_vector_norm", "aten::_fused"),
    "copies and casts": ("aten::copy_", "aten::to", "aten::clone", "aten::contiguous", "aten::index", "aten::zero"),
}


def setting_of(model: str, dtype: torch.dtype, device: torch.device = CPU) -> Setting:
    """Return a setting with PruneTrain's recipe."""
    recipe = Recipe(epochs=182, batch_size=BATCH, learning_rate=0.1, schedule="step", weight_decay=5e-4, translate=4)
    return Setting(model, recipe, "paper", device, dtype, STEPS, random_splits(recipe, STEPS, device))


def training_share(setting: Setting, plans: Sequence[ReconfigPlan]) -> float:
    """Return the FLOPs of a training step of the cut network relative to the original network."""

    def flops(model: nn.Module) -> int:
        return sum(cost.flops(product) for cost in count_layers(model, SHAPE).values() for product in PRODUCTS)

    whole = setting.new_model()
    return flops(smaller(whole, plans)) / flops(whole)


def measure_steps(
    setting: Setting, plans: Mapping[str, Sequence[ReconfigPlan]], pairs: int, found: dict[str, Any]
) -> None:
    """Measure steps of a network cut by each plan, relative to dense steps; profile the fastest."""
    dense, stamps = trainer_steps(setting), stamps_of(setting.device)
    medians: dict[str, float] = {}
    for label, plan in plans.items():
        name = f"{setting.model}, {label}"
        if name in found:
            print(f"{name:34} already measured")
            medians[label] = found[name]["median"]
            continue
        share = training_share(setting, plan)
        ratio = interleaved_ratio(trainer_steps(setting, method=cut(plan)), dense, pairs, stamps)
        saved = (1 - ratio.median) / (1 - share)
        whole = setting.new_model()
        left, dense_flops = (count_model(one, SHAPE)["inference_flops"] for one in (smaller(whole, plan), whole))
        inference = left / dense_flops
        print(
            f"{name:34} FLOPs: inference {inference:.3f}, step {share:.3f}; time {ratio}; "
            f"saved time / saved FLOPs {saved:.2f}"
        )
        found[name] = {**dataclasses.asdict(ratio), "inference_flops": inference, "step_flops": share, "saved": saved}
        medians[label] = ratio.median
    if f"{setting.model}, profile" in found:
        return
    best = min(medians, key=lambda label: medians[label])
    print(f"\n{setting.model}: milliseconds of a step by kind of operation (profile of {STEPS} steps; {best})")
    cut_steps = trainer_steps(setting, method=cut(plans[best]))
    before, after = (profile(steps, setting.device) for steps in (dense, cut_steps))
    for kind in sorted(before, key=lambda kind: -after.get(kind, 0.0)):
        print(f"  {kind:32} dense {before[kind]:8.1f}  cut {after.get(kind, 0.0):8.1f}")
    found[f"{setting.model}, profile"] = {"plan": best, "dense_ms": before, "cut_ms": after}


def profile(run: Callable[[], None], device: torch.device) -> dict[str, float]:
    """Return milliseconds of a step by kind of operation, without the time of nested operations.

    On a GPU it is the time of the kernels that the operation launches.
    """
    run()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        run()
    own = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    on_cpu = torch.autograd.DeviceType.CPU  # kernels have separate entries, which would count them twice
    kinds: dict[str, float] = defaultdict(float)
    for event in (one for one in profiler.key_averages() if one.device_type == on_cpu):
        fitting = (kind for kind, starts in KINDS.items() if event.key.startswith(starts))
        kinds[next(fitting, "rest")] += getattr(event, own) / 1e3 / STEPS
    return dict(kinds)


def measure_lasso(setting: Setting, pairs: int, found: dict[str, Any]) -> None:
    """Measure steps with the penalty relative to steps without it."""
    name = f"{setting.model}: prunetrain (nothing removed) / dense"
    if name in found:
        return
    steps = trainer_steps(setting, method=PruneTrain()), trainer_steps(setting)
    ratio = interleaved_ratio(*steps, pairs, stamps_of(setting.device))
    print(f"{name:50} {ratio}")
    found[name] = dataclasses.asdict(ratio)


def measure_surgery(name: str, found: dict[str, Any]) -> None:
    """Measure one reconfiguration that halves every index space, with momentum; the minimum of three."""
    if f"surgery, {name}" in found:
        return
    shape = (3, 224, 224)
    seconds = []
    for _ in range(3):
        model = build_model(name, shape, 1000)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        spaces = find_index_spaces(model, shape)
        plan = ReconfigPlan(kept={one.name: one.original[::2] for one in spaces.values() if not one.frozen})
        parameters = sum(parameter.numel() for parameter in model.parameters())
        began = time.perf_counter()
        apply_plan(model, plan, spaces, optimizer)
        seconds.append(time.perf_counter() - began)
    each = 1e9 * min(seconds) / parameters
    print(f"{name:12} {parameters / 1e6:6.1f} million parameters  {min(seconds):.3f} s, {each:.1f} ns per parameter")
    found[f"surgery, {name}"] = {"parameters": parameters, "seconds": min(seconds)}


def measure_gating(setting: Setting, pairs: int, found: dict[str, Any]) -> None:
    """Cut random dead channels, mostly equal in layers that share an index space, by union and by gating."""
    whole = setting.new_model()
    generator = torch.Generator().manual_seed(1)
    layers = {name: layer for name, layer in whole.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))}
    for space in (spaces := find_index_spaces(whole, SHAPE)).values():
        common = torch.rand(space.size, generator=generator)
        for _, weight, axis, entries in () if space.frozen else spaces.weights(space, layers):
            own = SHARED * common + (1 - SHARED) * torch.rand(space.size, generator=generator)
            weight.data.movedim(axis, 0)[entries[own < DEAD].flatten()] = 0.0
    images = torch.randn(8, *SHAPE, generator=generator).to(setting.device)
    plans, outputs, flops = {}, [whole.eval()(images).detach()], [count_model(whole, SHAPE)["inference_flops"]]
    for gating in (False, True):
        model = copy.deepcopy(whole)
        spaces = find_index_spaces(model, SHAPE)
        plan = plans[gating] = by_prunetrain(model, spaces, gating)
        apply_plan(model, plan, spaces, None)
        outputs.append(model.eval()(images).detach())
        flops.append(count_model(model, SHAPE)["inference_flops"])
    difference = max(((outputs[0] - other).abs().max() / outputs[0].abs().max()).item() for other in outputs[1:])
    print(f"{setting.model}: outputs differ by at most {difference:.1e} of the largest")
    extra = (flops[1] - flops[2]) / flops[0]
    print(f"  inference FLOPs left: union {flops[1] / flops[0]:.3f}, gated {flops[2] / flops[0]:.3f}; the union needs "
          f"{100 * extra:.1f} % of the dense FLOPs more (paper: 1 to 6 %)")  # fmt: skip
    dense, stamps = trainer_steps(setting), stamps_of(setting.device)
    for label, gating in (("union", False), ("gated", True)):
        if f"{setting.model}: {label} / dense" in found:
            continue
        ratio = interleaved_ratio(trainer_steps(setting, method=cut([plans[gating]])), dense, pairs, stamps)
        print(f"  {label:6} / dense, per step: {ratio}")
        found[f"{setting.model}: {label} / dense"] = {
            **dataclasses.asdict(ratio),
            "inference_flops": flops[1 + gating] / flops[0],
        }


def trials_plans(path: Path) -> tuple[str, list[ReconfigPlan]]:
    """Return the model name and the reconfigurations of a trial's final model."""
    return str(load(path)["architecture"]["model"]), read_reconfigurations(path)


def main() -> None:
    """Measure and print; optionally save the numbers as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps.bench_pruned", description=__doc__.splitlines()[0]
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (all)")
    parser.add_argument("--pairs", type=int, default=30, help="number of interleaved pairs per comparison (30)")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N (cpu)")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="auto: as in trials (auto)")
    parser.add_argument("--model-file", type=Path, help="model.pt of a trial, whose network `steps` measures")
    parser.add_argument("--json", type=Path, help="file for the results; results are added to an existing file")
    chosen = parser.parse_args()
    if unknown := [part for part in chosen.parts if part not in PARTS]:
        parser.error(f"unknown part '{unknown[0]}'; known: {', '.join(PARTS)}")
    if chosen.pairs < 2:
        parser.error(f"--pairs {chosen.pairs}: an interval needs at least 2")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    try:
        kind, index = resolve_device(read_device(chosen.device))
        dtype = getattr(torch, resolve_dtype(chosen.dtype, kind, index))
    except UsageError as error:
        parser.error(str(error))
    device = torch.device(kind, index) if kind == "cuda" else CPU
    where = torch.cuda.get_device_name(device) if kind == "cuda" else f"{torch.get_num_threads()} threads"
    parts = chosen.parts or PARTS
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
    try:
        found = kept(chosen.json, {**facts, "device": where, "dtype": str(dtype), "pairs": chosen.pairs}, "found")
    except OtherRunError as error:
        parser.error(str(error))
    print(f"torch {torch.__version__}, {where}, {dtype}, batch {BATCH}; load {os.getloadavg()[0]:.2f}")
    print(f"{chosen.pairs} pairs; ratio: from minimum times, median [95 %]")
    try:
        if "steps" in parts and chosen.model_file:
            name, plans = trials_plans(chosen.model_file)
            measure_steps(setting_of(name, dtype, device), {"as the trial left it": plans}, chosen.pairs, found)
        elif "steps" in parts:
            for name, share in FINAL_SHARES.items():
                setting = setting_of(name, dtype, device)
                rounded = {f"round_to {count}": [final_plan(setting.new_model(), share, count)] for count in ROUNDINGS}
                measure_steps(setting, rounded, chosen.pairs, found)
        if "lasso" in parts:
            for name in LASSO_MODELS:
                measure_lasso(setting_of(name, dtype, device), chosen.pairs, found)
        if "surgery" in parts:
            for name in SURGERY_MODELS:
                measure_surgery(name, found)
        if "gating" in parts:
            measure_gating(setting_of("resnet32", dtype, device), chosen.pairs, found)
    except UsageError as error:
        parser.error(str(error))


if __name__ == "__main__":
    enter_trial_environment()
    main()
