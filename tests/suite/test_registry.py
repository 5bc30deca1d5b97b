"""Registered names are found without running files; faulty plugins give one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite import registry
from suite.errors import UsageError
from suite.trials.plugin_files import defining_files

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(registry, "_objects", dict(registry._objects))
    monkeypatch.setattr(registry, "_plugin_entries", dict(registry._plugin_entries))


def plugin(tmp_path, text, name="plugin.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_listing_imports_no_torch(started_programs):
    script = (
        "import sys; from suite import registry; [registry.entries(kind) for kind in registry.KINDS];"
        "assert 'local' in registry.names('engine'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_a_plugins_things_are_found_by_name_with_their_summary(tmp_path):
    path = plugin(
        tmp_path,
        "from suite.registry import register\n"
        "KIND = 'model'\nNAME: str = 'toy_registry_model'\n@register(KIND, NAME)\n"
        "def toy(*, width: float = 1.0):\n    '''A toy.\n\n    More.'''\n    return width\n",
        "any name.txt",
    )
    (entry,) = registry.load_plugin(path)
    assert (entry.kind, entry.name, entry.summary) == ("model", "toy_registry_model", "A toy.")
    assert "toy_registry_model" in registry.names("model")
    assert registry.get("model", "toy_registry_model")(width=2.0) == 2.0
    assert registry.load_plugin(path) == [entry]
    assert [item.name for item in tmp_path.iterdir()] == ["any name.txt"]  # no __pycache__


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("print('a program')", "registers nothing"),
        (
            "from suite.registry import register\n@register('model', 'toy_x')\nclass X: pass\n1 / 0\n",
            "ZeroDivisionError",
        ),
        ("from suite.registry import register\n@register('model', 'toy_x')\nclass X: pass\nexit(3)\n", "SystemExit"),
        ("def broken(:", "is not a Python file"),
        ("from suite.registry import register\n@register('engine', 'local')\nclass X: pass\n", "exists already"),
        ("from suite.registry import register\n@register('modle', 'x')\nclass X: pass\n", "did you mean 'model'"),
        ("from suite.registry import register\n", "registers nothing"),
        ("x = 1\0", "is not a Python file"),
    ],
)
def test_a_bad_plugin_is_a_usage_error(tmp_path, text, expected):
    path = plugin(tmp_path, text)
    with pytest.raises(UsageError, match=expected):
        registry.load_plugin(path)
    assert "toy_x" not in registry.names("model")


COLLECTION = (
    "from suite.registry import register_collection\n"
    "@register_collection('model', 'zoo')\n"
    "def zoo():\n    'Animals.'\n    return {name: (lambda name=name: name) for name in ('lion', 'vgg11')}\n"
)


def test_members_of_a_collection_are_typed_with_its_name_and_not_listed(tmp_path):
    before = registry.names("model")
    path = plugin(tmp_path, COLLECTION)
    (entry,) = registry.load_plugin(path)
    assert (entry.name, entry.summary, entry.collection) == ("zoo/", "Animals.", True)
    assert registry.names("model") == before
    assert entry in registry.collections("model")
    assert registry.get("model", "zoo/lion")() == "lion"
    assert registry.get("model", "zoo/vgg11")() == "vgg11"
    assert registry.find("model", "zoo/vgg11") == entry != registry.find("model", "vgg11")
    # The plugin's file defines them, so that its content is part of a trial's hash.
    assert not registry.is_own("model", "zoo/lion")
    assert defining_files(model="zoo/lion")["model"]["path"].endswith("plugin.py")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("model", "zoo/lino", "^no model is called 'zoo/lino'; did you mean 'zoo/lion'\\?$"),
        ("model", "zoo/zebra", "^no model is called 'zoo/zebra'; known: zoo/lion, zoo/vgg11$"),
        ("model", "zoo/", "^no model is called 'zoo/'; known: zoo/lion, zoo/vgg11$"),
        ("model", "zoo", "^no model is called 'zoo'; names with '/' are timm/NAME or torchvision/NAME or zoo/NAME$"),
        (
            "model",
            "zo/lion",
            "^no model is called 'zo/lion'; names with '/' are timm/NAME or torchvision/NAME or zoo/NAME$",
        ),
        ("engine", "zoo/lion", "^no engine is called 'zoo/lion'; known: local, ray$"),
    ],
)
def test_an_unknown_member_of_a_collection(tmp_path, kind, name, message):
    registry.load_plugin(plugin(tmp_path, COLLECTION))
    with pytest.raises(UsageError, match=message):
        registry.get(kind, name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (COLLECTION.replace("'zoo'", "'torchvision'"), "model 'torchvision/' exists already"),
        (COLLECTION.replace("'zoo'", "'a/b'"), "'a/b/' is not a valid name"),
        ("from suite.registry import register\n@register('model', 'zoo/x')\ndef x(): pass\n", "is not a valid name"),
    ],
)
def test_a_bad_collection_is_a_usage_error(tmp_path, text, expected):
    with pytest.raises(UsageError, match=expected):
        registry.load_plugin(plugin(tmp_path, text))


def test_a_collection_of_a_plugin_that_fails_gives_one_line(tmp_path):
    registry.load_plugin(plugin(tmp_path, COLLECTION.replace("return", "import absent_library; return")))
    with pytest.raises(UsageError, match=r"^zoo/lion: ModuleNotFoundError: .*plugin\.py, line 5, in zoo"):
        registry.get("model", "zoo/lion")


def test_a_plugin_may_import_its_neighbours_and_they_hide_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "plugin_neighbour.py").write_text("WIDTH = 3\n")
    (tmp_path / "tasks.py").write_text("raise SystemExit('the neighbour hides a package of the project')\n")
    path = plugin(
        tmp_path,
        "import tasks\nfrom plugin_neighbour import WIDTH\nfrom suite.registry import register\n"
        "@register('model', 'with_neighbour')\ndef with_neighbour():\n    return WIDTH\n",
    )
    registry.load_plugin(path)
    assert registry.get("model", "with_neighbour")() == 3


def test_a_missing_plugin_and_an_unknown_name():
    with pytest.raises(UsageError, match="no such file"):
        registry.load_plugin("nowhere.py")
    with pytest.raises(UsageError, match="did you mean 'local'"):
        registry.get("engine", "locall")


@pytest.mark.parametrize(
    ("file", "program"),
    [
        ("tasks/__init__.py", "from suite.choices import build_model; build_model('resnet9', (3, 32, 32), 10)"),
        ("kernels.py", "from methods.sdgp import SDGP"),
        ("reports/__init__.py", "from suite.cli.main import main; raise SystemExit(main(['list', 'methods']))"),
    ],
)
def test_a_file_of_the_user_that_hides_a_package_is_named_with_ours(file, program, tmp_path, started_programs):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    name, root = file.partition("/")[0].removesuffix(".py"), Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode in (1, 2)
    line = run.stderr.splitlines()[-1]
    assert f"import {name}: {tmp_path / file} hides the suite's own {root / name / '__init__.py'}; rename yours" in line
    if "main" in program:
        assert len(run.stderr.splitlines()) == 1


def test_a_folder_without_code_hides_nothing(tmp_path):
    (tmp_path / "tasks").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    program = "from suite.registry import check_own_packages; check_own_packages()"
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment).returncode == 0
