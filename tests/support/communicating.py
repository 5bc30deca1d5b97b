"""Code of the two `torch.distributed` processes in `test_communication`, in a module that they can import."""

import math
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from methods.clicktrain import ClickTrain
from methods.prunetrain import PruneTrain
from suite.engine.cost.ledger import Ledger
from suite.engine.training.reduction import reduce_gradients
from suite.ops import apply
from tasks.models.resnet9 import resnet9

RANKS, BATCH, SHAPE, STEPS = 2, 8, (3, 16, 16), 2
METHODS = {
    "prunetrain": lambda: PruneTrain(interval=1, threshold=0.1, update="proximal", ratio=0.6),
    "clicktrain": lambda: ClickTrain(warmup=0.25, hard_prune=0.5, mixup=0.0, coefficient=1e-2, backend="masked"),
}


def on_rank(rank, folder):
    """Train by every method on one rank, and return what was counted and measured."""
    found = {name: training(make(), rank, packs=True) for name, make in METHODS.items()}
    found["clicktrain, unpacked"] = training(METHODS["clicktrain"](), rank, packs=False)
    return found


def begin(method, rank):
    torch.manual_seed(rank)
    model = resnet9(width=1 / 16).to(memory_format=torch.channels_last)
    hooks = apply(model, method, input_shape=SHAPE, num_classes=10, epochs=4, batch_size=BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    hooks.attach(optimizer)
    return model, hooks, optimizer


def wrap(hooks, packs):
    wrapped = DistributedDataParallel(hooks.model)
    if packs:
        reduce_gradients(wrapped, hooks)
    return wrapped


def batch(number, rank):
    generator = torch.Generator().manual_seed(number)
    images, labels = torch.randn(BATCH, *SHAPE, generator=generator), torch.randint(10, (BATCH,), generator=generator)
    return images.chunk(RANKS)[rank].contiguous(memory_format=torch.channels_last), labels.chunk(RANKS)[rank]


def training(method, rank, packs):
    """Return counted and measured bytes of each step, the elements that torch's profiler saw, and the weights."""
    model, hooks, optimizer = begin(method, rank)
    wrapped, ledger = wrap(hooks, packs), Ledger(hooks.ctx, method, SHAPE)
    steps = []
    for epoch in range(4):
        for number in range(STEPS):
            images, labels = batch(STEPS * epoch + number, rank)
            before = dict(hooks.ranks.traffic.bytes)
            # Wrappers also broadcast the order of their buckets, in their second step.
            watches = number == 0 and epoch % 3 == 0
            with torch.profiler.profile(record_shapes=True) if watches else nullcontext() as profile:
                loss = F.cross_entropy(wrapped(images), labels)
                (loss + hooks.regularization(loss)).backward()
                if watches:
                    dist.barrier()  # gloo's threads hand an operation to the profiler after it has ended
            ledger.add_step(BATCH)
            hooks.optimizer_step()
            optimizer.zero_grad()
            after = hooks.ranks.traffic.bytes
            steps.append(
                {
                    "counted": ledger.step_communication,
                    "measured": {kind: size - before.get(kind, 0) for kind, size in after.items()},
                    "seen": {name: seen(profile, name) for name in ("all_reduce", "broadcast")} if watches else None,
                    "parameters": sum(one.numel() for one in model.parameters()),
                    "buffers": sum(one.numel() for one in model.buffers()),
                    "buffer_bytes": sum(one.numel() * one.element_size() for one in model.buffers()),
                }
            )
        ledger.close_interval(epoch + 1)
        kept = hooks.method.kept_gradients(hooks.ctx)
        if hooks.end_epoch() is not None:
            wrapped = wrap(hooks, packs)
            ledger.recount(epoch + 1)
    hooks.finish()
    return {
        "steps": steps,
        "all_reduced": hooks.ranks.traffic.all_reduced,
        "weights": [parameter.detach() for parameter in model.parameters()],
        "kept": kept,
    }


def seen(profile, collective):
    """Return the number of elements that the process group was handed in all calls of a collective operation."""
    return sum(math.prod(event.input_shapes[0]) for event in profile.events() if event.name == f"gloo:{collective}")
