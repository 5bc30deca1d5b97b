"""Channel top-k of output gradients: an example of a gradient transform."""

from dataclasses import dataclass

from torch import nn

from suite.method import Compact, Density, Method, OpPlan
from suite.registry import register


def count_kept(channels, share):
    return max(1, round(channels * share))


@dataclass(frozen=True)
class KeepStrongestChannels:
    share: float

    def __call__(self, grad, site):
        strength = grad.abs().float().sum((0, 2, 3))
        kept = strength.topk(count_kept(len(strength), self.share)).indices.sort().values
        return Compact(grad.index_select(1, kept), kept)


@register("method", "channel_topk")
class ChannelTopK(Method):
    """Compute both gradients from the strongest channels of the output gradient only.

    Attributes:
        share: Share of the channels that is kept.
    """

    share: float = 0.5

    def setup(self, ctx):
        self.channels = {name: x.out_channels for name, x in ctx.layers.items() if isinstance(x, nn.Conv2d)}

    def plan(self, name, layer):
        return OpPlan(grad_shared=KeepStrongestChannels(self.share)) if name in self.channels else None

    def density(self, name, ctx):
        channels = self.channels.get(name)
        share = count_kept(channels, self.share) / channels if channels else 1.0
        return Density(forward=1.0, dgrad=share, wgrad=share)
