"""The networks of PruneTrain and ClickTrain, and torchvision's ResNets: sizes, costs, widths, removable branches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suite import registry
from suite.choices import build_model
from suite.cli.describe import describe_model
from suite.engine.cost.flops import count_model
from suite.engine.network.channels.spaces import find_index_spaces
from tasks.models.imagenet_resnet import Blurred

CIFAR, IMAGENET = (3, 32, 32), (3, 224, 224)
# MFLOP as PruneTrain's code counts them (two for each multiply-add), convolutions, parameters.
PUBLISHED = {
    "resnet32": (138.2, 33, 466_906),
    "resnet50_cifar": (227.9, 76, 776_794),
    "resnet56": (254.6, 85, 869_530),  # not published
    "vgg11": (305.5, 8, 9_228_362),
    "vgg13": (456.5, 10, 9_413_066),
}

# ClickTrain's of the same names: millions of multiply-adds, convolutions, parameters.
CLICKTRAIN = {
    "resnet32_wide": (1083.9, 34, 20_101_450),
    "resnet50_wide": (1297.8, 53, 23_520_842),
    "vgg11_click": (153.3, 8, 9_753_674),
    "vgg13_click": (228.8, 10, 9_938_378),
    "vgg16_click": (313.7, 13, 15_249_354),
}

# Parameters and FLOPs (two for each multiply-add, attention included) at 224x224 pixels and 1,000 classes, which timm
# 1.0.31 has for its networks: MlpMixer(embed_dim=192, num_blocks=12, mlp_ratio=(0.5, 4)), and regnetx_004_tv. The
# perceptron at 32x32 pixels and 10 classes follows from its widths.
TIMM = {
    "vit_tiny": (5_717_416, 2_507_366_400),
    "vit_small": (22_050_664, 9_197_764_608),
    "mlp_mixer_tiny": (4_355_800, 1_618_861_056),
    "convnext_atto": (3_695_520, 1_094_664_960),
    "regnet_x_400mf": (5_495_976, 827_625_216),
    "resnet18": (11_689_512, 3_628_146_688),
    "resnet50": (25_557_032, 8_178_368_512),
    "vgg16": (138_365_992, 30_940_528_640),  # torchvision's with normalisation
    "mlp[width=4096]": (46_202_890, 92_356_608),
}


@pytest.fixture
def _zero_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are zeros: drawing them takes most of the time, and sizes do not depend on them."""
    for name in ("normal_", "uniform_", "trunc_normal_", "kaiming_normal_", "kaiming_uniform_", "xavier_uniform_"):
        monkeypatch.setattr(nn.init, name, lambda tensor, *_, **__: tensor.data.zero_())


@pytest.mark.parametrize("name", [*PUBLISHED, *CLICKTRAIN])
def test_networks_have_the_sizes_of_the_papers_code(name: str) -> None:
    cost, convolutions, parameters = (PUBLISHED | CLICKTRAIN)[name]
    with torch.device("meta"):
        model = build_model(name, CIFAR, 10)
    counted = count_model(model, CIFAR)
    assert round(counted["inference_flops" if name in PUBLISHED else "macs"] / 1e6, 1) == cost
    assert counted["params"] == parameters
    assert sum(isinstance(layer, nn.Conv2d) for layer in model.modules()) == convolutions


@pytest.mark.usefixtures("_zero_weights")
@pytest.mark.parametrize(
    ("name", "branches", "nodes"),
    [
        ("resnet32", 15, [16, 32, 64]),
        ("resnet50_cifar", 24, [16, 64, 128, 256]),  # one of the first convolution, and one a stage
        ("resnet50_wide[width=0.25]", 16, None),
        ("vgg11_click", 0, []),
    ],
)
def test_all_channels_are_followed_and_branches_can_be_removed(
    name: str, branches: int, nodes: list[int] | None
) -> None:
    spaces = find_index_spaces(build_model(name, CIFAR, 10), CIFAR)
    assert not spaces.not_followed
    assert len(spaces.removable_branches) == branches
    assert not spaces.fixed_branches
    shared = [space for space in spaces.values() if not space.frozen and not space.may_be_empty]
    if branches and nodes:
        assert [space.size for space in shared] == nodes
        assert "layer1.0.branch.conv1" in shared[0].consumers


def test_clicktrains_vgg_starts_as_its_code_does() -> None:
    torch.manual_seed(0)
    model = build_model("vgg11_click", CIFAR, 10)
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert [norm.weight.unique().tolist() for norm in norms] == [[0.5]] * 8
    assert [tuple(layer.weight.shape) for layer in linear] == [(512, 512), (512, 512), (10, 512)]
    assert all(layer.weight.std().item() == pytest.approx(0.01, rel=0.05) for layer in linear)
    assert not any(layer.bias.any() for layer in linear)
    assert sum(isinstance(layer, nn.Dropout) for layer in model.modules()) == 2


@pytest.mark.parametrize(
    ("name", "fan_out"),
    [
        *(("resnet32", True), ("vgg11", True)),
        *(
            (f"{name}{init}", bool(init))
            for name in ("resnet32_wide", "resnet50_wide")
            for init in ("", "[init=fan_out]")
        ),
    ],
)
def test_weights_of_convolutions_start_as_published(name: str, fan_out: bool) -> None:
    """ClickTrain's code makes torch's layers and leaves their weights as they are."""
    torch.manual_seed(0)
    large = [
        layer
        for layer in build_model(name, CIFAR, 10).modules()
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 5000
    ]
    assert large
    for layer in large:
        inputs, outputs = (n * layer.kernel_size[0] ** 2 for n in (layer.in_channels, layer.out_channels))
        expected = (2 / outputs) ** 0.5 if fan_out else (3 * inputs) ** -0.5
        assert layer.weight.std().item() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", TIMM)
def test_networks_have_the_parameters_and_flops_of_timms(name: str) -> None:
    shape, classes = (CIFAR, 10) if name.startswith("mlp[") else (IMAGENET, 1000)
    # Shapes are enough, except for torchvision's RegNet, which computes its widths with tensors.
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        model = build_model(name, shape, classes)
    counted = count_model(model, shape)
    assert (counted["params"], counted["inference_flops"]) == TIMM[name]


@pytest.mark.parametrize(
    ("name", "width", "message"),
    [("resnet32", 0.3, "1/16"), ("vgg11", 1 / 128, "1/64"), ("resnet50_wide", 0.01, "1/64")],
)
def test_a_width_without_whole_channels_is_refused(name: str, width: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"^width {width} .* use a multiple of {message}"):
        registry.get("model", name)(width=width)


@pytest.mark.usefixtures("_zero_weights")
@pytest.mark.parametrize("name", [*PUBLISHED, *CLICKTRAIN])
def test_half_width_halves_every_channel_count(name: str) -> None:
    thing = registry.get("model", name)
    wide, narrow = thing(num_classes=7), thing(num_classes=7, width=0.5)
    for one, other in zip(wide.modules(), narrow.modules(), strict=True):
        if isinstance(one, nn.Conv2d):
            assert isinstance(other, nn.Conv2d)
            assert one.out_channels == 2 * other.out_channels
    assert narrow.eval()(torch.zeros(2, *CIFAR)).shape == (2, 7)


@pytest.mark.parametrize(("name", "side"), [("resnet32", 3), ("vgg13", 31), ("resnet32_wide", 7), ("vgg16_click", 31)])
def test_images_that_are_too_small_are_refused(name: str, side: int) -> None:
    with pytest.raises(ValueError, match=f"^images are {side}x{side}; the smallest are"):
        registry.get("model", name)(input_shape=(3, side, side))


@pytest.mark.parametrize(("name", "branches"), [("resnet18", 8), ("resnet50", 16)])
def test_imagenet_resnets_compute_what_torchvisions_do(name: str, branches: int) -> None:
    models = pytest.importorskip("torchvision").models
    torch.manual_seed(0)
    theirs = models.get_model(name, num_classes=9).eval()
    ours = build_model(name, IMAGENET, 9).eval()
    inside = {child for child, _ in ours.layer1[0].branch.named_children()}

    def renamed(key: str) -> str:
        stage, _, rest = key.partition(".")
        block, _, child = rest.partition(".")
        in_branch = stage.startswith("layer") and child.partition(".")[0] in inside
        return f"{stage}.{block}.branch.{child}" if in_branch else key

    ours.load_state_dict({renamed(key): value for key, value in theirs.state_dict().items()}, strict=True)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)
    spaces = find_index_spaces(ours, (3, 32, 32))
    assert not spaces.not_followed
    assert len(spaces.removable_branches) == branches


@pytest.mark.parametrize(("name", "strided"), [("resnet18", 6), ("regnet_x_400mf", 8)])
def test_blurred_networks_blur_what_strided_convolutions_read(name: str, strided: int) -> None:
    torch.manual_seed(0)
    plain = build_model(name, IMAGENET, 9)
    torch.manual_seed(0)
    model = build_model(f"{name}[blur=true]", IMAGENET, 9)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    blurred = [layer for layer in model.modules() if isinstance(layer, Blurred)]
    assert len(blurred) == strided
    assert {layer[2].stride for layer in blurred} == {(2, 2)}
    assert min(layer[2].in_channels for layer in blurred) >= 16
    assert not any(isinstance(layer, Blurred) for layer in plain.modules())
    images = torch.randn(2, blurred[0][2].in_channels, 9, 8)
    line = torch.tensor([1.0, 2.0, 1.0]) / 4
    kernel = torch.outer(line, line).expand(images.shape[1], 1, 3, 3)
    wanted = torch.nn.functional.conv2d(images, kernel, padding=1, groups=images.shape[1])
    first, second, _ = blurred[0]
    torch.testing.assert_close(second(first(images)), wanted)
    spaces = find_index_spaces(model, (3, 64, 64))
    assert not spaces.not_followed
    assert len(spaces) == len(find_index_spaces(plain, (3, 64, 64)))


@pytest.mark.usefixtures("_zero_weights")
def test_describe_takes_the_images_that_a_network_is_made_for() -> None:
    described = describe_model("resnet18", "")
    assert (described["input_shape"], described["classes"]) == ([3, 224, 224], 1000)
    assert described["params"] == 11_689_512
    assert round(described["macs"] / 1e9, 2) == 1.81
    assert describe_model("resnet18", "cifar10")["input_shape"] == [3, 32, 32]
