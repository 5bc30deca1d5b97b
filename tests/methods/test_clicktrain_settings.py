"""ClickTrain's published settings: the compression and savings of their lists, and the networks that they fit."""

import math

import pytest
from small_clicktrain import SHAPE, network

from methods.clicktrain import ClickTrain, settings
from suite.choices import build_model
from suite.ops import apply

# Compression that the ratios of each published list give, by the published measure; which list its file ships is first.
COMPRESSION = {
    "cifar10-resnet32_wide-2": 8.57,
    "cifar10-resnet50_wide-2": 12.11,
    "cifar10-vgg11_click-2": 10.25,
    "cifar10-vgg13_click-2": 8.99,
    "cifar10-vgg16_click-2": 8.79,
    "cifar100-vgg11_click-2": 8.32,
    "cifar100-vgg13_click-1": 4.29,
    "cifar100-vgg16_click-2": 8.79,
    "imagenet-resnet50-1": 2.82,
}
# What their comments claim, as they round it.
CLAIMED = {
    "cifar10-resnet32_wide-1": 13.9,
    "cifar10-resnet50_wide-1": 8.35,
    "cifar10-vgg11_click-1": 8.7,
    "cifar10-vgg11_click-4": 11.5,
    "cifar10-vgg13_click-1": 6.2,
    "cifar100-vgg13_click-3": 8.5,
}


def shares_of(text):
    """Return network, image shape, and the share of each layer's weights that remains with a published list."""
    task, name, _ = text.rsplit("-", 2)
    model, layers, shape = network(name, task, "meta")
    shares = {}
    for layer, percent in settings.by_layer(settings.find("", "", text).ratios, layers).items():
        weight = layers[layer].weight
        kernels = weight.shape[0] * weight.shape[1]
        kept = kernels - math.ceil(round(percent * kernels / 100, 6))
        shares[layer] = kept * (4 if weight.shape[2] == 3 else 1) / weight.numel()
    return model, shape, shares


@pytest.mark.parametrize("text", [*COMPRESSION, *CLAIMED])
def test_published_ratios_compress_as_published(text):
    model, _, shares = shares_of(text)
    found = settings.compression(model, shares)
    if text in COMPRESSION:
        assert found == pytest.approx(COMPRESSION[text], abs=0.0051)
    else:
        assert found == pytest.approx(CLAIMED[text], rel=0.01)


def test_settings_are_those_of_the_configuration():
    found = settings.find("cifar10", "vgg16_click", "published")
    assert (found.pool, found.coefficient) == (12, 1.5e-4)
    assert (found.choose, found.hard_prune) == (150 / 190, 163 / 190)
    assert list(found.ratios) == [35, 45, 55, 55, 55, 65, 65, 65, 75, 80, 85, 85]
    assert not settings.find("cifar10", "vgg16_click", "solved").ratios
    assert not settings.find("cifar10", "resnet9", "published").ratios
    assert list(settings.find("", "", "cifar10-vgg11_click-1").ratios) == [45, 55, 55, 65, 65, 85, 85]
    assert settings.find("imagenet", "resnet50", "published").choose == 35 / 95
    assert settings.hard_prune_of_the_paper("cifar10", "vgg11_click", 11.0) == 94 / 190
    assert settings.hard_prune_of_the_paper("imagenet", "resnet50", 4.0) == 40 / 90
    assert settings.hard_prune_of_the_paper("imagenet", "resnet18", 4.1) == 95 / 190


@pytest.mark.parametrize(
    ("task", "name", "compressed"),
    [
        ("imagenet", "resnet18", 4.1), ("imagenet", "resnet101", 4.2), ("imagenet", "vgg16", 6.6),
        ("cifar100", "resnet32_wide", 8.3), ("cifar10", "resnet9", 8.0),
    ],
)  # fmt: skip
def test_without_a_list_the_ratios_are_solved_for_the_compression_of_the_tables(task, name, compressed):
    assert settings.compression_of_the_paper(task, name) == compressed
    found = settings.find(task, name, "published")
    assert not found.ratios
    if task == "imagenet":  # stages and coefficient of the configuration that there is
        assert (found.choose, found.hard_prune, found.coefficient) == (35 / 95, 78 / 95, 2.5e-4)
        return
    method = ClickTrain()
    apply(build_model(f"{name}[width=0.125]", SHAPE, 10), method, input_shape=SHAPE, num_classes=10, epochs=10,
          batch_size=4, task=task, network=name)  # fmt: skip
    (percent,) = set(method._percent.values())
    assert 4 / 9 * (1 - percent / 100) == pytest.approx(1 / compressed)


def test_blocks_have_the_ratio_of_their_stage_and_shortcuts_none():
    _, layers, _ = network("resnet50_wide", device="meta")
    found = settings.by_layer([[65, 65, 75], [75, 75, 80, 80], [80, 85, 85, 90, 90, 90], [90, 90, 90]], layers)
    assert found["layer1.2.branch.conv1"] == 75
    assert found["layer3.1.branch.conv2"] == 85
    assert len(found) == 16 * 3
    assert not any("downsample" in name or name in ("conv1", "fc") for name in found)


@pytest.mark.parametrize(
    ("ratios", "name", "message"),
    [
        ([35, 45], "vgg11_click", "a list of 2 ratios does not fit a network of 8 convolutions"),
        ([[55, 55, 55, 55]], "resnet32_wide", "a block 3 in stage 1, the network has none"),
        ([[55, 55, 55]], "resnet32_wide", "no ratio for 'layer2.0.branch.conv1'"),
    ],
)
def test_a_list_of_another_network_is_refused(ratios, name, message):
    with pytest.raises(ValueError, match=message):
        settings.by_layer(ratios, network(name, device="meta")[1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ratios": "cifar10-vgg11_click-9"}, "did you mean 'cifar10-vgg11_click-"),
        ({"compression": 2.25}, "compression is 2.25; allowed: .*2.25"),
        ({"hard_prune": 1.0}, "hard_prune is 1.0; allowed: .*0.*1"),
        ({"warmup": -0.1}, "warmup is -0.1; allowed"),
        ({"coefficient": -1.0}, "coefficient is -1.0; allowed"),
        ({"batches": 0}, "batches is 0; allowed"),
        ({"warmup": 0.9, "hard_prune": 0.2}, "warmup is 0.9; it must not be greater than hard_prune, 0.2"),
        (
            {"ratios": "cifar10-vgg11_click-1", "compression": 9.0},
            "has a fixed compression; compression needs ratios=solved",
        ),
        ({"allocation": "erdos_renyi"}, "divides solved shares; give compression or ratios=solved"),
        ({"allocation": "equal"}, "allocation is 'equal'; allowed: uniform, erdos_renyi"),
        ({"mixup": -0.3}, "mixup is -0.3; allowed"),
        ({"pool": 5}, "pool is 5; allowed: published, 4, 8, 12, dynamic"),
    ],
)
def test_what_cannot_be_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        ClickTrain(**given)
