"""Imports follow the declared layers, names in docstrings exist, and a wheel contains everything."""

import ast
import os
import pkgutil
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("suite", "methods", "kernels", "tasks", "reports")


def test_imports_follow_the_declared_layers():
    """The contracts are in pyproject.toml; imports inside functions and under TYPE_CHECKING count.

    The linter runs in a process of its own, because it disables every logger that exists when it is called.
    """
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def python_files():
    return [path for room in (*ROOMS, "benchmarks") for path in sorted((ROOT / room).rglob("*.py"))]


def test_no_import_for_type_checking_between_packages_of_suite():
    """Such an import hides a direction; only modules of the same package may import each other for types."""
    wrong = []
    for path in (ROOT / "suite").rglob("*.py"):
        package = path.parent.relative_to(ROOT).parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
                continue
            for found in ast.walk(ast.Module(node.body, [])):
                if isinstance(found, ast.ImportFrom) and found.module:
                    module = found.module.split(".")
                    if module[0] == "suite" and tuple(module[: len(package)]) != package:
                        wrong.append(f"{path.relative_to(ROOT)}: {found.module}")
    assert not wrong


def test_names_in_docstrings_exist():
    """A module, class or function in backticks is found where its name says."""
    named = re.compile(rf"`({'|'.join(ROOMS)})((?:\.\w+)+)`")
    text = "\n".join(path.read_text(encoding="utf-8") for path in python_files())
    missing = []
    for room, rest in sorted(set(named.findall(text))):
        name = room + rest
        if rest in (".py", ".md", ".json"):  # a file
            continue
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            missing.append(name)
    assert not missing


def test_nothing_in_suite_names_a_method():
    methods = {path.stem for path in (ROOT / "methods").rglob("*.py")} & {"sdgp", "prunetrain", "clicktrain"}
    for path in sorted({*(ROOT / "suite").rglob("*.py")} - {ROOT / "suite/engine/cost/paper_conventions.py"}):
        code = ast.unparse(ast.parse(path.read_text(encoding="utf-8")))  # without comments
        for method in methods:
            assert f"'{method}'" not in code, f"{path.relative_to(ROOT)} has a special case for {method}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    # From a copy of what git knows: a build in the tree would leave its folder there, and pick up an old one.
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if files.returncode:
        pytest.skip("not a git checkout")
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("results/", "tests/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", str(folder), str(source)],
        check=True,
        timeout=280,
    )
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_wheel_holds_sources_templates_and_sample(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    missing = [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and str(path.relative_to(ROOT)) not in held
    ]
    assert not missing


@pytest.mark.slow
def test_installed_wheel_runs_from_a_folder_with_a_tasks_module(wheel, tmp_path):
    """The packages have common names: a `tasks.py` in the user's folder must not be imported instead."""
    environment = tmp_path / "venv"
    venv.create(environment, system_site_packages=False)
    python = environment / "bin" / "python"
    install = ["install", "--no-deps", "--no-index", "--quiet", wheel]
    # pip takes the project for installed if PYTHONPATH contains a checkout with an editable install.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True, env=clean)
    # The dependencies come from this environment, without its own editable copy of the project.
    site = next((environment / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text("\n".join(p for p in sys.path if p.endswith("site-packages")) + "\n")
    user = tmp_path / "user"
    user.mkdir()
    for room in ROOMS:
        (user / f"{room}.py").write_text("raise SystemExit('the user\\'s own module was imported')\n")
    done = subprocess.run(
        [
            *(environment / "bin" / "pdt", "--methods", "dense", "--task", "digits", "--preset", "smoke"),
            *("--model", "resnet9[width=0.0625]", "--device", "cpu", "--dtype", "float32"),
            *("--epochs", "1", "--set", "recipe.train_images=64", "--set", "recipe.test_images=50", "--out", "out"),
        ],
        cwd=user, env=clean, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (user / "out" / "report.html").is_file()
