"""How far surgery goes in each classification network of torchvision, and whether a cut network equals a masked one.

    python -m benchmarks.evidence.torchvision_models [NAME ...] [--markdown FILE]

For each network at a small image: the share of its channels (of convolutions and linear layers) that can be cut, the
operations that freeze the others, and the largest difference between the outputs of the network with a third of its
free channels removed and of the same network with these channels masked, relative to the largest output. Parameters
that are initially almost zero and the statistics of batch normalisation are drawn first, so that every channel has an
effect.
"""

from __future__ import annotations

import argparse
import copy
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from suite import registry
from suite.choices import build_model
from suite.index_spaces import IndexSpaces
from suite.method import ReconfigPlan
from suite.network.channels.spaces import find_index_spaces
from suite.network.channels.surgery import apply_plan
from suite.network.channels.trial_cut import freeze_what_fails

OWN = ("resnet18", "resnet34", "resnet50", "resnet101", "vgg16")
SIDES = {"inception_v3": 75, "alexnet": 64, "maxvit_t": 224}  # others: 32
CLASSES = 10
TOO_LARGE = ("vit_h_14", "regnet_y_128gf")  # their weights need more memory than small machines have
MOST_REASONS = 3
SMALLEST = 1e-3  # the scale of a block that is initially almost zero would hide the block


@dataclass(frozen=True)
class Row:
    """What was found about a network.

    Attributes:
        name: Network.
        free, channels: Channels that can be cut, and all channels.
        reasons: What freezes channels, with the number of spaces, most frequent first.
        difference: Largest difference to the masked network; `None` if nothing can be cut.
    """

    name: str
    free: int
    channels: int
    reasons: tuple[tuple[str, int], ...]
    difference: float | None


def examine(name: str) -> Row:
    """Find the index spaces of a network, cut a third of its free channels, and compare it with a masked copy."""
    shape = (3, SIDES.get(name, 32), SIDES.get(name, 32))
    torch.manual_seed(0)
    model = build_model(name, shape, CLASSES)
    spaces = find_index_spaces(model, shape)
    freeze_what_fails(model, spaces, shape)
    produced = [space for space in spaces.values() if space.producers]
    free = [space for space in produced if not space.frozen]
    reasons = Counter(re.sub(r"'[^']*[._]?(\d+[^']*)?'", "'…'", one.frozen_because) for one in produced if one.frozen)
    return Row(
        name,
        sum(space.size for space in free),
        sum(space.size for space in produced),
        tuple(Counter(map(_kind, spaces.not_followed)).most_common(MOST_REASONS)) or tuple(reasons.most_common(1)),
        _difference(model, spaces, shape) if free else None,
    )


def _kind(reason: str) -> str:
    """Return a reason without the number of the operation: `'add_3' is not understood` becomes `add`."""
    found = re.match(r"'([^']*)'", reason)
    return re.sub(r"(_\d+|\.\d+)+", "", found[1].rpartition(".")[2]) if found else reason


def _difference(model: nn.Module, spaces: IndexSpaces, shape: tuple[int, int, int]) -> float:
    """Cut every third channel, and return the difference to the network whose channels are masked."""
    for parameter in model.parameters():
        if parameter.abs().max() < SMALLEST:
            nn.init.normal_(parameter, std=0.1)
    with torch.no_grad():
        for _ in range(3):
            model.train()(torch.randn(8, *shape))
    free = [space for space in spaces.values() if not space.frozen and space.size > 1]
    dead = {space.name: list(range(1, space.size, 3)) for space in free}
    layers = dict(model.named_modules())
    for name, places in dead.items():
        for one in spaces[name].slices:
            tensor = getattr(layers[one.module], one.attribute)
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                tensor.data.movedim(one.axis, 0)[one.entries[places].flatten()] = 0.0
    masked = copy.deepcopy(model)
    kept = {
        name: [i for n, i in enumerate(spaces[name].original) if n not in set(places)] for name, places in dead.items()
    }
    apply_plan(model, ReconfigPlan(kept=kept), spaces, None)
    images = torch.randn(2, *shape)
    with torch.no_grad():
        ours, theirs = model.eval()(images), masked.eval()(images)
    return float((ours - theirs).abs().max() / theirs.abs().max())


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| network | channels that can be cut | what freezes the others | difference to the masked network |",
        "| --- | ---: | --- | ---: |",
    ]
    for row in rows:
        share = f"{row.free:,} of {row.channels:,} ({100 * row.free / max(row.channels, 1):.0f} %)"
        reasons = ", ".join(f"{reason} ({count})" for reason, count in row.reasons)
        difference = "–" if row.difference is None else f"{row.difference:.0e}"
        lines.append(f"| `{row.name}` | {share} | {reasons} | {difference} |")
    return "\n".join(lines)


def main() -> None:
    """Examine the networks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    options = parser.parse_args()
    family = [entry.name for entry in registry.entries("model").values() if entry.family]
    names = options.names or [name for name in sorted([*family, *OWN]) if name not in TOO_LARGE]
    rows = []
    for name in names:
        rows.append(examine(name))
        print(table(rows).splitlines()[-1], flush=True)
    if options.markdown:
        options.markdown.write_text(table(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
