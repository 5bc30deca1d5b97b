"""What the kernel says of this machine's CPU: the one reader of `/proc/cpuinfo` in this package."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")

# The flags that decide which kernels a library chooses. The other flags (virtualisation, mitigations, power) differ
# between two boots of one machine and say nothing of arithmetic.
_INSTRUCTIONS = re.compile(
    r"(?:sse4_[12]|ssse3|fma4?|f16c|avx\w*|amx\w*"  # x86
    r"|asimd\w*|neon|sve\w*|sme(?!p)\w*|bf16|i8mm|fphp|fp)"  # Arm
)
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # x86, x86, Arm: as the kernel spells them
# By the field of `Cpu`: the key on x86, then the one on Arm.
_KEYS = {
    "name": ("model name", "cpu"),
    "vendor": ("vendor_id", "cpu implementer"),
    "family": ("cpu family", "cpu architecture"),
    "model": ("model", "cpu part"),
    "stepping": ("stepping", "cpu revision"),
}
_FLAGS = ("flags", "features")


@dataclass(frozen=True)
class Cpu:
    """The first processor of `/proc/cpuinfo`; what the kernel does not say is empty.

    Attributes:
        name: the marketing name, which all CPUs of a virtual machine's host family may share ("AMD EPYC").
        vendor, family, model, stepping: as the kernel spells them: numbers on x86. On Arm: implementer, architecture,
            part, and variant with revision ("r1p2").
        instructions: the flags of vector, matrix and half-precision arithmetic, sorted.
        bfloat16: whether the CPU multiplies bfloat16 itself.
    """

    name: str
    vendor: str
    family: str
    model: str
    stepping: str
    instructions: tuple[str, ...]
    bfloat16: bool

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
    """Read the CPU; where there is no such file (macOS), only the name is known."""
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            # The processors follow one another; what the first does not have (Arm's "Hardware") is in the last lines.
            found.setdefault(key.strip().lower(), value.strip())
    fields = {name: next((found[key] for key in keys if key in found), "") for name, keys in _KEYS.items()}
    if "cpu variant" in found:
        fields["stepping"] = f"r{_number(found['cpu variant'])}p{_number(found.get('cpu revision', ''))}"
    fields["name"] = fields["name"] or found.get("hardware", "") or platform.processor() or platform.machine()
    flags = set(next((found[key] for key in _FLAGS if key in found), "").split())
    instructions = tuple(sorted(flag for flag in flags if _INSTRUCTIONS.fullmatch(flag)))
    return Cpu(**fields, instructions=instructions, bfloat16=bool(flags & _BFLOAT16_FLAGS))


def _number(text: str) -> str:
    return str(int(text, 0)) if re.fullmatch(r"0x[0-9a-f]+|[0-9]+", text) else text
