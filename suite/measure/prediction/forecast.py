"""The forecast of a command: the expected cost of each trial, and the trials that exist already."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.engine.cost.hardware import busy_advice, competition
from suite.measure.prediction.cluster import Cluster, Communication, communication
from suite.measure.prediction.estimate import DISTURBED, Prediction, predict, setting
from suite.measure.prediction.schedule import Job, makespan
from suite.trials.controls import dense_spec
from suite.trials.engines.local import environment
from suite.trials.engines.subprocess_call import call_in_subprocess
from suite.trials.folder.store import RUNNING, Store, read_record
from suite.trials.spec import TrialSpec

FUNCTION = "suite.measure.prediction.probe:probe"
DEFAULT_STEPS = 8
PROBE_S = 10.0
"""Seconds that the steps of a probe may take, in addition to start, first epoch and data of its process."""

Probe = Callable[[TrialSpec, Path], Mapping[str, Any]]
"""Probes a trial, given the folder of the trials that it may depend on."""


@dataclass(frozen=True)
class Forecast:
    """A trial of the command.

    Attributes:
        status: Status in the output folder: `done`, `running` and so on; empty if it never started.
        runs: Whether the command would run it.
        prediction: Its expected cost; `None` if it does not run or could not be probed.
        communication: Modelled communication on the cluster; `None` without a cluster.
        measured: Result of the trial if it is done.
        error: Why it could not be probed; empty otherwise.
    """

    trial: TrialSpec
    status: str
    runs: bool
    prediction: Prediction | None = None
    communication: Communication | None = None
    measured: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    error: str = ""

    @property
    def wall_s(self) -> float:
        """Predicted seconds of the trial's process, with communication; 0 without a prediction."""
        if self.prediction is None:
            return 0.0
        return self.prediction.wall_s + (self.communication.seconds if self.communication else 0.0)


def threads_of(trial: TrialSpec, jobs: int) -> int:
    """Return the threads of each rank of a trial: OMP_NUM_THREADS, or its share of the cores."""
    typed = environment(jobs * trial.processes)["OMP_NUM_THREADS"].partition(",")[0]
    return int(typed) if typed.isdecimal() and int(typed) else 1


def forecast(
    trials: Sequence[TrialSpec],
    folder: Path,
    only: str,
    jobs: int,
    probe: Probe,
    show: Callable[[str], None],
) -> list[Forecast]:
    """Probe each distinct setting of the trials that a command would run, and predict its trials.

    Args:
        trials: The trials of the command, in order.
        folder: Its output folder, which may not exist.
        only: Which trials the command runs: `missing`, `failed` or `all`.
        jobs: Number of trials that run at the same time. As many probes run at once, so that they disturb each other
            alike.
        probe: Function that probes a trial.
        show: Function that prints a line of progress.
    """
    store = Store(folder)
    locked = folder.is_dir() and store.is_locked()
    forecasts = []
    for trial, (status, _) in zip(trials, store.states(trials, in_use=locked), strict=True):
        runs = only == "all" or (status != "done" if only == "missing" else status not in ("", "done", RUNNING))
        record = read_record(store.trial_folder(trial.trial_id)) if status == "done" else None
        forecasts.append(Forecast(trial, status, runs, measured=(record or {}).get("result") or {}))

    # Probe one trial of each setting. Dense training replaces a trial that cannot start yet.
    done = {item.trial.trial_id for item in forecasts if item.status == "done"}
    probed = {
        item.trial.trial_id: item.trial if done.issuperset(item.trial.depends_on.values()) else dense_spec(item.trial)
        for item in forecasts
        if item.runs
    }
    results = _probe_all(list(probed.values()), folder / "trials", jobs, probe, show)
    return [_predicted(item, probed[item.trial.trial_id], results) if item.runs else item for item in forecasts]


def _probe_all(
    trials: Sequence[TrialSpec], folder: Path, jobs: int, probe: Probe, show: Callable[[str], None]
) -> dict[str, Mapping[str, Any]]:
    """Return the result of a probe by setting. Settings of a steady method that differ only in epochs share a probe."""
    results: dict[str, Mapping[str, Any]] = {}
    by_cost: dict[str, list[TrialSpec]] = {}
    for trial in {setting(trial): trial for trial in trials}.values():
        by_cost.setdefault(setting(trial, epochs=False), []).append(trial)
    # A steady method needs no probe of its other settings. Only the end of the first probe shows that it is steady.
    began, most = 0, sum(map(len, by_cost.values()))

    def run(group: list[TrialSpec]) -> None:
        nonlocal began, most
        shared: Mapping[str, Any] | None = None
        for place, trial in enumerate(sorted(group, key=lambda trial: -trial.make_recipe().epochs), start=1):
            if shared is None or not shared.get("steady"):
                began += 1
                number = f"{began} of {'' if most == len(by_cost) else 'at most '}{most}"
                show(f"probe {number}: {trial.label}, {trial.model} on {trial.task}, {trial.dtype}")
                shared = probe(trial, folder)
                if shared.get("steady"):
                    most -= len(group) - place
            results[setting(trial)] = shared

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for future in [pool.submit(run, group) for group in by_cost.values()]:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results


def _predicted(one: Forecast, probed: TrialSpec, results: Mapping[str, Mapping[str, Any]]) -> Forecast:
    result = results[setting(probed)]
    if "error" in result:
        return dataclasses.replace(one, error=str(result["error"]))
    prediction = predict(probed, result)
    if competition(result.get("busy_cores", 0.0), result["threads"]):
        load = f"{result['busy_cores']:.1f} cores busy as the probe began"
        note = f"{DISTURBED} times: other programs kept {load}{busy_advice()}"
        prediction = dataclasses.replace(
            prediction, notes=(*prediction.notes, note), unbounded=prediction.unbounded | {"train_s"}
        )
    if probed is not one.trial:
        missing = ", ".join(one.trial.depends_on)
        note = f"predicted as dense training, which costs at least as much: it depends on {missing}, which is not done"
        prediction = dataclasses.replace(prediction, is_bound=True, notes=(*prediction.notes, note))
    return dataclasses.replace(one, prediction=prediction)


def in_subprocess(steps: int, jobs: int, seconds: float = PROBE_S) -> Probe:
    """Return a function that probes in a new process with the threads and the allocator of a trial."""

    def probe(trial: TrialSpec, folder: Path) -> Mapping[str, Any]:
        arguments = {"spec": trial.to_json(), "trials": str(folder), "steps": steps, "seconds": seconds}
        try:
            result = call_in_subprocess(FUNCTION, arguments, device_text(trial), trial.plugins, threads_of(trial, jobs))
        except RuntimeError as error:
            return {"error": str(error)}
        return {**result.value, "where": result.where, "busy_cores": result.busy_cores}

    return probe


def device_text(trial: TrialSpec) -> str:
    """Return the device of a trial as torch writes it."""
    return trial.device if trial.device_index is None else f"{trial.device}:{trial.device_index}"


def on_cluster(forecasts: Sequence[Forecast], cluster: Cluster, jobs: int) -> list[Forecast]:
    """Add the modelled communication to each prediction."""
    return [
        item
        if item.prediction is None
        else dataclasses.replace(
            item, communication=communication(item.trial, item.prediction, cluster, threads_of(item.trial, jobs))
        )
        for item in forecasts
    ]


def seconds_here(forecasts: Sequence[Forecast], jobs: int) -> float:
    """Return the seconds of all trials that run, `jobs` of them at the same time on this machine."""
    return makespan(_jobs(forecasts, ranks=False), 1, jobs)


def seconds_on(forecasts: Sequence[Forecast], cluster: Cluster, jobs: int) -> float:
    """Return the seconds of all trials that run on a cluster."""
    threads = max((threads_of(item.trial, jobs) for item in forecasts), default=1)
    return makespan(_jobs(forecasts, ranks=True), cluster.nodes, cluster.devices(threads))


def _jobs(forecasts: Sequence[Forecast], ranks: bool) -> list[Job]:
    return [
        Job(
            item.trial.trial_id,
            item.wall_s,
            item.trial.processes if ranks else 1,
            tuple(item.trial.depends_on.values()),
        )
        for item in forecasts
        if item.prediction is not None
    ]
