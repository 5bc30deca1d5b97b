"""How this process was started: its command line, the folder of the project, and variables that matter."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

FLAG_PREFIXES = (
    *("OMP_", "MKL_", "KMP_", "GOMP_", "ONEDNN_", "DNNL_", "MALLOC_", "TORCH_", "PYTORCH_", "ATEN_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "LD_PRELOAD"),
)
ROOT = Path(__file__).resolve().parents[2]


def command_line() -> str:
    """Return the command line of this process, without the folder that its program is installed in.

    That folder is part of the first argument for `python -m` and for an installed program.
    """
    program = Path(sys.argv[0])
    if program.is_absolute():
        here = Path.cwd()
        program = program.relative_to(here) if program.is_relative_to(here) else Path(program.name)
    return shlex.join([str(program), *sys.argv[1:]])
