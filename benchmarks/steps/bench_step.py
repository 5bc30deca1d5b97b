"""Times of complete training steps and of planned layers, compared with plain torch code.

    python -m benchmarks.steps.bench_step [--device auto] [--execution all] [--pairs 30] [--json FILE]

All ratios of times are measured in one run, in alternation:

    trainer / by hand   dense steps of the trainer, relative to a hand-written loop for the same recipe, both eager
    EXECUTION: M / dense         steps with method M, relative to dense steps with the same execution
    EXECUTION: M / eager dense   the same, relative to eager dense steps
    planned / torch     forward and backward of each convolution with an identity `grad_dgrad`, relative to `nn.Conv2d`

Executions are those of `recipe.execution`: by default, all that a method allows on a GPU, and eager on a CPU. Steps use
the model, batch size and arithmetic of `--preset quick --recipe resnet9` on CIFAR-10 (on a GPU: `paper` and float16),
with random images of the same shape. Times on a GPU are measured with CUDA events and include waiting for Python.

With --json each ratio is saved as soon as it is measured, and the same command continues with the missing ones.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from benchmarks.partial_results import OtherRunError, kept
from benchmarks.steps.training_steps import SHAPE, Setting, quick_recipe, random_splits, trainer_steps
from benchmarks.trial_environment import enter_trial_environment
from suite import registry
from suite.choices import build_method
from suite.engine.cost.clock import stamps_of
from suite.engine.cost.flops import count_layers
from suite.engine.cost.interleaved import interleaved_ratio
from suite.engine.training.execution import check_execution
from suite.errors import UsageError
from suite.method import OpPlan
from suite.ops import convert
from suite.trials.devices import resolve_device, resolve_dtype
from suite.trials.spec import DTYPES, read_device

OP_BATCH = 512
EXECUTIONS = ("eager", "compile", "cuda_graph")
METHODS = (
    *(("sdgp", {"mode": mode}, f"sdgp 2:4 {mode}") for mode in ("rescaled", "magnitude", "random")),
    ("prunetrain", {}, "prunetrain (nothing removed)"),
)


def steps_by_hand(setting: Setting) -> Callable[[], None]:
    """The loop that a user would write for the same recipe."""
    recipe, model = setting.recipe, setting.new_model().train()
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.nesterov,
    )
    scaler = torch.amp.GradScaler(setting.device.type, enabled=setting.dtype == torch.float16)

    def run() -> None:
        total = 0.0
        for images, labels in setting.splits.train.epoch(0, recipe.batch_size):
            with setting.autocast():
                logits = model(images)
            loss = F.cross_entropy(logits.float(), labels, label_smoothing=recipe.label_smoothing)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()

    return run


def identity(grad: Tensor, site: object) -> Tensor:
    return grad


def op_pair(layer: nn.Conv2d, side: int, setting: Setting) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return forward and backward of one layer at batch size 512, planned and plain."""
    planned = copy.deepcopy(layer)
    convert(nn.Sequential(planned))
    planned.op_plan = OpPlan(grad_dgrad=identity)
    first = layer.in_channels == 3
    inputs = torch.randn(OP_BATCH, layer.in_channels, side, side, device=setting.device)
    inputs = inputs.to(setting.dtype, memory_format=torch.channels_last).requires_grad_(not first)
    with torch.no_grad(), setting.autocast():
        grad = torch.randn_like(layer(inputs))

    def run(layer: nn.Module) -> Callable[[], None]:
        def forward_backward() -> None:
            with setting.autocast():
                out = layer(inputs)
            out.backward(grad)
            inputs.grad = layer.weight.grad = None

        return forward_backward

    return run(planned), run(layer)


def convolutions(net: nn.Module) -> dict[str, tuple[nn.Conv2d, int]]:
    """Return the distinct convolutions with the side of their input, by description."""
    modules, found = dict(net.named_modules()), {}
    for name, cost in count_layers(net, SHAPE).items():
        layer = modules.get(name)  # matrix products outside of layers have no module
        if isinstance(layer, nn.Conv2d):
            side = cost.output[0] * layer.stride[0] + (layer.kernel_size[0] - 1 if not any(layer.padding) else 0)
            kernel = "x".join(map(str, layer.kernel_size))
            found[f"{layer.in_channels}->{layer.out_channels} {kernel} at {side}x{side}"] = layer, side
    return found


def read_executions(text: str, device: torch.device) -> list[str]:
    """Parse a comma list of executions; `all` means all that the device supports."""
    if text == "":
        text = "all" if device.type == "cuda" else "eager"
    names = [name for name in EXECUTIONS if name != "cuda_graph" or device.type == "cuda"]
    names = names if text == "all" else text.split(",")
    for name in names:
        if name not in EXECUTIONS:
            raise UsageError(f"--execution '{name}': known: all, {', '.join(EXECUTIONS)}")
        check_execution(name, device.type, registry.get("method", "dense"))
    return names


def allowed(execution: str, device: torch.device, method: str) -> bool:
    """Return whether a method supports an execution; print the reason if not."""
    try:
        check_execution(execution, device.type, registry.get("method", method), method)
    except UsageError as error:
        print(f"{execution}: {method} is skipped: {error}")
        return False
    return True


def read_setting(chosen: argparse.Namespace) -> Setting:
    kind, index = resolve_device(read_device(chosen.device))
    device = torch.device(kind, index) if kind == "cuda" else torch.device(kind)
    dtype = "float16" if kind == "cuda" and chosen.dtype == "auto" else resolve_dtype(chosen.dtype, kind, index)
    if kind == "cuda":
        task, preset, steps = registry.get("task", "cifar10")(), "paper", 20
        model, recipe = task.default_model(preset), task.recipe(preset)
    else:
        preset, steps = "quick", 2
        model, recipe = quick_recipe()
    splits = random_splits(recipe, steps, device)
    return Setting(model, recipe, preset, device, getattr(torch, dtype), steps, splits)


def main() -> None:
    """Measure and print; optionally save the numbers as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.bench_step", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30, help="number of interleaved pairs per comparison (30)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="auto", help="auto: float16 on CUDA, otherwise as in trials (auto)"
    )
    parser.add_argument("--execution", default="", help=f"comma list of {', '.join(EXECUTIONS)}, or all")
    parser.add_argument("--json", type=Path, help="file for the results; results are added to an existing file")
    chosen = parser.parse_args()
    if chosen.pairs < 2:
        parser.error(f"--pairs {chosen.pairs}: an interval needs at least 2")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    try:
        setting = read_setting(chosen)
        executions = read_executions(chosen.execution, setting.device)
    except UsageError as error:
        parser.error(str(error))
    recipe, device = setting.recipe, setting.device
    if device.type == "cuda":
        torch.cuda.set_device(device)  # events are recorded on the current device
    stamps = stamps_of(device)

    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    facts = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "device": where if device.type == "cuda" else "cpu",
        "dtype": str(setting.dtype),
        "pairs": chosen.pairs,
    }
    try:
        found = kept(chosen.json, facts, "ratios")
    except OtherRunError as error:
        parser.error(str(error))
    print(kernels.backend_report(device))
    print(f"torch {torch.__version__}, {where}, {setting.dtype}, {setting.model}, batch {recipe.batch_size}")
    print(
        f"load {os.getloadavg()[0]:.2f}; {chosen.pairs} pairs; "
        "ratio: from minimum times, median [95 %]; median milliseconds"
    )

    def compare(name: str, first: Callable[[], None], second: Callable[[], None], repeated: int = 1) -> None:
        if name in found:
            print(f"{name:58} already measured")
            return
        ratio = interleaved_ratio(first, second, chosen.pairs, stamps)
        milliseconds = f"{1e3 * ratio.first_s / repeated:8.2f} / {1e3 * ratio.second_s / repeated:8.2f}"
        print(f"{name:58} {ratio}  {milliseconds}", flush=True)
        found[name] = dataclasses.asdict(ratio)

    eager = trainer_steps(setting, "eager")
    compare("trainer / by hand, dense", eager, steps_by_hand(setting), setting.steps)
    for execution in executions:
        dense = eager if execution == "eager" else trainer_steps(setting, execution)
        if dense is not eager:
            compare(f"{execution}: dense / eager dense", dense, eager, setting.steps)
        for method, parameters, label in METHODS:
            if not allowed(execution, device, method):
                continue
            pruned = trainer_steps(setting, execution, build_method(method, parameters))
            compare(f"{execution}: {label} / dense", pruned, dense, setting.steps)
            if dense is not eager:
                compare(f"{execution}: {label} / eager dense", pruned, eager, setting.steps)
    for label, (layer, side) in convolutions(setting.new_model()).items():
        compare(f"planned / torch, {label}", *op_pair(layer, side, setting))


if __name__ == "__main__":
    enter_trial_environment()
    main()
