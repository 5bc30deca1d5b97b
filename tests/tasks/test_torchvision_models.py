"""torchvision's classification networks: their names are known without importing torchvision, and they can be cut."""

import json
import subprocess
import sys

import pytest
import torch
import torchvision
from masked_cuts import examine
from torch import nn
from torchvision.models import get_model, get_model_weights, list_models
from trials_here import run_here

from suite import registry
from suite.checkpoint import load_model
from suite.choices import ModelChoice, build_model
from suite.cli import main as cli
from suite.errors import UsageError
from suite.trials.engines.local import LocalEngine
from tasks.models.imagenet_resnet import Blurred, blur_strided

THEIRS = list_models(module=torchvision.models)
SMALLEST = (  # of each family, but for the RegNets, which compute their widths with tensors
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3"),
    *("maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnext50_32x4d"),
    *("shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11", "vit_b_32", "wide_resnet50_2"),
)


def test_every_classification_network_of_torchvision_has_a_name():
    # PruneTrain's and ClickTrain's networks of these names are the papers'.
    assert set(THEIRS) <= set(registry.names("model"))


def test_the_prefix_names_torchvisions_own_network_for_every_name():
    for name in THEIRS:
        choice = ModelChoice.read(f"torchvision/{name}")
        assert str(choice.canonical()) == f"torchvision/{name}"
        assert registry.is_own("model", choice.name)
        assert choice.definition is not registry.get("model", name)
        if name not in ("vgg11", "vgg13"):  # PruneTrain's networks, which have a width
            assert choice.declared == ModelChoice.read(name).declared
    with pytest.raises(UsageError, match="did you mean 'torchvision/mobilenet_v3_small'"):
        registry.get("model", "torchvision/mobilenet_v3_smal")
    with pytest.raises(UsageError, match="no model is called 'torchvision/resnet9'"):
        registry.get("model", "torchvision/resnet9")


@pytest.mark.parametrize("name", SMALLEST)
def test_the_prefix_gives_the_published_number_of_weights(name):
    with torch.device("meta"):
        model = build_model(f"torchvision/{name}", (3, 224, 224), 1000)
    published = {weights.meta["num_params"] for weights in get_model_weights(name)}  # several for several image sizes
    auxiliary = {"inception_v3": 3_326_696}.get(name, 0)  # weights of its auxiliary classifier, which is left out
    assert sum(weight.numel() for weight in model.parameters()) + auxiliary in published


def test_a_trial_has_a_folder_a_report_and_a_model_that_loads(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LocalEngine, "run", run_here)
    (tmp_path / "suite.toml").write_text('model = ["torchvision/shufflenet_v2_x0_5"]\ntask = "cifar10"\n')
    options = ["--methods", "dense", "--preset", "smoke", "--epochs", "1", "--device", "cpu", "--out", "out"]
    options += ["--set", "recipe.train_images=32", "--set", "recipe.test_images=20", "--batch-size", "16"]
    assert cli.main(["--config", "suite.toml", *options]) == 0
    assert "torchvision/shufflenet_v2_x0_5" in capsys.readouterr().out
    (folder,) = (tmp_path / "out" / "trials").iterdir()
    assert folder.name.startswith("dense-cifar10-torchvision-shufflenet_v2_x0_5-s0-")
    assert json.loads((folder / "trial.json").read_text())["spec"]["model"] == "torchvision/shufflenet_v2_x0_5"
    assert isinstance(load_model(folder / "model.pt"), torchvision.models.ShuffleNetV2)
    assert "torchvision/shufflenet_v2_x0_5" in (tmp_path / "out" / "report.html").read_text()
    assert list((tmp_path / "out" / "figures").glob("*-torchvision-shufflenet_v2_x0_5-*.svg"))


def test_listing_does_not_import_torchvision(started_programs):
    code = "import sys; from suite import registry; registry.names('model'); assert 'torchvision' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("prefix", ["", "torchvision/"])
@pytest.mark.parametrize("name", ["mobilenet_v3_small", "regnet_x_400mf"])
def test_weights_and_function_are_those_of_torchvision(prefix, name):
    torch.manual_seed(0)
    ours = build_model(prefix + name, (3, 32, 32), 10)
    torch.manual_seed(0)
    theirs = get_model(name, weights=None, num_classes=10)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))


@pytest.mark.parametrize(
    "name",
    ["mobilenet_v3_small", "shufflenet_v2_x0_5", pytest.param("vit_b_32", marks=pytest.mark.slow)],
)
def test_a_cut_network_computes_what_the_masked_one_does(name):
    row = examine(name)
    assert row.difference is not None
    assert row.difference < 1e-4
    assert row.step_difference is not None
    assert row.step_difference < 1e-6
    assert row.free > 0.3 * row.channels


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


def test_a_trial_says_whether_its_network_is_blurred():
    assert ModelChoice.read("regnet_x_400mf").parameters()["blur"] is False
    assert ModelChoice.read("regnet_x_400mf[blur=true]").parameters()["blur"] is True
