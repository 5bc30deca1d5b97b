"""The commands of all pages are valid: their trials are planned, or only a folder such as DIR is missing."""

import re
import shlex
from collections import defaultdict
from pathlib import Path

import pytest

from suite.cli import main as cli
from suite.cli.options import read_run_options
from suite.cli.preparation import resolve
from suite.task import DataCopy
from suite.trials.planning import plan

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
START = "python run_suite.py"
COPY = DataCopy("sample", "ab" * 32, num_classes=10)


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
