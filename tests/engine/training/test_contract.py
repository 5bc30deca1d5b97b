"""What the contract refuses when a class is defined, what asks for new plans, and where a failed check points to."""

import importlib
from typing import Annotated, Any, ClassVar, Literal

import pytest
import torch
from annotated_types import Ge
from small_training import fitted

from suite import registry
from suite.cli.main import main
from suite.engine.training.conformance import Broken, Subject, check
from suite.engine.training.conformance.check import place_of, place_of_error
from suite.engine.training.conformance.contracts import leaves_the_rest_alone
from suite.errors import UsageError
from suite.method import Method, OpPlan

REFUSED = {
    "ratio without a type": ({"ratio": 0.5}, {}, r"Wrong\.ratio has no type annotation.*'ratio: float = 0\.5'"),
    "private state": ({"_masks": None}, {"_masks": int}, r"Wrong\._masks is annotated.*self\._masks"),
    "state of a type that cannot be typed": ({"masks": None}, {"masks": dict | None}, r"of type dict \| None"),
    "the parameter of every method": ({"ignore": ""}, {"ignore": str}, r"Wrong\.ignore would replace Method\.ignore"),
    "a tensor": ({}, {"mask": torch.Tensor}, r"Wrong\.mask is annotated.*Tensor"),
    "a parameter named like a hook": (
        {"begin": 0.1},
        {"begin": float},
        r"Wrong\.begin would replace Method\.begin; rename it",
    ),
    "a value in place of a hook": ({"density": 0.5}, {}, r"Wrong\.density would replace Method\.density; rename it$"),
    "a constant of the contract as a parameter": (
        {"version": 2},
        {"version": int},
        r"Wrong\.version would replace Method\.version; .* ClassVar",
    ),
    "too few arguments": (
        {"overhead": lambda self, name, samples: 1.0},
        {},
        r"overhead\(self, name, samples\) has other arguments than the hook overhead\(self, name, samples, ctx\)",
    ),
    **{
        f"{name} in place of {hook}": (
            {name: method},
            {},
            rf"Wrong\.{name} is not a hook; did you mean '{hook}'\? A helper may be called _{name}",
        )
        for name, hook, method in (
            ("on_epoch_ends", "on_epoch_end", lambda self, ctx: None),
            ("regularisation", "regularization", lambda self, model, ctx: None),
            ("set_up", "setup", lambda self, ctx: None),
        )
    },
}
ALLOWED = {
    "parameters": (
        {"a": 1, "b": None, "c": "x", "d": (1.0,), "e": 2},
        {"a": int, "b": float | None, "c": Literal["x"], "d": tuple[float, ...], "e": Annotated[int, Ge(1)]},
    ),
    "constants": ({"table": {}, "replayable": True}, {"table": ClassVar[dict[str, Any]]}),
    "members": ({"hook": lambda self: 1, "size": property(lambda self: 2), "Part": type("Part", (), {})}, {}),
    "helpers with other arguments than the hook": (
        {
            "plans": lambda self: [],
            "plan_layer": lambda self, name, layer: None,
            "density_of": lambda self, name: 1.0,
            "overhead_of": lambda self, count: 0.0,
        },
        {},
    ),
    "helpers that a hook calls": (
        {
            "setup": lambda self, ctx: [self.setup_masks(ctx) for _ in range(2)],
            "setup_masks": lambda self, ctx: None,
        },
        {},
    ),
    "private helpers": ({"_on_epoch_ends": lambda self, ctx: None}, {}),
    "hooks with other names or more arguments": (
        {"plan": lambda self, layer_name, module, extra=0: None, "record": lambda self, *arguments: {}},
        {},
    ),
    "a constant of the contract": ({"version": 2}, {}),
    "facts about parameters": (
        {"n": 2, "shrinks_network": True, "random_twin": {"n": 1}},
        {"n": int},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_attribute_that_is_silently_no_parameter_or_silently_one_is_refused(case):
    values, annotations, message = REFUSED[case]
    with pytest.raises(TypeError, match=message):
        type("Wrong", (Method,), {**values, "__annotations__": annotations})


@pytest.mark.parametrize("case", ALLOWED)
def test_parameters_constants_and_members_are_accepted(case):
    values, annotations = ALLOWED[case]
    assert type("Right", (Method,), {**values, "__annotations__": annotations})


def test_a_model_that_cannot_be_built_is_an_error_of_the_command_and_not_of_the_method():
    with pytest.raises(UsageError, match=r"^resnet9\[width=-1.*\]: "):
        check("dense", model="resnet9[width=-1]")


def test_layers_are_planned_at_the_end_of_the_step_or_epoch_that_asks_for_it():
    planned = []

    class Asks(Method):
        def plan(self, name, layer):
            if name == "0":
                planned.append((self.ctx.step, self.ctx.epochs_done))

        def setup(self, ctx):
            self.ctx = ctx
            ctx.replan()  # every layer is planned after `setup` anyway

        def before_optimizer_step(self, ctx):
            if ctx.step in (1, 2):
                ctx.replan()

        def on_epoch_end(self, ctx):
            if ctx.epochs_done == 2:
                ctx.replan()

    trainer, _ = fitted(Asks())
    assert planned == [(0, 0), (2, 0), (3, 0), (8, 2)]
    assert trainer.runner.plans_made == 4


def halve(grad, site):
    return grad / 2


class Transform:
    def __call__(self, grad, site):
        return grad


class Places(Method):
    def density(self, name, ctx):
        return super().density(name, ctx)


def test_a_place_is_the_line_of_the_function_or_of_the_class():
    for found, line in (
        (place_of(halve, Places), halve.__code__.co_firstlineno),
        (place_of(Transform(), Places), Transform.__call__.__code__.co_firstlineno),
        (place_of(Places.density, Places), Places.density.__code__.co_firstlineno),
    ):
        assert found.startswith(f"{__file__}:{line}, in ")
    assert place_of(Places.plan, Places).startswith(__file__)  # inherited: the class
    assert place_of(Places.plan, Places).endswith(", class Places")


SMALL = "resnet9[width=0.0625]"
METHOD = ("method", "raises_in_setup")
PLUGIN = """
from suite.method import Method
from suite.registry import register


@register("method", "raises_in_setup")
class Raises(Method):
    def setup(self, ctx):
        self.widths = {name: layer.widht for name, layer in ctx.layers.items()}
"""


def test_an_error_is_shown_once_with_its_line(tmp_path, capsys, monkeypatch):
    path = tmp_path / "raises.py"
    path.write_text(PLUGIN)
    for table, key in (("_objects", METHOD), ("_plugin_entries", METHOD), ("_plugin_sources", str(path))):
        monkeypatch.setitem(getattr(registry, table), key, None)  # so that it is forgotten after the test
        del getattr(registry, table)[key]
    assert main(["check", "raises_in_setup", "--plugin", str(path), "--task", "digits", "--model", SMALL]) == 1
    out = capsys.readouterr().out
    assert out.count("has no attribute 'widht'") == 1
    assert out.count(f"{path}:9, in ") == 1
    assert out.count("not checked, because of the same error as in trains") == 9  # all but `replays`


def test_a_method_may_mask_weights_before_the_first_step_but_not_scale_them(monkeypatch):
    def method(change):
        def setup(self, ctx):
            for layer in ctx.layers.values():
                change(layer.weight.data)

        return type("Changes", (Method,), {"setup": setup, "plan": lambda self, name, layer: OpPlan()})

    monkeypatch.setitem(registry._objects, ("method", "changes"), method(lambda weight: weight[0].zero_()))
    assert "set to zero" in leaves_the_rest_alone(Subject("changes", model=SMALL))
    monkeypatch.setitem(registry._objects, ("method", "changes"), method(lambda weight: weight[0].mul_(0.5)))
    with pytest.raises(Broken, match="changed before the first step"):
        leaves_the_rest_alone(Subject("changes", model=SMALL))


def test_an_error_is_placed_in_the_method_s_file_or_in_one_beside_it(tmp_path, monkeypatch):
    (tmp_path / "helper_of_method.py").write_text("def fail():\n    raise ValueError\n")
    text = "from helper_of_method import fail\nfrom suite.method import Method\n\n\nclass Fails(Method):\n"
    (tmp_path / "failing_method.py").write_text(text + "    def setup(self, ctx):\n        fail()\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("failing_method")
    places = []
    for function in (lambda: module.Fails().setup(None), module.fail, lambda: int("x")):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            function()
        places.append(place_of_error(caught.value, module.Fails))
    beside = f"{tmp_path / 'helper_of_method.py'}:2, in fail"
    assert places == [f"{tmp_path / 'failing_method.py'}:7, in setup", beside, ""]
