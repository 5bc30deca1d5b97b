"""A plugin with a network of two convolutions, which trains faster than any other."""

from torch import nn

from suite.registry import register


@register("model", "small_net")
def small_net(*, num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Two convolutions with normalisation."""
    convolutions = (
        *(nn.Conv2d(input_shape[0], 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU()),
    )
    return nn.Sequential(*convolutions, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, num_classes))
