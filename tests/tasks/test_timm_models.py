"""Networks of timm by name: how far they can be cut, and that a cut one computes what a masked one does."""

import sys

import pytest

from suite.choices import ModelChoice
from suite.engine.network.channels.spaces import find_index_spaces
from suite.engine.network.channels.trial_cut import freeze_what_fails
from suite.engine.network.layers import plannable
from suite.errors import UsageError
from suite.registry import collections
from tasks.models.timm_models import builders

SHAPE = (3, 64, 64)
FREE = {
    "resnet18": 0.99,
    "regnety_002": 0.99,
    "mobilenetv3_small_050": 0.99,
    "convnext_atto": 0.92,
    "lcnet_035": 0.99,
}
"""Least share of the channels that can be cut; the trial cut compares each network with a masked one."""


@pytest.mark.parametrize("name", FREE)
def test_a_network_can_be_cut_as_far_as_that_of_torchvision(name):
    pytest.importorskip("timm", reason="needs the extra [timm]")
    model = ModelChoice.read(f"timm/{name}").build(SHAPE, 10)
    assert not plannable(model)[1]
    spaces = find_index_spaces(model, SHAPE)
    freeze_what_fails(model, spaces, SHAPE)
    sizes = {one.name: one.size for one in spaces.values() if one.name != spaces.model_input}
    free = sum(size for name, size in sizes.items() if not spaces[name].frozen)
    assert free / sum(sizes.values()) >= FREE[name]


def test_sizes_of_images_and_drop_path_reach_the_builder():
    pytest.importorskip("timm", reason="needs the extra [timm]")
    model = ModelChoice.read("timm/vit_tiny_patch16_224[drop_path=0.2]").build((1, 32, 32), 10)
    assert model.patch_embed.img_size == (32, 32)
    assert model.patch_embed.proj.in_channels == 1
    assert model.blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)
    with pytest.raises(UsageError, match=r"timm/vgg11\[drop_path=0\.2\]: timm's vgg11: "):
        ModelChoice.read("timm/vgg11[drop_path=0.2]").build(SHAPE, 10)


def test_without_the_package_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert any(entry.typed == "timm/NAME" for entry in collections("model"))
    with pytest.raises(UsageError, match=r"timm/NAME need the package timm: pip install -e '\.\[timm\]'"):
        builders()
