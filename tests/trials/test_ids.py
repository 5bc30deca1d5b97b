"""Tests of the ids of trials: what they depend on, and what may change in the code without changing them."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from suite import registry
from suite.errors import UsageError
from suite.parameters import declared, resolve, takes_leaves
from suite.recipe import Recipe
from suite.trials import planning
from suite.trials.planning import plan
from suite.trials.spec import SuiteSpec, TrialSpec
from tasks.digits import Digits
from tasks.models.resnet9 import resnet9

DEFAULTS = json.loads(Path(__file__).with_name("declared_defaults.json").read_text())


def planned(tmp_path, methods="dense,sdgp[n=1]", models="resnet9[width=0.25]", **changes):
    fields = {"tasks": "digits", "preset": "smoke", "seeds": (7,), "device": "cpu", "dtype": "float32", **changes}
    return plan(SuiteSpec(methods=methods, models=models, data_root=str(tmp_path), **fields))


def test_ids_are_fixed(tmp_path):
    # Committed results and the folders of users have these ids. They change with the default recipe of the task, and
    # with `method_version`. Any other change of them makes every finished training count as not done.
    assert [trial.trial_id for trial in planned(tmp_path)] == [
        "dense-digits-resnet9-width0.25-s7-fc44795f",
        "sdgp-digits-resnet9-width0.25-s7-f9032cd6",
    ]


def test_a_new_field_a_new_option_and_a_new_name_of_a_class_change_no_id(tmp_path, monkeypatch):
    before = [trial.hash for trial in planned(tmp_path)]
    sdgp = registry.get("method", "sdgp")

    @takes_leaves
    @dataclass(frozen=True, kw_only=True)
    class LongerRecipe(Recipe):
        novel: float = 0.5

    @dataclass(kw_only=True)
    class RenamedMethod(sdgp):
        option: int = 3

    @dataclass
    class RenamedTask(Digits):
        choice: int = 5

        def recipe(self, preset):
            return LongerRecipe(**super().recipe(preset).fields())

    def deeper(num_classes, input_shape, width: float = 1.0, depth: int = 2):
        return resnet9(width=width, num_classes=num_classes, input_shape=input_shape)

    known = {"sdgp": RenamedMethod, "digits": RenamedTask, "resnet9": deeper}
    get = registry.get
    monkeypatch.setattr(registry, "get", lambda kind, name: known.get(name) or get(kind, name))
    monkeypatch.setattr(planning, "Recipe", LongerRecipe)
    after = planned(tmp_path)
    assert after[1].task_parameters == {"choice": 5}
    assert (after[1].parameters["option"], after[1].recipe["novel"], after[1].model_parameters["depth"]) == (3, 0.5, 2)
    assert [trial.hash for trial in after] == before
    assert planned(tmp_path, "sdgp[n=1,option=4]")[0].hash != before[1]
    assert planned(tmp_path, "sdgp[n=1]", overrides={"novel": 0.25})[0].hash != before[1]


def test_a_field_that_becomes_a_parameter_of_the_task_changes_no_id(tmp_path):
    trial = planned(tmp_path, overrides={"flip": False, "label_smoothing": 0.2})[0]
    recipe = dict(trial.recipe)
    moved = {name: recipe.pop(name) for name in ("flip", "translate", "cutout")}
    assert dataclasses.replace(trial, recipe=recipe, task_parameters=moved).hash == trial.hash
    assert dataclasses.replace(trial, recipe=recipe, task_parameters={**moved, "flip": True}).hash != trial.hash


def test_a_typed_default_is_the_default(tmp_path):
    assert planned(tmp_path, "sdgp[m=4,n=1]", "resnet9[width=0.25]")[0].hash == planned(tmp_path, "sdgp[n=1]")[0].hash
    of = "scratch[of=prunetrain],scratch[of=prunetrain[ratio=0.2]],scratch[of=prunetrain[ratio=0.20,threshold=0.05]]"
    assert [trial.method for trial in planned(tmp_path, of)] == ["prunetrain", "scratch"]
    other = planned(tmp_path, "scratch[of=prunetrain[ratio=0.3]]")[1]
    assert other.hash != planned(tmp_path, "scratch")[1].hash
    restored = TrialSpec.from_json(json.loads(json.dumps(planned(tmp_path)[1].to_json())))
    assert restored.hash == planned(tmp_path)[1].hash


def test_a_name_that_two_of_recipe_task_and_model_have_is_refused(tmp_path, monkeypatch):
    def mirrored(num_classes, input_shape, flip: bool = False):
        return resnet9(num_classes=num_classes, input_shape=input_shape)

    get = registry.get
    monkeypatch.setattr(registry, "get", lambda kind, name: mirrored if name == "resnet9" else get(kind, name))
    with pytest.raises(UsageError, match="model resnet9: its parameter 'flip' is a name of the recipe too"):
        planned(tmp_path, models="resnet9")


@pytest.mark.parametrize("name", DEFAULTS)
def test_declared_defaults_stay(name):
    # Ids leave out what has its declared default. Another default would give other trainings the ids of finished ones.
    # Give a method a new `version`, or set the value where a task or preset chooses it.
    kind, _, registered = name.partition(" ")
    thing = Recipe if kind == "recipe" else registry.get(kind, registered)
    now = json.loads(json.dumps(resolve(thing)))
    assert {key: now[key] for key in DEFAULTS[name] if key in declared(thing)} == DEFAULTS[name]
