"""NVRTC from the package that torch's CUDA builds install, with the names of CuPy's binding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with torch's CUDA builds, and is not here")


class NVRTCError(RuntimeError):
    """Error with the name that CuPy uses."""


def _checked(outcome: tuple[Any, ...]) -> Any:
    error, *values = outcome
    if int(error):
        raise NVRTCError(str(error))
    return values[0] if values else None


def _filled(program: Any, size: Any, fill: Any) -> bytes:
    count = _checked(size(program))
    # NVRTC writes into these bytes. They must not be a single byte, which Python shares between all its users.
    buffer = bytes(count + 2)
    _checked(fill(program, buffer))
    return buffer[:count]


def getVersion() -> tuple[int, int]:
    error, major, minor = nvrtc.nvrtcVersion()
    _checked((error,))
    return major, minor


def createProgram(text: str, name: str, headers: Sequence[str], include_names: Sequence[str]) -> Any:
    assert not headers
    assert not include_names
    return _checked(nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], []))


def addNameExpression(program: Any, name: str) -> None:
    _checked(nvrtc.nvrtcAddNameExpression(program, name.encode()))


def compileProgram(program: Any, options: Sequence[str]) -> None:
    _checked(nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options]))


def getProgramLog(program: Any) -> str:
    return _filled(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0").decode()


def getCUBIN(program: Any) -> bytes:
    return _filled(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)


def getPTX(program: Any) -> str:
    return _filled(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0").decode()


def getLoweredName(program: Any, name: str) -> str:
    return _checked(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode()


def destroyProgram(program: Any) -> None:
    _checked(nvrtc.nvrtcDestroyProgram(program))
