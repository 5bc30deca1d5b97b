"""Short trainings by ClickTrain, and its published networks."""

import torch
import torch.nn.functional as F
from torch import nn

from methods.clicktrain import ClickTrain
from suite.choices import build_model
from suite.ops import apply
from tasks.models.resnet9 import resnet9

SHAPE = (3, 32, 32)


def network(name, task="cifar10", device="cpu"):
    shape = (3, 224, 224) if task == "imagenet" else SHAPE
    with torch.device(device):
        model = build_model(name, shape, {"cifar10": 10, "cifar100": 100, "imagenet": 1000}[task])
    layers = {key: layer for key, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))}
    return model, layers, shape


def with_pointwise(patch):
    """Return a network whose first layer and last convolution are in no list, and let every list have the others."""
    patch.setattr("methods.clicktrain.settings.by_layer", lambda ratios, layers: {"1": 50.0, "2": 50.0})
    convolutions = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


class Run:
    """A short training of four epochs with three steps each: warm-up, lasso, and two masked epochs."""

    def __init__(self, method, model=None, task="", network="", momentum=0.9, seed=0):
        torch.manual_seed(seed)
        self.method = method
        self.model = resnet9(width=1 / 16) if model is None else model
        self.runner = apply(
            self.model, method, input_shape=SHAPE, num_classes=10, epochs=4, batch_size=8, task=task, network=network
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=momentum, weight_decay=5e-4)
        self.runner.attach(self.optimizer)
        self.model.train()

    def weights(self):
        return {name: self.runner.ctx.layers[name].weight for name in self.method._percent}

    def step(self, seed):
        generator = torch.Generator().manual_seed(seed)
        images, labels = torch.randn(8, *SHAPE, generator=generator), torch.randint(10, (8,), generator=generator)
        images, labels = self.runner.transform_batch(images, labels)
        loss = F.cross_entropy(self.model(images), labels)
        (loss + self.runner.regularization(loss)).backward()
        self.gradients = {name: weight.grad.clone() for name, weight in self.weights().items()}
        self.before = {name: weight.detach().clone() for name, weight in self.weights().items()}
        self.runner.optimizer_step()
        self.optimizer.zero_grad()
        return labels

    def epochs(self, count, each=lambda epoch, step: None, steps=3):
        for _ in range(count):
            epoch = self.runner.ctx.epochs_done
            for step in range(steps):
                self.step(10 * epoch + step)
                each(epoch, step)
            self.runner.end_epoch()


def stages(**given):
    fixed = {"warmup": 0.25, "hard_prune": 0.5, "mixup": 0.0, "coefficient": 1e-2, "backend": "masked"}
    return ClickTrain(**{**fixed, **given})
