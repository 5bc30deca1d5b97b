"""A training loop of one's own that does what the suite's trainer does with the same recipe, in every variant."""

import torch
import torch.nn.functional as F
from small_training import CLASSES, SHAPE, SmallBatches
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from methods.clicktrain import ClickTrain
from methods.dense import Dense
from methods.masks.masking import MaskedMethod
from methods.prunetrain import PruneTrain
from methods.sdgp import SDGP
from suite.ops import apply


class HalfMasked(MaskedMethod):
    """Masks half of the weights from the fourth step on, by magnitude."""

    def sparsity_now(self, ctx):
        return 0.5 if ctx.step == 3 else None


METHODS = {
    "dense": Dense,
    "sdgp": lambda: SDGP(n=2, m=4, backend="masked"),
    "prunetrain": lambda: PruneTrain(interval=1, threshold=0.12, ratio=0.5),
    "prunetrain-proximal": lambda: PruneTrain(interval=1, threshold=0.15, ratio=0.6, update="proximal"),
    "clicktrain": lambda: ClickTrain(mixup=0.0, warmup=0.3, hard_prune=0.6, coefficient=1e-2, backend="masked"),
    "masked": HalfMasked,
}


def net(frozen=False):
    """Return a net without batch normalisation, whose result does not depend on how a batch is divided."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    ).to(memory_format=torch.channels_last)
    if frozen:
        model[0].requires_grad_(False)
    return model


class Loop:
    """The loop, with the weights after each epoch.

    Args:
        method: The method.
        recipe: Recipe whose optimizer is SGD.
        model: The bare model.
        optimizers: How many optimizers share the parameters.
        ema: Decay of an average of the weights; 0 for none.
        compiled: Whether forward and backward are compiled.
        ranks: Number of ranks of this training, of which this process is one if it is not 1.
    """

    def __init__(self, method, recipe, model, *, optimizers=1, ema=0.0, dtype=torch.float32, compiled=False, ranks=1):
        self.recipe, self.dtype, self.compiled, self.ranks = recipe, dtype, compiled, ranks
        self.model = model
        self.hooks = apply(
            model,
            method,
            input_shape=SHAPE,
            num_classes=CLASSES,
            epochs=recipe.whole_epochs,
            batch_size=recipe.batch_size,
            micro_batches=recipe.micro_batches,
            train_images=64,
            dtype=dtype,
        )
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        shares = [trained[index::optimizers] for index in range(optimizers)]
        self.optimizers = [torch.optim.SGD(share, lr=0.1, momentum=0.9) for share in shares]
        self.average = None
        if ema:
            self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(ema), use_buffers=True)
        self.hooks.attach(*self.optimizers, averages=[self.average] if self.average else [])
        self.scaler = torch.amp.GradScaler("cpu") if dtype == torch.float16 else None
        self.schedules = [torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1.0) for one in self.optimizers]
        self.wrap()

    def wrap(self):
        """Wrap or compile the model, as after each reconfiguration."""
        self.forward = self.model
        if self.ranks > 1:
            self.forward = DistributedDataParallel(self.model)
        elif self.compiled:
            torch._dynamo.reset()
            self.forward = torch.compile(self.model, backend="aot_eager", fullgraph=True, dynamic=False)

    def scaled(self, loss):
        return loss if self.scaler is None else self.scaler.scale(loss)

    def step(self, images, labels):
        hooks, recipe, rank = self.hooks, self.recipe, self.hooks.ctx.rank
        if self.ranks > 1:
            images, labels = images.tensor_split(self.ranks)[rank], labels.tensor_split(self.ranks)[rank]
        images, labels = hooks.transform_batch(images, labels)
        total, parts = 0.0, recipe.micro_batches
        for part, some in enumerate(zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True)):
            hooks.begin_micro_batch(part, parts)
            with torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32):
                logits = self.forward(some[0])
            loss = F.cross_entropy(logits.float(), some[1]) / parts
            self.scaled(loss).backward()
            total = total + loss.detach()
        self.scaled(hooks.regularization(total)).backward()
        finite = True
        if self.scaler:
            for one in self.optimizers:
                self.scaler.unscale_(one)
            finite = all(one.grad.isfinite().all() for one in self.model.parameters() if one.grad is not None)
        self.gradients = [one.grad.clone() for one in self.model.parameters() if one.grad is not None]
        if finite:
            hooks.optimizer_step()
            if self.average:
                self.average.update_parameters(self.model)
        else:
            hooks.end_step()
        if self.scaler:
            self.scaler.update()
        for one in self.optimizers:
            one.zero_grad()

    def epoch(self, number):
        for index, (images, labels) in enumerate(SmallBatches(64, seed=1).epoch(number, self.recipe.batch_size)):
            self.hooks.ctx.progress = (number + index / 4) / self.recipe.whole_epochs
            for one in self.optimizers:
                one.param_groups[0]["lr"] = self.recipe.learning_rate_at(self.hooks.ctx.progress)
            self.step(images, labels)
        if self.hooks.end_epoch() is not None:
            self.wrap()

    def fit(self):
        for number in range(self.recipe.whole_epochs):
            self.epoch(number)
        self.hooks.finish()
        self.forward = None
        return self
