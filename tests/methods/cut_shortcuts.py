"""Train a short resnet32 by PruneTrain with few channels in every shortcut, in a process of its own, which may crash.

python cut_shortcuts.py COUNT... DTYPE

Prints, for each count, the channels of the shortcuts and the largest error of their weight gradients against float64.
"""

import json
import sys
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from small_training import CLASSES, SmallBatches

from methods.prunetrain import PruneTrain
from suite.engine.training.trainer import Trainer
from suite.recipe import Recipe
from suite.task import Splits
from tasks.models.cifar_resnet import CifarResNet
from tasks.models.residual import BasicBlock

SHAPE = (3, 32, 32)
RECIPE = Recipe(epochs=3, batch_size=32, eval_batch_size=32, learning_rate=0.05, schedule="linear", lr_end=0.1)


class CutShortcuts(PruneTrain):
    """PruneTrain that keeps `count` channels of each residual stage, whatever their weights are."""

    count: ClassVar[int] = 1

    def _remaining_channels(self, space, ctx):
        remaining = torch.ones(space.size, dtype=torch.bool)
        if not space.may_be_empty:
            remaining[self.count :] = False
        return remaining, torch.zeros_like(remaining)


class LargerBatches(SmallBatches):
    def __init__(self, count, seed, shuffle=True):
        super().__init__(count, seed, shuffle)
        self.images = F.interpolate(self.images, SHAPE[1:]).contiguous(memory_format=torch.channels_last)


def watch(name, layer, dtype, errors):
    """Compare each weight gradient of a layer with that of its actual operands in float64."""
    held = {}

    def forward(layer, inputs, output):
        if output.requires_grad:
            held["input"] = inputs[0].detach().to(dtype).double()
            output.register_hook(lambda grad: held.__setitem__("grad", grad.to(dtype).double()))

    def backward(weight):
        used = weight.detach().to(dtype).double()
        numbers = (layer.stride, layer.padding, layer.dilation, False, (0, 0), 1, (False, True, False))
        grad, given = held["grad"], held["input"]
        right = torch.ops.aten.convolution_backward(grad, given, used, None, *numbers)[1]
        # Over the sums of the terms' sizes: normalisation makes the one gradient of a single channel nearly 0.
        size = torch.ops.aten.convolution_backward(grad.abs(), given.abs(), used, None, *numbers)[1]
        error = (weight.grad.double() - right).norm() / size.norm().clamp_min(1e-30)
        errors[name] = max(errors.get(name, 0.0), float(error.nan_to_num(nan=9e9)))

    layer.register_forward_hook(forward)
    layer.weight.register_post_accumulate_grad_hook(backward)


def train(count, dtype):
    torch.manual_seed(0)
    stages = [(18, 2), (36, 2), (72, 2)]  # of resnet32[width=1.125], which has five blocks in each
    model = CifarResNet(BasicBlock, stages, SHAPE[0], CLASSES).to(memory_format=torch.channels_last)
    method = CutShortcuts(update="proximal", interval=1)
    method.count = count
    splits = Splits(train=LargerBatches(64, seed=1), test=LargerBatches(32, seed=2, shuffle=False))
    trainer = Trainer(
        model, method, RECIPE, splits, input_shape=SHAPE, num_classes=CLASSES, seed=0, device=torch.device("cpu"),
        dtype=dtype,
    )  # fmt: skip
    shortcuts = {name: layer for name, layer in trainer.ctx.layers.items() if "downsample" in name}
    errors = {}

    def rewatch(record):
        if trainer.ctx.epochs_done == 1:  # the parameters are others after the cut
            for name, layer in shortcuts.items():
                watch(name, layer, dtype, errors)

    trainer.on_epoch = rewatch
    trainer.fit()
    channels = [layer.weight.shape[:2] for layer in shortcuts.values()]
    return {"count": count, "channels": channels, "epochs": trainer.ctx.epochs_done, "errors": errors}


if __name__ == "__main__":
    for count in sys.argv[1:-1]:
        print(json.dumps(train(int(count), getattr(torch, sys.argv[-1]))), flush=True)
