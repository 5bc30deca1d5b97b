"""Network Slimming: an L1 penalty on the scales of normalisation, and one cut by a global threshold.

Source: Liu, Li, Shen, Huang, Yan, Zhang, "Learning Efficient Convolutional Networks through Network Slimming", ICCV
2017, and its code, https://github.com/Eric-mingjie/network-slimming.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import Interval
from torch import Tensor

from methods.channels.cuts import is_due
from methods.channels.scales import ScalePenalty
from suite.method import Context
from suite.parameters import Search
from suite.registry import register


@register("method", "slimming")
class Slimming(ScalePenalty):
    """Network Slimming: channels with small scales of normalisation are removed once, at a share of the training.

    A normalisation multiplies each channel by a scale g. Until the cut, the loss is (Eq. 1)

        L = task loss + strength * sum of |g|,

    whose subgradient is strength * sign(g), as in the authors' `main.py`. After the first epoch that ends at or after
    the share `at`, and at the latest after the last but one, all channels that can be removed and have a trained scale
    are put in the order of |g|. The share `ratio` with the smallest is removed (`resprune.py`): one threshold for all
    layers. A channel that several normalisations scale, as in a residual stage, counts once, with its largest |g| (not
    in the paper). At least one channel of each index space remains. Then the training goes on with the smaller network;
    in the paper, it begins again with the first learning rate and as many epochs. All parameters but `at` are those of
    `ScalePenalty`.

    Attributes:
        at: Share of the training before the cut. The cut is made between two epochs.
    """

    source: ClassVar[str] = "Network Slimming (Liu et al., ICCV 2017) and its code (Eric-mingjie/network-slimming)"

    at: Annotated[float, Interval(gt=0, lt=1), Search(0.1, 0.7)] = 0.5

    def chosen(self, ctx: Context) -> dict[str, Tensor] | None:
        return self.masks(self.scores(ctx)) if is_due(self.at, ctx) else None
