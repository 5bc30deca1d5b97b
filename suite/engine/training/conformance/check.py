"""Run all contracts on a method, and find the line of its code that each failure comes from."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.engine.training.conformance.contracts import CONTRACTS
from suite.engine.training.conformance.subject import MODEL, TASK, Broken, Subject
from suite.method import Method


@dataclass(frozen=True)
class Result:
    """Result of one contract.

    Attributes:
        name: Name of the contract.
        passed: Whether the method satisfies it.
        message: What was measured, or what is wrong.
        place: `FILE:LINE, in FUNCTION` of the method's code that the failure comes from; empty if there is none.
    """

    name: str
    passed: bool
    message: str
    place: str = ""


def check(
    name: str,
    parameters: Mapping[str, Any] | None = None,
    task: str = TASK,
    model: str = MODEL,
    data_root: Path = Path(),
    dtype: str = "float32",
) -> list[Result]:
    """Check a registered method against every contract.

    Args:
        name: Registered name of the method.
        parameters: Values of its parameters; the others have their defaults.
        task: Registered name of the task to train on.
        model: Model to train, written as on the command line; empty for the task's default model.
        data_root: Folder of the data sets.
        dtype: Number format to train in on the CPU: `float32` or `bfloat16`.

    Returns:
        One result per contract, in order.

    Raises:
        UsageError: if method, task or model does not exist, or one of their parameters is wrong.
    """
    subject = Subject(name, parameters, task, model, data_root, dtype)
    subject.method()
    subject.model()
    results: list[Result] = []
    first_with: dict[str, str] = {}  # name of the first contract that failed with an error
    for contract in CONTRACTS:
        result = _examine(contract, subject)
        if not result.passed and result.place + result.message in first_with:
            earlier = first_with[result.place + result.message]
            result = Result(result.name, False, f"not checked, because of the same error as in {earlier}")
        elif not result.passed:
            first_with[result.place + result.message] = result.name
        results.append(result)
    return results


def _examine(contract: Callable[[Subject], str], subject: Subject) -> Result:
    method = type(subject.method())
    try:
        return Result(contract.__name__, True, contract(subject))
    except Broken as broken:
        where = place_of(broken.code or getattr(method, broken.hook, None), method)
        return Result(contract.__name__, False, str(broken), where)
    except Exception as error:  # an error in the method's own code is a result of the check
        message = f"{type(error).__name__}: {error}"
        return Result(contract.__name__, False, message, place_of_error(error, method))


def place_of_error(error: BaseException, method: type[Method]) -> str:
    """Return the innermost line of the method's own files that an exception passed through; empty if none."""
    files = {inspect.getfile(kind) for kind in method.__mro__ if issubclass(kind, Method) and kind is not Method}
    folders = {Path(file).parent for file in files}
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in files]
    near = own or [frame for frame in frames if Path(frame.filename).parent in folders]
    return f"{near[-1].filename}:{near[-1].lineno}, in {near[-1].name}" if near else ""


def place_of(function: Any, method: type[Method]) -> str:
    """Return where a function or transform is defined; if the method only inherits it, where the class is defined."""
    while isinstance(function, functools.partial):
        function = function.func
    if function is not None and not inspect.isroutine(function):
        function = type(function).__call__  # an object with parameters, used as a transform
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    if code is not None and code.co_filename != inspect.getfile(Method):
        return f"{code.co_filename}:{code.co_firstlineno}, in {code.co_name}"
    try:
        return f"{inspect.getfile(method)}:{inspect.getsourcelines(method)[1]}, class {method.__name__}"
    except (OSError, TypeError):  # a class that is defined in an interactive session has no file
        return f"class {method.__name__}"
