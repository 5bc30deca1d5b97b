"""Parameters of tasks: what a plugin's constructor may declare, and which defaults apply."""

from __future__ import annotations

from typing import Annotated

import pytest
from annotated_types import Ge
from toy_suite import forget_plugins

from suite.choices import TaskChoice
from suite.cli import main as cli
from suite.errors import UsageError
from suite.registry import load_plugin

PLUGIN = '''
from __future__ import annotations
from typing import Annotated, ClassVar
from annotated_types import Ge
from suite.registry import register
from tasks.digits import Digits

@register("task", "own_digits")
class OwnDigits(Digits):
    """Digits."""

    settings: ClassVar = {"smoke": {"size": 7}, "mine": {"size": 9}}

    def __init__(self, *, needed: int | None, size: int = 3, source: Annotated[int, Ge(1)] = 1, flag: bool | int = 1):
        self.values = needed, size, source, flag
'''


@pytest.fixture(autouse=True)
def plugin(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(PLUGIN)
    load_plugin(path)
    yield path
    forget_plugins()


def text(typed: str, *layers: dict[str, int]) -> str:
    return str(TaskChoice.read(f"own_digits[{typed}]").canonical(*layers))


def test_a_value_is_left_out_only_if_it_is_the_default():
    assert text("needed=none,size=3,flag=1") == "own_digits[needed=none]"
    assert text("needed=1,flag=true") == "own_digits[needed=1,flag=true]"
    assert text("needed=1,size=3", {"size": 7}) == "own_digits[needed=1,size=3]"


def test_a_recipe_has_its_settings_or_those_of_its_preset():
    choice = TaskChoice.read("own_digits[needed=1]")
    sizes = [choice.parameters("smoke", recipe)["size"] for recipe in ("", "mine", "other")]
    assert sizes == [7, 9, 7]
    assert TaskChoice.read("imagenet").parameters("paper", "sdgp")["image_size"] == 256


def test_types_are_those_of_the_constructors_module():
    assert TaskChoice.read("own_digits[needed=1]").declared["source"].annotation == Annotated[int, Ge(1)]
    with pytest.raises(UsageError, match="source is 0; allowed: an integer of at least 1"):
        TaskChoice.read("own_digits[needed=1]").build({"needed": 1, "source": 0})


def test_a_task_with_a_required_parameter_is_planned_and_described(plugin, capsys):
    more = ("--plugin", str(plugin))
    assert cli.main(["describe", "smoke", *more]) == 0
    run = ("--methods", "dense", "--preset", "smoke", "--device", "cpu", "--dtype", "float32", *more)
    assert cli.main([*run, "--task", "own_digits"]) == 2
    assert "own_digits needs needed" in capsys.readouterr().err


def test_methods_and_presets_are_described_for_a_task_with_parameters(capsys):
    assert cli.main(["describe", "prunetrain", "--task", "imagenet[image_size=128]"]) == 0
    assert "paper 5" in capsys.readouterr().out
    assert cli.main(["describe", "smoke", "--task", "imagenette[image_size=96]"]) == 0
    assert "imagenette[image_size=96]: model resnet18, image_size 96" in capsys.readouterr().out
