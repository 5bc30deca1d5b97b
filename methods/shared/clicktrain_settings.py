"""ClickTrain's published settings: which kernels of which layer go, and when, for the networks that it was shown on."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from suite.errors import nearest

DEFAULTS = ("cifar10", "vgg11_click"), ("imagenet", "resnet50")  # whose settings others take, lists apart
DEFAULT_PAPER = 95 / 190  # the median of the table
CHOOSE_OF_HARD_PRUNE = 65 / 143  # of cifar10's vgg11_click: the epoch of the choice over that of hard pruning
DEFAULT_COMPRESSION = 8.0


@dataclass(frozen=True)
class Settings:
    """How a network is pruned.

    Attributes:
        choose: share of the training after whose epochs the patterns are chosen.
        hard_prune: share from which on weights are masked.
        coefficient: of the lasso.
        pool: patterns of the generic pool.
        ratios: percent of the kernels that go, as the published list has them; empty where none was published.
    """

    choose: float
    hard_prune: float
    coefficient: float
    pool: int
    ratios: Sequence[Any] = ()


@functools.cache
def _published() -> Mapping[str, Any]:
    return tomllib.loads((Path(__file__).parents[1] / "clicktrain.toml").read_text(encoding="utf-8"))


def list_names() -> list[str]:
    """Names of all published lists of ratios: `cifar10-vgg11_click-1` is the first of its configuration."""
    return [
        f"{one['task']}-{one['model']}-{number}"
        for one in _published()["configuration"]
        for number in range(1, len(one["lists"]) + 1)
    ]


def find(task: str, network: str, ratios: str) -> Settings:
    """The published settings that fit, or this suite's own.

    Args:
        task, network: by name, without parameters.
        ratios: `published`, the list that the configuration of both ships; `solved`, none; or a list's name.

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
    by_network = {(one["task"], one["model"]): one for one in _published()["configuration"]}
    one = by_network.get((task, network))
    lists = [] if one is None or ratios == "solved" else one["lists"]
    if one is None:
        of_cifar, of_imagenet = (by_network[default] for default in DEFAULTS)
        one = of_imagenet if task == of_imagenet["task"] else of_cifar
    shares = [one[epoch] / one["epochs"] for epoch in ("choose", "hard_prune")]
    chosen = lists[(number or one["active"]) - 1]["ratios"] if lists else []
    return Settings(shares[0], shares[1], one["coefficient"], one["pool"], chosen)


def _rows_of_the_paper(task: str, network: str) -> list[Mapping[str, Any]]:
    return [row for row in _published()["paper"] if (row["task"], row["model"]) == (task, network)]


def compression_of_the_paper(task: str, network: str) -> float:
    """The smaller compression that the paper's tables have for a network, 8 where it has none."""
    return float(min((row["compression"] for row in _rows_of_the_paper(task, network)), default=DEFAULT_COMPRESSION))


def hard_prune_of_the_paper(task: str, network: str, compression: float) -> float:
    """The share of the training from which on the paper masks weights, of the row with the nearest compression."""
    rows = [row for row in _rows_of_the_paper(task, network) if "hard_prune" in row]
    if not rows:
        return DEFAULT_PAPER
    row = min(rows, key=lambda row: abs(row["compression"] - compression))
    return float(row["hard_prune"] / row["epochs"])


def by_layer(ratios: Sequence[Any], layers: Mapping[str, nn.Module]) -> dict[str, float]:
    """Percent of the kernels that go, by the name of the layer, of a published list.

    Args:
        ratios: one number a convolution, from the second on; or for residual networks one list a stage, with a number
            a block, for every convolution of its branch.
        layers: of the network.

    Raises:
        ValueError: if the list is of another network.
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
