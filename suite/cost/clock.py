"""Measured cost: seconds and joules of one trial by activity, summed over its attempts.

Energy is counted by RAPL of the CPU's packages (Linux), which counts a whole package: all programs, all cores and
caches; and by NVML of a GPU, which counts that whole GPU. Neither contains main memory, fans or power supplies.
"""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from suite.cost.timing import synchronize

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


SPANS = ("train", "eval", "reconfigure", "compile", "check", "io")


class Clock:
    """Adds up seconds, and joules if they are counted, by span. The device is synchronised at both ends of a span.

    A span encloses an epoch, an evaluation or a reconfiguration, but not a single step, so that the cost of the
    synchronisation is negligible. A span inside another interrupts it, so that every second is counted once.

    Args:
        device: Device of the training.

    Attributes:
        seconds: Seconds by name of span (`SPANS`).
        joules: Joules by name of span; `None` if energy is not counted, or was not in an earlier attempt.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._energy: EnergyCounter | None = None
        self._inside = (0.0, 0.0)  # seconds and joules of the spans that ended inside the open one
        self.seconds = dict.fromkeys(SPANS, 0.0)
        self.joules: dict[str, float] | None = None

    def count_energy(self, counter: EnergyCounter) -> None:
        """Count the energy of all spans that begin from now on. Call it before the first span."""
        self._energy, self.joules = counter, dict.fromkeys(SPANS, 0.0)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Add what passes inside to the span `name`, even if an exception ends it."""
        around, self._inside = self._inside, (0.0, 0.0)
        began = self._now()
        try:
            yield
        finally:
            elapsed = tuple(now - then for now, then in zip(self._now(), began, strict=True))
            self.seconds[name] += elapsed[0] - self._inside[0]
            if self.joules is not None:
                self.joules[name] += elapsed[1] - self._inside[1]
            self._inside = (around[0] + elapsed[0], around[1] + elapsed[1])

    def _now(self) -> tuple[float, float]:
        synchronize(self._device)
        return time.perf_counter(), self._energy.joules() if self._energy else 0.0

    @property
    def training(self) -> float:
        """Seconds of training: steps, including the method's own work, and reconfigurations."""
        return self.seconds["train"] + self.seconds["reconfigure"]

    def columns(self) -> dict[str, float]:
        """Return the measured columns of `epochs.jsonl` and `results.csv`; energy only where it was counted."""
        energy = {} if self.joules is None else {"energy_j": self.joules["train"] + self.joules["reconfigure"]}
        parts = {f"{name}_time_s": self.seconds[name] for name in ("eval", "reconfigure", "compile")}
        return {"train_time_s": self.training, **parts, **energy}

    def state_dict(self) -> dict[str, Any]:
        return {**self.seconds, **({} if self.joules is None else {"joules": dict(self.joules)})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seconds.update({name: state[name] for name in self.seconds})
        joules = state.get("joules")
        # A sum over attempts of which one was not measured would be too small.
        self.joules = None if joules is None or self.joules is None else dict(joules)
