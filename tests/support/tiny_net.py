"""A network of two convolutions, for tests of what is done with a trial and not of its network."""

from torch import nn

from suite.registry import register

TINY = "tiny_net"


@register("model", TINY)
def tiny_net(*, num_classes: int = 10, input_shape: tuple[int, int, int] = (1, 16, 16)) -> nn.Module:
    """Two convolutions with normalisation; any image from 4x4."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(input_shape[0], 8),
        nn.MaxPool2d(2),
        *block(8, 16),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(16, num_classes, bias=False),
    )
