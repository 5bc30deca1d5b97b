"""Times of SDGP's training steps, relative to dense steps in the number type in which dense steps are faster.

    python -m benchmarks.steps.bench_sdgp [--settings all] [--methods NAME,...] [--pairs 20] [--json FILE]

Settings: `resnet9-quarter` (quarter-width ResNet-9, the model of `--recipe resnet9`) and `resnet9` (full width), both
with 128 images of 32x32 pixels, and `resnet18-224` (torchvision's ResNet-18, 16 images of 224x224 pixels). All images
are random.

For each setting, dense steps in bfloat16 and in float32 are measured in alternation. Steps of each method are then
measured in alternation with dense steps in the faster of the two. A step includes everything that the method adds, such
as pruning. The choice of a backend per layer (`backend=auto`) happens before the measured steps, as it happens outside
the training time of a trial. The backends that were chosen are printed and saved.

With --profile one step of dense and of each method is profiled, and the time of each kind of operation is printed.
With --json each ratio is saved as soon as it is measured, and the same command continues with the missing ones.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.partial_results import OtherRunError, PartialResults, kept
from benchmarks.steps.training_steps import (
    SHAPE,
    Setting,
    new_trainer,
    quick_recipe,
    random_splits,
    steps_of,
    trainer_steps,
)
from benchmarks.trial_environment import enter_trial_environment
from kernels.compressed import cpu
from suite.brackets import split
from suite.choices import MethodChoice
from suite.engine.cost.interleaved import Ratio, interleaved_ratio
from suite.errors import UsageError

STEPS = 2
CPU = torch.device("cpu")
SETTINGS: dict[str, tuple[str, int, tuple[int, int, int]]] = {
    "resnet9-quarter": ("resnet9[width=0.25]", 128, SHAPE),
    "resnet9": ("resnet9", 128, SHAPE),
    "resnet18-224": ("resnet18", 16, (3, 224, 224)),
}
METHODS = (
    "sdgp[n=2,m=16]",
    "sdgp[n=1,m=4]",
    "sdgp[n=2,m=16,products=both]",
    "sdgp[n=2,m=4]",
    "sdgp[n=2,m=8]",
    "sdgp[n=1,m=8]",
    "sdgp[n=1,m=4,products=both]",
    "sdgp[n=2,m=16,products=both,mode=unbiased]",
    "sdgp[n=2,m=16,backend=masked]",
)
# Kind of an operation by prefixes of its name in a profile; the first match counts.
KINDS = {
    "gradients by torch": ("aten::convolution_backward", "aten::mm", "aten::addmm"),
    "forward convolutions": ("aten::mkldnn_convolution",),
    "pruning": ("pdt::prune_nm", "pdt::compress_nm"),
    "data gradients that skip": ("data_gradient",),
    "weight gradients that skip": ("weight_gradient",),
    "normalization": ("aten::native_batch_norm",),
    "activation": ("aten::threshold", "aten::clamp"),
    "pooling": ("aten::max_pool", "aten::adaptive", "aten::mean"),
}


def setting_of(name: str, dtype: torch.dtype) -> Setting:
    """Return the setting of a name; its recipe is that of `quick_recipe` except for the batch size."""
    model, batch, shape = SETTINGS[name]
    _, recipe = quick_recipe(batch_size=batch)
    splits = random_splits(recipe, STEPS, CPU, shape)
    return Setting(model, recipe, "quick", CPU, dtype, STEPS, splits, shape)


def measure(name: str, methods: list[str], pairs: int, profiled: bool, found: PartialResults) -> None:
    """Measure and print the ratios of one setting, and save them in `found` under their names."""
    label = f"{name}: dense float32 / dense bfloat16"
    if label not in found:
        steps = [trainer_steps(setting_of(name, dtype)) for dtype in (torch.float32, torch.bfloat16)]
        save(label, interleaved_ratio(*steps, pairs), found)
    dtype = torch.float32 if found[label]["median"] <= 1 else torch.bfloat16
    print(f"{name}: dense steps are faster in {str(dtype).removeprefix('torch.')}, which all further steps use")
    setting = setting_of(name, dtype)
    dense = trainer_steps(setting)
    if profiled:
        print_profile(f"{name}: dense", dense, found)
    for text in methods:
        label = f"{name}: {text} / dense"
        method = MethodChoice.read(text).build()
        trainer = new_trainer(setting, method=method)
        steps = steps_of(trainer)
        if label not in found:
            ratio = interleaved_ratio(steps, dense, pairs)
            backends = method.record(trainer.ctx)
            print("  " + ", ".join(f"{layer} {backend}" for layer, backend in backends["backends"].items()))
            save(label, ratio, found, **backends)
        if profiled:
            print_profile(f"{name}: {text}", steps, found)


def save(label: str, ratio: Ratio, found: PartialResults, **more: Any) -> None:
    milliseconds = f"{1e3 * ratio.first_s / STEPS:8.1f} / {1e3 * ratio.second_s / STEPS:8.1f} ms"
    print(f"{label:70} {ratio}  {milliseconds}  load {os.getloadavg()[0]:.2f}", flush=True)
    found[label] = {**dataclasses.asdict(ratio), "load": os.getloadavg()[0], **more}


def print_profile(label: str, steps: Callable[[], None], found: PartialResults) -> None:
    """Print and save the milliseconds of a step by kind of operation, without the time of nested operations."""
    steps()
    with named_products(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        steps()
    kinds: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        fitting = (kind for kind, starts in KINDS.items() if event.key.startswith(starts))
        kinds[next(fitting, "rest")] += event.self_cpu_time_total / 1e3 / STEPS
    print(
        f"  {label}, ms of a profiled step: " + ", ".join(f"{kind} {time:.1f}" for kind, time in sorted(kinds.items()))
    )
    found[f"{label}, profile in ms"] = dict(kinds)


@contextlib.contextmanager
def named_products() -> Iterator[None]:
    """Let a profile name the products that skip, which torch does not know as operations."""
    names = ("data_gradient", "weight_gradient")
    before = {name: getattr(cpu, name) for name in names}

    def named(name: str) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            with record_function(name):
                return before[name](*arguments)

        return run

    for name in names:
        setattr(cpu, name, named(name))
    try:
        yield
    finally:
        for name in names:
            setattr(cpu, name, before[name])


def main() -> None:
    """Measure and print; optionally save the numbers as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.bench_sdgp", description=__doc__.splitlines()[0])
    parser.add_argument("--settings", default="all", help=f"comma list of {', '.join(SETTINGS)}, or all (all)")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma list of methods (nine variants of sdgp)")
    parser.add_argument("--pairs", type=int, default=20, help="number of interleaved pairs per comparison (20)")
    parser.add_argument("--profile", action="store_true", help="profile a step of each method, too")
    parser.add_argument("--json", type=Path, help="file for the results; results are added to an existing file")
    chosen = parser.parse_args()
    if chosen.pairs < 2:
        parser.error(f"--pairs {chosen.pairs}: an interval needs at least 2")
    names = [*SETTINGS] if chosen.settings == "all" else chosen.settings.split(",")
    if unknown := [name for name in names if name not in SETTINGS]:
        parser.error(f"--settings '{unknown[0]}'; known: {', '.join(SETTINGS)}")
    threads = int(os.environ["OMP_NUM_THREADS"])
    torch.set_num_threads(threads)
    facts = {"torch": torch.__version__, "threads": threads, "machine": platform.machine(), "pairs": chosen.pairs}
    try:
        methods = split(chosen.methods)
        for text in methods:
            MethodChoice.read(text)
        found = kept(chosen.json, facts, "ratios")
    except (OtherRunError, UsageError) as error:
        parser.error(str(error))
    print(f"torch {torch.__version__}, {threads} threads, load {os.getloadavg()[0]:.2f}, {STEPS} steps a measurement")
    print(f"{chosen.pairs} pairs; ratio: from minimum times, median [95 %]; median milliseconds of a step")
    for name in names:
        measure(name, methods, chosen.pairs, chosen.profile, found)


if __name__ == "__main__":
    enter_trial_environment()
    main()
