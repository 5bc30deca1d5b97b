"""List scheduling: when each trial starts if they start in order, as soon as their devices are free."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """A trial to schedule.

    Attributes:
        name: Its name.
        seconds: Its time.
        devices: Number of devices that it takes at once.
        after: Names of the jobs that must have ended. Names that are not scheduled count as ended.
    """

    name: Hashable
    seconds: float
    devices: int = 1
    after: tuple[Hashable, ...] = ()


def schedule(jobs: Sequence[Job], nodes: int, devices: int) -> dict[Hashable, tuple[float, float]]:
    """Return start and end of each job, in seconds, on nodes with equal numbers of devices.

    As the engines start trials, each job gets, in the order of the list, the earliest time at which its devices are
    free and the jobs before it have ended. A job of up to `devices` devices stays on one node. A larger job takes whole
    nodes.

    Args:
        jobs: The jobs. Each comes after those that it depends on.
        nodes: Number of nodes.
        devices: Devices of each node.

    Raises:
        ValueError: A job needs more devices than there are.
    """
    for job in jobs:
        if job.devices > nodes * devices:
            raise ValueError(f"{job.name} needs {job.devices} devices, and there are {nodes * devices}")
    # More devices than all jobs together take would only cost memory.
    devices = min(devices, max(1, sum(job.devices for job in jobs)))
    nodes = min(nodes, sum(-(-job.devices // devices) for job in jobs))
    free = [[0.0] * devices for _ in range(nodes)]  # the time when each device becomes free
    times: dict[Hashable, tuple[float, float]] = {}
    for job in jobs:
        ready = max((times[name][1] for name in job.after if name in times), default=0.0)
        chosen = _places(free, job.devices, devices)
        start = max([ready, *(free[node][place] for node, place in chosen)])
        for node, place in chosen:
            free[node][place] = start + job.seconds
        times[job.name] = (start, start + job.seconds)
    return times


def makespan(jobs: Sequence[Job], nodes: int, devices: int) -> float:
    """Return the seconds until the last job has ended; 0 for no jobs."""
    return max((end for _, end in schedule(jobs, nodes, devices).values()), default=0.0)


def _places(free: Sequence[Sequence[float]], wanted: int, devices: int) -> list[tuple[int, int]]:
    """Return the devices, as node and place, that a job can have first."""
    if wanted <= devices:
        order = [sorted(range(devices), key=node.__getitem__)[:wanted] for node in free]
        best = min(range(len(free)), key=lambda node: free[node][order[node][-1]])
        return [(best, place) for place in order[best]]
    count = -(-wanted // devices)
    whole = sorted(range(len(free)), key=lambda node: max(free[node]))[:count]
    return [(node, place) for node in whole for place in range(devices)]
