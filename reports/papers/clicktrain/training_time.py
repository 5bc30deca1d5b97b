"""ClickTrain's figures of training time: Fig. 13 (one iteration) and Fig. 14 (the whole training).

Source: Zhang, Yuan, Niu, Tian, Jin, Zhuang, Jiang, Wang, Ren, Song, Tao, "ClickTrain: Efficient and Accurate End-to-End
Deep Learning Training via Fine-Grained Architecture-Preserving Pruning", ICS 2021, slides.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

from reports.figures.figure import Figure
from reports.figures.panels import bars_figure
from reports.papers.clicktrain.charts import stacked_figure
from reports.papers.clicktrain.quantities import SMALL
from reports.papers.comparison import Compared, Comparison, compare
from reports.papers.contract import Outcome, Part, Reproduction, ReproductionData
from reports.papers.trial_networks import learned_nothing
from reports.papers.trial_values import done, line, number, over_seeds, slower_than_dense
from suite.registry import register
from suite.trials.folder.reader import Trial

DENSE = "dense"
_NOTHING = 1e-3  # stages with a smaller share of the training are not drawn
STAGES = {"warm-up": "before patterns are chosen", "lasso": "under the lasso", "masked": "after hard pruning"}
WAYS = {
    "masked": "clicktrain[schedule=paper,backend=masked]",
    "auto": "clicktrain[schedule=paper]",
    "skipping": "clicktrain[schedule=paper,backend=skipping]",
}
OF_A_PART = {"backends": ("masked", "auto"), "skipping": ("skipping",)}
BACKENDS = (
    "masked: torch also multiplies by zeros. skipping: kernels skip masked weights in every pruned layer. auto: each "
    "layer uses the faster of the two, as measured in the first epoch. Without kernels that skip, auto equals masked "
    "and the part skipping cannot run."
)
IN_PARTS = (
    "The times of a trial are measured during its training; trials are not interleaved. With --jobs above 1, or while "
    "other programs run, trials slow each other down."
)
OF_ITS_OWN = "of the same trial's before patterns are chosen"
AS_DENSE = (
    "Before patterns are chosen, these trials train exactly as dense does. A difference between their steps and those "
    "of the dense trial is then a difference between trials, not methods. The time of a stage is therefore given first "
    "relative to the earlier steps of the same trial."
)
FIRST_EPOCH = (
    "The first epoch of a trial includes one-time work and is left out if its stage has more epochs. In preset smoke, "
    "the stage before patterns are chosen has only this epoch, so stages relative to it look faster than they are. The "
    "time in which auto measures the backends is not part of a step and is left out."
)
IMAGENET = (
    "This is the CIFAR half of the figure; the other half is ImageNet on a single GPU. The bars of the slides have no "
    "numbers."
)


def part(name: str, title: str, compared: Sequence[Compared]) -> Part:
    """Return a part. Both figures have the same trials, in two parts."""
    return Part(
        name=name,
        title=title,
        methods=",".join([DENSE, *(WAYS[way] for way in OF_A_PART[name])]),
        task="cifar10",
        model="vgg11_click",
        small_model=SMALL,
        seeds={"smoke": 1, "quick": 1, "paper": 3},
        presets=("smoke", "quick", "paper") if name == "backends" else ("smoke", "quick"),
        recipe="clicktrain",
        compared=tuple(compared),
    )


def step_times(trial: Trial) -> dict[str, list[float]]:
    """Return the mean seconds of a step for each epoch, by the stage of the epoch. Dense has only the stage `dense`.

    The times leave out reconfigurations. They also leave out the first epoch, which has one-time work, if its stage has
    more epochs.
    """
    times: dict[str, list[float]] = {}
    before: Mapping[str, float] = {}
    for record in trial.epochs:
        spent = [float(record[name]) - before.get(name, 0.0) for name in ("train_time_s", "reconfigure_time_s")]
        before = {name: float(record[name]) for name in ("train_time_s", "reconfigure_time_s")}
        stage = record.get("method", {}).get("stage", DENSE)
        if record["steps"]:
            times.setdefault(stage, []).append((spent[0] - spent[1]) / float(record["steps"]))
    first = next(iter(times), None)
    if first is not None and len(times[first]) > 1:
        times[first] = times[first][1:]
    return times


def column(stage: str) -> str:
    """Return the name of the column with the step time of a stage. Its ending marks it as a time."""
    return f"{stage.replace('-', '_')}_step_time_s"


@register("reproduction", "clicktrain-fig13")
class Figure13(Reproduction):
    """ClickTrain's Fig. 13: time of an iteration by stage, with masked weights multiplied or skipped, and of dense."""

    title = "ClickTrain, Fig. 13: time of a training step, by stage"
    source = "clicktrain-slides"
    remarks = (
        "A step is forward, backward and the optimizer; the slides measure only forward and backward. Times are "
        "medians over the epochs of a stage; notes and the lines on the bars give the fastest and the slowest epoch.",
        AS_DENSE,
        FIRST_EPOCH,
        BACKENDS,
        IN_PARTS,
        IMAGENET,
    )
    parts = tuple(
        part(
            name,
            f"dense and clicktrain, backend {' and '.join(ways)}",
            [
                *(
                    Compared(f"{way}, {STAGES[stage]}: time of a step, {OF_ITS_OWN}", WAYS[way], column=column(stage),
                             over=column("warm-up"))
                    for way in ways
                    for stage in ("lasso", "masked")
                ),
                *(
                    Compared(f"{way}, {STAGES[stage]}: time of a step, of that of the dense trial", WAYS[way],
                             column=column(stage), against="ratio")
                    for way in ways
                    for stage in STAGES
                ),
            ],
        )
        for name, ways in OF_A_PART.items()
    )  # fmt: skip

    def columns(self, trial: Trial) -> Mapping[str, float]:
        times = {stage: statistics.median(seconds) for stage, seconds in step_times(trial).items()}
        if DENSE in times:  # each stage of the others is compared with dense
            return {column(stage): times[DENSE] for stage in STAGES}
        return {column(stage): seconds for stage, seconds in times.items()}

    def outcome(self, data: ReproductionData) -> Outcome:
        lines = list(self.compare(data))
        by_way = trials_by_way(data)
        for way, trials in by_way.items():
            for stage in [DENSE] if way == DENSE else STAGES:
                lines.append(_milliseconds(way, stage, trials))
        return Outcome(tuple(lines), self._figure(by_way), (*pays(lines), *self.remarks))

    def _figure(self, by_way: Mapping[str, list[Trial]]) -> Figure | None:
        bars: dict[str, list[float]] = {}
        spreads: dict[str, list[tuple[float, float]]] = {}
        for way, trials in by_way.items():
            times = step_times(trials[0]) if trials else {}
            stages = [DENSE if way == DENSE else stage for stage in STAGES]
            if all(times.get(stage) for stage in stages):
                bars[way] = [1e3 * statistics.median(times[stage]) for stage in stages]
                spreads[way] = [(1e3 * min(times[stage]), 1e3 * max(times[stage])) for stage in stages]
        if not bars:
            return None
        trial = next(trials[0] for trials in by_way.values() if trials)
        return bars_figure(
            self.registered_name,
            "Time of a training step by stage",
            f"{trial.text('model')} on {trial.text('task')} at batch {trial.number('batch_size'):g}, "
            f"{trial.text('dtype')}, first seed; measured. Bars: median over the epochs of the stage; lines: fastest "
            "to slowest epoch. Dense has no stages; its time is repeated for each.",
            "Time of a step (ms)",
            [*STAGES.values()],
            bars,
            spreads,
        )


def trials_by_way(data: ReproductionData) -> dict[str, list[Trial]]:
    """Return the finished trials by backend, dense first."""
    dense = next((trials for name in OF_A_PART if (trials := done(data, name, DENSE))), [])
    by_way = {DENSE: dense}
    for name, ways in OF_A_PART.items():
        by_way |= {way: trials for way in ways if (trials := done(data, name, WAYS[way]))}
    return by_way


def _milliseconds(way: str, stage: str, trials: list[Trial]) -> Comparison:
    by_trial = [step_times(trial).get(stage, []) for trial in trials]
    note = "From one epoch." if by_trial and by_trial[0] else ""
    if by_trial and len(by_trial[0]) > 1:
        ends = [f"{1e3 * of_all(by_trial[0]):.3g}" for of_all in (min, max)]
        note = f"{len(by_trial[0])} epochs of the first seed: {ends[0]} to {ends[1]} ms."
    ours = over_seeds(
        trials,
        lambda trial: statistics.median(seconds) if (seconds := step_times(trial).get(stage)) else None,
        "no finished trial has such epochs",
        1e3,
    )
    where = next(name for name, ways in OF_A_PART.items() if way == DENSE or way in ways)
    what = DENSE if way == DENSE else f"{way}, {STAGES[stage]}"
    return line(f"{what}: time of a step, milliseconds", where, ours, "measured", unit="", note=note)


def pays(lines: Sequence[Comparison]) -> list[str]:
    """Return one line that names the backends whose steps are no faster after hard pruning than before any pruning."""
    slow = [
        f"{one.quantity.partition(',')[0]} ({share:.0f} %)"
        for one in lines
        if one.quantity.endswith(f"{STAGES['masked']}: time of a step, {OF_ITS_OWN}")
        if (share := number(one.ours)) is not None and share >= 100
    ]
    if not slow:
        return []
    return [
        "Pruning saved no time here: after hard pruning, a step took at least as long as before any pruning in the "
        f"same trial with {', '.join(slow)}."
    ]


@register("reproduction", "clicktrain-fig14")
class Figure14(Reproduction):
    """ClickTrain's Fig. 14: time of the whole training, with masked weights multiplied or skipped, and of dense."""

    title = "ClickTrain, Fig. 14: total training time"
    source = "clicktrain-slides"
    also = ("clicktrain-claim-cost",)
    remarks = (
        "Training time includes steps, the choice of patterns, masks, and for auto the measurement of the backends. "
        "The claim of the slides compares with pruning a trained network, which is not run here.",
        BACKENDS,
        IN_PARTS,
        IMAGENET,
    )
    parts = tuple(
        part(
            name,
            f"dense and clicktrain, backend {' and '.join(ways)}",
            [
                Compared("dense: training time, seconds", DENSE, column="train_time_s", scale=1.0, unit="s"),
                Compared("accuracy, dense", DENSE),
                *(
                    compared
                    for way in ways
                    for compared in (
                        Compared(f"{way}: training time, seconds", WAYS[way], column="train_time_s", scale=1.0,
                                 unit="s"),
                        Compared(f"{way}: training time, of dense's", WAYS[way], column="train_time_s",
                                 against="ratio"),
                        Compared(f"{way}: training FLOPs executed, of dense's", WAYS[way],
                                 column="train_flops_executed", against="ratio", kind="counted"),
                        Compared(f"{way}: training FLOPs effective, of dense's", WAYS[way],
                                 column="train_flops_effective", against="ratio", kind="counted"),
                        Compared(f"{way} minus dense", WAYS[way], against="difference", unit="points"),
                    )
                ),
            ],
        )
        for name, ways in OF_A_PART.items()
    )  # fmt: skip

    def outcome(self, data: ReproductionData) -> Outcome:
        rows = {}
        for way, trials in trials_by_way(data).items():
            if trials:
                rows[way] = time_by_stage(trials[0])
        figure = None
        if rows:
            trial = next(trials[0] for trials in trials_by_way(data).values() if trials)
            kinds = [kind for kind in KINDS if any(kind in row for row in rows.values())]
            figure = stacked_figure(
                self.registered_name,
                "Time of the whole training, by stage",
                f"{trial.text('model')} on {trial.text('task')}, {trial.text('dtype')}, first seed; measured.",
                "Training time (s), measured",
                {"": {way: [row.get(kind, 0.0) for kind in kinds] for way, row in rows.items()}},
                kinds,
            )
        lines = self._once(data)
        dense = trials_by_way(data)[DENSE]
        return Outcome(lines, figure, (*learned_nothing(data, dense), *slower_than_dense(lines), *self.remarks))

    def _once(self, data: ReproductionData) -> tuple[Comparison, ...]:
        """Compare as declared. Both parts have the quantities of dense, which appear only in the first part."""
        lines: list[Comparison] = []
        for part in self.parts:
            compared = compare(part.compared, part.name, data.trials.get(part.name, {}), self.published)
            known = {one.quantity for one in lines}
            lines += [one for one in compared if one.quantity not in known]
        return tuple(lines)


DENSE_STEPS, MEASURING = "dense steps", "measuring the backends"
KINDS = (DENSE_STEPS, STAGES["lasso"], STAGES["masked"], MEASURING)


def time_by_stage(trial: Trial) -> dict[str, float]:
    """Return the seconds of training by `KINDS`. Steps before patterns are chosen count as dense steps."""
    found = dict.fromkeys(KINDS, 0.0)
    nothing = {"train_time_s": 0.0, "reconfigure_time_s": 0.0}
    for before, after in pairwise((nothing, *trial.epochs)):
        spent, measuring = (float(after[name]) - float(before[name]) for name in nothing)
        stage = after.get("method", {}).get("stage", DENSE)  # type: ignore[union-attr]
        found[STAGES[stage] if stage in ("lasso", "masked") else DENSE_STEPS] += spent - measuring
        found[MEASURING] += measuring
    return {kind: seconds for kind, seconds in found.items() if seconds > _NOTHING * sum(found.values())}
