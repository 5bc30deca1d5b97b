"""Facts about this machine: its hardware, the short name of the hardware in records, and the load."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
CORES = "PDT_CORES"
"""Environment variable of a trial: number of cores of its command. Each trial may have only some of them."""

# These flags decide which kernels a library chooses. Other flags (virtualisation, mitigations, power) differ between
# two boots of one machine and tell nothing about arithmetic.
_INSTRUCTIONS = re.compile(
    r"(?:sse4_[12]|ssse3|fma4?|f16c|avx\w*|amx\w*"  # x86
    r"|asimd\w*|neon|sve\w*|sme(?!p)\w*|bf16|i8mm|fphp|fp)"  # Arm
)
# Flags as the kernel spells them on x86 and on Arm. AVX512_BF16, which multiplies bfloat16 in vectors, counts only on
# AMD's processors. Training steps in bfloat16 take 0.54 to 0.65 of the time in float32 there
# (results/cpu-zen5-2cores/bench_dtypes.txt; results/cpu-zen4-2cores has both types of bench_pruned). On Intel's they
# take 1.5 to 1.7 of it (results/cpu-emr-2cores/bench_sdgp.txt and bench_sdgp_large.txt).
_BFLOAT16_FLAGS = {"amx_bf16", "bf16"}
_BFLOAT16_VECTORS = ("AuthenticAMD", "avx512_bf16")
_BFLOAT16_ARITHMETIC = {*_BFLOAT16_FLAGS, "avx512_bf16"}
# By the field of `Cpu`: the key on x86, then the one on Arm.
_KEYS = {
    "name": ("model name", "cpu"),
    "vendor": ("vendor_id", "cpu implementer"),
    "family": ("cpu family", "cpu architecture"),
    "model": ("model", "cpu part"),
    "stepping": ("stepping", "cpu revision"),
}
_FLAGS = ("flags", "features")
_CPU_IDENTITY = ("cpu", "cpu_vendor", "cpu_family", "cpu_model", "cpu_stepping", "instruction_set", "cores")


@dataclass(frozen=True)
class Cpu:
    """The first processor of `/proc/cpuinfo`. A field that the kernel does not report is empty.

    Attributes:
        name: Marketing name, which all CPUs of a virtual machine's host family may share ("AMD EPYC").
        vendor, family, model, stepping: As the kernel spells them, numbers on x86. On Arm: implementer, architecture,
            part, and variant with revision ("r1p2").
        instructions: Flags of vector, matrix and half-precision arithmetic, sorted.
        bfloat16: Whether the CPU multiplies bfloat16 faster than float32 (AMX, Arm BF16, AMD's AVX512_BF16).
        emulates_bfloat16: Whether the CPU has no instruction that multiplies bfloat16.
    """

    name: str
    vendor: str
    family: str
    model: str
    stepping: str
    instructions: tuple[str, ...]
    bfloat16: bool
    emulates_bfloat16: bool

    def facts(self) -> dict[str, Any]:
        """The fields as a record of provenance has them."""
        return {
            "cpu": self.name,
            "cpu_vendor": self.vendor,
            "cpu_family": self.family,
            "cpu_model": self.model,
            "cpu_stepping": self.stepping,
            "instruction_set": " ".join(self.instructions),
        }


def read_cpu(cpuinfo: Path = CPUINFO) -> Cpu:
    """Read the CPU. Without that file, as on macOS, only the name is known."""
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    facts: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            # The processors follow one another. The last lines have what the first processor lacks (Arm's "Hardware").
            facts.setdefault(key.strip().lower(), value.strip())
    fields = {name: next((facts[key] for key in keys if key in facts), "") for name, keys in _KEYS.items()}
    if "cpu variant" in facts:
        fields["stepping"] = f"r{_number(facts['cpu variant'])}p{_number(facts.get('cpu revision', ''))}"
    fields["name"] = fields["name"] or facts.get("hardware", "") or platform.processor() or platform.machine()
    flags = set(next((facts[key] for key in _FLAGS if key in facts), "").split())
    instructions = tuple(sorted(flag for flag in flags if _INSTRUCTIONS.fullmatch(flag)))
    vendor, vectors = _BFLOAT16_VECTORS
    bfloat16 = bool(flags & _BFLOAT16_FLAGS) or (fields["vendor"] == vendor and vectors in flags)
    emulates = bool(flags) and not flags & _BFLOAT16_ARITHMETIC
    return Cpu(**fields, instructions=instructions, bfloat16=bfloat16, emulates_bfloat16=emulates)


def available_cores() -> int:
    """Return the number of physical cores that this process may use: its affinity, within the container's quota.

    Two hardware threads of one core share its multipliers, so they count once.
    """
    cores = len(physical_cores()) or os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.is_file():
        limit, _, period = quota.read_text(encoding="ascii").strip().partition(" ")
        if limit.isdigit() and period.isdigit():
            cores = min(cores, max(1, int(limit) // int(period)))
    return cores


def physical_cores() -> list[tuple[int, ...]]:
    """Return the logical CPUs of each physical core that this process may use; empty where it cannot be pinned."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        name = siblings.read_text(encoding="ascii") if siblings.is_file() else str(siblings)
        cores.setdefault(name, []).append(cpu)
    return [tuple(cpus) for cpus in cores.values()]


def has_bfloat16_cpu(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether this CPU multiplies bfloat16 faster than float32 (AMX, Arm BF16, AVX512_BF16 of AMD).

    `/proc/cpuinfo` tells it. torch has no public function for it, and its private functions differ between versions.
    """
    return read_cpu(cpuinfo).bfloat16


def emulated_dtype(device: str, dtype: str, cpuinfo: Path = CPUINFO) -> str:
    """Return a warning if this CPU has no arithmetic for a number format; otherwise an empty text.

    Args:
        device: `cpu` or `cuda`.
        dtype: `float32`, `bfloat16` or `float16`.
        cpuinfo: File that describes the CPU.
    """
    if device != "cpu" or dtype != "bfloat16" or not read_cpu(cpuinfo).emulates_bfloat16:
        return ""
    return "--dtype bfloat16: this processor has no bfloat16 arithmetic; --dtype float32 is many times faster"


def busy_cores(seconds: float = 0.3) -> float:
    """Return the number of cores that are busy with any program, measured over `seconds`.

    The load average would count programs that have just ended, such as the installation of this suite.
    """
    import psutil  # only commands that train need it

    return psutil.cpu_percent(interval=seconds) / 100 * (psutil.cpu_count() or 1)


def competition(load: float, cores: int) -> str:
    """Return a warning about other programs; empty if the machine is idle enough to measure times.

    Threads wait for each other at the end of every operation, so one delayed thread delays all. Trials with two threads
    took many times as long on a machine with two other programs per core.

    Args:
        load: Number of cores that are busy before the trials start.
        cores: Number of cores that the trials will use.
    """
    if load < 0.5 * cores:
        return ""
    return (
        f"{load:.1f} of {cores} cores are busy before the first trial: other programs are running; "
        "do not rely on measured times"
    )


def threads_of_environment() -> int:
    """Return the threads that OMP_NUM_THREADS asks for; 0 if it is not set or not a positive number."""
    typed = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list has one number per nesting level
    return int(typed) if len(typed) < 10 and typed.isascii() and typed.isdecimal() else 0


def too_many_threads(jobs: int, cores: int) -> str:
    """Return a warning if OMP_NUM_THREADS is not a number of threads or exceeds the cores; otherwise an empty text."""
    typed, threads = os.environ.get("OMP_NUM_THREADS", ""), threads_of_environment()
    if typed and not threads:
        return f"OMP_NUM_THREADS={typed!r} is not a number of threads and is not used; unset it"
    if threads * jobs <= cores:
        return ""
    at_a_time = f" for each of {jobs} trials" if jobs > 1 else ""
    return (
        f"OMP_NUM_THREADS={threads}{at_a_time} is more than the {cores} cores that this process may use, which makes "
        "steps many times slower; unset it"
    )


def busy_advice() -> str:
    """Return the end of a line about a busy machine: a setting that helps; empty if the user has chosen it."""
    advice = "; with OMP_NUM_THREADS=1, no thread waits for another one, which is much faster on a busy machine"
    return "" if os.environ.get("OMP_NUM_THREADS") == "1" else advice


def hardware_id(hardware: dict[str, Any]) -> str:
    """Return an 8-character name of the hardware that decides speed. Different ids mean different kinds of machine.

    For a CPU the id covers name, vendor, family, model, stepping, instruction set, and the number of cores that the
    process may use. Virtual machines report the same name for different CPUs. For a GPU it covers the name and the
    major version of the driver. The number of threads is a setting, which records have separately. The id begins with a
    letter, so that no reader takes it for a number.

    Args:
        hardware: The facts that `torch_hardware.hardware_facts` returns.
    """
    if hardware["device"] == "cuda":
        device = (hardware["gpu"], 1, str(hardware["driver"]).partition(".")[0])
    else:
        device = tuple(hardware.get(name, "") for name in _CPU_IDENTITY)
    return "h" + hashlib.sha256("\n".join(str(part) for part in device).encode()).hexdigest()[:7]


def program_output(*command: str) -> str:
    """Return what a program prints; empty if it is not installed or fails, because the fact is then unknown."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (subprocess.SubprocessError, OSError):
        return ""


def _number(text: str) -> str:
    return str(int(text, 0)) if re.fullmatch(r"0x[0-9a-f]+|[0-9]+", text) else text
