"""Short trainings by PruneTrain, and functions that make channels dead."""

import torch
from torch import nn

from methods.prunetrain import PruneTrain
from suite.ops import apply
from tasks.models.resnet9 import resnet9

SHAPE, CLASSES, BATCH = (3, 16, 16), 10, 16


def start(train_images=0, others=None, seed=0, **parameters):
    """Return a narrow ResNet-9 with the hooks of PruneTrain, and its optimizer."""
    torch.manual_seed(0)
    model = resnet9(width=1 / 16)
    method = PruneTrain(**{"interval": 1, "threshold": 1e-2} | parameters)
    sizes = {"epochs": 4, "batch_size": BATCH, "train_images": train_images}
    hooks = apply(model, method, input_shape=SHAPE, num_classes=CLASSES, others=others, seed=seed, **sizes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    hooks.attach(optimizer)
    return model, method, hooks, optimizer


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    return torch.randn(BATCH, *SHAPE, generator=generator) + labels.view(-1, 1, 1, 1) / 5, labels


def train(hooks, optimizer, steps, seed=0):
    """Train for some steps; return the task loss and the regulariser of the first step."""
    first = None
    for index in range(steps):
        images, labels = batch(seed + index)
        loss = nn.functional.cross_entropy(hooks.model.train()(images), labels)
        term = hooks.regularization(loss)
        first = first or (loss.item(), term.item())
        optimizer.zero_grad()
        (loss + term).backward()
        hooks.optimizer_step()
    return first


def kill(model, spaces, name, index, value=0.0, spare=()):
    """Set a channel's weights to a value in every producer and consumer except those in `spare`."""
    layers = {name: layer for name, layer in model.named_modules() if name not in spare}
    for _, weight, axis, entries in spaces.weights(spaces[name], layers):
        if weight.ndim > 1:  # not a normalisation's
            weight.data.movedim(axis, 0)[entries[index]] = value


def decide(hooks):
    hooks.ctx.epochs_done += 1
    hooks.method.on_epoch_end(hooks.ctx)
    return hooks.method.reconfigure(hooks.ctx)
