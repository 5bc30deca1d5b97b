"""A model that a method cannot train is refused before the first trial, with one line and without output files."""

import dataclasses
import json
import pickle
import textwrap
from types import SimpleNamespace

import pytest
import torch
from toy_suite import assert_one_line, forget_plugins, listing

import kernels
from suite import registry
from suite.cli import main as cli
from suite.cli.preparation import few_steps, rehearse, rehearse_new, without
from suite.engine.training import conformance
from suite.engine.training.method_runner import MethodRunner
from suite.errors import UsageError
from suite.files import default_data_root
from suite.method import Method
from suite.ops import apply
from suite.task import PaperRecipe, Splits
from suite.trials.building import load_splits
from suite.trials.planning import plan
from suite.trials.spec import SuiteSpec
from tasks.digits import Digits
from tasks.models.resnet9 import resnet9

NETWORKS = textwrap.dedent(
    """
    import torch
    from torch import nn

    from suite.method import Method
    from suite.registry import register

    @register("model", "toy_seeding")
    def toy_seeding(*, input_shape: tuple[int, int, int], num_classes: int):
        "Begins with the same weights for every seed."
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, num_classes))

    class Net(nn.Module):
        def __init__(self, num_classes, kernel=1, outputs=None):
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 8, kernel), nn.Conv2d(8, 8, kernel)
            self.last, self.outputs = nn.Linear(8, num_classes), outputs

        def forward(self, images):
            found = self.last(self.second(self.first(images)).mean((2, 3)))
            return found if self.outputs is None else self.outputs(found)

    class Branching(Net):
        def forward(self, images):
            return super().forward(images if images.sum() < 1e9 else -images)

    @register("model", "toy_branching")
    def toy_branching(*, num_classes: int):
        "Its forward depends on values."
        return Branching(num_classes)

    @register("model", "toy_nothing")
    def toy_nothing(*, num_classes: int):
        "Its forward returns nothing."
        return Net(num_classes, outputs=lambda found: [].append(found))

    @register("model", "toy_wide")
    def toy_wide(*, num_classes: int):
        "It has a class too many."
        return Net(num_classes + 1)

    @register("model", "toy_large")
    def toy_large(*, num_classes: int):
        "Its kernels are larger than the images."
        return Net(num_classes, kernel=30)

    @register("model", "toy_none")
    def toy_none():
        "No model."

    @register("model", "toy_empty")
    def toy_empty():
        "Nothing to train."
        return nn.Flatten()

    @register("method", "toy_fussy")
    class Fussy(Method):
        "Its setup has a programming error."

        def setup(self, ctx):
            self.absent.append(ctx)
    """
)


@pytest.fixture
def networks(folder):
    forget_plugins()
    (folder / "networks.py").write_text(NETWORKS)
    yield folder
    forget_plugins()


CASES = [
    ("prunetrain", "toy_branching", "prunetrain cannot train toy_branching on task digits: no channel of this model"),
    ("prunetrain[dynamic_batch=device]", "resnet9[width=0.0625]", "needs a CUDA device"),
    ("sdgp", "mlp", "sdgp cannot train mlp on task digits: no layer of this model is pruned"),
    ("clicktrain", "mlp", "clicktrain cannot train mlp on task digits: this network has no 3x3 convolution"),
    ("clicktrain[warmup=0.9,hard_prune=0.95]", "resnet9[width=0.0625]", "so that these ascend and at least"),
    ("clicktrain[batches=1000]", "resnet9[width=0.0625]", "batches is 1000; the epoch in which patterns"),
    ("ssl[from_trained=dense]", "toy_branching", "ssl[from_trained=dense] cannot train toy_branching"),
    ("scratch[of=prunetrain]", "toy_branching", "prunetrain cannot train toy_branching"),  # its dependency
    ("dense", "toy_nothing", "toy_nothing on task digits: the model returns a NoneType for 2 images, not 2x10 logits"),
    ("dense", "toy_wide", "the model returns 2x11 for 2 images, not 2x10 logits"),
    ("dense", "toy_large", "the forward pass fails on images of 1x16x16: RuntimeError: "),
    ("dense", "toy_none", "toy_none: its function returned NoneType, not a torch.nn.Module"),
    ("dense", "toy_empty", "toy_empty: the model has no parameters to train"),
    ("toy_fussy", "mlp", "in setup: AttributeError: "),
]


@pytest.mark.parametrize(("methods", "model", "expected"), CASES)
def test_what_does_not_fit_together_is_refused_before_anything_is_written(networks, capsys, methods, model, expected):
    before = listing(networks)
    line = ["--plugin", "networks.py", "--methods", f"dense,{methods}", "--model", model, "--task", "digits"]
    assert cli.main([*line, "--preset", "smoke", "--device", "cpu", "--out", "out"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert_one_line(captured.err, expected)
    assert listing(networks) == before


@pytest.mark.usefixtures("networks")
def test_a_network_that_begins_alike_for_all_seeds_is_named(monkeypatch, caplog):
    monkeypatch.setattr(conformance, "check", lambda *arguments: [])
    registry.load_plugin("networks.py")
    rehearse(planned(methods="dense,dense[repeat=1]", models="toy_seeding,mlp"))
    said = "toy_seeding: all seeds begin with the same weights, because the network seeds torch itself or loads its "
    assert [one.partition("weights; intervals")[0] for one in caplog.messages] == [said]
    rehearse(planned(methods="dense", models="toy_seeding", seeds=(0,)))
    assert len(caplog.messages) == 1
    assert cli.main(["check", "dense", "--model", "toy_seeding"]) == 0
    assert cli.main(["check", "dense", "--model", "mlp"]) == 0
    assert len(caplog.messages) == 2
    assert caplog.messages[1].startswith(said)


@pytest.mark.slow
def test_methods_that_a_network_does_not_fit_are_left_out_by_name(networks, capsys, caplog):
    line = ["--plugin", "networks.py", "--model", "mlp", "--task", "digits", "--preset", "smoke"]
    methods = ["--methods", "dense,clicktrain,sdgp,scratch[of=sdgp]"]
    line += ["--device", "cpu", "--epochs", "1"]
    assert cli.main(["plan", *methods, *line, "--skip-unfit", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["method"] for one in found["trials"]] == ["dense"]
    assert [one["method"] for one in found["left_out"]] == ["clicktrain", "sdgp", "scratch[of=sdgp]"]
    assert cli.main(["run", *methods, *line, "--skip-unfit", "--out", "out"]) == 0
    capsys.readouterr()
    wanted = {
        "clicktrain": "this network has no 3x3 convolution after its first layer, and no published list fits it",
        "scratch[of=sdgp]": "it needs a trial of sdgp, which is left out",
    }
    page, html = ((networks / "out" / name).read_text("utf-8") for name in ("report.md", "report.html"))
    assert "## Methods left out" in page
    assert "Methods left out</" in html
    for method, reason in wanted.items():
        assert f"left out: {method} cannot train mlp on task digits: {reason}" in caplog.text
        assert reason in page
    assert cli.main(["--methods", "sdgp", *line, "--skip-unfit", "--out", "other"]) == 2
    assert_one_line(capsys.readouterr().err, "--skip-unfit: no method fits, so that nothing is left")
    assert not (networks / "other").exists()


def suite_of(**changes):
    fields = {"tasks": "digits", "models": "resnet9[width=0.0625]", "preset": "smoke", "seeds": (0, 1)}
    fields |= {"device": "cpu", "dtype": "float32", "data_root": ""}
    return SuiteSpec(**(fields | changes))


def planned(**changes):
    return plan(suite_of(**changes))


def test_what_needs_the_trial_of_a_method_that_is_left_out_is_left_out_too(networks, caplog):
    suite = suite_of(methods="dense,sdgp,scratch[of=sdgp]", models="mlp")
    registry.load_plugin("networks.py")
    trials = plan(suite)
    with pytest.raises(UsageError, match=r"^sdgp cannot train mlp on task digits: no layer") as raised:
        rehearse(trials)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)  # a child process raises it
    unfit = rehearse(trials, skip_unfit=True)
    assert {one.partition("-")[0] for one in unfit} == {"sdgp"}
    assert len(unfit) == 2  # both seeds
    left, others = without(unfit, suite, trials)
    assert [(trial.label, trial.seed) for trial in others] == [("dense", 0), ("dense", 1)]
    assert [(one["method"], one["task"], one["model"]) for one in left.left_out] == [
        ("sdgp", "digits", "mlp"),
        ("scratch[of=sdgp]", "digits", "mlp"),
    ]
    assert left.left_out[1]["reason"] == "it needs a trial of sdgp, which is left out"
    assert "left out: sdgp cannot train mlp on task digits: no layer" in caplog.text
    with pytest.raises(UsageError, match="--skip-unfit: no method fits, so that nothing is left to train"):
        without(unfit, suite, [trial for trial in trials if trial.label != "dense"])


def test_each_combination_is_begun_once_without_compiling_and_all_that_the_suite_brings_fit(monkeypatch):
    begun = []
    original = MethodRunner.__init__
    monkeypatch.setattr(MethodRunner, "__init__", lambda self, *a, **k: begun.append(a[0]) or original(self, *a, **k))
    monkeypatch.setattr(kernels, "prepare", lambda *arguments: pytest.fail("kernels are compiled"))
    rehearse(planned(methods="dense,sdgp,sdgp[n=1],prunetrain,clicktrain,ssl[from_trained=dense],oneshot,scratch"))
    assert len(begun) == 8  # prunetrain once, although other trials depend on it


def test_a_network_that_does_not_suit_the_recipe_is_told_of_another(monkeypatch):
    plain = Digits.recipes["smoke"]
    freezing = dataclasses.replace(plain, freeze=("whiten.bias",), freeze_after=1)
    monkeypatch.setattr(Digits, "paper_recipes", {"plain": PaperRecipe("", plain, "smoke")})
    with pytest.raises(
        UsageError, match=r"'prep.norm.bia', which is no trained parameter; did you mean 'prep.norm.bias'\?$"
    ):
        rehearse(planned(methods="dense", overrides={"freeze": ("prep.norm.bia",), "freeze_after": 1}))
    monkeypatch.setattr(Digits, "recipes", {**Digits.recipes, "smoke": freezing})
    with pytest.raises(UsageError, match=r"names 'whiten.bias', which is no .*; for other networks use --recipe plain"):
        rehearse(planned(methods="dense"))


def test_a_network_that_cannot_process_a_size_of_training_images_is_refused():
    sizes = {"train_sizes": (32, 64), "size_milestones": (0.5,)}
    fields = {"tasks": "imagefolder", "data_root": default_data_root(), "models": "vit_tiny", "seeds": (0,)}
    trials = planned(methods="dense", overrides=sizes, **fields)
    said = "vit_tiny on task imagefolder: the forward pass fails on images of 3x32x32: "
    with pytest.raises(UsageError, match=rf'{said}.*--set "recipe.train_sizes=\(\)" drops the training size 32$'):
        rehearse(trials)


def test_a_network_that_fails_at_every_size_gets_no_hint_about_sizes(monkeypatch):
    fields = {"tasks": "imagefolder", "data_root": default_data_root(), "models": "mlp", "seeds": (0,)}
    trials = planned(methods="dense", overrides={"train_sizes": (64,)}, **fields)
    monkeypatch.setattr("suite.cli.preparation.build_model", lambda *arguments: torch.nn.Linear(1, 1))
    with pytest.raises(UsageError, match="the forward pass fails on images of 3x64x64: ") as caught:
        rehearse(trials)
    assert "train_sizes" not in str(caught.value)


def test_a_method_is_rehearsed_with_the_first_training_images(monkeypatch):
    sizes = []
    original = MethodRunner.__init__
    monkeypatch.setattr(MethodRunner, "__init__", lambda self, *a: sizes.append(a[2]) or original(self, *a))
    fields = {
        "tasks": "imagefolder",
        "data_root": default_data_root(),
        "models": "resnet9[width=0.0625]",
        "seeds": (0,),
    }
    rehearse(planned(methods="dense", overrides={"train_sizes": (32,)}, **fields))
    assert sizes == [32]


def test_sizes_that_a_task_does_not_offer_are_refused(monkeypatch):
    (trial,) = planned(methods="dense", seeds=(0,))
    trial = dataclasses.replace(trial, recipe={**trial.recipe, "train_sizes": (8,)})
    monkeypatch.setattr(Digits, "load", lambda *arguments: Splits(train=None, test=None))
    with pytest.raises(UsageError, match="task digits has images of one size"):
        load_splits(trial)


def test_a_training_on_another_device_is_rehearsed_on_the_cpu():
    trials = [
        dataclasses.replace(trial, device="cuda") for trial in planned(methods="prunetrain[dynamic_batch=device]")
    ]
    rehearse(trials)


def test_trainings_of_few_steps_are_named_once(caplog):
    few, shorter = ({"epochs": epochs, "validation_images": 37} for epochs in (9, 3))
    both = (("dense,sdgp", few), ("dense", shorter))
    rehearse([one for names, fields in both for one in planned(methods=names, preset="quick", overrides=fields)])
    assert caplog.messages == [
        "digits: 1,400 training images in batches of 64 make 189 steps in a trial, which may be too few to learn; use "
        "a smaller --batch-size or more --epochs"
    ]


@pytest.mark.parametrize(("each", "epochs", "named"), [
    (20, 10, ""), (199, 1, "199 steps in a trial"), (1, 199, "199 steps in a trial"),
])  # fmt: skip
def test_fewer_than_200_steps_are_few(each, epochs, named):
    trial = planned(methods="dense", overrides={"epochs": epochs})[0]
    note = few_steps(trial, SimpleNamespace(num_samples=1000, steps_per_epoch=lambda batch_size: each))
    assert bool(note) == bool(named)
    assert named in note


def test_a_short_training_that_is_added_to_a_folder_is_not_named(tmp_path, caplog):
    """A report asks for dense trainings of fewer epochs."""
    trials = planned(methods="dense", preset="quick", overrides={"epochs": 1})
    rehearse_new(trials, tmp_path / "new")
    assert len(caplog.messages) == 1
    caplog.clear()
    (tmp_path / "old" / "trials" / "dense-longer").mkdir(parents=True)
    (tmp_path / "old" / "trials" / "dense-longer" / "trial.json").write_text("{}")
    (tmp_path / "old" / "suite.json").write_text("{}")
    rehearse_new(trials, tmp_path / "old")
    assert caplog.messages == []


def test_the_recipes_of_the_project_and_smoke_tests_have_enough_steps(caplog):
    rehearse([*planned(methods="dense", preset="quick"), *planned(methods="dense", overrides={"epochs": 1})])
    assert caplog.messages == []


def test_layers_are_planned_unless_the_method_has_more_to_do_before():
    class Asks(Method):
        def setup(self, ctx):
            self.planned = []

        def plan(self, name, layer):
            self.planned.append(name)

    class Begins(Asks):
        def begin(self, ctx):
            return pytest.fail("a rehearsal begins nothing")

    for method, planned_layers in ((Asks(), True), (Begins(), False)):
        torch.manual_seed(0)
        model = resnet9(width=0.0625, input_shape=(1, 16, 16))
        apply(model, method, input_shape=(1, 16, 16), num_classes=10, epochs=1, batch_size=4, rehearsal=True)
        assert bool(method.planned) is planned_layers
