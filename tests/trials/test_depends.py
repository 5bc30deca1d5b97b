"""Tests of trials that depend on others, which are added, run first, and whose results are available."""

import dataclasses
import json

import pandas as pd
import pytest
import torch
from small_trials import planned
from toy_suite import starts
from trials_here import let_run_here

from methods.dense import Dense
from methods.prunetrain.scratch import Scratch
from suite.checkpoint import load_model
from suite.cli import main as cli
from suite.engine.cost.flops import count_model
from suite.errors import UsageError
from suite.method import Method, OtherTrial, ReconfigPlan
from suite.ops import apply
from suite.trials.spec import TrialSpec
from tasks.models.resnet9 import resnet9

AFTER = """
from suite.method import Method
from suite.registry import register

@register("method", "after_toy")
class After(Method):
    '''A method for tests.'''
    source = "nowhere"
    of: str = "toy_method"
    n: int = 1

    def depends_on(self):
        return (self.of,)
"""
SHAPE = (3, 16, 16)


def test_a_dependency_is_planned_first_and_once():
    trials = planned("scratch,dense[match=prunetrain],prunetrain,dense", seeds=(0, 1))
    labels = ["dense", "prunetrain", "scratch", "dense[match=prunetrain]"]
    assert [(trial.seed, trial.label) for trial in trials] == [(seed, label) for seed in (0, 1) for label in labels]
    for start in (0, 4):
        other = trials[start + 1].trial_id
        assert trials[start + 2].depends_on == trials[start + 3].depends_on == {"prunetrain": other}
        assert not trials[start].depends_on


def test_it_is_the_one_with_the_parameters_that_were_typed():
    other, scratch = planned("scratch[of=prunetrain[ratio=0.3,interval=2]]")
    assert (other.parameters["ratio"], other.parameters["interval"]) == (0.3, 2)
    assert scratch.depends_on == {"prunetrain[ratio=0.3,interval=2]": other.trial_id}
    first, second, third = planned("scratch[of=scratch[of=prunetrain]]")
    assert [trial.method for trial in (first, second, third)] == ["prunetrain", "scratch", "scratch"]
    assert third.depends_on == {"scratch[of=prunetrain]": second.trial_id}


def test_what_determines_the_other_trial_determines_this_one():
    first, second = (planned("scratch", overrides={"epochs": epochs})[-1] for epochs in (4, 5))
    assert first.depends_on != second.depends_on
    data = first.to_json()
    assert TrialSpec.from_json(json.loads(json.dumps(data))) == first
    assert TrialSpec.from_json(data | {"depends_on": second.depends_on}).hash != first.hash


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        (
            "scratch[of=prunetrian]",
            r" depends on 'prunetrian': no method is called 'prunetrian'; did you mean 'prunetrain'",
        ),
        ("scratch[of=prunetrain[ratio=2]]", r"depends on 'prunetrain\[ratio=2\]': .*ratio is '2'; allowed"),
        ("scratch[of=sdgp[mode=random|magnitude]]", "expected one, not a grid of 2"),
        ("dense[match=dense,match=sdgp]", "match is given twice"),
    ],
)
def test_what_cannot_be_depended_on_is_one_line(methods, expected):
    with pytest.raises(UsageError, match=expected) as raised:
        planned(methods)
    assert "\n" not in str(raised.value)


def test_an_execution_that_the_other_trial_does_not_allow_is_found(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError, match="a step of prunetrain runs Python"):
        planned("scratch", device="cuda", overrides={"execution": "cuda_graph"})


def test_a_trial_whose_other_failed_is_skipped(suite, folder, capsys):
    (folder / "after.py").write_text(AFTER)
    methods = "after_toy[of=toy_method[n=3]],after_toy[of=toy_method[n=2]]"
    assert suite("--plugin", "after.py", "--methods", methods, "--out", "out", "--jobs", "2") == 1
    records = [json.loads(path.read_text()) for path in (folder / "out").glob("trials/*/trial.json")]
    statuses = {(record["spec"]["method"], record["spec"]["variant"]): record["status"] for record in records}
    assert statuses == {
        ("toy_method", "n=3"): "error",
        ("toy_method", "n=2"): "done",
        ("after_toy", "of=toy_method[n=3]"): "skipped",
        ("after_toy", "of=toy_method[n=2]"): "done",
    }
    (skipped,) = (record for record in records if record["status"] == "skipped")
    (other,) = skipped["spec"]["depends_on"].values()
    assert skipped["message"] == f"it depends on {other}, which is not done"
    assert f"skipped: it depends on {other}" in capsys.readouterr().out
    assert starts(folder / "out") == [1, 1, 1]
    began = {path.parent.name: path.stat().st_mtime_ns for path in (folder / "out").glob("trials/*/starts")}
    for record in records:
        for before in record["spec"]["depends_on"].values():
            if record["status"] == "done":
                name = TrialSpec.from_json(record["spec"]).trial_id
                assert began[name] > began[before]


def test_scratch_and_matched_dense_train_what_prunetrain_left(folder, monkeypatch):
    let_run_here(monkeypatch)
    arguments = ["--task", "digits", "--preset", "smoke", "--device", "cpu", "--dtype", "float32", "--out", "out"]
    arguments += ["--set", "recipe.train_images=96", "--set", "recipe.test_images=32"]
    arguments += ["--batch-size", "32", "--epochs", "3", "--model", "resnet9[width=0.0625]"]
    other = "prunetrain[ratio=0.8]"
    assert cli.main(["--methods", f"scratch[of={other}],dense[match={other}]", *arguments]) == 0
    table = pd.read_csv(folder / "out" / "results.csv").set_index("method")
    pruned, scratch, dense = (table.loc[method] for method in ("prunetrain", "scratch", "dense"))
    assert pruned["params"] < pruned["params_dense"]
    for column in ("params", "inference_flops"):
        assert scratch[column] == pruned[column]
    assert 0.8 * pruned["inference_flops"] < dense["inference_flops"] <= pruned["inference_flops"]
    for column in ("params_dense", "train_flops_dense", "inference_flops_dense"):
        assert scratch[column] == dense[column] == pruned[column]
    assert scratch["train_flops_current"] < pruned["train_flops_current"]  # smaller from its first step
    models = {path.name.split("-")[0]: load_model(path / "model.pt") for path in (folder / "out" / "trials").iterdir()}
    shapes = [
        {name: tensor.shape for name, tensor in models[name].state_dict().items()} for name in ("scratch", "prunetrain")
    ]
    assert shapes[0] == shapes[1]
    assert any(
        not torch.equal(one, other)
        for one, other in zip(models["scratch"].parameters(), models["prunetrain"].parameters(), strict=True)
    )


def begun(method, others):
    torch.manual_seed(0)
    model = resnet9(width=1 / 16)
    context = {"input_shape": SHAPE, "num_classes": 10, "epochs": 2, "batch_size": 4}
    return apply(model, method, others=others, **context)


def test_scratch_has_all_that_was_cut_in_several_reconfigurations():
    plans = (
        ReconfigPlan(kept={"down.conv": [0, 1, 5, 7], "residual1.branch.block1.conv": [2, 3]}),
        ReconfigPlan(kept={"down.conv": [1, 7]}, removed_branches=("residual1.branch",)),
    )
    grown = (plans[0], dataclasses.replace(plans[1], batch_size=64, lr_scale=2.0))
    hooks = begun(Scratch(), {"prunetrain": OtherTrial(grown, 1.0)})
    assert hooks.ctx.batch_size == 4
    assert hooks.ctx.spaces["down.conv"].original == [1, 7]
    assert "residual1.branch" not in hooks.ctx.spaces.removable_branches
    assert hooks.reconfigurations == list(plans)
    assert hooks.model(torch.randn(2, *SHAPE)).shape == (2, 10)
    assert not begun(Scratch(), {"prunetrain": OtherTrial((), 1.0)}).reconfigurations


@pytest.mark.parametrize("share", [0.5, 1e-9])
def test_matched_dense_is_the_widest_that_costs_no_more(share):
    whole = count_model(resnet9(width=1 / 16), SHAPE)["inference_flops"]
    hooks = begun(Dense(match="prunetrain"), {"prunetrain": OtherTrial((), share * whole)})
    found = count_model(hooks.model, SHAPE)["inference_flops"]
    widths = {name: space.size for name, space in hooks.ctx.spaces.items() if not space.frozen}
    if share == 1e-9:  # no network is that narrow
        assert set(widths.values()) == {1}
    else:
        assert found <= share * whole
    # Each space keeps the same share of its channels, up to one channel.
    full = {name: space.size for name, space in begun(Dense(), {}).ctx.spaces.items()}
    shares = [count / full[name] for name, count in widths.items()]
    assert max(shares) - min(shares) < 1 / 8
    assert found > share * whole * 0.6 or share == 1e-9


def test_a_resumed_trial_begins_with_the_same_network():
    plans = (ReconfigPlan(kept={"down.conv": [0, 1, 5]}),)
    saved = begun(Scratch(), {"prunetrain": OtherTrial(plans, 1.0)}).reconfigurations
    later = ReconfigPlan(kept={"down.conv": [1, 5]})
    hooks = begun(Scratch(), {"prunetrain": OtherTrial(plans, 1.0)})
    hooks.replay([*saved, later])
    assert hooks.ctx.spaces["down.conv"].original == [1, 5]
    assert hooks.reconfigurations == [*plans, later]
    other = begun(Scratch(), {"prunetrain": OtherTrial((ReconfigPlan(kept={"down.conv": [0, 2]}),), 1.0)})
    with pytest.raises(UsageError, match="began with another network"):
        other.replay(saved)


def test_a_method_begins_with_another_network_and_nothing_else():
    class Hurries(Method):
        def begin(self, ctx):
            return [ReconfigPlan(batch_size=8)]

    with pytest.raises(ValueError, match=r"Hurries\.begin may change only the network"):
        begun(Hurries(), {})


def test_a_loop_of_ones_own_has_to_name_the_other_trial():
    with pytest.raises(UsageError, match="Scratch depends on a trial of 'prunetrain'; pass its result in others="):
        begun(Scratch(), {})
