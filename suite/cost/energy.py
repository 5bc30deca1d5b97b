"""Counters of energy: RAPL of the CPU's packages (Linux), and NVML of a GPU.

RAPL counts the energy of a whole package: all programs, all cores and caches. NVML counts that of a whole GPU. Neither
contains main memory, fans or power supplies.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from pathlib import Path

import torch

POWERCAP = Path("/sys/class/powercap")
POLL_S = 20.0
"""Seconds between readings of a RAPL counter, which may wrap around within minutes."""
_PACKAGE = re.compile(
    r"intel-rapl:[0-9]+"
)  # not intel-rapl:0:0 (cores, memory) or intel-rapl-mmio:0 (the same package)


class NoCounter(Exception):
    """The energy of a device cannot be read; the message is the reason."""


class RaplPackage:
    """Energy counter of one CPU package, which wraps around.

    Args:
        folder: Folder of the package in `POWERCAP`.

    Raises:
        OSError, ValueError: The counter cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "energy_uj"
        self._range = int((folder / "max_energy_range_uj").read_text())
        if self._range < 1:
            raise ValueError(f"{folder.name} has the range {self._range}")
        self._last = self._read()
        self._total = 0

    def _read(self) -> int:
        return int(self._counter.read_text())

    def microjoules(self) -> int:
        """Return the energy since the counter was opened; call it at least once per range of the counter."""
        now = self._read()
        # The largest value is the range itself, so that the counter has one value more.
        self._total += (now - self._last) % (self._range + 1)
        self._last = now
        return self._total


class EnergyCounter:
    """Energy of a device since the counter was opened.

    Attributes:
        source: What is counted, in words.
    """

    def __init__(self, source: str, joules: Callable[[], float], poll_s: float | None = None) -> None:
        self.source = source
        self._joules = joules
        self._lock = threading.Lock()
        if poll_s is not None:
            self._stop = threading.Event()
            threading.Thread(target=self._poll, args=(poll_s,), name="energy", daemon=True).start()

    def joules(self) -> float:
        """Return the energy since the counter was opened, in joules."""
        with self._lock:
            return self._joules()

    def _poll(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            self.joules()


def open_counter(device: torch.device) -> EnergyCounter:
    """Return the counter of a GPU, or of the CPU's packages.

    Raises:
        NoCounter: There is none, or it cannot be read.
    """
    return open_nvml(device) if device.type == "cuda" else open_rapl()


def open_rapl(powercap: Path = POWERCAP, poll_s: float = POLL_S) -> EnergyCounter:
    """Return the counter of all CPU packages. A background thread reads it, so that no wrap-around is missed.

    Args:
        powercap: Folder of the kernel's power capping framework.
        poll_s: Seconds between readings.

    Raises:
        NoCounter: There is none, or this user may not read it.
    """
    folders = sorted(path for path in powercap.glob("intel-rapl:*") if _PACKAGE.fullmatch(path.name))
    try:
        names = {folder: (folder / "name").read_text().strip() for folder in folders}
        names = {folder: name for folder, name in names.items() if name.startswith("package")}  # not psys
        packages = [RaplPackage(folder) for folder in names]
    except PermissionError:
        raise NoCounter(f"RAPL: only root may read {powercap}/intel-rapl:*/energy_uj") from None
    except (OSError, ValueError) as error:
        raise NoCounter(f"RAPL: {error}") from error
    if not packages:
        raise NoCounter(f"RAPL: {powercap} has no intel-rapl package")
    source = f"RAPL, {' and '.join(names.values())}: the whole package, other programs included"
    return EnergyCounter(source, lambda: sum(package.microjoules() for package in packages) / 1e6, poll_s)


def open_nvml(device: torch.device, load: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> EnergyCounter:
    """Return the counter of a GPU, `nvmlDeviceGetTotalEnergyConsumption` (since Volta).

    Args:
        device: The GPU.
        load: Function that opens a shared library.

    Raises:
        NoCounter: The library or the counter does not exist.
    """
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    try:
        nvml = load("libnvidia-ml.so.1")
    except OSError as error:
        raise NoCounter(f"NVML: {error}") from error
    handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()

    def call(name: str, *arguments: object) -> None:
        if status := getattr(nvml, name)(*arguments):
            raise NoCounter(f"NVML: {name} returned {status}")

    call("nvmlInit_v2")
    call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(handle))

    def read() -> int:
        call("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(millijoules))
        return millijoules.value

    began = read()
    return EnergyCounter(f"NVML, {uuid}: the whole GPU", lambda: (read() - began) / 1e3)
