"""torchvision's VGG-16 for ImageNet, with normalisation."""

from __future__ import annotations

from torch import nn

from suite.registry import register


@register("model", "vgg16")
def vgg16(*, num_classes: int = 1000, input_shape: tuple[int, int, int] = (3, 224, 224)) -> nn.Module:
    """torchvision's VGG-16 with normalisation: 138.4 million parameters with 1,000 classes.

    Args:
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image with three channels.
    """
    from torchvision.models.vgg import vgg16_bn

    if input_shape[0] != 3:
        raise ValueError(f"images have {input_shape[0]} channels; the model needs 3")
    return vgg16_bn(num_classes=num_classes)
