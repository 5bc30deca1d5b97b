"""Facts about the machine that `on_gpu.sh` runs on.

python -m benchmarks.evidence.machine_facts --line         print the commit and the missing modules and tools
python -m benchmarks.evidence.machine_facts --tool NAME    print the path of a CUDA tool, or its name if it is not found
python -m benchmarks.evidence.machine_facts FILE           write GPU, driver, versions and commit as JSON

The exit status is 2 if FILE is requested on a machine without a GPU.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

MODULES = (
    *("torch", "torchvision", "numpy", "scipy", "pandas", "matplotlib", "jinja2", "rich"),
    *("psutil", "pydantic", "annotated_types", "filelock", "docstring_parser"),
    *("pytest", "pytest_timeout", "xdist", "hypothesis", "pytest_benchmark", "cupy"),
)
TOOLS = ("nvcc", "compute-sanitizer")
CUDA_TOOLS = Path("/usr/local/cuda/bin")


def missing() -> list[str]:
    """Return the modules and tools that are not installed, without importing or running them."""
    modules = [name for name in MODULES if importlib.util.find_spec(name) is None]
    return modules + [name for name in TOOLS if tool(name) is None]


def commit() -> str:
    """Return the first 12 digits of the commit, with `-changed` if there are uncommitted changes; or `unknown`."""
    from suite.runs.provenance import ROOT, _git

    found = _git(ROOT)
    return found["commit"][:12] + ("-changed" if found["dirty"] else "") if found else "unknown"


def tool(name: str) -> str | None:
    """Return the path of a tool of the CUDA toolkit, from PATH or the toolkit's default folder."""
    return shutil.which(name) or shutil.which(name, path=str(CUDA_TOOLS))


def version(name: str) -> str:
    """Return the line of `--version` that has the release; empty if the tool is not installed."""
    found = tool(name)
    if found is None:
        return ""
    done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60, check=False)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return next((line for line in lines if "release" in line or "Version" in line), lines[0] if lines else "")


def main() -> int:
    """Run the form that the command line names."""
    match sys.argv[1:]:
        case ["--line"]:
            print(commit(), *missing())
            return 0
        case ["--tool", name]:
            print(tool(name) or name)
            return 0
        case [name] if not name.startswith("-"):
            return write(Path(name))
    print("machine_facts: error: expected --line, --tool NAME, or an output file", file=sys.stderr)
    return 2


def write(path: Path) -> int:
    """Write the facts about the machine; return 2 if torch is missing or finds no GPU, otherwise 0."""
    if "torch" in missing():
        print(f"machine_facts: error: {sys.executable} has no torch", file=sys.stderr)
        return 2
    import torch

    from suite.runs.provenance import collect

    if not torch.cuda.is_available():
        print(f"machine_facts: error: torch {torch.__version__} finds no CUDA GPU", file=sys.stderr)
        return 2
    facts = {**collect("cuda"), "missing": missing(), "tools": {name: version(name) for name in TOOLS}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
