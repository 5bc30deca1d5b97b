"""timm's networks by the names of its builders: `timm/resnet50d`, with the extra `[timm]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from annotated_types import Interval
from torch import nn

from suite.errors import UsageError
from suite.registry import register_collection
from tasks.models.residual import Shape


@register_collection("model", "timm")
def builders() -> dict[str, Callable[..., nn.Module]]:
    """Every network of timm, by the name of its builder, such as timm/resnet50d; needs the extra [timm]."""
    try:
        import timm  # an optional package
    except ImportError as error:
        raise UsageError(f"models timm/NAME need the package timm: pip install -e '.[timm]' ({error})") from error
    return {name: network(name, timm.get_pretrained_cfg(name), timm.create_model) for name in timm.list_models()}


def network(name: str, settings: Any, create: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return the builder of a network with new weights, which timm's builder initialises.

    Args:
        name: Name of timm's builder.
        settings: timm's settings of the network.
        create: `timm.create_model`.
    """

    def build(
        *,
        drop_path: Annotated[float, Interval(ge=0, lt=1)] | None = None,
        num_classes: int = 1000,
        input_shape: Shape = (3, 224, 224),
    ) -> nn.Module:
        channels, *sides = input_shape
        typed: dict[str, Any] = {} if drop_path is None else {"drop_path_rate": drop_path}
        if settings is not None and settings.fixed_input_size:
            typed["img_size"] = tuple(sides)
        try:
            return create(name, pretrained=False, num_classes=num_classes, in_chans=channels, **typed)
        except (TypeError, AssertionError, RuntimeError) as error:  # timm refuses an argument with these errors
            raise ValueError(f"timm's {name}: {error}") from error

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"""timm's `{name}` with new weights, which timm's builder initialises.

    Args:
        drop_path: Probability with which a training image skips the last residual branch; `none` for timm's.
        num_classes: Number of classes.
        input_shape: Shape (C, H, W) of an image.
    """
    return build
