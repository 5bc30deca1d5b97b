"""Tests of control trials: which ones `--controls` adds, in what order, and that they are ordinary trials."""

import dataclasses
import json
from typing import ClassVar, Literal

import pytest
from small_trials import planned, put, spec

from methods.sdgp import SDGP
from suite import registry
from suite.choices import MethodChoice
from suite.cli.options import read_run_options
from suite.cli.preparation import resolve
from suite.method import Method
from suite.recipe import control_epochs
from suite.task import Inputs, PaperRecipe
from suite.trials.controls import control_methods, dense_spec, random_twin
from suite.trials.engines.local import why_skipped
from suite.trials.folder.store import Store
from tasks.digits import RECIPES, Digits
from tasks.paper_recipes import PRUNETRAIN

EPOCHS = RECIPES["smoke"].epochs


def shown(trials):
    return [(trial.seed, trial.label, trial.recipe["epochs"]) for trial in trials]


def choices(text):
    return [MethodChoice.read(one) for one in text.split(";")]


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        (1, []),
        (2, [1]),
        (4, [2, 3]),
        (5, [2, 3, 4]),
        (8, [4, 5, 6, 7]),
        (10, [6, 7, 8, 9]),
        (150, [83, 105, 120, 135]),
        (100_000, [55_000, 70_000, 80_000, 90_000]),
    ],
)
def test_smaller_budgets_are_whole_epochs_and_fewer_than_all(epochs, expected):
    assert control_epochs(epochs) == expected


def test_the_controls_of_a_seed_follow_its_methods():
    trials = planned("clicktrain,sdgp[mode=magnitude],prunetrain", seeds=(0, 1), controls=True)
    seed = [
        ("dense", EPOCHS),
        ("clicktrain", EPOCHS),
        ("sdgp[mode=magnitude]", EPOCHS),
        ("prunetrain", EPOCHS),
        ("dense", 1),
        ("dense", 2),
        ("clicktrain[selection=random]", EPOCHS),
        ("sdgp[mode=random]", EPOCHS),
        ("prunetrain[selection=random]", EPOCHS),
        ("dense[match=prunetrain]", EPOCHS),
        ("dense[repeat=2]", EPOCHS),
    ]
    assert shown(trials) == [(number, *one) for number in (0, 1) for one in seed]
    assert len({trial.hash for trial in trials}) == len(trials)
    for start in (0, len(seed)):
        assert trials[start + 9].depends_on == {"prunetrain": trials[start + 3].trial_id}
        assert [*trials[start + 8].depends_on.values()] == [trials[start + 3].trial_id]


@pytest.fixture
def papers(monkeypatch):
    """Give the task `digits` the recipes of papers."""
    theirs = {"ours": PaperRecipe("Ours", RECIPES["paper"]), "prunetrain": PaperRecipe("PruneTrain", PRUNETRAIN)}
    monkeypatch.setattr(Digits, "paper_recipes", theirs)


@pytest.mark.parametrize(
    "settings",
    [
        {"preset": "quick", "overrides": {"epochs": 7, "batch_size": 32, "learning_rate": 0.3}},
        {"preset": "paper", "recipe": "prunetrain", "overrides": {"epochs": 20, "batch_size": 64}},
        {"preset": "paper", "models": "resnet9[width=0.125],resnet9[width=0.25]", "seeds": (3, 5)},
    ],
)
def test_a_control_is_the_trial_of_the_command_that_names_it(papers, settings):
    trials = planned("sdgp[n=1,mode=magnitude],prunetrain[ratio=0.3]", **settings, controls=True)
    named = "sdgp[n=1,mode=magnitude|random],prunetrain[ratio=0.3],prunetrain[ratio=0.3,selection=random],"
    named += "dense[repeat=2],dense[match=prunetrain[ratio=0.3]]"
    most = max(trial.recipe["epochs"] for trial in trials)
    expected = planned(f"{named},dense", **settings)
    for epochs in control_epochs(most):
        overrides = {"epochs": epochs, **{k: v for k, v in settings.get("overrides", {}).items() if k != "epochs"}}
        expected += planned("dense", **{**settings, "overrides": overrides})
    by_id = {trial.trial_id: trial for trial in expected}
    assert {trial.trial_id: trial for trial in trials} == by_id  # in every field, the source of the recipe included


def test_facts_of_the_methods():
    classes = {name: registry.get("method", name) for name in registry.names("method")}
    shrinking = {name for name, method in classes.items() if method.shrinks_network}
    twins = {name: method.random_twin for name, method in classes.items() if method.random_twin}
    assert shrinking == {"prunetrain", "ssl", "oneshot", "slimming", "earlybird", "gradual_channels"}
    at_random = {"selection": "random"}
    by_mode = {name: {"mode": "random"} for name in ("sdgp", "ssprop", "gmp")}
    others = {"clicktrain": at_random, "rigl": {"grow": "random", "drop": "random"}}
    assert twins == {**by_mode, **others, **dict.fromkeys(shrinking, at_random)}
    assert SDGP(**twins["sdgp"])._rule.mode == "random"


def test_controls_are_shared_between_methods():
    sdgp = "sdgp;sdgp[m=4,mode=magnitude];sdgp[m=4,mode=rescaled];sdgp[n=1,backend=masked];sdgp[n=1,mode=random]"
    found = control_methods(choices(f"{sdgp};clicktrain;prunetrain;prunetrain[gating=false]"), "digits", "smoke")
    assert [*map(str, found)] == [
        "sdgp[mode=random]",
        "sdgp[n=1,mode=random,backend=masked]",
        "clicktrain[selection=random]",
        "prunetrain[selection=random]",
        "dense[match=prunetrain]",
        "dense[repeat=2]",
    ]


def test_a_typed_width_is_trained_for_each_length_and_is_compared_with_dense():
    trials = planned("dense[width=0.5]", controls=True)
    assert [label for _, label, _ in shown(trials)] == [
        "dense", "dense[width=0.5]", "dense", "dense", "dense[width=0.5,recipe.epochs=1]",
        "dense[width=0.5,recipe.epochs=2]", "dense[repeat=2]",
    ]  # fmt: skip
    short = trials[4]
    assert (short.recipe["epochs"], short.replaced) == (1, {"epochs": EPOCHS})
    assert dense_spec(short) == trials[0]


def test_a_twin_differs_in_nothing_else_and_is_not_its_own(caplog):
    class Picky(Method):
        random_twin: ClassVar = {"mode": "random"}

        share: float = 0.5
        mode: Literal["best", "random"] = "best"

        def __post_init__(self):
            super().__post_init__()
            if self.mode == "random" and self.share == 1:
                raise ValueError("share is 1.0; nothing is left to chance")

        @classmethod
        def defaults(cls, task, preset):
            return {"mode": "random"} if preset == "smoke" else {"share": 0.25}

    def twin(preset, **typed):
        return random_twin(MethodChoice("picky", typed, Picky), "digits", preset)

    assert str(twin("quick", share=0.75)) == "picky[share=0.75,mode=random]"
    assert twin("quick").parameters("digits", "quick") == {"share": 0.25, "mode": "random", "ignore": ()}
    assert twin("quick", mode="random") is None
    assert twin("smoke") is None  # the preset selects at random
    with caplog.at_level("INFO"):
        assert twin("quick", share=1.0) is None
    assert "picky[share=1.0] has no random twin" in caplog.text
    assert "nothing is left to chance" in caplog.text


def test_one_line_says_what_is_added(caplog):
    with caplog.at_level("INFO"):
        planned("sdgp,prunetrain", seeds=(0, 1, 2), controls=True)
        planned("dense,dense[repeat=2]", overrides={"epochs": 1}, controls=True)
        planned("dense", overrides={"epochs": 1}, controls=True)
        planned("dense,sdgp")
    few = "digits: %s epochs allow %s lengths of dense training, and a verdict at equal cost needs 4: none can follow"
    assert caplog.messages == [
        "--controls adds 21 trial(s): 9 of dense (1, 2, 2.1 epochs), 3 of sdgp[mode=random] (2.1 epochs), 3 of "
        "prunetrain[selection=random] (2.1 epochs), 3 of dense[match=prunetrain] (2.1 epochs), 3 of dense[repeat=2] "
        "(2.1 epochs)",
        few % (2.1, 3),
        "--controls adds no trials: the command names all of them",
        few % (1, 1),
        "--controls adds 1 trial(s): 1 of dense[repeat=2] (1 epochs)",
        few % (1, 1),
    ]


def test_a_task_of_one_class_warns(monkeypatch, caplog):
    monkeypatch.setattr(Digits, "inputs", lambda *_: Inputs((1, 16, 16), 1))
    planned("dense,sdgp")
    assert caplog.messages == ["digits has one class: accuracy is always 100 %, and comparing means nothing"]


def test_the_flag_goes_from_the_command_line_to_the_folder(suite, folder, caplog):
    assert not resolve(read_run_options(["--device", "cpu", "--dtype", "float32"])).controls
    with caplog.at_level("INFO"):
        assert suite("--controls", "--out", "out") == 0
    line = "--controls adds 3 trial(s): 2 of dense (2, 3 epochs), 1 of dense[repeat=2] (3 epochs)"
    assert caplog.messages.count(line) == 1
    content = json.loads((folder / "out" / "suite.json").read_text())
    assert content["spec"]["controls"] is True
    assert content["commands"][0]["spec"]["controls"] is True
    before = {path.name for path in (folder / "out" / "trials").iterdir()}
    assert len(before) == 4
    # The command that names a control finds it.
    assert suite("--methods", "dense", "--epochs", "2", "--out", "out") == 0
    assert {path.name for path in (folder / "out" / "trials").iterdir()} == before
    assert not json.loads((folder / "out" / "suite.json").read_text())["spec"]["controls"]


def sizes(params, flops):
    return {"params": params, "params_dense": 100, "inference_flops": flops, "inference_flops_dense": 200.0}


@pytest.mark.parametrize(
    ("params", "flops", "control", "skipped"),
    [(90, 200.0, True, False), (100, 180.0, True, False), (100, 200.0, False, False), (100, 200.0, True, True)],
)
def test_a_control_of_a_trial_that_removed_nothing_is_not_trained(tmp_path, params, flops, control, skipped):
    other = spec("dense")
    put(tmp_path, other, "done", result=sizes(params, flops))
    trial = spec("dense[match=prunetrain]")
    trial = dataclasses.replace(trial, depends_on={"prunetrain": other.trial_id}, control=control)
    reason = f"it is a control of {other.trial_id}, which removed nothing" if skipped else ""
    assert why_skipped(trial, Store(tmp_path).trial_folder(trial.trial_id)) == reason


def test_a_twin_of_a_method_that_starts_from_dense_weights_is_trained_if_the_method_removed_something(tmp_path):
    dense, ssl = spec("dense"), spec("dense[repeat=2]")
    put(tmp_path, dense, "done", result=sizes(100, 200.0))
    put(tmp_path, ssl, "done", result=sizes(60, 200.0))
    others = {"dense": dense.trial_id, "ssl": ssl.trial_id}
    trial = dataclasses.replace(spec("dense[match=ssl]"), depends_on=others, control=True)
    assert why_skipped(trial, Store(tmp_path).trial_folder(trial.trial_id)) == ""


@pytest.mark.parametrize(("method", "control"), [
    ("dense", False), ("dense[repeat=2]", True), ("dense[match=prunetrain]", True), ("scratch", True), ("sdgp", False),
    ("sdgp[mode=random]", True), ("clicktrain[selection=random]", True), ("oneshot[selection=random]", True),
])  # fmt: skip
def test_controls_are_marked_whoever_names_them(method, control):
    *_, trial = planned(method)
    assert (trial.control, trial.prunes) == (control, trial.method != "dense")
