"""A network of four convolutions, two of them in a residual branch, for checks of methods."""

from small_training import SmallResidual
from torch import nn

from suite.registry import register


@register("model", "tiny_residual")
def tiny_residual(*, num_classes=10, input_shape=(1, 16, 16)):
    blocks = [
        *(nn.Conv2d(input_shape[0], 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(SmallResidual(8), nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
    ]
    return nn.Sequential(*blocks, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, num_classes))
