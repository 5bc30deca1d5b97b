"""How far surgery goes in a network of torchvision or timm, and whether a cut network equals a masked one.

A network of timm is called `timm/NAME`. For each network at a small image that it takes: the share of its channels (of
convolutions and linear layers) that can be cut, the operations that freeze the others, and two differences between the
network with a third of its free channels removed and the same network with these channels masked. The difference of
outputs is relative to the largest output. The difference of the next step is the larger one of SGD and AdamW, both with
a state from a step before the cut; for each weight tensor it is relative to the largest change in that tensor.
Parameters that are initially almost zero and the statistics of batch normalisation are drawn first, so that every
channel has an effect.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suite.choices import ModelChoice
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.surgery import apply_plan
from suite.engine.network.channels.trial_cut import freeze_what_fails
from suite.engine.network.forward_pass import copied
from suite.index_spaces import IndexSpaces
from suite.method import ReconfigPlan
from suite.reconfiguration import IndexMap

SIDES = {"inception_v3": 75, "alexnet": 64, "maxvit_t": 224, "vit_h_14": 28}  # others: 32
SIDE_OF_TIMM = 96  # of networks that take images of any size
IN_TIMM = "timm/"
CLASSES = 10
TOO_LARGE_FOR_STEPS = 400e6  # weights; two networks and their optimizers in float64 need about 56 bytes per weight
MOST_REASONS = 3
OUTPUT = "the model's output"  # it is frozen in every network
SMALLEST = 1e-3  # the scale of a block that is initially almost zero would hide the block


@dataclass(frozen=True)
class Row:
    """What was found about a network.

    Attributes:
        name: Network.
        free, channels: Channels that can be cut, and all channels.
        reasons: What freezes channels, with the number of spaces, most frequent first.
        difference: Largest difference to the outputs of the masked network; `None` if nothing can be cut.
        step_difference: Largest difference to its next step; `None` if nothing can be cut or the network is too large.
    """

    name: str
    free: int
    channels: int
    reasons: tuple[tuple[str, int], ...]
    difference: float | None = None
    step_difference: float | None = None

    def cells(self) -> tuple[str, ...]:
        """Return the row as a page has it: name, channels, both differences, and what else freezes channels."""
        reasons = ", ".join(f"{reason} ({count})" for reason, count in self.reasons if reason != OUTPUT)
        found = ("–" if value is None else f"{value:.0e}" for value in (self.difference, self.step_difference))
        return self.name, f"{self.free:,}/{self.channels:,}" if self.channels else "–", *found, reasons


def rows_of(page: str) -> dict[str, tuple[str, ...]]:
    """Return the cells of each network of a page, which two spaces at least separate."""
    lines = page.split("```")[1].strip().splitlines()[1:]
    found = (re.split(r" {2,}", line) for line in lines)
    return {cells[0]: (*cells[:4], cells[4] if len(cells) > 4 else "") for cells in found}


def examine(name: str, compares: bool = True) -> Row:
    """Find the index spaces of a network, cut a third of its free channels, and compare it with a masked copy.

    Args:
        name: Name of the network.
        compares: Whether the network is cut and compared; otherwise both differences are `None`.
    """
    side = _side(name)
    shape = (3, side, side)
    torch.manual_seed(0)
    model = ModelChoice.read(name if "/" in name else f"torchvision/{name}").build(shape, CLASSES)
    weights = sum(parameter.numel() for parameter in model.parameters())
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
        *(differences(model, spaces, shape, weights <= TOO_LARGE_FOR_STEPS) if free and compares else ()),
    )


def _side(name: str) -> int:
    """Return the height and width of the images that a network gets."""
    if not name.startswith(IN_TIMM):
        return SIDES.get(name, 32)
    import timm  # optional

    settings = timm.get_pretrained_cfg(name.removeprefix(IN_TIMM))
    return settings.input_size[-1] if settings is not None and settings.fixed_input_size else SIDE_OF_TIMM


def _kind(reason: str) -> str:
    """Return a reason without the number of the operation: `'add_3' is not understood` becomes `add`.

    A reason that names a class of modules becomes this class.
    """
    if module := re.match(r"'[^']*' is a (?:grouped )?(\w+)", reason):
        return module[1]
    found = re.match(r"'([^']*)'", reason)
    if not found:
        return reason
    named = [part for part in found[1].split(".") if not part.isdigit()]  # a layer of a sequence has a number
    return re.sub(r"(_\d+)+", "", named[-1] if named else found[1])


def differences(
    model: nn.Module, spaces: IndexSpaces, shape: tuple[int, int, int], with_steps: bool
) -> tuple[float, float | None]:
    """Mask every third free channel, cut it, and return the differences of outputs and of the next step."""
    for parameter in model.parameters():
        if parameter.abs().max() < SMALLEST:
            nn.init.normal_(parameter, std=0.1)
    with torch.no_grad():
        for _ in range(3):
            model.train()(torch.randn(8, *shape))
    model.eval()  # dropout would draw other numbers for fewer channels
    images = torch.randn(2, *shape)
    cut, masked = copied(model), model
    _mask_and_cut(cut, masked, copy.deepcopy(spaces), None)
    with torch.no_grad():
        ours, theirs = cut(images), masked(images)
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    if not with_steps:
        return difference, None
    del cut
    kinds = (_sgd, _adamw)
    return difference, max(_step_difference(copied(model), spaces, images, kind) for kind in kinds)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-2)


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    # With the usual epsilon, the steps of weights whose gradient is zero would consist of rounding errors.
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, eps=1e-6)


def _mask_and_cut(
    cut: nn.Module, masked: nn.Module, spaces: IndexSpaces, optimizer: torch.optim.Optimizer | None
) -> IndexMap:
    """Set every third free channel to zero in two equal networks, and remove it from the first."""
    kept = {}
    for space in spaces.values():
        if space.frozen or space.size == 1:
            continue
        places = list(range(1, space.size, 3))
        kept[space.name] = [index for n, index in enumerate(space.original) if n % 3 != 1]
        for model in (cut, masked):
            layers = dict(model.named_modules())
            for one in space.slices:
                tensor = getattr(layers[one.module], one.attribute)
                if isinstance(tensor, Tensor) and tensor.is_floating_point():
                    tensor.data.movedim(one.axis, 0)[one.entries[places].flatten()] = 0.0
    return apply_plan(cut, ReconfigPlan(kept=kept), spaces, optimizer)


def _step_difference(
    model: nn.Module,
    spaces: IndexSpaces,
    images: Tensor,
    make: Callable[[nn.Module], torch.optim.Optimizer],
) -> float:
    """Return the largest difference of a step in float64 behind a cut to the step of the masked network."""
    model, images = model.double(), images.double()
    optimizer = make(model)
    _step(model, optimizer, images)
    optimizer.zero_grad()  # the copy does not need gradients, which take much memory
    masked = copied(model)
    masked_optimizer = make(masked)
    masked_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    index_map = _mask_and_cut(model, masked, copy.deepcopy(spaces), optimizer)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for network, own in ((model, optimizer), (masked, masked_optimizer)):
        _step(network, own, images)
    after = dict(masked.named_parameters())
    changes = {name: float((p.detach() - before[name]).abs().max()) for name, p in model.named_parameters()}
    smallest = 1e-3 * max(changes.values())  # tensors without a gradient change by rounding errors alone
    return max(
        float((parameter.detach() - index_map(name, after[name].data)).abs().max()) / max(changes[name], smallest)
        for name, parameter in model.named_parameters()
    )


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor) -> None:
    model.train().eval()  # forgets the biases that some attention of timm keeps for evaluation
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), torch.arange(len(images))).backward()
    optimizer.step()
