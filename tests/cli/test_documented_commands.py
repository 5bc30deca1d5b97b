"""The commands of all pages are valid: their trials are planned, or only a folder such as DIR is missing.

What pages and committed commands type for the recipe gives the recipe that it always gave.
"""

import re
import shlex
from collections import defaultdict
from pathlib import Path

import pytest

from suite.cli import main as cli
from suite.cli.options import read_run_options
from suite.cli.preparation import resolve
from suite.recipe import Recipe
from suite.task import DataCopy
from suite.trials.planning import plan, read_override

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
START = "python run_suite.py"
COPY = DataCopy("sample", "ab" * 32, num_classes=10)


COMMITTED = (*sorted(ROOT.glob("results/**/suite.json")), *sorted(ROOT.glob("benchmarks/*.toml")))
PLACEHOLDERS = ("FIELD=VALUE", "validation_images=N", "learning_rate=CHOSEN")
# Values before the fields of a recipe were grouped. Their types count too, since ids distinguish 1 and 1.0.
GAVE = {
    "batch_size=32": 32, "clip_norm=1": 1.0, "cutmix=1.0": 1.0, "decay_norm_and_bias=false": False, "ema=0.999": 0.999,
    "epochs=12": 12, "epochs=13": 13, "epochs=14": 14, "epochs=19.8": 19.8, "epochs=20": 20, "epochs=30": 30,
    "eval_every=5": 5, "eval_every=7": 7, "evaluate_test=false": False, "execution=compile": "compile",
    "flip_tta=true": True, "freeze=whiten.bias": ("whiten.bias",), "freeze_after=3": 3, "learning_rate=0.0005": 0.0005,
    "learning_rate=0.001": 0.001, "learning_rate=0.229": 0.229, "learning_rate=0.43": 0.43,
    "learning_rate=0.859": 0.859, "learning_rate=0.86": 0.86, "learning_rate=1.5": 1.5, "learning_rate=3": 3.0,
    "learning_rate=3.43": 3.43, "lookahead_steps=5": 5, "micro_batches=1": 1, "mixup=0.8": 0.8,
    "nesterov=false": False, "optimizer=adamw": "adamw",
    "peak_at=0": 0.0, "precise_bn=5000": 5000, "schedule=cosine": "cosine", "six_views=true": True,
    "size_milestones=(0.8,)": (0.8,), "test_images=1000": 1000, "train_images=2560": 2560, "train_images=25000": 25000,
    "train_images=6400": 6400, "train_sizes=(160,192)": (160, 192), "train_sizes=(80)": (80,),
    "validation_images=200": 200, "validation_images=5000": 5000, "warmup_epochs=1": 1.0, "weight_decay=0.05": 0.05,
}  # fmt: skip


def commands():
    """Return the commands of all pages as words, without those of a plugin, which the tests of its page run."""
    found = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ").replace("\\|", "|")
        for command in re.findall(rf"{START}((?: [^`\n&]+)?)(?:`|\n| &)", text):
            words = shlex.split(command)
            if "--plugin" not in words and not {"FILE", "NAME", "..."} & {*words}:
                found.setdefault(" ".join(words), (page.name, words))
    return list(found.values())


COMMANDS = commands()


def test_there_are_commands():
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else "_")
def test_a_command_is_valid(page, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "pictures").mkdir()
    words = [word.replace("~", str(tmp_path)).replace("/shared", str(tmp_path)) for word in words]
    verb = words[0] if words and words[0] in cli.VERBS else "run"
    if verb in ("run", "plan", "tune"):
        options = [word for word in words if word != verb]
        if "--budget" in options:
            place = options.index("--budget")
            del options[place : place + 2]
        suite = resolve(read_run_options(["--methods", *options] if verb == "tune" else options))
        assert plan(suite, defaultdict(lambda: COPY))
    elif verb in ("list", "describe"):
        assert cli.main(words) == 0
    elif verb == "reproduce":
        assert cli.main(["describe", words[1]]) == 0
    else:
        assert cli.main(words) == 2
        assert re.search(r"no suite\.json|no such folder|does not exist", capsys.readouterr().err)


def typed_for_recipes():
    """Return what is typed for a recipe at once, in a code span or a line of a page or a committed command."""
    found = {}
    for page in (*PAGES, *COMMITTED):
        for part in re.split(r"[`\n]", page.read_text(encoding="utf-8").replace("\\\n", " ")):
            texts = re.findall(r"recipe\.(\w+=(?:\([^)]*\)|[^\s,;\]\"'`\\]+))", part)
            if texts := tuple(text for text in texts if text not in PLACEHOLDERS):
                found[texts] = None
    return list(found)


@pytest.mark.parametrize("texts", typed_for_recipes(), ids=" ".join)
def test_what_is_typed_for_a_recipe_gives_the_recipe_that_it_gave(texts):
    values = dict(read_override(f"recipe.{text}") for text in texts)
    before = Recipe(epochs=100, batch_size=64, learning_rate=0.1, nesterov="optimizer=adamw" not in texts)
    assert before.changed(**values).fields() == {**before.fields(), **values}
    for text in {*texts} & {*GAVE}:
        assert repr(read_override(f"recipe.{text}")[1]) == repr(GAVE[text])
