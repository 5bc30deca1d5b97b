"""ClickTrain's settings for a network: which kernels of which layers are pruned, and when.

The published ones are in `methods/clicktrain/clicktrain.toml`. Networks without published settings take default ones.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Interval
from pydantic import BaseModel, ConfigDict
from torch import nn

from methods.clicktrain.patterns import KEPT, POSITIONS
from methods.masks.distributions import DISTRIBUTIONS
from methods.masks.structures import num_pruned_kernels
from suite.errors import nearest, validate
from suite.method import Context

DEFAULTS = ("cifar10", "vgg11_click"), ("imagenet", "resnet50")
"""Task and network whose settings, without the list of ratios, apply where none were published."""
DEFAULT_PAPER = 95 / 190
"""Share of the epochs before hard pruning where the paper has no row: the median of its table."""
CHOOSE_OF_HARD_PRUNE = 65 / 143
"""Epoch of the choice over the epoch of hard pruning, of `vgg11_click` on `cifar10`."""
DEFAULT_COMPRESSION = 8.0


@dataclass(frozen=True)
class Settings:
    """How a network is pruned.

    Attributes:
        choose: Share of the epochs after which patterns are chosen.
        hard_prune: Share of the epochs after which weights are masked.
        coefficient: Coefficient of the lasso.
        pool: Number of patterns in the generic pool.
        ratios: Percentage of kernels to prune, as in the published list; empty if none was published.
    """

    choose: float
    hard_prune: float
    coefficient: float
    pool: int
    ratios: Sequence[Any] = ()


Percent = Annotated[float, Interval(ge=0, lt=100)]


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _RatioList(_Table):
    ratios: list[Percent] | list[list[Percent]]
    claimed: Annotated[float, Gt(1)] | None = None
    accuracies: list[list[float]] = []


class _Configuration(_Table):
    task: str
    model: str
    epochs: Annotated[int, Ge(1)]
    pool: Annotated[int, Ge(1)]
    choose: Annotated[int, Ge(0)]
    hard_prune: Annotated[int, Ge(0)]
    coefficient: Annotated[float, Ge(0)]
    active: Annotated[int, Ge(1)]
    lists: list[_RatioList]


class _Row(_Table):
    task: str
    model: str
    epochs: Annotated[int, Ge(1)]
    compression: Annotated[float, Gt(1)]
    hard_prune: Annotated[int, Ge(0)] | None = None


class _Published(_Table):
    configuration: list[_Configuration]
    paper: list[_Row]


@functools.cache
def _published() -> _Published:
    path = Path(__file__).with_name("clicktrain.toml")
    found: _Published = validate(_Published, tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    return found


def list_names() -> list[str]:
    """Return the names of all published lists of ratios; `cifar10-vgg11_click-1` is the first of its configuration."""
    return [
        f"{one.task}-{one.model}-{number}"
        for one in _published().configuration
        for number in range(1, len(one.lists) + 1)
    ]


def find(task: str, network: str, ratios: str) -> Settings:
    """Return the published settings of a network, or the default ones.

    Args:
        task, network: Names without parameters.
        ratios: `published`: the list that the configuration of both uses; `solved`: no list; or the name of a list.

    Raises:
        ValueError: if no list has that name.
    """
    if ratios in ("published", "solved"):
        number = 0
    elif ratios in list_names():
        name, _, text = ratios.rpartition("-")
        task, _, network = name.partition("-")
        number = int(text)
    else:
        raise ValueError(f"ratios is '{ratios}'{nearest(ratios, ['published', 'solved', *list_names()])}")
    by_network = {(one.task, one.model): one for one in _published().configuration}
    one = by_network.get((task, network))
    lists = [] if one is None or ratios == "solved" else one.lists
    if one is None:
        cifar, imagenet = (by_network[default] for default in DEFAULTS)
        one = imagenet if task == imagenet.task else cifar
    chosen = lists[(number or one.active) - 1].ratios if lists else []
    return Settings(one.choose / one.epochs, one.hard_prune / one.epochs, one.coefficient, one.pool, chosen)


def check_ratios(ratios: str, compression: float | None, allocation: str) -> None:
    """Check the parameters that decide how many kernels are pruned against each other.

    Raises:
        ValueError: if no list has the name, or two parameters exclude each other.
    """
    find("", "", ratios)
    if compression is not None and ratios not in ("published", "solved"):
        raise ValueError(f"ratios={ratios} has a fixed compression; compression needs ratios=solved")
    if allocation != "uniform" and compression is None and ratios != "solved":
        raise ValueError(f"allocation={allocation} divides solved shares; give compression or ratios=solved")


def _rows_of_the_paper(task: str, network: str) -> list[_Row]:
    return [row for row in _published().paper if (row.task, row.model) == (task, network)]


def compression_of_the_paper(task: str, network: str) -> float:
    """Return the smaller compression in the paper's tables for a network, 8 if they do not have the network."""
    return float(min((row.compression for row in _rows_of_the_paper(task, network)), default=DEFAULT_COMPRESSION))


def hard_prune_of_the_paper(task: str, network: str, compression: float) -> float:
    """Return the share of the epochs after which the paper masks weights, from the row with the nearest compression."""
    rows = [(row, row.hard_prune) for row in _rows_of_the_paper(task, network) if row.hard_prune is not None]
    if not rows:
        return DEFAULT_PAPER
    row, epoch = min(rows, key=lambda pair: abs(pair[0].compression - compression))
    return epoch / row.epochs


def by_layer(ratios: Sequence[Any], layers: Mapping[str, nn.Module]) -> dict[str, float]:
    """Return the percentage of kernels to prune, by layer, from a published list.

    Args:
        ratios: One number per convolution, from the second on; or, for residual networks, one list per stage with one
            number per block, which applies to every convolution of the block's branch.
        layers: All layers of the network, by name.

    Raises:
        ValueError: if the list belongs to another network.
    """
    convolutions = [name for name, layer in layers.items() if isinstance(layer, nn.Conv2d)]
    if not isinstance(ratios[0], list):
        if len(convolutions) != len(ratios) + 1:
            raise ValueError(
                f"a list of {len(ratios)} ratios does not fit a network of {len(convolutions)} convolutions"
            )
        return dict(zip(convolutions[1:], map(float, ratios), strict=True))
    found: dict[str, float] = {}
    for stage, blocks in enumerate(ratios, 1):
        for block, percent in enumerate(blocks):
            branch = [name for name in convolutions if name.startswith(f"layer{stage}.{block}.branch.")]
            if not branch:
                raise ValueError(f"the list has a block {block} in stage {stage}, the network has none")
            found |= dict.fromkeys(branch, float(percent))
    others = [name for name in convolutions if ".branch." in name and name not in found]
    if others:
        raise ValueError(f"the list has no ratio for '{others[0]}'")
    return found


def percents(
    ctx: Context, found: Settings, ratios: str, compression: float | None, allocation: str
) -> dict[str, float]:
    """Return the percentage of kernels to prune, by layer that is planned and trained.

    Args:
        ctx: Context of the method.
        found: Settings of the network; without ratios, percentages are solved.
        ratios: Name of the list, for errors.
        compression: Compression to solve for; `None` for that of the paper's tables.
        allocation: Key of `DISTRIBUTIONS`, for solved percentages.

    Raises:
        ValueError: if the list belongs to another network, or the model could not be traced.
    """
    if not found.ratios:
        return solve(ctx, compression or compression_of_the_paper(ctx.task, ctx.network), allocation)
    try:
        of_all = by_layer(found.ratios, dict(ctx.model.named_modules()))
    except ValueError as error:
        raise ValueError(f"ratios={ratios} on {ctx.network or 'this network'}: {error}") from None
    return {name: percent for name, percent in of_all.items() if name in _trained(ctx)}


def _trained(ctx: Context) -> dict[str, nn.Conv2d]:
    """Return the planned convolutions whose weights are trained; others have no saliency."""
    layers = ctx.layers.items()
    return {name: layer for name, layer in layers if isinstance(layer, nn.Conv2d) and layer.weight.requires_grad}


def solve(ctx: Context, compression: float, allocation: str) -> dict[str, float]:
    """Return the percentage of kernels to prune so that the 3x3 convolutions reach a compression together.

    The first layer, grouped convolutions and layers that are not trained are not pruned.

    Args:
        ctx: Context of the method.
        compression: Weights over remaining weights; the patterns' share of it is included.
        allocation: Key of `DISTRIBUTIONS`.

    Raises:
        ValueError: if the index spaces do not show which layer is the first.
    """
    if ctx.spaces.model_input is None:
        raise ValueError("the model could not be traced, so that its first layer, which is not pruned, is unknown")
    weights = {
        name: layer.weight
        for name, layer in _trained(ctx).items()
        if layer.kernel_size == (3, 3)
        and layer.groups == 1
        and ctx.spaces.model_input not in ctx.spaces.inputs_of(name)
    }
    kept = DISTRIBUTIONS[allocation](weights, POSITIONS / KEPT / compression)
    return {name: 100 * (1 - share) for name, share in kept.items()}


def check_layers(ctx: Context, percents: Mapping[str, float], *, equal_in_filters: bool) -> None:
    """Refuse layers that cannot be pruned, before a warm-up is spent on them.

    Args:
        ctx: Context of the method.
        percents: Percentage of kernels to prune, by layer.
        equal_in_filters: Whether every filter loses the same number of kernels.

    Raises:
        ValueError: one line that names the layer.
    """
    if not percents:
        grouped = any(
            isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3) and layer.groups > 1
            for layer in ctx.layers.values()
        )
        kind = "ungrouped 3x3 convolution" if grouped else "3x3 convolution"
        if any(isinstance(layer, nn.Conv2d) and not layer.weight.requires_grad for layer in ctx.layers.values()):
            kind = f"trained {kind}"
        raise ValueError(f"this network has no {kind} after its first layer, and no published list fits it")
    for name, percent in percents.items():
        layer = ctx.layers[name]
        competing = layer.weight.shape[1] * (1 if equal_in_filters else layer.weight.shape[0])
        if not isinstance(layer, nn.Conv2d) or layer.groups > 1:
            raise ValueError(f"'{name}' is a grouped convolution, to which patterns cannot be applied")
        if num_pruned_kernels(percent, competing) == competing:
            owner = "a filter" if equal_in_filters else "the layer"
            raise ValueError(f"'{name}': pruning {percent:.4g} % of the kernels leaves {owner} none; compress less")


def expected_compression(ctx: Context, percents: Mapping[str, float]) -> float:
    """Return the published measure of compression that these percentages will reach."""
    densities = {}
    for name, percent in percents.items():
        weight = ctx.layers[name].weight
        kernels = weight.shape[0] * weight.shape[1]
        per_kernel = KEPT / POSITIONS if weight.shape[2:] == (3, 3) else 1.0
        densities[name] = per_kernel * (1 - num_pruned_kernels(percent, kernels) / kernels)
    return compression(ctx.model, densities)


def compression(model: nn.Module, densities: Mapping[str, float]) -> float:
    """Return the published measure: weights over remaining weights, of all tensors with the name of a convolution.

    The normalisation of a VGG therefore counts, and shortcuts and linear layers do not. If no tensor has such a name,
    the weights of the pruned layers count.

    Args:
        model: Network whose parameters are called `features` or `conv`, as those of this suite are.
        densities: Share of the weights that remains, by pruned layer.

    Source: ClickTrain's code.
    """
    tensors = {name: parameter.numel() for name, parameter in model.named_parameters()}
    counted = [name for name in tensors if "conv" in name or "features" in name] or [
        f"{name}.weight" for name in densities
    ]
    left = sum(tensors[name] * densities.get(name.removesuffix(".weight"), 1.0) for name in counted)
    return sum(tensors[name] for name in counted) / left if left else 1.0


def stages(
    ctx: Context, settings: Settings, warmup: float | None, hard_prune: float | None, paper_compression: float | None
) -> tuple[int, int]:
    """Return the epochs after which patterns are chosen and weights are masked.

    Args:
        ctx: Context of the method.
        settings: Settings of the network.
        warmup, hard_prune: Shares of the epochs that replace those of the schedule.
        paper_compression: Compression whose row of the paper's tables says when to mask; `None` for the configuration.

    Raises:
        ValueError: if the epochs do not ascend, or none is left to train masked.
    """
    if hard_prune is None:
        hard_prune = settings.hard_prune
        if paper_compression is not None:
            hard_prune = hard_prune_of_the_paper(ctx.task, ctx.network, paper_compression)
    if warmup is None:
        # The paper does not say when it chose; one configuration chooses later than the paper masks.
        warmup = settings.choose if settings.choose <= hard_prune else CHOOSE_OF_HARD_PRUNE * hard_prune
    choose_epoch, mask_epoch = (round(share * ctx.epochs) for share in (warmup, hard_prune))
    if not choose_epoch <= mask_epoch < ctx.epochs:
        raise ValueError(
            f"of {ctx.epochs} epochs, patterns would be chosen after {choose_epoch} and weights masked after "
            f"{mask_epoch}; set warmup and hard_prune so that these ascend and at least one epoch remains"
        )
    return choose_epoch, mask_epoch
