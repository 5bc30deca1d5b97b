"""What `on_gpu.sh` asks of the machine that it runs on.

python benchmarks/machine_facts.py --missing      names of modules that are not there, on one line
python benchmarks/machine_facts.py FILE           GPU, driver, versions and commit as JSON; status 2 without a GPU
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

MODULES = (
    *("torch", "torchvision", "numpy", "scipy", "pandas", "matplotlib", "seaborn", "pyarrow", "jinja2", "rich"),
    *("sklearn", "psutil", "pytest", "pytest_timeout", "hypothesis", "pytest_benchmark", "cupy"),
)
TOOLS = ("nvcc", "compute-sanitizer")
CUDA_TOOLS = Path("/usr/local/cuda/bin")


def missing() -> list[str]:
    """The modules of `MODULES` that cannot be imported, by looking for them and no more."""
    return [name for name in MODULES if importlib.util.find_spec(name) is None]


def tool(name: str) -> str | None:
    """Where a tool of the CUDA toolkit lies: on the PATH, or where the toolkit is installed by default."""
    return shutil.which(name) or shutil.which(name, path=str(CUDA_TOOLS))


def version(name: str) -> str:
    """The line of `--version` that has a number of a release; empty where the tool is not there."""
    found = tool(name)
    if found is None:
        return ""
    done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60, check=False)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return next((line for line in lines if "release" in line or "Version" in line), lines[0] if lines else "")


def main() -> int:
    """Do the one or the other."""
    if len(sys.argv) != 2:
        print("machine_facts: error: expected --missing, or a file to write", file=sys.stderr)
        return 2
    if sys.argv[1] == "--missing":
        print(" ".join(missing()))
        return 0
    import torch

    from suite.provenance import collect

    if not torch.cuda.is_available():
        print(f"machine_facts: error: torch {torch.__version__} sees no CUDA GPU", file=sys.stderr)
        return 2
    facts = {**collect("cuda"), "missing_modules": missing(), "tools": {name: version(name) for name in TOOLS}}
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    Path(sys.argv[1]).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
