"""Imports run one way, listing is light, and a wheel holds everything."""

import ast
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("suite", "methods", "kernels", "tasks", "reports", "reproductions")
PACKAGES = ("network", "cost", "training", "runs", "command")  # of suite; what lies beside them a plugin may import
DATA = (
    "suite.errors",
    "suite.files",
    "suite.runs.folder.packed",
    "suite.runs.folder.columns",
)  # no torch, nothing of a trial


def contract(module):
    """Whether a module is of the root of `suite`, or of what methods still need below it."""
    parts = module.split(".")
    return parts[0] == "suite" and (parts[1] not in PACKAGES or module.startswith("suite.network"))


# What each room may import of the others.
MAY = {
    "suite": lambda module: module.split(".")[0] in ("suite", "reports", "reproductions") or module == "kernels",
    "methods": lambda module: module.split(".")[0] in ("methods", "kernels") or contract(module),
    "tasks": lambda module: module.split(".")[0] == "tasks" or contract(module),
    "kernels": lambda module: module.split(".")[0] == "kernels",
    "reports": lambda module: module.split(".")[0] == "reports" or module.startswith(DATA),
    "reproductions": lambda module: (
        module.split(".")[0] in ("reproductions", "reports", "kernels", "suite")
        and not module.startswith(("suite.training", "suite.command"))
    ),
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module in ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_one_way(room):
    wrong = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in (ROOT / room).rglob("*.py")
        for module in imports(path)
        if module.split(".")[0] in (*ROOMS, "run_suite")
        and module not in (*ROOMS, "suite.network", "suite.cost", "suite.runs", "suite.runs.folder")
        and not MAY[room](module)
    ]
    assert not wrong


def test_nothing_in_suite_names_a_method():
    methods = {path.stem for path in (ROOT / "methods").glob("*.py")} & {"sdgp", "prunetrain", "clicktrain"}
    for path in sorted({*(ROOT / "suite").rglob("*.py")} - {ROOT / "suite/cost/paper_conventions.py"}):
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


def test_wheel_holds_sources_templates_and_sample(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    missing = [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and str(path.relative_to(ROOT)) not in held
    ]
    assert not missing


def test_installed_wheel_runs_from_a_folder_with_a_tasks_module(wheel, tmp_path):
    """The rooms' names are common words: a `tasks.py` where the user stands must not be taken for ours."""
    environment = tmp_path / "venv"
    venv.create(environment, system_site_packages=False, with_pip=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", wheel], check=True)
    # The dependencies come from this environment, without its own editable copy of the project.
    site = next((environment / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text("\n".join(p for p in sys.path if p.endswith("site-packages")) + "\n")
    user = tmp_path / "user"
    user.mkdir()
    for room in ROOMS:
        (user / f"{room}.py").write_text("raise SystemExit('the user\\'s own module was imported')\n")
    done = subprocess.run(
        [environment / "bin" / "pdt", "--methods", "sdgp", "--task", "digits", "--preset", "smoke", "--out", "out"],
        cwd=user, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (user / "out" / "report.html").is_file()
