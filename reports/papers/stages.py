"""ClickTrain's times of a training by stage (Fig. 13 and 14), its compression, and what its pages say first.

The declarations of the paper name these functions.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from reports.data.estimates import Estimate
from reports.data.records import is_disturbed
from reports.figures.panels import bars_figure
from reports.papers.comparison import Comparison
from reports.papers.contract import Outcome, Reproduction, ReproductionData, over_seeds
from suite.trials.building import inputs_of
from suite.trials.folder.records import TrialRecord

DENSE = "dense"
BARELY_LEARNED = 1.5  # times the accuracy of chance
NOTHING = 1e-3  # stages with a smaller share of the training are not drawn
STAGES = {"warm-up": "before patterns are chosen", "lasso": "under the lasso", "masked": "after hard pruning"}
WAYS = {
    "masked": ("backends", "clicktrain[schedule=paper,backend=masked]"),
    "auto": ("backends", "clicktrain[schedule=paper]"),
    "skipping": ("skipping", "clicktrain[schedule=paper,backend=skipping]"),
}
"""Part and label of each backend."""
KINDS = ("dense steps", STAGES["lasso"], STAGES["masked"], "measuring the backends")


def compression(trial: TrialRecord) -> dict[str, float]:
    """Return the compression after the last epoch, by the published measure, if the trial recorded one."""
    record = trial.epochs[-1].get("method", {}) if trial.epochs else {}
    return {"compression": float(record["compression"])} if "compression" in record else {}


def step_times(trial: TrialRecord) -> dict[str, list[float]]:
    """Return the mean seconds of a step for each epoch, by the stage of the epoch. Dense has only the stage `dense`.

    The times leave out reconfigurations. They also leave out the first epoch, which has one-time work, if its stage has
    more epochs.
    """
    times: dict[str, list[float]] = {}
    for before, after in pairwise(({}, *trial.epochs)):
        training, other = (float(after[name]) - float(before.get(name, 0.0)) for name in SPENT)
        if after["steps"]:
            times.setdefault(_stage(after), []).append((training - other) / float(after["steps"]))
    first = next(iter(times), None)
    if first is not None and len(times[first]) > 1:
        times[first] = times[first][1:]
    return times


SPENT = ("train_time_s", "reconfigure_time_s")


def _stage(record: Mapping[str, object]) -> str:
    method = record.get("method")
    return str(method.get("stage", DENSE)) if isinstance(method, dict) else DENSE


def median_step_times(trial: TrialRecord) -> dict[str, float]:
    """Return the time of a step in each stage; of dense, its time for each, with which the others are compared."""
    times = {stage: statistics.median(seconds) for stage, seconds in step_times(trial).items()}
    if DENSE in times:
        times = dict.fromkeys(STAGES, times[DENSE])
    return {f"{stage.replace('-', '_')}_step_time_s": seconds for stage, seconds in times.items()}


def trials_by_way(data: ReproductionData) -> dict[str, list[TrialRecord]]:
    """Return the finished trials by backend, dense first."""
    found = {DENSE: data.done("backends", DENSE) or data.done("skipping", DENSE)}
    return found | {way: trials for way, place in WAYS.items() if (trials := data.done(*place))}


def steps_by_stage(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """ClickTrain's Fig. 13: the time of a step by stage."""
    trials = trials_by_way(data)
    slow = [
        f"{way} ({one.ours.mean:.0f} %)"
        for one in lines
        for way in WAYS
        if one.quantity == f"{way}, {STAGES['masked']}: time of a step, of the same trial's before patterns are chosen"
        and isinstance(one.ours, Estimate)
        and one.ours.mean >= 100
    ]
    remark = (
        "Pruning saved no time here: after hard pruning, a step took at least as long as before any pruning in the "
        f"same trial with {', '.join(slow)}."
    )
    bars: dict[str, list[float]] = {}
    spreads: dict[str, list[tuple[float, float]]] = {}
    for way, several in trials.items():
        stages = [DENSE] if way == DENSE else [*STAGES]
        lines += [_milliseconds(page, way, stage, several) for stage in stages]
        times = step_times(several[0]) if several else {}
        of_stages = [times.get(DENSE if way == DENSE else stage) for stage in STAGES]
        if all(of_stages) and not is_disturbed(several[0]):
            bars[way] = [1e3 * statistics.median(seconds) for seconds in of_stages if seconds]
            spreads[way] = [(1e3 * min(seconds), 1e3 * max(seconds)) for seconds in of_stages if seconds]
    figure = None
    if bars:
        trial = next(several[0] for several in trials.values() if several)
        figure = bars_figure(
            page.registered_name,
            "Time of a training step by stage",
            f"{_setting(trial)}, first seed; measured, at batch {trial.number('batch_size'):g}. Bars: median over the "
            "epochs of the stage; lines: fastest to slowest epoch. Dense has no stages; its time is repeated for each.",
            "Time of a step (ms)",
            [*STAGES.values()],
            bars,
            spreads,
        )
    return Outcome(tuple(lines), figure, (remark,) if slow else ())


def _milliseconds(page: Reproduction, way: str, stage: str, trials: Sequence[TrialRecord]) -> Comparison:
    first = step_times(trials[0]).get(stage, []) if trials else []
    note = "From one epoch." if first else ""
    if len(first) > 1:
        note = f"{len(first)} epochs of the first seed: {1e3 * min(first):.3g} to {1e3 * max(first):.3g} ms."

    def middle(trial: TrialRecord) -> float | None:
        seconds = step_times(trial).get(stage)
        return 1e3 * statistics.median(seconds) if seconds else None

    ours = over_seeds(trials, middle, "no finished trial has such epochs")
    what = DENSE if way == DENSE else f"{way}, {STAGES[stage]}"
    part = "backends" if way == DENSE else WAYS[way][0]
    return page.line(f"{what}: time of a step, milliseconds", ours, part=part, unit="", note=note)


def training_by_stage(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """ClickTrain's Fig. 14: the time of the whole training."""
    trials = trials_by_way(data)
    sound = {way: several[0] for way, several in trials.items() if several and not is_disturbed(several[0])}
    rows = {way: time_by_stage(trial) for way, trial in sound.items()}
    figure = None
    if rows:
        figure = bars_figure(
            page.registered_name,
            "Time of the whole training, by stage",
            f"{_setting(next(iter(sound.values())))}, first seed; measured.",
            "Training time (s), measured",
            [*rows],
            {kind: [row.get(kind, 0.0) for row in rows.values()] for kind in KINDS},
            stacked=True,
        )
    return Outcome(tuple(lines), figure, warnings(data, trials[DENSE], lines))


def _setting(trial: TrialRecord) -> str:
    return f"{trial.text('model')} on {trial.text('task')}, {trial.text('dtype')}"


def time_by_stage(trial: TrialRecord) -> dict[str, float]:
    """Return the seconds of training by `KINDS`. Steps before patterns are chosen count as dense steps."""
    found = dict.fromkeys(KINDS, 0.0)
    for before, after in pairwise(({}, *trial.epochs)):
        spent, measuring = (float(after[name]) - float(before.get(name, 0.0)) for name in SPENT)
        stage = _stage(after)
        found[STAGES[stage] if stage in ("lasso", "masked") else KINDS[0]] += spent - measuring
        found[KINDS[-1]] += measuring
    return {kind: seconds for kind, seconds in found.items() if seconds > NOTHING * sum(found.values())}


def imagenet(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """ClickTrain's Fig. 12: say if nothing was learned or saved."""
    return Outcome(tuple(lines), remarks=warnings(data, data.done("imagenette", DENSE), lines))


def warnings(data: ReproductionData, dense: Sequence[TrialRecord], lines: Iterable[Comparison]) -> tuple[str, ...]:
    """Return a line if a dense network learned nothing, which hides any loss, and one that names what saved no time."""
    found = []
    accuracies = [accuracy for trial in dense if (accuracy := trial.number("test_accuracy")) is not None]
    classes = inputs_of(data.specs[dense[0].name]).classes if dense else 0
    if accuracies and min(accuracies) * classes <= BARELY_LEARNED:
        found.append(
            "A dense network learned almost nothing in this short training: it classifies "
            f"{100 * min(accuracies):.0f} % of the test images correctly, and {100 / classes:.0f} % is chance. A loss "
            "of accuracy by pruning cannot be seen here."
        )
    ending = ": training time, of dense's"
    slow = [
        f"{one.quantity.removesuffix(ending)} ({one.ours.mean:.0f} %)"
        for one in lines
        if one.quantity.endswith(ending) and isinstance(one.ours, Estimate) and one.ours.mean >= 100
    ]
    if slow:
        found.append(f"No time was saved here by these methods, in percent of dense: {'; '.join(slow)}.")
    return tuple(found)
