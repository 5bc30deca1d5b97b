"""Measured cost: points in time of a device, the parts of a training step, and the seconds and joules of a trial.

RAPL counts the energy of the CPU's packages (Linux): all programs, all cores and caches of a package. NVML counts the
energy of a whole GPU. Neither includes main memory, fans or power supplies.
"""

from __future__ import annotations

import ctypes
import re
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Stamps(Protocol):
    """Points in time of one device."""

    def now(self) -> Any:
        """Return the present point in time."""

    def seconds(self, first: Any, second: Any) -> float:
        """Return the seconds between two points."""


class CpuStamps:
    """Wall time."""

    def now(self) -> float:
        return time.perf_counter()

    def seconds(self, first: float, second: float) -> float:
        return second - first


class CudaStamps:
    """Events in the present stream of a GPU. The time between two events includes time in which the GPU waits for work.

    Args:
        device: The GPU, which need not be the current one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, first: torch.cuda.Event, second: torch.cuda.Event) -> float:
        second.synchronize()
        return first.elapsed_time(second) / 1e3


def stamps_of(device: torch.device) -> Stamps:
    """Return the points in time of a device."""
    return CudaStamps(device) if device.type == "cuda" else CpuStamps()


FEWEST_PASSES, MOST_PASSES = 3, 5  # timed forward passes of the final model


def synchronize(device: torch.device) -> None:
    """Wait until a CUDA device has finished its work. On the CPU this returns at once."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that one call takes on a device."""
    synchronize(device)
    began = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - began


@torch.no_grad()
def images_per_second(trainer: Any) -> float:
    """Return the inference speed of the final model: the median over forward passes of one evaluation batch.

    Three passes are timed, and up to two more while the passes together take less than a second. One pass warms up,
    because the model has just been evaluated on batches of this shape. The forward uses the trial's autocast type and
    memory format. Reading and moving images is not included.
    """
    splits = trainer.splits
    evaluated = splits.validation if splits.test is None else splits.test
    images, _ = next(iter(evaluated.epoch(0, trainer.recipe.evaluation.eval_batch_size)))
    trainer.model.eval()

    def predict() -> object:
        return trainer.evaluation.predict(images)

    seconds_of(predict, trainer.device)
    seconds: list[float] = []
    while len(seconds) < FEWEST_PASSES or (len(seconds) < MOST_PASSES and sum(seconds) < 1.0):
        seconds.append(seconds_of(predict, trainer.device))
    return len(images) / statistics.median(seconds)


PARTS = ("forward", "dgrad", "wgrad", "normalization", "pruning", "optimizer", "input", "network", "rest")
"""Parts of a step.

forward, dgrad, wgrad: The three products of planned layers, with the operands that the plan gives them.
normalization: Normalisation and activation functions, forward and backward.
pruning: The method's own work: transforms of operands, the regularization term and its gradient, and its hooks.
optimizer: The step of the optimizer, and the removal of gradients.
input: Reading and augmenting the batch.
network: Everything else in forward and backward: pooling, sums, the loss, attention, layers that cannot be planned, the
    accumulation of gradients, and Python between operations.
rest: Everything else in a step: the norm of the gradients, counting of FLOPs, the training loop.
"""
CLOCKS = "clocks"
"""Known time of the clocks themselves, which belongs to no part."""

Key = tuple[str, str]
"""Part, and name of the layer; the name is empty if the part belongs to no layer."""

_NORMALIZATION = re.compile(
    r"(batch|layer|group|instance|rms)_?norm|relu|[gscp]?elu|silu|swish|mish|sigmoid|tanh|softplus",
    re.IGNORECASE,
)


class NoClock:
    """Takes the place of a `StepClock` in steps that are not profiled. It costs one call."""

    def span(self, part: str, layer: str = "") -> AbstractContextManager[None]:
        return _NOTHING

    def forward(self) -> AbstractContextManager[None]:
        return _NOTHING

    def time_backward(self, loss: Tensor) -> None: ...

    def time_term(self, term: Tensor) -> None: ...


_NOTHING = nullcontext()
NO_CLOCK = NoClock()


class _Span:
    """A part of a step. `NormalizationClock` sees only the functions inside the `network` part."""

    __slots__ = ("_clock", "_key", "_unseen")

    def __init__(self, clock: StepClock, key: Key) -> None:
        self._clock, self._key = clock, key
        self._unseen = _NOTHING if key[0] == "network" else torch._C.DisableTorchFunction()

    def __enter__(self) -> None:
        self._unseen.__enter__()
        self._clock.enter(*self._key)

    def __exit__(self, *error: Any) -> None:
        self._clock.leave()
        self._unseen.__exit__(*error)


class StepClock:
    """Measures the parts of steps: products of layers, normalisation, pruning, optimizer, input.

    Exactly one part runs at each moment, so the parts of a step add up to its time. A span inside another span
    interrupts it. For example, normalisation inside the network's forward does not count as `network`.

    Args:
        device: Device of the training.
        stamps: Source of the points in time; `None` for that of the device.
    """

    def __init__(self, device: torch.device, stamps: Stamps | None = None) -> None:
        self._stamps = stamps or stamps_of(device)
        self._marks: list[tuple[Key, Any]] = []  # the part that starts, and its start
        self._open: list[Key] = []
        self._normalization, self._backward = NormalizationClock(self), BackwardClock(self)

    @property
    def part(self) -> str:
        """The part that is running."""
        return self._open[-1][0]

    def begin(self) -> None:
        """Begin a step, whose first part is `rest`."""
        self._marks, self._open = [], []
        self._backward.forget()
        self.enter("rest")

    def enter(self, part: str, layer: str = "") -> None:
        """Interrupt the running part by another part."""
        self._open.append((part, layer))
        self._marks.append((self._open[-1], self._stamps.now()))

    def leave(self) -> None:
        """Continue the part that was interrupted last."""
        self._open.pop()
        self._marks.append((self._open[-1], self._stamps.now()))

    def span(self, part: str, layer: str = "") -> _Span:
        """Return a context for a part, which may belong to a layer."""
        return _Span(self, (part, layer))

    def forward(self) -> NormalizationClock:
        """Return a context for the network's forward that times functions which normalise or activate."""
        return self._normalization

    def time_backward(self, loss: Tensor) -> None:
        """Time the functions that normalise or activate in the next backward of a loss."""
        with self.span(CLOCKS):
            self._backward.time_normalization(loss)

    def time_term(self, term: Tensor) -> None:
        """Time the next backward of a method's term as pruning."""
        with self.span(CLOCKS):
            self._backward.time_pruning(term)

    def end(self) -> dict[Key, float]:
        """End the step, and return the seconds of its parts. They add up to the time since `begin`."""
        last = self._stamps.now()
        seconds: dict[Key, float] = {}
        points = [*self._marks, (("", ""), last)]
        for (key, start), (_, stop) in pairwise(points):
            seconds[key] = seconds.get(key, 0.0) + self._stamps.seconds(start, stop)
        return seconds


class NormalizationClock(TorchFunctionMode):
    """Inside this context, functions that normalise or activate count as `normalization`.

    Functions inside another part stay there, for example those that a method's transform calls.
    """

    def __init__(self, clock: StepClock) -> None:
        super().__init__()
        self._clock = clock
        self._known: dict[Hashable, bool] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        known = self._known.get(func)
        if known is None:
            known = self._known[func] = is_normalization(getattr(func, "__name__", ""))
        if not known or self._clock.part != "network":
            return func(*args, **(kwargs or {}))
        with self._clock.span("normalization"):
            return func(*args, **(kwargs or {}))


def is_normalization(name: str) -> bool:
    """Return whether a function of torch, or a node of a backward graph, normalises or activates, by its name."""
    return _NORMALIZATION.search(name) is not None


class BackwardClock:
    """Times the nodes of a backward graph by hooks on them."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._seen: set[Any] = set()

    def forget(self) -> None:
        """Forget the nodes of the last step."""
        self._seen.clear()

    def time_normalization(self, loss: Tensor) -> None:
        """Add the backward of a loss through functions that normalise or activate to `normalization`."""
        for node in self._new_nodes(loss):
            if is_normalization(node.name()):
                self._time(node, "normalization")

    def time_pruning(self, term: Tensor) -> None:
        """Add the backward of a method's term to `pruning`, except for nodes that an earlier loss has shown."""
        for node in self._new_nodes(term):
            if not node.name().endswith("AccumulateGrad"):
                self._time(node, "pruning")

    def _time(self, node: Any, part: str) -> None:
        node.register_prehook(lambda *_: self._clock.enter(part))
        node.register_hook(lambda *_: self._clock.leave())

    def _new_nodes(self, root: Tensor) -> Iterator[Any]:
        left = [root.grad_fn]
        while left:
            node = left.pop()
            if node is None or node in self._seen:
                continue
            self._seen.add(node)
            yield node
            left += [following for following, _ in node.next_functions]


POWERCAP = Path("/sys/class/powercap")
POLL_S = 20.0
"""Seconds between readings of a RAPL counter, which may wrap around within minutes."""
_PACKAGE = re.compile(r"intel-rapl:[0-9]+")  # excludes :0:0 (cores, memory) and intel-rapl-mmio:0 (the same package)


class NoCounter(Exception):
    """The energy of a device cannot be read. The message is the reason."""


class RaplPackage:
    """Energy counter of one CPU package. The counter wraps around.

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
        """Return the energy since the counter was opened. Call this at least once per range of the counter."""
        now = self._read()
        # The range is the largest value, so the counter has one value more.
        self._total += (now - self._last) % (self._range + 1)
        self._last = now
        return self._total


class EnergyCounter:
    """Energy of a device since the counter was opened.

    Attributes:
        source: What the counter covers, in words.
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
        NoCounter: There is no counter, or it cannot be read.
    """
    return open_nvml(device) if device.type == "cuda" else open_rapl()


def open_rapl(powercap: Path = POWERCAP) -> EnergyCounter:
    """Return the counter of all CPU packages. A background thread reads it in time for each wrap-around.

    Args:
        powercap: Folder of the kernel's power capping framework.

    Raises:
        NoCounter: There is no counter, or this user may not read it.
    """
    folders = sorted(path for path in powercap.glob("intel-rapl:*") if _PACKAGE.fullmatch(path.name))
    try:
        names = {folder: (folder / "name").read_text().strip() for folder in folders}
        names = {folder: name for folder, name in names.items() if name.startswith("package")}  # excludes psys
        packages = [RaplPackage(folder) for folder in names]
    except PermissionError:
        raise NoCounter(f"RAPL: only root may read {powercap}/intel-rapl:*/energy_uj") from None
    except (OSError, ValueError) as error:
        raise NoCounter(f"RAPL: {error}") from error
    if not packages:
        raise NoCounter(f"RAPL: {powercap} has no intel-rapl package")
    source = f"RAPL, {' and '.join(names.values())}: the whole package, other programs included"
    return EnergyCounter(source, lambda: sum(package.microjoules() for package in packages) / 1e6, POLL_S)


def open_nvml(device: torch.device, load: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> EnergyCounter:
    """Return the counter of a GPU, `nvmlDeviceGetTotalEnergyConsumption` (since Volta).

    Args:
        load: Function that opens a shared library.

    Raises:
        NoCounter: There is no such library or counter.
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

    A span encloses an epoch, an evaluation or a reconfiguration, but not a single step, so that synchronisation costs
    little. A span inside another span interrupts it, so that every second counts once.

    Args:
        device: Device of the training.

    Attributes:
        seconds: Seconds by name of span (`SPANS`).
        joules: Joules by name of span; `None` if energy is not counted, or was not counted in an earlier attempt.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._energy: EnergyCounter | None = None
        self._inside = (0.0, 0.0)  # seconds and joules of the spans that ended inside the open one
        self.seconds = dict.fromkeys(SPANS, 0.0)
        self.joules: dict[str, float] | None = None

    def count_energy(self, counter: EnergyCounter) -> None:
        """Count the energy of all spans that begin from now on. Call this before the first span."""
        self._energy, self.joules = counter, dict.fromkeys(SPANS, 0.0)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Add the time inside to the span `name`, even if an exception ends it."""
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
        """Seconds of training: of steps, with the method's own work, and of reconfigurations."""
        return self.seconds["train"] + self.seconds["reconfigure"]

    def columns(self) -> dict[str, float]:
        """Return the measured columns of `epochs.jsonl` and `results.csv`, with energy only if it was counted."""
        energy = {} if self.joules is None else {"energy_j": self.joules["train"] + self.joules["reconfigure"]}
        parts = {f"{name}_time_s": self.seconds[name] for name in ("eval", "reconfigure", "compile")}
        return {"train_time_s": self.training, **parts, **energy}

    def state_dict(self) -> dict[str, Any]:
        return {**self.seconds, **({} if self.joules is None else {"joules": dict(self.joules)})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seconds.update({name: state[name] for name in self.seconds})
        joules = state.get("joules")
        # Without the energy of one attempt, the sum over attempts would be too small.
        self.joules = None if joules is None or self.joules is None else dict(joules)
