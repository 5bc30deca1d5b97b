"""Small net, images and trainer for tests of the training loop."""

import io

import torch
import torch.nn.functional as F
from torch import nn

from suite.engine.training.trainer import Trainer
from suite.recipe import Recipe
from suite.task import Splits

SHAPE = (3, 8, 8)
CLASSES = 4


class SmallResidual(nn.Module):
    residual_branch = "branch"

    def __init__(self, channels):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )

    def forward(self, x):
        return x + self.branch(x)


def small_net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        SmallResidual(8),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


def plain_net():
    """A network that compiles in half of the time of the small one, for methods that need no residual branch."""
    torch.manual_seed(0)
    model = small_net()
    model[3] = nn.Identity()
    return model


class SmallBatches:
    """Images whose class is their bright quadrant, shuffled in each epoch."""

    def __init__(self, count, seed, shuffle=True, drop_last=True):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(count) % CLASSES
        self.images = 0.5 * torch.randn(count, *SHAPE, generator=generator)
        for index, label in enumerate(self.labels.tolist()):
            row, column = divmod(label, 2)
            self.images[index, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += label + 1.0
        self.images = self.images.contiguous(memory_format=torch.channels_last)
        self.num_samples, self.shuffle, self.drop_last = count, shuffle, drop_last and shuffle

    def steps_per_epoch(self, batch_size):
        return self.num_samples // batch_size if self.drop_last else -(-self.num_samples // batch_size)

    def epoch(self, epoch, batch_size):
        order = torch.arange(self.num_samples)
        if self.shuffle:
            order = torch.randperm(self.num_samples, generator=torch.Generator().manual_seed(epoch))
        for step in range(self.steps_per_epoch(batch_size)):
            chosen = order[step * batch_size : (step + 1) * batch_size]
            yield self.images[chosen], self.labels[chosen]


class Checkpoints(list):
    """Collects the states that a trainer saves, as they are read back from their files."""

    def keep(self, state):
        file = io.BytesIO()
        torch.save(state(), file)
        file.seek(0)
        self.append(torch.load(file, weights_only=True))


RECIPE = Recipe(epochs=3, batch_size=16, eval_batch_size=32, learning_rate=0.05, schedule="linear", lr_end=0.1)


def steps_by_hand(model, optimizer, factors=(1,), **loss):
    """Train as `RECIPE` does, and yield the number of steps after each; `factors` are those of the learning rates."""
    data, step = SmallBatches(64, seed=1), 0
    for epoch in range(3):
        for images, labels in data.epoch(epoch, 16):
            for group, factor in zip(optimizer.param_groups, factors, strict=True):
                group["lr"] = 0.05 * (1 - 0.9 * step / 12) * factor
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels, **loss).backward()
            optimizer.step()
            step += 1
            yield step


def small_trainer(method, recipe=RECIPE, model=None, train_images=64, **options):
    torch.manual_seed(0)
    model = (model or small_net()).to(memory_format=torch.channels_last)
    train = SmallBatches(train_images, seed=1, drop_last=recipe.drop_last)
    splits = Splits(train=train, test=SmallBatches(40, seed=2, shuffle=False))
    defaults = {"input_shape": SHAPE, "num_classes": CLASSES, "seed": 0, "device": torch.device("cpu")}
    return Trainer(model, method, recipe, splits, **(defaults | options))


def fitted(method, recipe=RECIPE, model=None, **options):
    """Train, and return the trainer and its records."""
    records = []
    trainer = small_trainer(method, recipe, model, on_epoch=records.append, **options)
    trainer.fit()
    return trainer, records


def without_times(record):
    return {key: value for key, value in record.items() if not key.endswith("time_s")}


def assert_same_weights(one, other):
    """Check that the models of two trainers have equal bits."""
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(other.model.state_dict()[name], tensor), name


def assert_it_resumes(build, after=None):
    """Train, and resume from checkpoints: weights, records and counts are those of the whole training.

    Args:
        build: Returns a trainer with the given callbacks.
        after: Numbers of epochs after which the training is resumed; after each epoch if not given.

    Returns:
        The whole training with its records, and the resumed ones in order.
    """
    records, states, resumed = [], Checkpoints(), []
    whole = build(on_epoch=records.append, on_checkpoint=states.keep)
    whole.fit()
    for done in after or range(1, len(states) + 1):
        again = []
        resumed.append(build(on_epoch=again.append))
        resumed[-1].load_state_dict(states[done - 1])
        resumed[-1].fit()
        assert_same_weights(whole, resumed[-1])
        assert [without_times(one) for one in again] == [without_times(one) for one in records[done:]]
        assert resumed[-1].ledger.to_csv(len(records)) == whole.ledger.to_csv(len(records))
    assert resumed
    return whole, records, resumed
