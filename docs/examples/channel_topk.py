"""Channel top-k of output gradients: an example of a gradient transform. `methods/ssprop.py` is a complete method."""

from torch import nn

from suite.method import Compact, Density, Method, OpPlan
from suite.registry import register


@register("method", "channel_topk")
class ChannelTopK(Method):
    """Compute both gradients from the strongest channels of the output gradient only.

    Attributes:
        share: Share of the channels that is kept.
    """

    share: float = 0.5

    def plan(self, name, layer):
        return OpPlan(grad_shared=self.strongest) if isinstance(layer, nn.Conv2d) else None

    def strongest(self, grad, site):
        strength = grad.abs().float().sum((0, 2, 3))
        kept = strength.topk(self.count(len(strength))).indices.sort().values
        return Compact(grad.index_select(1, kept), kept)

    def count(self, channels):
        return max(1, round(channels * self.share))

    def density(self, name, ctx):
        layer = ctx.layers[name]
        share = self.count(layer.out_channels) / layer.out_channels if isinstance(layer, nn.Conv2d) else 1.0
        return Density(forward=1.0, dgrad=share, wgrad=share)
