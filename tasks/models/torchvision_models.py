"""torchvision's classification networks by their own names, except those that other modules define.

`vgg16` is the network with normalisation, which PruneTrain and ClickTrain train on ImageNet. With the prefix
`torchvision/`, every name means torchvision's own network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torchvision
from annotated_types import Interval
from torch import nn
from torchvision.models import get_model
from torchvision.models.vgg import vgg16_bn
from torchvision.ops import StochasticDepth

from suite.registry import register, register_collection, register_family
from tasks.models.imagenet_resnet import blur_strided
from tasks.models.residual import Shape, check_channels
from tasks.models.transformers.separate_attention import separate_attention as separate

_AUXILIARY = ("googlenet", "inception_v3")  # their auxiliary classifiers return several outputs in training

_STOCHASTIC_DEPTH = ("convnext_", "efficientnet_", "maxvit_", "swin_")
_BLURRED = ("regnet_x_400mf", "resnet18", "resnet50")  # SDGP's code trains them with blurred inputs
_DROP_PATH_LINE = """
        drop_path: Probability with which a training image skips the last residual branch; those of
            other branches are in torchvision's proportions; `none` for torchvision's."""
_SEPARATE_LINE = """
        separate_attention: Whether queries, keys, values and outputs of attention have linear layers of
            their own, which methods can prune, and whose heads can be removed."""
_BLUR_LINE = """
        blur: Whether the input of each strided convolution that does not read the image is blurred, as
            in SDGP's code."""


@register_family(
    "model",
    "alexnet",
    "convnext_tiny",
    "convnext_small",
    "convnext_base",
    "convnext_large",
    "densenet121",
    "densenet161",
    "densenet169",
    "densenet201",
    "efficientnet_b0",
    "efficientnet_b1",
    "efficientnet_b2",
    "efficientnet_b3",
    "efficientnet_b4",
    "efficientnet_b5",
    "efficientnet_b6",
    "efficientnet_b7",
    "efficientnet_v2_s",
    "efficientnet_v2_m",
    "efficientnet_v2_l",
    "googlenet",
    "inception_v3",
    "maxvit_t",
    "mnasnet0_5",
    "mnasnet0_75",
    "mnasnet1_0",
    "mnasnet1_3",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "regnet_x_400mf",
    "regnet_x_800mf",
    "regnet_x_1_6gf",
    "regnet_x_3_2gf",
    "regnet_x_8gf",
    "regnet_x_16gf",
    "regnet_x_32gf",
    "regnet_y_400mf",
    "regnet_y_800mf",
    "regnet_y_1_6gf",
    "regnet_y_3_2gf",
    "regnet_y_8gf",
    "regnet_y_16gf",
    "regnet_y_32gf",
    "regnet_y_128gf",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "resnext101_64x4d",
    "shufflenet_v2_x0_5",
    "shufflenet_v2_x1_0",
    "shufflenet_v2_x1_5",
    "shufflenet_v2_x2_0",
    "squeezenet1_0",
    "squeezenet1_1",
    "swin_t",
    "swin_s",
    "swin_b",
    "swin_v2_t",
    "swin_v2_s",
    "swin_v2_b",
    "vgg11_bn",
    "vgg13_bn",
    "vgg16_bn",
    "vgg19",
    "vgg19_bn",
    "vit_b_16",
    "vit_b_32",
    "vit_l_16",
    "vit_l_32",
    "vit_h_14",
    "wide_resnet50_2",
    "wide_resnet101_2",
)
def classifier(name: str) -> Callable[..., nn.Module]:
    """A classification network of torchvision with new weights, which its builder initialises; for three channels.

    Args:
        name: Name of torchvision's builder.
    """

    def build(*, num_classes: int = 1000, input_shape: Shape = (3, 224, 224)) -> nn.Module:
        return _network(name, num_classes, input_shape)

    def build_with_drop_path(
        *,
        drop_path: Annotated[float, Interval(ge=0, lt=1)] | None = None,
        num_classes: int = 1000,
        input_shape: Shape = (3, 224, 224),
    ) -> nn.Module:
        network = _network(name, num_classes, input_shape)
        if drop_path is not None:
            _set_drop_path(network, drop_path)
        return network

    def build_with_blur(
        *, blur: bool = False, num_classes: int = 1000, input_shape: Shape = (3, 224, 224)
    ) -> nn.Module:
        network = _network(name, num_classes, input_shape)
        if blur:
            blur_strided(network)
        return network

    def build_with_separate_attention(
        *, separate_attention: bool = False, num_classes: int = 1000, input_shape: Shape = (3, 224, 224)
    ) -> nn.Module:
        network = _network(name, num_classes, input_shape)
        if separate_attention:
            separate(network)
        return network

    found: Callable[..., nn.Module] = build
    line = ""
    if name.startswith(_STOCHASTIC_DEPTH):
        found, line = build_with_drop_path, _DROP_PATH_LINE
    elif name in _BLURRED:
        found, line = build_with_blur, _BLUR_LINE
    elif name.startswith("vit_"):
        found, line = build_with_separate_attention, _SEPARATE_LINE
    found.__name__ = found.__qualname__ = name
    found.__doc__ = f"""torchvision's `{name}` with new weights, which torchvision's builder initialises.

    Args:{line}
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image with three channels.
    """
    return found


def _network(name: str, num_classes: int, input_shape: Shape) -> nn.Module:
    check_channels(input_shape)
    settings: dict[str, Any] = {}
    if name.startswith("vit_"):
        settings["image_size"] = _square(input_shape)
    if name == "maxvit_t":
        settings["input_size"] = input_shape[1:]
    if name in _AUXILIARY:
        settings |= {"aux_logits": False, "init_weights": True}
    network: nn.Module = get_model(name, weights=None, num_classes=num_classes, **settings)
    return network


def _set_drop_path(network: nn.Module, drop_path: float) -> None:
    """Scale the probabilities of stochastic depth so that the largest is `drop_path`."""
    branches = [module for module in network.modules() if isinstance(module, StochasticDepth)]
    largest = max(branch.p for branch in branches)
    for branch in branches:
        branch.p *= drop_path / largest


def _square(input_shape: Shape) -> int:
    if input_shape[1] != input_shape[2]:
        raise ValueError(f"images are {input_shape[1]}x{input_shape[2]}; this model needs square ones")
    return input_shape[1]


@register_collection("model", "torchvision")
def builders() -> dict[str, Callable[..., nn.Module]]:
    """Every classification network of torchvision itself, by the name of its builder, such as torchvision/vgg11."""
    return {name: classifier(name) for name in torchvision.models.list_models(module=torchvision.models)}


@register("model", "vgg16")
def vgg16(*, num_classes: int = 1000, input_shape: Shape = (3, 224, 224)) -> nn.Module:
    """torchvision's VGG-16 with normalisation: 138.4 million parameters with 1,000 classes.

    Args:
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image with three channels.
    """
    check_channels(input_shape)
    return vgg16_bn(num_classes=num_classes)
