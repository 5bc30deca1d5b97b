"""Check which ways of executing a training step are possible on a device and for a method."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
from typing import ClassVar, Protocol

from suite.errors import UsageError


class _Executed(Protocol):
    replayable: ClassVar[bool]

    @classmethod
    def defines(cls, *hooks: str) -> bool: ...


def check_execution(
    execution: str, kind: str, method: type[_Executed], name: str = "this method", processes: int = 1
) -> None:
    """Check that the steps of a method can be executed in the given way on a kind of device.

    Args:
        execution: Value of `recipe.execution`: `eager`, `compile` or `cuda_graph`.
        kind: Kind of device, `cpu` or `cuda`.
        method: Class of the method.
        name: Name of the method for the message.
        processes: Number of processes that train the model together.

    Raises:
        UsageError: if they cannot; the message names the values that are possible.
    """
    if processes > 1 and execution != "eager":
        raise UsageError(
            f"recipe.execution={execution}: the steps of {processes} processes that train one model are eager; take "
            "eager, or one process per trial"
        )
    if execution == "compile":
        if method.defines("branch_factors"):
            raise UsageError(
                f"recipe.execution=compile: {name} leaves out other branches in each step, and each pattern would "
                "have to be compiled; take eager"
            )
        # Compiling the generated code takes a C++ compiler on the CPU, and a compiler of GPU kernels on CUDA.
        compiler = shlex.split(os.environ.get("CXX") or "g++")[0]
        if kind == "cpu" and shutil.which(compiler) is None:
            raise UsageError(f"recipe.execution=compile: no C++ compiler is found ({compiler}); take eager")
        if kind == "cuda" and importlib.util.find_spec("triton") is None:
            raise UsageError("recipe.execution=compile: the package triton is not installed; take eager or cuda_graph")
    if execution == "cuda_graph":
        if kind != "cuda":
            raise UsageError(
                f"recipe.execution=cuda_graph: a CUDA graph needs a CUDA device, not '{kind}'; take eager or compile"
            )
        if not method.replayable:
            raise UsageError(
                f"recipe.execution=cuda_graph: a step of {name} runs Python code that a replay would leave out "
                "(Method.replayable is False); take eager or compile"
            )
