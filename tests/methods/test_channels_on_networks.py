"""slimming, earlybird and gradual_channels on networks of torchvision and timm: they cut as far as they say, or refuse.

That a cut network computes what the masked one does is tested with the lists of surgery.
"""

import importlib.util
import math
import re
from pathlib import Path

import pytest
import torch
from masked_cuts import CLASSES, IN_TIMM, _side, rows_of

from methods.earlybird import EarlyBird
from methods.gradual_channels import GradualChannels
from methods.slimming import Slimming
from suite.choices import ModelChoice
from suite.ops import apply

PAGES = ("docs/development/torchvision-surgery.md", "results/cpu-zen4-2cores/timm-surgery.md")
ROWS = {name for page in PAGES for name in rows_of((Path(__file__).parents[2] / page).read_text(encoding="utf-8"))}
FAST = ("squeezenet1_1", "shufflenet_v2_x0_5", "timm/lcnet_035")
SLOW = ("resnet18", "densenet121", "mobilenet_v3_small", "convnext_tiny", "swin_t", "timm/deit_tiny_patch16_224")
WITHOUT_SCALES = ("squeezenet1_1", "convnext_tiny", "swin_t", "timm/deit_tiny_patch16_224")
METHODS = {
    "slimming": lambda: Slimming(ratio=0.3, at=0.5),
    "earlybird": lambda: EarlyBird(ratio=0.3, look_every=0.1, latest=0.5, momentum="kept"),
    "gradual_channels": lambda: GradualChannels(width=0.7, end=0.5),
}


def networks(names, *marks):
    skip = pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="needs the extra [timm]")
    return [pytest.param(name, marks=[*marks, *([skip] if name.startswith(IN_TIMM) else [])]) for name in names]


def trained(name, method):
    """Train a network for two steps, with a cut between them; return the hooks, and the sizes of spaces before it."""
    torch.manual_seed(0)
    shape = (3, _side(name), _side(name))
    model = ModelChoice.read(name if "/" in name else f"torchvision/{name}").build(shape, CLASSES).eval()
    hooks = apply(model, method, input_shape=shape, num_classes=CLASSES, epochs=2, batch_size=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    hooks.attach(optimizer)
    sizes = {name: space.size for name, space in hooks.ctx.spaces.items()}
    for _ in range(2):
        images, labels = hooks.transform_batch(torch.randn(2, *shape), torch.arange(2))
        loss = torch.nn.functional.cross_entropy(model.train().eval()(images), labels)
        (loss + hooks.regularization(loss)).backward()
        # In evaluation mode, activations of a new network may be too large.
        finite = all(one.grad.isfinite().all() for one in model.parameters() if one.grad is not None)
        hooks.optimizer_step() if finite else hooks.end_step()
        optimizer.zero_grad()
        hooks.end_epoch()
    hooks.finish()
    assert model(images).shape == (2, CLASSES)
    return hooks, sizes


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "name", [*networks(FAST), *networks(SLOW, pytest.mark.slow), *networks(sorted(ROWS), pytest.mark.long)]
)
def test_a_network_is_cut_as_far_as_the_method_says(name, method):
    if name in WITHOUT_SCALES and method != "gradual_channels":
        with pytest.raises(ValueError, match="no channel that can be removed has a scale"):
            trained(name, METHODS[method]())
        return
    try:
        hooks, sizes = trained(name, METHODS[method]())
    except ValueError as error:
        if name in (*FAST, *SLOW) or not re.search("no channel|scale", str(error)):
            raise
        return  # one of the many others
    now = {name: space.size for name, space in hooks.ctx.spaces.items()}
    plan = hooks.reconfigurations[0]
    assert len(hooks.reconfigurations) == 1
    if method == "gradual_channels":
        assert all(now[name] == max(1, round(0.7 * sizes[name])) for name in hooks.method.sizes)
        assert plan.kept.keys() <= hooks.method.sizes.keys()
        return
    scored = hooks.method.scores(hooks.ctx).keys()
    assert plan.kept.keys() <= scored
    total = sum(sizes[name] for name in scored)
    spared = sum(now[name] == 1 for name in scored)  # at least one channel of each remains
    removed = total - sum(now[name] for name in scored)
    assert math.floor(0.3 * total) - spared <= removed <= math.floor(0.3 * total)
