"""Time of whole training steps and of the planned op, each against what a user would have without the suite.

    python benchmarks/bench_step.py [--pairs 30] [--json FILE]

In one run, in alternation:

    sdgp / dense        a step of the trainer with SDGP 2:4 rescaled, over a dense one
    trainer / by hand   a dense step of the trainer, over a loop written by hand for the same recipe
    planned / torch     forward and backward of each convolution with an identity `grad_dgrad`, over `nn.Conv2d`'s

Steps are those of `--preset quick` on CIFAR-10: its model, batch and arithmetic, on random images of the same shape.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from pairs import Ratio, interleaved_ratio, run_as_a_trial_does
from torch import Tensor, nn

import kernels
from suite import registry
from suite.devices import resolve_dtype
from suite.ledger import count_layers
from suite.method import OpPlan
from suite.ops import convert
from suite.parameters import build_method, build_model
from suite.recipe import Recipe
from suite.task import Splits
from suite.trainer import Trainer

STEPS = 2  # steps in one measurement
OP_BATCH = 512
SHAPE, CLASSES = (3, 32, 32), 10


def random_splits(recipe: Recipe) -> Splits:
    """As many random images as one measurement takes, behind the task's own pipeline."""
    from tasks.augmentation import Augmentation
    from tasks.cifar10 import NORMALIZATION
    from tasks.pipeline import DeviceBatches

    count = STEPS * recipe.batch_size
    batches = DeviceBatches(
        torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8),
        torch.arange(count) % CLASSES,
        normalization=NORMALIZATION,
        device=torch.device("cpu"),
        training=True,
        augmentation=Augmentation(flip=recipe.flip, translate=recipe.translate, cutout=recipe.cutout),
    )
    return Splits(batches, batches)


def new_model(name: str) -> nn.Module:
    """The same weights each time."""
    torch.manual_seed(0)
    return build_model(name, SHAPE, CLASSES).to(memory_format=torch.channels_last)


def trainer_step(
    method: str, parameters: dict, model: str, recipe: Recipe, splits: Splits, dtype: torch.dtype
) -> Callable:
    """A function that does `STEPS` steps of the trainer with everything that belongs to them."""
    trainer = Trainer(
        new_model(model),
        build_method(method, parameters),
        recipe,
        splits,
        input_shape=SHAPE,
        num_classes=CLASSES,
        seed=0,
        device=torch.device("cpu"),
        dtype=dtype,
        task="cifar10",
        preset="quick",
    )

    def run() -> None:
        trainer.train_epoch()
        trainer.ctx.batch_index = 0  # the same epoch again and again

    return run


def step_by_hand(model_name: str, recipe: Recipe, splits: Splits, dtype: torch.dtype) -> Callable[[], None]:
    """The loop that a user would write for the same recipe."""
    model = new_model(model_name).train()
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.nesterov,
    )

    def run() -> None:
        total = 0.0
        for images, labels in splits.train.epoch(0, recipe.batch_size):
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                logits = model(images)
            loss = F.cross_entropy(logits.float(), labels, label_smoothing=recipe.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()

    return run


def identity(grad: Tensor, site: object) -> Tensor:
    return grad


def op_pair(layer: nn.Conv2d, side: int, dtype: torch.dtype) -> tuple[Callable[[], None], Callable[[], None]]:
    """Forward and backward of one layer at batch 512, planned and plain."""
    planned = copy.deepcopy(layer)
    convert(nn.Sequential(planned))
    planned.op_plan = OpPlan(grad_dgrad=identity)
    first = layer.in_channels == 3
    inputs = torch.randn(OP_BATCH, layer.in_channels, side, side).to(memory_format=torch.channels_last)
    inputs = inputs.to(dtype).requires_grad_(not first)
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        grad = torch.randn_like(layer(inputs))

    def run(layer: nn.Module) -> Callable[[], None]:
        def forward_backward() -> None:
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                out = layer(inputs)
            out.backward(grad)
            inputs.grad = layer.weight.grad = None

        return forward_backward

    return run(planned), run(layer)


def main() -> None:
    """Measure and print; optionally leave the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30, help="interleaved pairs of each comparison (30)")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--json", type=Path, help="where to leave the numbers")
    chosen = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dtype = getattr(torch, resolve_dtype(chosen.dtype, "cpu"))
    task = registry.get("task", "cifar10")()
    recipe, model = task.recipe("quick"), task.default_model("quick")
    splits = random_splits(recipe)

    print(kernels.backend_report())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {dtype}, {model}, batch {recipe.batch_size}")
    print(f"load {os.getloadavg()[0]:.2f}; {chosen.pairs} pairs; ratio: least, median [95 %]; median milliseconds")
    found: dict[str, Ratio] = {}

    def compare(name: str, first: Callable[[], None], second: Callable[[], None], repeated: int = 1) -> None:
        ratio = found[name] = interleaved_ratio(first, second, chosen.pairs)
        milliseconds = f"{1e3 * ratio.first_s / repeated:8.1f} / {1e3 * ratio.second_s / repeated:8.1f}"
        print(f"{name:44} {ratio}  {milliseconds}", flush=True)

    dense = trainer_step("dense", {}, model, recipe, splits, dtype)
    compare("trainer / by hand, dense", dense, step_by_hand(model, recipe, splits, dtype), STEPS)
    for mode in ("rescaled", "magnitude", "random"):
        sdgp = trainer_step("sdgp", {"mode": mode}, model, recipe, splits, dtype)
        compare(f"sdgp 2:4 {mode} / dense", sdgp, dense, STEPS)
    prunetrain = trainer_step("prunetrain", {}, model, recipe, splits, dtype)
    compare("prunetrain (nothing removed) / dense", prunetrain, dense, STEPS)
    net = new_model(model)
    modules = dict(net.named_modules())
    for name, cost in count_layers(net, SHAPE).items():
        layer = modules[name]
        if isinstance(layer, nn.Conv2d):
            side = cost.output[0] * layer.stride[0] + (layer.kernel_size[0] - 1 if not any(layer.padding) else 0)
            kernel = "x".join(map(str, layer.kernel_size))
            label = f"planned / torch, {layer.in_channels}->{layer.out_channels} {kernel} at {side}x{side}"
            compare(label, *op_pair(layer, side, dtype))
    if chosen.json:
        machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
        content = {
            **machine,
            "dtype": str(dtype),
            "pairs": chosen.pairs,
            "ratios": {k: asdict(v) for k, v in found.items()},
        }
        chosen.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_as_a_trial_does()
    main()
