"""Tests of the output of `list`, `describe` and `--help`."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
import torchvision
from torch.utils.flop_counter import FlopCounterMode
from toy_suite import ROOT

from suite import registry
from suite.cli import main as cli
from suite.cli.describe import parameter_texts
from suite.parameters import declared
from suite.recipe import Tuning
from suite.trials.spec import PRESETS


def test_list_imports_no_torch_and_nothing_that_windows_lacks():
    script = (
        f"import os, signal, subprocess, sys; sys.path.insert(0, {str(ROOT)!r}); "
        "sys.modules |= dict.fromkeys(('fcntl', 'resource')); del os.fork, os.killpg, signal.SIGHUP, signal.SIGKILL; "
        "from suite.cli.main import main; main(['list']); main(['--methods', 'dense']); main(['--help'])"
    )
    answer = subprocess.run([sys.executable, "-X", "importtime", "-c", script], capture_output=True, text=True)
    imported = {
        line.rpartition("|")[2].strip() for line in answer.stderr.splitlines() if line.startswith("import time:")
    }
    assert "suite.cli.options" in imported
    assert "this suite trains on Linux and macOS; on Windows use WSL" in answer.stderr
    assert not imported & {"torch", "numpy", "pandas", "pyarrow", "matplotlib"}
    for word in ("--methods", "--nproc-per-trial", "describe NAME", "reproduce NAME", "exit status", "runs/TASK-HASH"):
        assert word in answer.stdout


def test_describe(folder, capsys, forget_toys):
    toys = ["--plugin", "toy.py"]
    assert cli.main(["describe", "toy_method", "--task", "toy_task", "--json", *toys]) == 0
    method = json.loads(capsys.readouterr().out)
    assert (method["name"], method["source"], method["version"]) == ("toy_method", "nowhere", 1)
    n, mode, _ = method["parameters"]
    assert (n["name"], n["default"], n["presets"]["smoke"]) == ("n", 2, 1)
    assert mode["allowed"] == "random, magnitude"
    assert cli.main(["describe", "toy_task", "--json", *toys]) == 0
    task = json.loads(capsys.readouterr().out)
    assert (task["title"], task["classes"], task["recipes"]["paper"]["epochs"]) == ("Toy", 3, 3)
    assert cli.main(["describe", "toy_method", *toys]) == 0
    assert "n: an integer of at most 64 bits = 2 (smoke 1)" in capsys.readouterr().out


def test_describe_says_which_controls_a_method_has(capsys):
    for name, shrinks, twin, lines in (
        ("sdgp[n=1]", False, {"mode": "random"}, ("shrinks network: false", "selects at random with: mode random")),
        ("scratch", False, {}, ("shrinks network: false", "selects at random with: none")),
        ("prunetrain", True, {"selection": "random"}, ("shrinks network: true",)),
    ):
        assert cli.main(["describe", name, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["shrinks_network"], found["random_twin"]) == (shrinks, twin)
        assert cli.main(["describe", name]) == 0
        assert {*lines} <= {*capsys.readouterr().out.splitlines()}


def test_describe_says_how_the_defaults_were_chosen(capsys):
    assert cli.main(["describe", "prunetrain", "--json"]) == 0
    paper, quick, smoke = json.loads(capsys.readouterr().out)["tuning"]
    assert (paper["trials"], paper["chosen_on"], paper["presets"]) == (0, "publication", ["paper"])
    assert (quick["trials"], quick["chosen_on"], quick["presets"]) == (8, "validation images", ["quick"])
    assert (smoke["trials"], smoke["chosen_on"]) == (None, "other")
    assert cli.main(["describe", "sdgp"]) == 0
    assert "chosen: published values, 0 trials (the paper and its code;" in capsys.readouterr().out
    assert cli.main(["describe", "prunetrain"]) == 0
    assert "      Searched by tune: 0.333 to 3 times the default, logarithmic\n" in capsys.readouterr().out
    assert cli.main(["describe", "digits"]) == 0
    assert "defaults chosen: not by accuracy, trials not recorded (" in capsys.readouterr().out


def test_every_method_and_task_declares_how_its_defaults_were_chosen():
    """No default was chosen on test images; results named as sources exist, with the stated number of trials."""
    found = {
        (kind, name): registry.get(kind, name).tuning for kind in ("method", "task") for name in registry.names(kind)
    }
    for (kind, name), tuning in found.items():
        if registry.is_own(kind, name):
            assert tuning, name
            assert {preset for one in tuning for preset in one.presets or PRESETS} == {*PRESETS}
            for one in tuning:
                assert one.chosen_on != "test images"
                for path in re.findall(r"results/\S+\.csv", one.source):
                    rows = [line for line in (ROOT / path).read_text().splitlines()[1:] if not line.startswith("dense")]
                    assert len(rows) == one.trials


def test_tuning_in_words():
    one = Tuning(trials=1, chosen_on="test images", source="a table", presets=("smoke", "quick"))
    assert one.in_words() == "smoke, quick: 1 trial on test images (a table)"
    unknown = Tuning(trials=None, chosen_on="validation images", source="epochs")
    assert unknown.in_words() == "chosen on validation images, trials not recorded (epochs)"
    with pytest.raises(ValueError, match=r"tuning\.chosen_on is 'luck'; allowed: publication, "):
        Tuning(trials=1, chosen_on="luck", source="")


def test_the_data_gradient_of_resnet18_at_224_px(capsys):
    """The total is that of torch's own counter for one step of torchvision's network; the first layer has none."""
    assert cli.main(["describe", "resnet18", "--layers", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["input_shape"]) == ("resnet18", [3, 224, 224])
    assert found["inference_flops"] == 2 * found["macs"] > 2 * found["params"] > 0
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        torchvision.models.resnet18()(torch.zeros(1, 3, 224, 224)).sum().backward()
    assert found["training_flops"] == counter.get_total_flops()
    layers = found["layers"]
    assert len(layers) == 21
    assert layers["conv1"] == {"forward": 236_027_904, "dgrad": 0, "wgrad": 236_027_904}
    assert all(len(set(flops.values())) == 1 for name, flops in layers.items() if name != "conv1")
    assert sum(flops["dgrad"] for flops in layers.values()) == 3_392_118_784
    assert found["data_gradient_share"] == pytest.approx(0.31856, abs=1e-5)
    assert cli.main(["describe", "resnet9[width=0.0625]", "--layers"]) == 0
    text = capsys.readouterr().out
    assert re.search("^share of the data gradient in training FLOPs: 0.3", text, re.MULTILINE)
    assert "  down.conv: forward 1,638,400, dgrad 1,638,400, wgrad 1,638,400\n" in text
    assert "  width: a number = 1.0 (this model 0.0625)\n" in text
    assert cli.main(["describe", "sdgp", "--layers"]) == 2
    assert "--layers and --data-root are for models, and 'sdgp' is a method" in capsys.readouterr().err


def test_describe_names_what_the_flops_leave_out(folder, capsys, forget_toys):
    (folder / "mixes.py").write_text(
        "from torch import nn\n"
        "from suite.registry import register\n"
        "class Mixes(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.line, self.head = nn.Conv1d(3, 8, 1), nn.Linear(8, classes)\n"
        "    def forward(self, x):\n"
        "        return self.head(self.line(x.flatten(2)).mean(2))\n"
        "@register('model', 'toy_mixes')\n"
        "def toy_mixes(num_classes=10):\n"
        '    """A convolution of one dimension."""\n'
        "    return Mixes(num_classes)\n"
    )
    line = "convolution in 'line' (24,576 multiply-adds per image)"
    assert cli.main(["describe", "toy_mixes", "--json", "--plugin", "mixes.py"]) == 0
    assert json.loads(capsys.readouterr().out)["not_counted"] == [line]
    assert cli.main(["describe", "toy_mixes", "--plugin", "mixes.py"]) == 0
    assert f"not counted: {line}" in capsys.readouterr().out.splitlines()


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} {ROOT / 'run_suite.py'} list --json | head -c 1"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=os.environ)
    assert answer.stderr == ""


def test_a_recipe_is_described_by_its_changes(capsys):
    assert cli.main(["describe", "digits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  paper: as quick, except epochs 40" in lines
    assert max(map(len, lines)) <= 120


def test_describe_a_reproduction(capsys):
    assert cli.main(["describe", "sdgp-table1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["name"]) == ("reproduction", "sdgp-table1")
    assert found["command"].endswith("reproduce sdgp-table1")
    assert found["parts"]["columns"]["task"] == "cifar10"
    assert found["parts"]["columns"]["seeds"] == {"smoke": 1, "quick": 3, "paper": 3}
    assert "sdgp-table1-cifar10-resnet9" in found["published"]
    assert cli.main(["describe", "sdgp-table1"]) == 0
    text = capsys.readouterr().out
    assert "    seeds: smoke 1, quick 3, paper 3" in text.splitlines()
    assert "    trials: smoke 4, quick 12, paper 12" in text.splitlines()


def test_every_reproduction_can_be_described(capsys):
    for name in registry.names("reproduction"):
        assert cli.main(["describe", name]) == 0
        assert f"reproduce {name}" in capsys.readouterr().out


def test_describe_a_preset(folder, capsys, forget_toys):
    assert cli.main(["describe", "quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["seeds"]) == ("preset", 1)
    assert found["recipes"]["digits"]["epochs"] == 10
    assert found["recipes"]["digits"]["model"] == "resnet9[width=0.125]"
    assert found["methods on cifar10"]["prunetrain"]["interval"] == 1
    assert cli.main(["describe", "paper", "--task", "toy_task", "--plugin", "toy.py"]) == 0
    text = capsys.readouterr().out
    assert "seeds: 3" in text
    assert "toy_task: model toy_model[width=2], epochs 3" in " ".join(text.split())
    assert cli.main(["describe", "quick[n=1]"]) == 2
    assert "a preset takes no parameters; name 'quick'" in capsys.readouterr().err


def test_one_kind_can_be_listed(capsys):
    assert cli.main(["list", "--json"]) == 0
    assert "local" in [item["name"] for item in json.loads(capsys.readouterr().out)["engines"]]
    assert cli.main(["list", "tasks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tasks"
    assert [line.split()[0] for line in lines[1:]] == registry.names("task")
    assert cli.main(["list", "models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "torchvision/" in line] == ["torchvision/NAME"]
    assert cli.main(["list", "metods"]) == 2
    assert "invalid choice: 'metods' (choose from 'methods', " in capsys.readouterr().err


def test_a_task_is_described_with_the_input_shape_of_each_preset(capsys):
    assert cli.main(["describe", "imagenette", "--json"]) == 0
    shapes = json.loads(capsys.readouterr().out)["input_shapes"]
    assert shapes == {"smoke": [3, 64, 64], "quick": [3, 96, 96], "paper": [3, 160, 160]}
    assert cli.main(["describe", "imagenette"]) == 0
    assert "quick 3x96x96, " in capsys.readouterr().out


class Parent:
    """A parent.

    Attributes:
        n, m: both of
            them, in two lines.
        old: said by the parent.

    More text: not an entry.
    """


class Child(Parent):
    """A child.

    Attributes:
        old: said by the child.

    Class attributes:
        other: no parameter.
    """


def function(width):
    """A function.

    Args:
        width: of it.

    Raises:
        ValueError: never.
    """


def test_entries_of_attributes_and_args():
    both = "both of them, in two lines."
    assert parameter_texts(Parent) == {"n": both, "m": both, "old": "said by the parent."}
    assert parameter_texts(Child) == {"n": both, "m": both, "old": "said by the child."}
    assert parameter_texts(function) == {"width": "of it."}
    assert parameter_texts(type("Silent", (), {})) == {}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in ("method", "model") for name in registry.names(kind)]
)
def test_every_parameter_that_can_be_typed_is_described(kind, name):
    thing = registry.get(kind, name)
    texts = parameter_texts(thing)
    assert [parameter for parameter in declared(thing) if not texts.get(parameter)] == []
