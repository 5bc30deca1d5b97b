"""The forecast of a command as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table

from suite.measure.prediction.cluster import Cluster, Communication
from suite.measure.prediction.estimate import DISTURBED, Prediction, setting
from suite.measure.prediction.forecast import Forecast
from suite.trials.controls import BASELINE
from suite.trials.progress import duration

_ALL = 0.995  # share of dense training's FLOPs

KINDS = {
    "train_s": "measured for some steps, times the number of steps; modelled for other sizes of images",
    "eval_s": "measured for a batch, times the number of batches in all evaluations",
    "other_s": "measured: start of the process, checks, compilation, checkpoints without the disk",
    "flops_dense": "counted",
    "flops_executed": "counted in the probed steps, times the number of steps; modelled for other sizes of images",
    "memory_bytes": "counted on the CPU, measured on CUDA, in the probed steps",
    "communication_s": "modelled: ring all-reduce of all gradients, without overlap with the backward",
    "total_s": "modelled: trials start in order, each as soon as its devices are free",
}
"""Origin of each number, by its name in the JSON."""


def table(forecasts: Sequence[Forecast], cluster: Cluster | None = None) -> Table:
    """Return the table with a row for each setting, over all of its seeds; `at most` marks an upper bound."""
    found = Table(
        title="What a trial of each setting takes, predicted by probes (docs/scaling.md); of done trials: means"
    )
    found.add_column("setting", overflow="fold")
    found.add_column("seeds", overflow="fold")
    found.add_column("in folder", overflow="fold")
    names = ["epochs", "steps", "training", "evaluation", "other", "FLOPs dense", "FLOPs executed", "memory"]
    parallel = cluster is not None and any(item.trial.processes > 1 for item in forecasts)
    for name in [*names, *(["all-reduce (modelled)"] if parallel else [])]:
        found.add_column(name, justify="right", overflow="fold")
    differing = _differing(forecasts)
    settings: dict[tuple[str, str, bool], list[Forecast]] = {}
    for item in forecasts:  # the learning rate is part of the label, but the cost does not depend on it
        settings.setdefault((setting(item.trial), item.trial.label, item.trial.control), []).append(item)
    for (_, _, is_control), several in settings.items():
        first = next((item for item in several if item.prediction or item.error), several[0])
        name = ", ".join([first.trial.label, *(str(getattr(first.trial, field)) for field in differing)])
        states = Counter(item.status or "new" for item in several)
        state = (
            next(iter(states)) if len(states) == 1 else ", ".join(f"{count} {name}" for name, count in states.items())
        )
        cells = _predicted(first.prediction) if first.prediction else _measured(several)
        if first.error:
            cells = ["", "", "not predicted", *[""] * 5]
        if parallel:
            sent = first.communication
            cells.append(_sent(sent, first) if sent and sent.payload_bytes else "")
        seeds = ", ".join(str(item.trial.seed) for item in several)
        found.add_row(escape(f"{name} (control)" if is_control else name), seeds, state, *cells)
    return found


def _differing(forecasts: Sequence[Forecast]) -> list[str]:
    """Return which of task, model and dtype have several values among the trials of a command."""
    return [name for name in ("task", "model", "dtype") if len({getattr(item.trial, name) for item in forecasts}) > 1]


def _sent(sent: Communication, one: Forecast) -> str:
    most = _most(one.prediction, "communication_s") if one.prediction else ""
    seconds = f"{sent.seconds:.2g} s" if sent.seconds < 1 else duration(sent.seconds)
    return f"{most}{seconds}, {_bytes(sent.sent_bytes)}"


def _measured(done: Sequence[Forecast]) -> list[str]:

    def mean(column: str) -> float | None:
        known = [item.measured[column] for item in done if item.measured.get(column) is not None]
        return fmean(known) if known else None

    times = [mean(name) for name in ("train_time_s", "eval_time_s")]
    flops = [mean(f"train_flops_{name}") for name in ("dense", "executed")]
    memory = mean("peak_memory_bytes")
    return [
        str(done[0].trial.recipe.get("epochs", "")),
        "",
        *("" if seconds is None else duration(seconds) for seconds in times),
        "",
        *("" if value is None else f"{value:.3g}" for value in flops),
        "" if memory is None else _bytes(memory),
    ]


def _predicted(known: Prediction) -> list[str]:
    return [
        str(known.epochs),
        str(known.steps),
        f"{_most(known, 'train_s')}{duration(known.train_s)}",
        duration(known.eval_s),
        duration(known.other_s),
        f"{known.flops_dense:.3g}",
        f"{_most(known, 'flops_executed')}{known.flops_executed:.3g}",
        f"{_most(known, 'memory_bytes')}{_bytes(known.memory_bytes)}",
    ]


def _most(prediction: Prediction, name: str) -> str:
    return "at most " if name in prediction.bounds else ""


def notes(forecasts: Iterable[Forecast]) -> list[str]:
    """Return one line for each assumption and each failure, with the trials concerned."""
    trials: dict[str, list[str]] = {}
    known = list(forecasts)
    differing = _differing(known)
    for row in known:
        lines = [f"not predicted: {row.error}"] if row.error else list(row.prediction.notes if row.prediction else ())
        if row.prediction and _skips_nothing(row):
            lines.append("would skip nothing here: it executes at least 99.5 % of dense's FLOPs")
        name = " ".join([row.trial.label, *(f"({getattr(row.trial, field)})" for field in differing)])
        for line in lines:
            labels = trials.setdefault(line, [])
            if name not in labels:
                labels.append(name)
    return [f"{', '.join(labels)}: {line}" for line, labels in trials.items()]


def _skips_nothing(one: Forecast) -> bool:
    known = one.prediction
    is_dense = one.trial.label == BASELINE or one.trial.control
    return known is not None and not (is_dense or known.is_bound) and known.flops_executed >= _ALL * known.flops_dense


def totals(forecasts: Sequence[Forecast], seconds: float, jobs: int) -> str:
    """Return one line: how many trials run, and how long they take together on this machine."""
    running = [item for item in forecasts if item.runs]
    if not running:
        return f"nothing to run: {_count(len(forecasts))} {'is' if len(forecasts) == 1 else 'are'} done"
    known = [item for item in running if item.prediction]
    missing = (
        f", without {_count(len(running) - len(known))} that could not be probed" if len(known) < len(running) else ""
    )
    training = sum(item.prediction.train_s for item in known if item.prediction)
    at_once = f" with --jobs {jobs}" if jobs > 1 else ""
    disturbed = any(note.startswith(DISTURBED) for item in known if item.prediction for note in item.prediction.notes)
    return (
        f"{len(running)} of {_count(len(forecasts))} to run: training {duration(training)}, all together "
        f"{duration(seconds)}{at_once} (modelled{', from disturbed times' if disturbed else ''}){missing}"
    )


def cluster_line(forecasts: Sequence[Forecast], seconds: float, cluster: Cluster, devices: int) -> str:
    """Return one line: how long the trials take on a cluster, and how much of it is communication."""
    known = [item for item in forecasts if item.prediction]
    spent, total = (
        sum(item.communication.seconds for item in known if item.communication),
        sum(item.wall_s for item in known),
    )
    kind = ("GPU" if cluster.gpus else "rank") + ("s" if devices > 1 else "") + ("" if cluster.gpus else " on CPUs")
    share = f"; communication is {100 * spent / total:.1f} % of the trials' time (modelled)" if spent else ""
    return f"on {cluster.nodes} nodes with {devices} {kind} each: {duration(seconds)} (modelled){share}"


def as_json(
    forecasts: Sequence[Forecast],
    *,
    folder: str,
    jobs: int,
    total_s: float,
    cluster: Cluster | None = None,
    cluster_s: float | None = None,
    left_out: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Return the forecast as plain data. Unknown numbers are null."""
    return {
        "folder": folder,
        "jobs": jobs,
        "total_s": total_s,
        "kinds": KINDS,
        "cluster": None if cluster is None else {**vars(cluster), "total_s": cluster_s},
        "trials": [_entry(item) for item in forecasts],
        "left_out": [dict(one) for one in left_out],
    }


def _entry(one: Forecast) -> dict[str, Any]:
    known, sent = one.prediction, one.communication
    predicted: dict[str, Any] | None = None
    if known:
        names = ("train_s", "eval_s", "other_s", "flops_dense", "flops_executed", "memory_bytes", "is_bound")
        predicted = {
            **{name: getattr(known, name) for name in ("epochs", "steps", *names, "probed_epochs")},
            "wall_s": one.wall_s,
            "bounds": list(known.bounds),
            "notes": list(known.notes),
            "communication_s": sent.seconds if sent else None,
            "allreduce_bytes": sent.payload_bytes if sent else None,
            "sent_bytes": sent.sent_bytes if sent else None,
        }
    trial = one.trial
    return {
        "trial_id": trial.trial_id,
        **{name: getattr(trial, name) for name in ("task", "model", "seed", "dtype", "device", "processes")},
        "method": trial.label,
        "status": one.status,
        "runs": one.runs,
        "predicted": predicted,
        "measured": {name: one.measured.get(name) for name in ("train_time_s", "eval_time_s", "wall_time_s")}
        if one.measured
        else None,
        "error": one.error or None,
    }


def _count(number: int) -> str:
    return "1 trial" if number == 1 else f"{number} trials"


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
