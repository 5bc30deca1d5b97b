"""The cluster of `plan --cluster`, and the time of trials on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from suite.engine.cost.ring import all_reduce_seconds, gradient_bytes, sent_bytes
from suite.errors import UsageError, nearest
from suite.measure.prediction.estimate import Prediction
from suite.trials.spec import TrialSpec

KEYS = ("nodes", "gpus", "cpus", "link", "local", "latency")
EXAMPLE = "nodes=16,gpus=8,link=400Gb"
DEFAULT_LATENCY_S = 10e-6
"""Seconds of an exchange between nodes without its bytes. This is an assumption, of NCCL's order of magnitude."""
_BANDWIDTHS = {"Gb": 1e9 / 8, "Gb/s": 1e9 / 8, "Gbit/s": 1e9 / 8, "GB": 1e9, "GB/s": 1e9}
LARGEST = 1e12
"""Limit of the number in a bandwidth or a latency, which keeps all products finite."""
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal machines.

    Attributes:
        nodes: Number of nodes.
        gpus: GPUs of a node; 0 for nodes that train on their CPUs.
        cpus: Cores of a node; 0 for nodes that train on GPUs.
        link: Bytes per second between two nodes, in each direction; 0 if not given.
        local: Bytes per second between two ranks of a node, in each direction; `link` if not given.
        latency: Seconds of an exchange between two ranks, without the time for its bytes.
    """

    nodes: int
    gpus: int = 0
    cpus: int = 0
    link: float = 0.0
    local: float = 0.0
    latency: float = DEFAULT_LATENCY_S

    def devices(self, threads: int) -> int:
        """Return how many ranks a node runs at once: one for each GPU, or for each `threads` cores."""
        return self.gpus or max(1, self.cpus // max(1, threads))


def read_cluster(text: str) -> Cluster:
    """Read the value of `--cluster`.

    Args:
        text: Pairs `key=value`, separated by commas: `nodes`, `gpus` or `cpus`, and optionally `link`, `local`,
            `latency`.

    Raises:
        UsageError: A key is unknown, missing or given twice, or a value is wrong.
    """
    pairs: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in KEYS:
            raise UsageError(f"--cluster '{text}': no key is called '{key}'{nearest(key, KEYS)}; example: {EXAMPLE}")
        if not equals or not value:
            raise UsageError(f"--cluster '{text}': {key} has no value; example: {EXAMPLE}")
        if key in pairs:
            raise UsageError(f"--cluster '{text}': {key} is given twice")
        pairs[key] = value
    if "nodes" not in pairs or ("gpus" in pairs) == ("cpus" in pairs):
        raise UsageError(f"--cluster '{text}': give nodes, and either gpus or cpus of a node; example: {EXAMPLE}")
    counts = {key: _count(text, key, pairs[key]) for key in ("nodes", "gpus", "cpus") if key in pairs}
    rates = {key: _quantity(text, key, pairs[key], _BANDWIDTHS) for key in ("link", "local") if key in pairs}
    times = {"latency": _quantity(text, "latency", pairs["latency"], _TIMES)} if "latency" in pairs else {}
    return Cluster(**counts, **rates, **times)  # type: ignore[arg-type]


def check_device(cluster: Cluster, device: str) -> None:
    """Check that the probe runs on the kind of device that the cluster has.

    Args:
        device: `cpu` or `cuda`, on which the probe runs.

    Raises:
        UsageError: The probe runs on another kind of device.
    """
    if (device == "cuda") != bool(cluster.gpus):
        other = ("cuda", "gpus") if device == "cuda" else ("cpu", "cpus")
        raise UsageError(
            f"--cluster: the probe runs on {other[0]}, which says nothing about the cluster's "
            f"{'GPUs' if cluster.gpus else 'CPUs'}; give {other[1]}=N, or probe with --device "
            f"{'cuda' if cluster.gpus else 'cpu'}"
        )


def _count(text: str, key: str, value: str) -> int:
    if not (value.isdecimal() and value.isascii() and len(value) < 7 and int(value) >= 1):
        raise UsageError(f"--cluster '{text}': {key} is '{value}'; expected an integer from 1 to 999999")
    return int(value)


def _quantity(text: str, key: str, value: str, units: Mapping[str, float]) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z/]+)", value)
    if match is None or match[2] not in units or not 0 < float(match[1]) < LARGEST:
        raise UsageError(f"--cluster '{text}': {key} is '{value}'; expected a number with a unit: {', '.join(units)}")
    return float(match[1]) * units[match[2]]


@dataclass(frozen=True)
class Communication:
    """Modelled communication of a data-parallel trial.

    Attributes:
        seconds: Seconds of all all-reduces, one after the other and without overlap with the backward.
        payload_bytes: Bytes that a rank hands to the all-reduces.
        sent_bytes: Bytes that a rank sends.
    """

    seconds: float
    payload_bytes: float
    sent_bytes: float


def check_trial(cluster: Cluster, trial: TrialSpec, threads: int) -> None:
    """Check before any probe that a cluster can run a trial, and that the cluster's description suffices.

    Args:
        threads: Threads of each rank here, and therefore in the probe.

    Raises:
        UsageError: A node has fewer cores than a rank has threads, there are fewer devices than ranks, or the
            description has no bandwidth for the gradients.
    """
    if cluster.cpus and cluster.cpus < threads:
        raise UsageError(
            f"--cluster: a node has {cluster.cpus} core(s), and a rank here has {threads} threads; set "
            f"OMP_NUM_THREADS={cluster.cpus}"
        )
    devices = cluster.nodes * cluster.devices(threads)
    if trial.processes > devices:
        what = "GPUs" if cluster.gpus else f"ranks of {threads} thread(s)"
        raise UsageError(f"--cluster: {trial.processes} processes of a trial, and room for {devices} {what}")
    if trial.processes > 1 and not _bandwidth(cluster, trial.processes, threads):
        raise UsageError(
            f"--cluster: {trial.processes} ranks reduce gradients; add link=400Gb or link=50GB/s, as you have it"
        )


def _bandwidth(cluster: Cluster, ranks: int, threads: int) -> float:
    return (cluster.local or cluster.link) if ranks <= cluster.devices(threads) else cluster.link


def communication(trial: TrialSpec, prediction: Prediction, cluster: Cluster, threads: int) -> Communication:
    """Return the communication of the gradients of a data-parallel trial on a cluster, by the ring all-reduce model.

    The slowest link of the ring decides. Ranks of one node therefore use `local`, and ranks of several nodes `link`.
    `check_trial` must have accepted the trial.
    """
    ranks = trial.processes
    if ranks == 1:
        return Communication(0.0, 0.0, 0.0)
    bandwidth = _bandwidth(cluster, ranks, threads)
    seconds = payload = sent = 0.0
    for elements, steps in prediction.payload:
        size = gradient_bytes(elements)
        seconds += steps * all_reduce_seconds(size, ranks, bandwidth, cluster.latency)
        payload += steps * size
        sent += steps * sent_bytes(size, ranks)
    return Communication(seconds, payload, sent)
