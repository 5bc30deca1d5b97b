"""Code of the two `torch.distributed` processes in `test_ranks`, in a module that they can import."""

import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from small_methods import RandomChannels
from small_training import CLASSES, SHAPE, SmallBatches, small_net
from torch.nn.parallel import DistributedDataParallel

from methods.prunetrain import PruneTrain
from suite.engine.training import ranks
from suite.errors import UsageError
from suite.method import Method, ReconfigPlan
from suite.ops import apply

RANKS, BATCH = 2, 16


def on_rank(rank, folder):
    """Run every check on one rank, and return the results."""
    found = {check.__name__: check(rank) for check in (random_masks, context, refusals, warnings)}
    found["loaded"] = loaded(rank, folder)
    found["alone"] = saved_alone(rank, folder)  # last, since the ranks may have parted
    return found


def part(images, labels, rank):
    return images.chunk(RANKS)[rank], labels.chunk(RANKS)[rank]


def planned(method, rank, **context):
    """Return a net with weights that differ by rank (then those of rank 0), its hooks and its optimizer."""
    torch.manual_seed(rank)
    model = small_net()
    hooks = apply(
        model, method, **({"input_shape": SHAPE, "num_classes": CLASSES, "epochs": 3, "batch_size": BATCH} | context)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    hooks.attach(optimizer)
    return model, hooks, optimizer


def epoch(number, wrapped, hooks, optimizer, rank):
    for images, labels in SmallBatches(64, seed=1).epoch(number, BATCH):
        images, labels = hooks.transform_batch(*part(images, labels, rank))
        loss = F.cross_entropy(wrapped(images), labels)
        (loss + hooks.regularization(loss)).backward()
        hooks.optimizer_step()
        optimizer.zero_grad()


def random_masks(rank):
    """Return the gradients of the second step."""
    model, hooks, optimizer = planned(RandomChannels(), rank)
    wrapped = DistributedDataParallel(model)
    for images, labels in list(SmallBatches(64, seed=1).epoch(0, BATCH))[:2]:
        optimizer.zero_grad()
        images, labels = part(images, labels, rank)
        F.cross_entropy(wrapped(images), labels).backward()
        hooks.optimizer_step(lambda: None)
    return [parameter.grad for parameter in model.parameters()]


def context(rank):
    """Return what the context of a method computes over the ranks."""
    _, hooks, _ = planned(RandomChannels(), rank)
    return {
        "sum": hooks.ctx.all_reduce(torch.tensor(float(rank + 1))),
        "estimate": hooks.ctx.memory_estimate(ReconfigPlan()),
    }


def loaded(rank, folder):
    """Return the errors of wrappers made before and after a load of a cut state; `None` without an error."""
    for saves in (True, False):
        model, hooks, optimizer = planned(PruneTrain(update="proximal", interval=1, threshold=0.15, ratio=0.6), rank)
        wrapped = DistributedDataParallel(model, find_unused_parameters=True)
        if saves:
            epoch(0, wrapped, hooks, optimizer, rank)
            assert hooks.end_epoch() is not None
            hooks.save(f"{folder}/cut.pt")
    hooks.load(f"{folder}/cut.pt")
    messages = []
    for one in (wrapped, DistributedDataParallel(model)):
        try:
            epoch(1, one, hooks, optimizer, rank)
            messages.append(None)
        except UsageError as error:
            messages.append(str(error))
    return messages


def saved_alone(rank, folder):
    """Return the error of a save that only rank 0 calls, while rank 1 goes on to its next sum."""
    _, hooks, _ = planned(RandomChannels(), rank)
    ranks.ALL_CALL_S = 2
    try:
        if rank == 0:
            hooks.save(f"{folder}/alone.pt")
        else:
            dist.all_reduce(torch.ones(1))
    except (UsageError, RuntimeError) as error:
        return str(error)
    return ""


def refusals(rank):
    """Return the messages for ranks with different seeds, and for a model that is already wrapped."""
    messages = []
    try:
        planned(RandomChannels(), rank, seed=rank)
    except UsageError as error:
        messages.append(str(error))
    try:
        apply(
            DistributedDataParallel(small_net()),
            RandomChannels(),
            input_shape=SHAPE,
            num_classes=CLASSES,
            epochs=1,
            batch_size=4,
        )
    except UsageError as error:
        messages.append(str(error))
    return messages


class AsksForOddBatch(Method):
    """Asks for batches of 17 images after the first epoch."""

    def reconfigure(self, ctx):
        return ReconfigPlan(batch_size=17) if ctx.epochs_done == 1 else None


def warnings(rank):
    """Return the warnings after epochs of a loop whose batches have 17 images, 16 images, and 17 images again."""
    _, hooks, _ = planned(AsksForOddBatch(), rank)
    hooks.end_epoch()
    messages, handler = [], logging.Handler()
    handler.emit = lambda record: messages[-1].append(record.getMessage())
    logging.getLogger("suite.engine.training.method_runner").addHandler(handler)
    for size in (17, 16, 17):
        messages.append([])
        images, labels = next(SmallBatches(64, seed=1).epoch(0, size))
        hooks.transform_batch(images.tensor_split(RANKS)[rank], labels.tensor_split(RANKS)[rank])
        hooks.end_epoch()
    return messages
