"""torchvision's classification networks: their names are known without importing torchvision, and they can be cut."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torchvision.models import get_model, list_models
from torchvision.models.resnet import ResNet

from benchmarks.evidence.torchvision_models import examine, line_of, table
from suite import registry
from suite.choices import ModelChoice, build_model
from suite.errors import UsageError
from tasks.models.imagenet_resnet import Blurred, blur_strided


def test_every_classification_network_of_torchvision_has_a_name():
    import torchvision.models

    theirs = set(list_models(module=torchvision.models))
    ours = set(registry.names("model"))
    # PruneTrain's and ClickTrain's networks of these names are the papers'.
    assert theirs <= ours


def test_listing_does_not_import_torchvision():
    code = "import sys; from suite import registry; registry.names('model'); assert 'torchvision' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "regnet_x_400mf"])
def test_weights_and_function_are_those_of_torchvision(name):
    torch.manual_seed(0)
    ours = build_model(name, (3, 32, 32), 10)
    torch.manual_seed(0)
    theirs = get_model(name, weights=None, num_classes=10)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))


@pytest.mark.parametrize(
    "name",
    ["mobilenet_v3_small", "regnet_x_400mf", "shufflenet_v2_x0_5", pytest.param("vit_b_32", marks=pytest.mark.slow)],
)
def test_a_cut_network_computes_what_the_masked_one_does(name):
    row = examine(name)
    assert row.difference is not None
    assert row.difference < 1e-4
    assert row.step_difference is not None
    assert row.step_difference < 1e-6
    assert row.free > 0.3 * row.channels
    assert f"| `{name}` |" in table([line_of(row)])


def test_a_network_of_one_output_in_training():
    model = build_model("googlenet", (3, 32, 32), 10)
    assert model.train()(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("mobilenet_v2", (1, 32, 32), "images have 1 channels; the model needs 3"),
        ("vit_b_16", (3, 32, 64), "images are 32x64; this model needs square ones"),
        (
            "maxvit_t",
            (3, 64, 64),
            "^[^\n]*Input size \\(16, 16\\) of block 0 is not divisible by partition size 7[^\n]*$",
        ),
    ],
)
def test_images_that_a_network_cannot_take_are_refused(name, shape, message):
    with pytest.raises(UsageError, match=message):
        build_model(name, shape, 10)


def test_the_rule_of_the_blur_leaves_out_strided_convolutions_of_few_channels():
    model = nn.Sequential(nn.Conv2d(3, 15, 3, 2), nn.Conv2d(15, 16, 3, 2), nn.Conv2d(16, 8, 3, 2), nn.Conv2d(8, 16, 1))
    blur_strided(model)
    assert [isinstance(layer, Blurred) for layer in model] == [False, False, True, False]


def test_a_trial_without_blur_has_the_id_of_before_the_parameter():
    assert ModelChoice.read("regnet_x_400mf").recorded_parameters() == {}
    assert ModelChoice.read("regnet_x_400mf[blur=true]").recorded_parameters() == {"blur": True}


def test_own_networks_keep_their_names():
    assert isinstance(build_model("resnet18", (3, 32, 32), 10), ResNet)
    assert not registry.entries("model")["resnet18"].family
