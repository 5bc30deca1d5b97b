"""Times of training steps of methods, relative to dense steps in the number type in which dense steps are faster.

    python -m benchmarks.step [--methods LIST] [--model NAME] [--batch-size N] [--size N] [--dtypes TYPE ...]
        [--execution eager] [--cut FILE] [--device auto] [--pairs 10] [--json FILE]

The first number type is compared with each other one in dense steps. All other rows are measured in alternation with
dense steps in the faster type: a loop that a user would write for the same recipe, and each method in each type. Images
are random; the recipe is `--recipe resnet9` of CIFAR-10. A step includes everything that a method adds. A backend per
layer is chosen (`backend=auto`) before the measured steps, and saved. Times on a GPU are those of CUDA events, and
include waiting for Python.

ClickTrain's steps with masks: `clicktrain[warmup=0,mixup=0,hard_prune=0]`. Steps of a network as a trial of PruneTrain
left it: `--cut model.pt`, with the trial's model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.measured import Results, enter_trial_environment
from suite import registry
from suite.choices import MethodChoice, build_method, build_model
from suite.engine.cost.clock import stamps_of
from suite.engine.cost.interleaved import interleaved_ratio
from suite.engine.network.model_files import load_model
from suite.engine.training.trainer import Trainer
from suite.errors import UsageError
from suite.method import Method
from suite.parameters import split
from suite.recipe import Recipe
from suite.task import Splits
from suite.trials.building import resolve_device
from tasks.cifar import NORMALIZATION
from tasks.pipeline import DeviceBatches

DTYPES, CLASSES = ("float32", "bfloat16", "float16"), 10
STEPS = {"cpu": 2, "cuda": 20}  # of one measurement
METHODS = "sdgp,prunetrain,clicktrain[warmup=0,mixup=0,hard_prune=0]"


class Steps:
    """Steps on random images, with the model, the recipe and the device that were typed."""

    def __init__(self, typed: argparse.Namespace) -> None:
        self.device = torch.device(*resolve_device(typed.device))
        self.shape = (3, typed.size, typed.size)
        named = registry.get("task", "cifar10")().paper_recipes["resnet9"]
        self.model = typed.model or named.model
        self.recipe: Recipe = named.recipe.changed(
            batch_size=typed.batch_size, execution=typed.execution, learning_rate=1e-4
        )  # so that steps on random images do not diverge
        self.count, recipe = STEPS[self.device.type], self.recipe
        count = self.count * typed.batch_size
        batches = DeviceBatches(
            torch.randint(0, 256, (count, typed.size, typed.size, 3), dtype=torch.uint8),
            torch.arange(count) % CLASSES,
            normalization=NORMALIZATION,
            device=self.device,
            training=True,
            augmentation=recipe.augmentation,
        )
        self.splits = Splits(batches, batches)

    def new_model(self) -> nn.Module:
        """Return a new model with the same initial weights each time."""
        torch.manual_seed(0)
        model = build_model(self.model, self.shape, CLASSES).to(self.device)
        return model.to(memory_format=torch.channels_last)

    def of(self, method: Method, dtype: torch.dtype, cut: Path | None = None) -> tuple[Callable[[], None], Trainer]:
        """Return the steps of a method as a function, and the trainer that takes them.

        Args:
            method: The method.
            dtype: Number type of the products.
            cut: Model file of a trial, whose network takes the place of a new one.
        """
        model = load_model(cut).to(self.device, memory_format=torch.channels_last) if cut else self.new_model()
        trainer = Trainer(
            model,
            method,
            self.recipe,
            self.splits,
            input_shape=self.shape,
            num_classes=CLASSES,
            seed=0,
            device=self.device,
            dtype=dtype,
            task="cifar10",
            preset="quick",
        )

        def run() -> None:
            trainer.train_epoch()
            trainer.ctx.batch_index = 0  # repeat the same epoch

        return run, trainer

    def by_hand(self, dtype: torch.dtype, compiled: bool = False) -> Callable[[], None]:
        """Return the steps of a loop that a user would write for the same recipe, with `torch.compile` or eager."""
        recipe, model = self.recipe, self.new_model().train()
        forward = torch.compile(model) if compiled else model
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.nesterov,
        )
        scaler = torch.amp.GradScaler(self.device.type, enabled=dtype == torch.float16)

        def run() -> None:
            total = 0.0
            for images, labels in self.splits.train.epoch(0, recipe.batch_size):
                with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
                    logits = forward(images)
                loss = F.cross_entropy(logits.float(), labels, label_smoothing=recipe.label_smoothing)
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                total += loss.item()

        return run


def main() -> None:
    """Measure, print, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=METHODS, help="comma list (default: %(default)s)")
    parser.add_argument("--model", default="", help="the network (default: resnet9[width=0.25])")
    parser.add_argument("--batch-size", type=int, default=128, help="default: %(default)s")
    parser.add_argument("--size", type=int, default=32, help="height and width of an image (default: %(default)s)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES[:2], help="default: the first two")
    parser.add_argument("--execution", choices=("eager", "compile", "cuda_graph"), default="eager")
    parser.add_argument("--cut", metavar="FILE", type=Path, help="model of a trial: also dense steps of its network")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument(
        "--pairs", type=int, default=10, help="interleaved pairs of measurements (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="file for the results")
    typed = parser.parse_args()
    try:
        measure(typed)
    except UsageError as error:
        parser.error(str(error))


def measure(typed: argparse.Namespace) -> None:
    """Measure all ratios.

    Raises:
        UsageError: An option has a value that is unknown, or that the device does not support.
    """
    steps = Steps(typed)
    methods = [(text, MethodChoice.read(text), None) for text in split(typed.methods)]
    if typed.cut:
        methods.append((f"dense, cut as {typed.cut}", MethodChoice.read("dense"), typed.cut))
    dtypes = {name: getattr(torch, name) for name in typed.dtypes}
    stamps, (first, *others) = stamps_of(steps.device), typed.dtypes
    print(f"{steps.model}, {typed.batch_size} images of {typed.size}x{typed.size}, {typed.execution}, {steps.device}")
    results = Results(steps.device, typed.json)

    def add(name: str, first: Callable[[], None], second: Callable[[], None], **more: Any) -> float:
        ratio = interleaved_ratio(first, second, typed.pairs, stamps)
        results.add(name, ratio, steps.count, **more)
        return ratio.median

    dense = {name: steps.of(build_method("dense", {}), dtype)[0] for name, dtype in dtypes.items()}
    ratios = {other: add(f"dense, {other} / {first}", dense[other], dense[first]) for other in others}
    fastest = min(dtypes, key=lambda name: ratios.get(name, 1.0))
    by_hand = steps.by_hand(dtypes[fastest])
    add(f"dense, {fastest} / by hand", dense[fastest], by_hand)
    if typed.execution == "compile":
        add("by hand, torch.compile / eager", steps.by_hand(dtypes[fastest], compiled=True), by_hand)
    for text, choice, cut in methods:
        for name, dtype in dtypes.items():
            method = choice.build()
            run, trainer = steps.of(method, dtype, cut)
            run()  # chooses backends
            add(f"{text}, {name} / dense, {fastest}", run, dense[fastest], **method.record(trainer.ctx))


if __name__ == "__main__":
    enter_trial_environment()
    main()
