"""Trainings of two `torch.distributed` processes for `test_data_parallel`, in a module that they can import."""

import dataclasses
from functools import partial

import torch
import torch.distributed as dist
from small_training import CLASSES, RECIPE, Checkpoints, small_trainer
from torch import nn

from methods.clicktrain import ClickTrain
from methods.freezeout import FreezeOut
from methods.gmp import GMP
from methods.prunetrain import PruneTrain
from methods.rigl import RigL
from methods.ssprop import SSProp
from suite.errors import UsageError
from suite.method import Method, OpPlan, ReconfigPlan

RANKS = 2
# 71 images: the last batch has 7, of which rank 0 gets 4.
UNEVEN = dataclasses.replace(RECIPE, drop_last=False)


def plain_net():
    """Return a net without batch normalisation, whose result does not depend on how a batch is divided."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def dropout_net():
    net = plain_net()
    net.insert(6, nn.Dropout(0.5))
    return net


class Sum(nn.Module):
    residual_branch = "branch"

    def __init__(self, branch):
        super().__init__()
        self.branch = branch

    def forward(self, x):
        return x + self.branch(x)


def residual_net():
    """Return `plain_net` with a second convolution that is a residual branch."""
    net = plain_net()
    net[2] = Sum(net[2])
    return net


class LeavesOut(Method):
    """Leaves out the branch of `residual_net` in each second step, and halves its output in the others."""

    def branch_factors(self, ctx):
        return {"2.branch": 0.5 if ctx.step % 2 else 0.0}


def pruning():
    """Return PruneTrain that cuts channels of `plain_net` in the second epoch."""
    return PruneTrain(interval=2, threshold=0.2, ratio=0.6, update="proximal")


SPARSE = (
    partial(SSProp, keep=0.25, schedule="constant", backend="compact"),  # each micro-batch keeps its own channels
    partial(GMP, sparsity=0.5, every=2, start=0.0, end=0.5),
    partial(RigL, sparsity=0.5, every=2),
)
FREEZING = partial(FreezeOut, start=0.4, power=1)  # a layer after each of the first two of three epochs


class UnevenMask(Method):
    """A method with a fault: its mask differs between the ranks."""

    def setup(self, ctx):
        self.mask = torch.ones_like(ctx.layers["2"].weight)
        self.mask[ctx.rank] = 0

    def plan(self, name, layer):
        return OpPlan(weight_forward=lambda weight, site: weight * self.mask) if name == "2" else None

    def state_dict(self):
        return {"masks": {"2": self.mask}}


class OtherWeight(Method):
    """A method with a fault: rank 1 changes one weight."""

    @torch.no_grad()
    def on_epoch_end(self, ctx):
        ctx.model[0].weight[0, 0, 0, 0] += ctx.rank


class Grows(Method):
    """Asks for batches of 35 after the first epoch: of 71 images, the last batch has one, and rank 1 has none."""

    def reconfigure(self, ctx):
        return ReconfigPlan(batch_size=35) if ctx.epochs_done == 1 else None


def trained(method, recipe=UNEVEN, model=None, **options):
    """Return what one process knows after a training: weights, records and counts."""
    records = []
    trainer = small_trainer(method, recipe, model or plain_net(), train_images=71, on_epoch=records.append, **options)
    trainer.fit()
    return {
        "weights": [parameter.detach().clone() for parameter in trainer.model.parameters()],
        "records": records,
        "counts": trainer.ledger.counts(),
        "samples": trainer.progress.samples,
        "cut": len(trainer.runner.reconfigurations),
    }


def on_rank(rank, folder):
    """Run every training on one rank, and return the results."""
    small = dataclasses.replace(UNEVEN, epochs=2)
    return {
        "pruned": trained(pruning(), dataclasses.replace(UNEVEN, micro_batches=2, mixup=0.4, ema=0.9)),
        "frozen": trained(FREEZING(), dataclasses.replace(UNEVEN, lookahead_steps=2)),
        "grown": trained(Grows(), dataclasses.replace(small, mixup=0.4, lookahead_steps=2)),
        "sparse": [trained(method(), dataclasses.replace(small, micro_batches=2)) for method in SPARSE],
        "left_out": trained(LeavesOut(), dataclasses.replace(small, micro_batches=2), residual_net()),
        "normalised": normalised(),
        "estimated": estimated(),
        "resumed": resumed(),
        "refused": refused(small),
    }


def normalised_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))


def normalised():
    """Return running means of a net and of its weight average after an epoch with constant weights.

    The batches have 35, 35 and 1 images, so that their shares have different means and rank 1 has none of the last.
    """
    recipe = dataclasses.replace(UNEVEN, epochs=1, learning_rate=0.0, ema=0.9)
    trainer = small_trainer(Method(), recipe, normalised_net(), train_images=71)
    trainer.ctx.batch_size = 35
    trainer.train_epoch()
    trainer.parallel.check_states()
    trainer.parallel.unwrap()
    return [model[1].running_mean for model in (trainer.model, *trainer.runner.averages)]


def estimated():
    """Return running means that were estimated after an epoch with constant weights, and the last record.

    The batches have 35, 35 and 1 images, as for `normalised`.
    """
    records = []
    recipe = dataclasses.replace(UNEVEN, epochs=2, learning_rate=0.0, precise_bn=71)
    trainer = small_trainer(Grows(), recipe, normalised_net(), train_images=71, on_epoch=records.append)
    trainer.fit()
    return trainer.model[1].running_mean, records[-1]


def resumed():
    """Return weights and last records of an uninterrupted training with dropout and of one that was resumed."""
    kept = Checkpoints()
    recipe = dataclasses.replace(RECIPE, epochs=3)
    trainer = small_trainer(ClickTrain(mixup=0.0), recipe, dropout_net(), on_checkpoint=kept.keep)
    trainer.fit()
    states = [kept[0]]
    dist.broadcast_object_list(states, 0)  # rank 0's, as from a file
    again = small_trainer(ClickTrain(mixup=0.0), recipe, dropout_net())
    again.load_state_dict(states[0])
    again.fit()
    drawn = nn.functional.dropout(torch.ones(64), 0.5)
    weights = [[parameter.detach() for parameter in one.model.parameters()] for one in (trainer, again)]
    return weights, drawn, [one.progress.last_record for one in (trainer, again)]


def refused(recipe):
    """Return the messages of trainings that cannot work."""
    messages = []
    for method, changed, images in (
        (UnevenMask(), {}, 64),
        (Method(), {}, 65),
        (Method(), {"batch_size": 1}, 64),
        (Method(), {"execution": "compile"}, 64),
        (OtherWeight(), {}, 64),
    ):
        trainer = None
        try:
            trainer = small_trainer(method, dataclasses.replace(recipe, **changed), plain_net(), train_images=images)
            trainer.fit()
        except UsageError as error:
            messages.append(str(error))
        if trainer is not None:
            trainer.parallel.unwrap()
    return messages
