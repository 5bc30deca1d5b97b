"""Small methods that together use every operand of a plan and every hook of the contract."""

import torch
import torch.nn.functional as F
from slicing_backend import SLICING
from torch import nn

from suite.engine.network.products import TorchBackend
from suite.method import SKIP_STEP, Compact, Density, Method, OpPlan, ReconfigPlan


class Nothing(Method):
    """Dense training."""


class WeightMask(Method):
    """Masks half of the input channels in the forward, as SR-STE and ClickTrain do."""

    def plan(self, name, layer):
        return OpPlan(weight_forward=mask_even, backend=SLICING) if layer.weight.shape[1] == 8 else None

    def density(self, name, ctx):
        return Density(0.5, 0.5, 1.0) if name != "0" else Density()


def mask_even(weight, site):
    masked = weight.clone()
    masked[:, ::2] = 0
    return masked


class ChannelTopK(Method):
    """Uses the quarter of dO's channels with the largest magnitudes for both gradients, as ssProp does."""

    share: float = 0.25

    def plan(self, name, layer):
        return OpPlan(grad_shared=self.strongest) if isinstance(layer, nn.Conv2d) else None

    def strongest(self, grad, site):
        kept = grad.abs().sum((0, 2, 3)).topk(int(grad.shape[1] * self.share)).indices.sort().values
        return Compact(grad.index_select(1, kept), kept)

    def density(self, name, ctx):
        return Density(1.0, self.share, self.share) if name != "8" else Density()


class CountingBackend(TorchBackend):
    """Torch's products, with a counter of the calls."""

    def __init__(self):
        self.calls = {"forward": 0, "dgrad": 0, "wgrad": 0}

    def forward(self, *operands):
        self.calls["forward"] += 1
        return super().forward(*operands)

    def dgrad(self, *operands):
        self.calls["dgrad"] += 1
        return super().dgrad(*operands)

    def wgrad(self, *operands, **keywords):
        self.calls["wgrad"] += 1
        return super().wgrad(*operands, **keywords)

    def executed(self, product, grad, weight, geometry):
        return {"forward": 1.0, "dgrad": 0.5, "wgrad": 1.0}[product]


class OwnBackend(Method):
    """Uses its own backend, as a method with a sparse kernel does."""

    def setup(self, ctx):
        self.backend = CountingBackend()

    def plan(self, name, layer):
        return OpPlan(backend=self.backend)


class Mixup(Method):
    """Mixes images and replaces labels by probabilities."""

    def transform_batch(self, images, labels, ctx):
        share = 0.7
        probabilities = F.one_hot(labels, ctx.num_classes).float()
        return (
            share * images + (1 - share) * images.flip(0),
            share * probabilities + (1 - share) * probabilities.flip(0),
        )


class SkipsOdd(Method):
    """Skips every second optimizer step and accumulates gradients."""

    def setup(self, ctx):
        self.accumulated = torch.zeros((), device=ctx.device)

    def before_optimizer_step(self, ctx):
        self.accumulated += ctx.model[0].weight.grad.abs().sum()
        return SKIP_STEP if ctx.step % 2 else None

    def state_dict(self):
        return {"accumulated": self.accumulated}

    def load_state_dict(self, state):
        self.accumulated = state["accumulated"].clone()


class RandomChannels(Method):
    """Draws random masks from the key of the site, so that no state is saved."""

    def plan(self, name, layer):
        return OpPlan(grad_dgrad=drop_randomly, grad_wgrad=drop_randomly)


def drop_randomly(grad, site):
    mask = (torch.rand(grad.shape[:2], generator=site.generator()) < 0.5).to(grad.device)
    return grad * mask.view(*mask.shape, *[1] * (grad.ndim - 2))


class HashedChannels(Method):
    """Draws random masks on the device, from a seed that is read there."""

    replayable = True

    def plan(self, name, layer):
        return OpPlan(grad_dgrad=drop_by_seed, grad_wgrad=drop_by_seed)


def drop_by_seed(grad, site):
    """Keep half of the channels of each image, chosen by the middle bits of the squared sum of seed and index."""
    number = torch.arange(grad.shape[0] * grad.shape[1], device=grad.device)
    mixed = (site.kernel_seed >> 32) + number
    kept = (mixed * mixed >> 16) % 2
    return grad * kept.to(grad.dtype).view(*grad.shape[:2], *[1] * (grad.ndim - 2))


class ReplayedTopK(ChannelTopK):
    """Uses compact gradients, whose executed shares are counted only during the capture."""

    replayable = True


class Shrinks(Method):
    """Removes a channel of one space, then the residual branch; changes batch size and learning rate."""

    def reconfigure(self, ctx):
        space = ctx.spaces["0"]
        if ctx.epochs_done == 1:
            return ReconfigPlan(kept={"0": space.original[1:]}, batch_size=32, lr_scale=0.5)
        if ctx.epochs_done == 2 and ctx.spaces.removable_branches:
            return ReconfigPlan(removed_branches=("3.branch",))
        return None


class Replans(Method):
    """Asks for new plans at the end of its second epoch."""

    def setup(self, ctx):
        self.masked = False

    def plan(self, name, layer):
        return OpPlan(weight_forward=mask_even) if self.masked and layer.weight.shape[1] == 8 else None

    def on_epoch_end(self, ctx):
        if ctx.epochs_done == 2:
            self.masked = True
            ctx.replan()

    def state_dict(self):
        return {"masked": self.masked}

    def load_state_dict(self, state):
        self.masked = state["masked"]


class Decays(Method):
    """Adds a regulariser whose coefficient is set in the first step, as PruneTrain does."""

    def setup(self, ctx):
        self.coefficient = None

    def regularization(self, model, ctx):
        term = model[0].weight.square().sum()
        if self.coefficient is None:
            self.coefficient = 0.25 * ctx.task_loss.item() / term.item()
        return self.coefficient * term

    def state_dict(self):
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state):
        self.coefficient = state["coefficient"]


METHODS = [
    Nothing, WeightMask, ChannelTopK, OwnBackend, Mixup, SkipsOdd, RandomChannels, HashedChannels, Shrinks, Replans,
    Decays,
]  # fmt: skip
REPLAYED = [Nothing, Mixup, SkipsOdd, HashedChannels, ReplayedTopK]
"""Methods whose steps can be captured and replayed."""
