"""Tests of wrong input: one line and exit status 2, and nothing is written."""

import sys
from pathlib import Path

import pytest
import torch
from toy_suite import assert_one_line, good, listing, pdt

from suite.cli import main as cli
from suite.cli.options import read_config, read_run_options
from suite.cli.preparation import check_data_root

NAMES = [
    (["--methods", "sdpg"], "did you mean 'sdgp'"),
    (["--task", "cifar11"], "did you mean 'cifar10'"),
    (["--model", "resnt9"], "did you mean 'resnet9'"),
    (["--model", "torchvison/vgg11"], "names with '/' are timm/NAME or torchvision/NAME"),
    (["--model", "torchvision/vgg11/x"], "expected name or name[key=value,...]"),
    (["--batch-size", "0"], "--batch-size is '0'; allowed: an integer of at least 1"),
    (["--methods", "dense[n=2"], "never closed"),
    (["--methods", "dense[n]"], "not key=value"),
    (["--methods", "dense,"], "expected name"),
    (["--methods", "dense", "sdgp"], "separated by commas, without spaces"),
    (["--epochs", "3", "--set", "recipe.epochs=4"], "given twice"),
    (["--preset", "fast"], "--preset: invalid choice: 'fast' (choose from 'smoke', 'quick', 'paper')"),
    (["--dtype", "float61"], "--dtype: invalid choice: 'float61' (choose from 'auto', "),
    (["--set", "recipe.execution=graph"], "allowed: eager, compile, cuda_graph"),
    (["--set", "recipe.size_milestones=(5,)"], "allowed: a list in parentheses, like (0.5,0.75), each above 0"),
    (["--jobs", "0"], "--jobs: '0'; allowed: an integer from 1 to 1,000"),
    (["--ray-address", "local"], "--ray-address local: is used with --engine ray only"),
    (["--engine", "ray", "--ray-address", "ray://here"], "'ray://here': expected auto, local or HOST:PORT"),
    (["--engine", "ray", "--device", "cuda:1"], "Ray chooses the GPU of each trial"),
    (["--timeout", "0"], "--timeout: '0'; allowed: a number above 0"),
    (["--margin", "wide"], "--margin: 'wide'"),
    (["--controls", "--controls"], "--controls is given twice"),
    (["--seeds=--"], "expected a value"),
    (["--contols"], "did you mean '--controls'"),
    (["--data-root", "toy.py"], "is a file"),
    (["--data-root", "dta"], "--data-root dta: there is no such folder; create it to download into it"),
    (["--device", "gpu"], "--device 'gpu'; did you mean 'cuda'?"),
    (["--device", "GPU:1"], "did you mean 'cuda:0'?"),
    (["--task", "cifar-10"], "did you mean 'cifar10'?"),
    (["--methods", "dense,rewiring"], "no method is called 'rewiring'; an example defines it: --plugin "),
    (["--plugin", "absent.py"], "no such file"),
    (["--config", "absent.toml"], "/absent.toml: no such file"),
    (["--nproc-per-trial", "0"], "nproc-per-trial"),
    (["--method", "dense"], "did you mean '--methods'"),
    (["--seeds"], "expected one argument"),
    (["launch"], "there is no verb 'launch'"),
    (["plan", "--methods", "sdpg"], "did you mean 'sdgp'"),
    (["--log", "tensorbord"], "did you mean 'tensorboard'"),
    (["reprot", "x"], "did you mean 'report'"),
    (["describe", "torchvision"], "names with '/' are timm/NAME or torchvision/NAME"),
    (["describe", "sdgp", "--data-root", "."], "--data-root are for models, and 'sdgp' is a method"),
    (["describe", "resnet9", "--data-root", "."], "is for a task of your own images"),
    (["describe", "resnet9", "--task", "imagefolder", "--data-root", "absent"], "there is no such folder"),
    (["describe"], "required: NAME"),
    (["describe", "TASK"], "nothing is called 'TASK'; list shows all names"),
    (["tune", "sdgp", "--budget", "2", "--skip-unfit"], "--skip-unfit cannot be given"),
    (["reproduce", "sdgp-table1", "--skip-unfit"], "--skip-unfit cannot be given"),
    (["check", "sdpg"], "did you mean 'sdgp'"),
]


def words(value):
    return " ".join(value) if isinstance(value, list) else ""


@pytest.mark.parametrize(("arguments", "expected"), NAMES, ids=words)
def test_errors_are_found_before_torch_is_imported(folder, capsys, monkeypatch, arguments, expected):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing torch would now fail
    before = listing(folder)
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert_one_line(captured.err, expected)
    assert listing(folder) == before


def test_a_user_sees_one_line(folder):
    before = listing(folder)
    answer = pdt("--methods", "sdpg")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert_one_line(answer.stderr, "did you mean 'sdgp'")
    assert listing(folder) == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method = 'dense'", "--config c.toml: no option is called '--method'; did you mean '--methods'"),
        ("config = 'x'", "--config c.toml: a file names no other --config"),
        ("methods = {a = 1}", "--methods '{'a': 1}': expected name"),
        ("set = {epochs = 3}", "set must be a table [set.recipe]"),
        ("methods = ", "Invalid value"),
        ("[set.recipe]\nepoch = 3", "did you mean 'epochs'"),
        ("[set.recipe]\nepochs = 'x'", "a number"),
        ("seeds = -1", "--seeds '-1'"),
        ("controls = 1", "--config c.toml: argument --controls: '1'; allowed: true, false"),
    ],
)
def test_a_config_that_is_wrong(folder, capsys, text, expected):
    (folder / "c.toml").write_text(text)
    before = listing(folder)
    assert cli.main(["--config", "c.toml"]) == 2
    assert_one_line(capsys.readouterr().err, expected)
    assert listing(folder) == before


def test_a_config_gives_options_that_are_not_on_the_command_line(folder, monkeypatch):
    for name in ("there", "x"):
        (folder / name).mkdir()
    (folder / "c.toml").write_text(
        "methods = ['dense', 'sdgp[n=1,m=4]']\nseeds = [3]\njobs = 2\nbatch_size = 8\ntimeout = 1.5\n"
        "data-root = 'there'\n[set.recipe]\nlearning_rate = 1\nepochs = 7\nmilestones = [0.5, 0.75]\nflip = false\n"
    )
    options = read_run_options(["--config", "c.toml", "--epochs", "2", "--jobs", "3"])
    assert options.methods == "dense,sdgp[n=1,m=4]"
    assert options.seeds == (3,)
    assert (options.jobs, options.timeout) == (3, 1.5)
    assert options.data_root == folder / "there"
    expected = {"batch_size": 8, "learning_rate": 1.0, "epochs": 2, "milestones": (0.5, 0.75), "flip": False}
    assert options.overrides == expected
    (folder / "c.toml").write_text("seeds = 3\nplugin = 'toy.py'")
    assert read_config("c.toml") == {"seeds": (0, 1, 2), "plugin": [folder / "toy.py"]}
    monkeypatch.setenv("PDT_DATA", "/elsewhere")
    assert read_run_options([]).data_root == Path("/elsewhere")
    assert not read_run_options([]).controls
    assert read_run_options(["--controls", "--seeds", "1"]).controls
    (folder / "c.toml").write_text("controls = true")
    assert read_run_options(["--config", "c.toml"]).controls
    assert not read_run_options(["--config", "c.toml", "--controls=false"]).controls
    assert read_run_options(["--data-root", "x"]).data_root == folder / "x"


WRONG = [
    (["--model", "torchvision/mobilenet_v3_smal"], "did you mean 'torchvision/mobilenet_v3_small'?"),
    (["describe", "torchvision/VGG11"], "did you mean 'torchvision/vgg11'"),
    (["describe", "sdgp[n=9,m=4]"], "sdgp[n=9,m=4]: n is 9; it must not be larger than m, which is 4"),
    (["describe", "resnet9[width=8000]"], "resnet9[width=8000.0]: does not fit into memory"),
    (["describe", "resnet9[width=0.3]"], "use a multiple of 1/128"),
    (["--plugin", "raises.py", "--methods", "dense"], "RuntimeError: line one line two"),
    (["--task", "imagenette", "--preset", "smoke", "--data-root", "."], "is not read, since preset smoke uses"),
    (["--task", "digits,imagefolder", "--preset", "quick"], "task imagefolder needs --data-root DIR, your folder"),
    (["plan", "--task", "imagefolder", "--preset", "paper"], "task imagefolder needs --data-root DIR"),
    (good("--out", "toy.py"), "is a file"),
    (good("--out", "."), "no suite.json"),
    (good("--methods", "toy_method[n=5]"), "toy_method[n=5]: n is 5; the largest is 4"),
    (good("--methods", "toy_method[k=5]"), "has no parameter 'k'"),
    (good("--methods", "toy_method[mode=rando]"), "allowed: random, magnitude"),
    (good("--model", "toy_model[width=0]"), "toy_model[width=0.0]: width is 0.0"),
    (good("--set", "recipe.peak_at=2"), "recipe.peak_at is '2'; allowed: a number from 0 to 1"),
    (good("--batch-size", "13"), "task toy_task: a batch of 13 is more than the 12 images"),
    (good("--set", "recipe.split_seed=-1"), "recipe.split_seed is '-1'"),
    (good("--set", "recipe.nesterov=true", "--set", "recipe.momentum=0"), "recipe.nesterov needs"),
    (good("--device", "cuda"), "use --device cpu"),
    (good("--task", "toy_task,missing_task"), "toys are sold out"),
    (good("--dtype", "float16"), "on the CPU use bfloat16, float32 or auto"),
    (good("--set", "recipe.execution=cuda_graph"), "needs a CUDA device, not 'cpu'"),
]


@pytest.mark.usefixtures("forget_toys")
@pytest.mark.parametrize(("arguments", "expected"), WRONG, ids=words)
def test_what_needs_the_things_themselves_is_found_before_anything_is_written(
    folder, capsys, monkeypatch, arguments, expected
):
    (folder / "raises.py").write_text(
        "from suite.registry import register\n@register('model', 'bad')\nclass Bad: pass\n"
        "raise RuntimeError('line one\\nline two')"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = listing(folder)
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert_one_line(captured.err, expected)
    assert listing(folder) == before


@pytest.mark.parametrize(("preset", "arguments", "made"), [
    ("smoke", (), ""), ("quick", (), "data/imagefolder"), ("quick", ("--data-root", "data"), ""),
])  # fmt: skip
def test_the_folder_of_images_need_not_be_typed(folder, monkeypatch, preset, arguments, made):
    monkeypatch.setenv("PDT_DATA", str(folder / "data"))
    (folder / (made or "data")).mkdir(parents=True)
    check_data_root(read_run_options(["--task", "imagefolder", *arguments]), preset)
