"""Channel pruning by magnitude, once during training: an example of a reconfiguration."""

from suite.method import Method, ReconfigPlan
from suite.registry import register


@register("method", "channel_pruning")
class ChannelPruning(Method):
    """Remove the channels with the smallest weights from every index space, once.

    Attributes:
        ratio: Share of the channels that is removed from each index space.
        epoch: Number of epochs after which the channels are removed.
    """

    shrinks_network = True

    ratio: float = 0.25
    epoch: int = 1

    def reconfigure(self, ctx):
        if ctx.epochs_done != self.epoch:
            return None
        kept = {}
        for name, space in ctx.spaces.items():
            weights = ctx.spaces.weights(space, ctx.layers)
            # Layers that are not trained keep their channels.
            if space.frozen or not weights or not all(w.weight.requires_grad for w in weights):
                continue
            # The squared norm of each channel, summed over all weights that share the channel.
            strength = sum(
                w.weight.detach().movedim(w.axis, 0)[w.entries.to(w.weight.device)].float().square().flatten(1).sum(1)
                for w in weights
            )
            count = max(1, round(space.size * (1 - self.ratio)))
            positions = strength.topk(count).indices.sort().values.tolist()
            kept[name] = [space.original[position] for position in positions]
        return ReconfigPlan(kept=kept) if kept else None
