"""Places for the trials that run at the same time: each has its own cores or GPUs.

The engine passes a place to the trial's process in the environment. The trial takes its place before it imports torch,
because torch starts threads for the cores that it finds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from suite.engine.cost.hardware import CORES, available_cores
from suite.trials.engines.forked import forked
from suite.trials.spec import TrialSpec

PLACE = "PDT_PLACE"
"""Environment variable of a trial's process: its place as JSON."""

_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Place:
    """Where one of several trials runs.

    Attributes:
        cpus: Numbers of the logical CPUs that it may use; empty for all.
        gpus: GPUs that it may use, as in `CUDA_VISIBLE_DEVICES`; empty for all.
        shared_with: Largest number of other trials that use the same device at the same time. All cores of a machine
            count as one device, because they share memory bandwidth, caches and power.
    """

    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    shared_with: int = 0

    def variables(self, cores: int) -> dict[str, str]:
        """Return the environment variables of a trial at this place.

        Args:
            cores: Number of physical cores that all trials of the command may use.
        """
        variables = {PLACE: json.dumps(asdict(self)), CORES: str(cores)}
        return variables | ({_GPUS: ",".join(self.gpus)} if self.gpus else {})


def take_place() -> None:
    """Restrict this process, and those that it starts, to the cores of the place in the environment.

    Without a place, or if the place names no cores, nothing happens. Call this before torch starts threads.
    """
    if cpus := (place_of_environment() or {}).get("cpus"):
        os.sched_setaffinity(0, cpus)


def place_of_environment() -> dict[str, Any] | None:
    """Return the fields of the place that an engine gave to this process; `None` without a place."""
    text = os.environ.get(PLACE)
    return None if text is None else dict(json.loads(text))


def places_for(trials: Sequence[TrialSpec], jobs: int) -> list[Place]:
    """Return the places of the trials that run at the same time. All trials have one device and number of processes.

    Args:
        trials: All trials of the command.
        jobs: Largest number of trials that run at the same time.

    Returns:
        `jobs` places, or as many as there are trials. A trial that runs alone may use all cores and GPUs.
    """
    count = min(jobs, len(trials))
    if count <= 1:
        return [Place()] * count
    trial = trials[0]
    if trial.device == "cpu":
        return on_cores(physical_cores(), available_cores(), count)
    gpus = [] if trial.device_index is not None else visible_gpus()
    return on_gpus(gpus, trial.processes, count)


def on_cores(physical: Sequence[tuple[int, ...]], usable: int, count: int) -> list[Place]:
    """Give each of `count` trials equally many physical cores; without numbers of cores if there are too few.

    Args:
        physical: Logical CPUs of each physical core; empty where processes cannot be pinned.
        usable: Number of cores that the container's quota allows.
        count: Number of trials that run at the same time.
    """
    each = len(physical) // count if usable >= count else 0
    parts = [physical[index * each : (index + 1) * each] for index in range(count)]
    return [Place(cpus=tuple(sorted(cpu for core in part for cpu in core)), shared_with=count - 1) for part in parts]


def on_gpus(gpus: Sequence[str], processes: int, count: int) -> list[Place]:
    """Distribute `count` trials over GPUs, in groups with one GPU for each process of a trial.

    Args:
        gpus: GPUs as in `CUDA_VISIBLE_DEVICES`; empty if the trials use a GPU that the user has named.
        processes: Number of processes of a trial.
        count: Number of trials that run at the same time.
    """
    groups = [tuple(gpus[i : i + processes]) for i in range(0, len(gpus) - processes + 1, processes)] or [()]
    taken = [index % len(groups) for index in range(count)]
    return [Place(gpus=groups[group], shared_with=taken.count(group) - 1) for group in taken]


def physical_cores() -> list[tuple[int, ...]]:
    """Return the logical CPUs of each physical core that this process may use; empty where it cannot be pinned."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        name = siblings.read_text(encoding="ascii").strip() if siblings.is_file() else str(cpu)
        cores.setdefault(name, []).append(cpu)
    return [tuple(cpus) for cpus in cores.values()]


def visible_gpus() -> list[str]:
    """Return the GPUs that torch finds, as in `CUDA_VISIBLE_DEVICES`."""
    count = forked(_count_gpus)
    listed = [name.strip() for name in os.environ.get(_GPUS, "").split(",") if name.strip()]
    return listed[:count] if listed else [str(index) for index in range(count)]


def _count_gpus() -> int:
    import torch  # only a forked process, which ends soon, imports torch

    return torch.cuda.device_count()
