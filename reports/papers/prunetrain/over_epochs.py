"""PruneTrain's figures of the course of a training: Fig. 2, 4 and 9.

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019, Sec. 3, 4.2 and 5.3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from reports.data.method_rows import by_seed
from reports.figures.panels import Line, Panel, curves_figure
from reports.papers.comparison import Compared
from reports.papers.contract import Outcome, Part, Reproduction, ReproductionData
from reports.papers.prunetrain.quantities import GROWING, figure_part, strength, training_left
from reports.papers.trial_values import done, line, over_seeds, share_of_dense
from suite.registry import register
from suite.trials.estimates import Estimate, estimate
from suite.trials.folder.reader import Trial

STRENGTHS = (0.1, 0.15, 0.2)
TIMES = (0.25, 0.5, 0.75)


def one_time(at: float) -> str:
    """Return the label of one reconfiguration after a share of the epochs, at the largest penalty ratio."""
    return f"oneshot[ratio={STRENGTHS[-1]},at={at}]"


@register("reproduction", "prunetrain-fig2")
class Figure2(Reproduction):
    """PruneTrain's Fig. 2: FLOPs of a step over the epochs, and one reconfiguration compared with many."""

    title = "PruneTrain, Fig. 2: why to reconfigure early and often"
    reference = "prunetrain-fig2-oneshot"
    parts = (
        figure_part(
            "strengths",
            f"prunetrain at the penalty ratios {', '.join(map(str, STRENGTHS))}",
            [*map(strength, STRENGTHS)],
            compared=tuple(
                line
                for ratio in STRENGTHS
                for line in (
                    training_left(f"ratio {ratio}", strength(ratio)),
                    Compared(
                        f"ratio {ratio}: of the FLOPs that a step loses, lost in the first half of the epochs",
                        strength(ratio),
                        column="lost_in_first_half",
                        kind="counted",
                        note="According to the paper, most are pruned within the first 90 of 182 epochs.",
                    ),
                )
            ),
        ),
        figure_part(
            "oneshot",
            f"one reconfiguration after {', '.join(f'{100 * at:g}' for at in TIMES)} % of the epochs",
            [*map(one_time, TIMES)],
            compared=tuple(
                training_left(f"one reconfiguration after {100 * at:g} % of the epochs", one_time(at)) for at in TIMES
            ),
        ),
    )

    def columns(self, trial: Trial) -> Mapping[str, float]:
        shares = [share for _, share in step_flops(trial)]
        if len(shares) < 2 or shares[-1] >= shares[0]:
            return {}  # nothing was lost
        return {"lost_in_first_half": (shares[0] - shares[len(shares) // 2]) / (shares[0] - shares[-1])}

    def outcome(self, data: ReproductionData) -> Outcome:
        comparisons = self.compare(data)
        trials = {label: done(data, "strengths", label) for label in map(strength, STRENGTHS)}
        once = {at: done(data, "oneshot", one_time(at)) for at in TIMES}
        many = _by_seed(trials[strength(STRENGTHS[-1])])
        best = [
            min(costs[seed] for costs in map(_by_seed, once.values()) if seed in costs) / cost - 1
            for seed, cost in many.items()
            if any(seed in _by_seed(several) for several in once.values())
        ]
        ours = estimate([100 * share for share in best], "the trials with one reconfiguration are not done")
        extra = line(
            f"one reconfiguration at its best time: training FLOPs above prunetrain's, ratio {STRENGTHS[-1]}",
            "oneshot",
            ours,
            "counted",
            published="prunetrain-fig2-oneshot/best",
            among=self.published,
            note="The text of the paper says more than 25 %. Ours is the best of the times that were tried.",
        )
        steps = [Line(f"ratio {ratio}", step_flops_of(trials[strength(ratio)])) for ratio in STRENGTHS]
        one = Line("one reconfiguration", [(100 * at, cost) for at, several in once.items() for cost in _cost(several)])
        largest = trials[strength(STRENGTHS[-1])]
        ends = [Line(f"ratio {STRENGTHS[-1]}", [(100.0, cost) for cost in _cost(largest)], joined=False)]
        figure = curves_figure(
            self.registered_name,
            "FLOPs of a step over the epochs, and of the whole training",
            "Counted. Left: FLOPs of a training step relative to dense, first seed. Right: FLOPs of the whole training "
            f"with one reconfiguration, by its time, and of PruneTrain with the same ratio {STRENGTHS[-1]} (at the "
            "right edge).",
            [
                Panel("A step", "Epoch", "FLOPs of a step (% of dense), counted", steps, whole_x=True,
                      from_zero=True),
                Panel("The training", "One reconfiguration after (% of the epochs)", "Training FLOPs (% of dense)",
                      [one, *ends] if one.points else [], from_zero=True),
            ],
        )  # fmt: skip
        return Outcome((*comparisons, extra), figure)


def step_flops(trial: Trial) -> list[tuple[int, float]]:
    """Return for each epoch the FLOPs of a step over those of the dense network."""
    return [
        (int(record["epoch"]), record["step_flops"]["current"] / record["step_flops"]["dense"])
        for record in trial.epochs
        if record.get("step_flops", {}).get("dense")
    ]


def step_flops_of(trials: Sequence[Trial]) -> list[tuple[float, float]]:
    """Return `step_flops` of the first seed, in percent."""
    return [(epoch, 100 * share) for epoch, share in step_flops(trials[0])] if trials else []


def _cost(trials: list[Trial]) -> list[Estimate]:
    """Return the training FLOPs in percent of dense; empty if no trial is done."""
    quantity = over_seeds(trials, share_of_dense("train_flops_current"), scale=100)
    return [quantity] if isinstance(quantity, Estimate) else []


def _by_seed(trials: list[Trial]) -> dict[int, float]:
    return by_seed(trials, "train_flops_current")


NAIVE = "prunetrain"
NO_GROWTH = (
    "The batch did not grow in the training that is drawn: its reconfigurations never freed memory for 32 more images, "
    "which is the smallest step."
)


def memory_lines(where: str, constant: str, growing: str, last: Compared | None = None) -> tuple[Compared, ...]:
    """Return the lines of Fig. 9 for one task.

    Args:
        where: Start of each line's name.
        constant: Label of PruneTrain with the batch as it was.
        growing: Label of PruneTrain with the growing batch.
        last: Line of the last batch, if there is a published one.
    """
    memory = f"{where}: memory of the last epoch's steps, of that of the first"
    return (
        last or Compared(f"{where}: last batch", growing, column="last_batch", scale=1.0, unit="", kind="counted"),
        Compared(f"{memory}, batch as it was", constant, column="last_memory"),
        Compared(f"{memory}, growing batch", growing, column="last_memory"),
        Compared(f"{where}: most memory of an epoch's steps, of that of the first, growing batch", growing,
                 column="most_memory", note="A value above 100 % would exceed the memory bound."),
        Compared(f"{where}: optimizer steps, of those without growth", growing, column="steps_left", kind="counted"),
    )  # fmt: skip


_LAST_ON_CIFAR100 = Compared(
    "cifar100: last batch", GROWING, column="last_batch", scale=1.0, unit="", kind="counted",
    published="prunetrain-fig9-batch/last",
)  # fmt: skip


@register("reproduction", "prunetrain-fig9")
class Figure9(Reproduction):
    """PruneTrain's Fig. 9: memory of a step over the epochs, with a batch that grows into the freed memory."""

    title = "PruneTrain, Fig. 9: memory of a step, and the batch that grows"
    reference = "prunetrain-fig9-batch"
    also = ("prunetrain-fig9a-batch",)
    remarks = ("This is Fig. 9b (CIFAR). prunetrain-fig9-imagenet reproduces Fig. 9a (ImageNet).",)
    parts = tuple(
        figure_part(
            task,
            f"{task}: prunetrain with a constant and with a growing batch",
            [NAIVE, GROWING],
            task=task,
            presets=presets,
            compared=memory_lines(task, NAIVE, GROWING, _LAST_ON_CIFAR100 if task == "cifar100" else None),
        )
        for task, presets in (("cifar10", ("smoke", "quick")), ("cifar100", ("paper",)))
    )

    def labels(self, part: Part) -> tuple[str, str]:
        """Return the labels of PruneTrain in a part: with the batch as it was, and with the growing batch."""
        return NAIVE, GROWING

    def columns(self, trial: Trial) -> Mapping[str, float]:
        memory = [taken for _, taken in step_memory(trial)]
        if not memory:
            return {}
        batches = [float(record["batch_size"]) for record in trial.epochs]
        as_it_was = len(trial.epochs) * float(trial.epochs[0]["steps"])
        return {
            "last_batch": batches[-1],
            "last_memory": memory[-1] / memory[0],
            "most_memory": max(memory) / memory[0],
            "steps_left": sum(float(record["steps"]) for record in trial.epochs) / as_it_was,
        }

    def outcome(self, data: ReproductionData) -> Outcome:
        names = ("batch as it was", "growing batch")
        # Draw one task: the first part in which both trials are done, or else the trials of the first part.
        by_part = [
            {
                name: several[0]
                for name, label in zip(names, self.labels(part), strict=True)
                if (several := done(data, part.name, label))
            }
            for part in self.parts
        ]
        courses = max(by_part, key=len)  # the first of equal ones
        counted = data.device == "cpu"
        memory = [
            Line(name, [(epoch, taken / 2**20) for epoch, taken in step_memory(trial)])
            for name, trial in courses.items()
        ]
        batches = [
            Line(name, [(int(record["epoch"]), float(record["batch_size"])) for record in trial.epochs])
            for name, trial in courses.items()
        ]
        figure = curves_figure(
            self.registered_name,
            "Memory of a training step, and the batch, over the epochs",
            f"First seed, {' and '.join({trial.text('task') for trial in courses.values()}) or 'no trial'}. "
            + (
                "Memory is counted: parameters, gradients, optimizer state and tensors kept for the backward pass."
                if counted
                else "Memory is measured: the maximum of the allocator, including the data set on the device."
            ),
            [
                Panel("Memory", "Epoch", "Memory of a step (MiB)", memory, whole_x=True, from_zero=True),
                Panel("Batch", "Epoch", "Batch size", batches, whole_x=True, from_zero=True),
            ],
        )
        lines = (
            dataclasses.replace(one, kind="counted") if counted and "memory" in one.quantity else one
            for one in self.compare(data)
        )
        growing = courses.get(names[1])
        stayed = growing is not None and len({record["batch_size"] for record in growing.epochs}) == 1
        return Outcome(tuple(lines), figure, (*self.remarks, NO_GROWTH) if stayed else self.remarks)


def step_memory(trial: Trial) -> list[tuple[int, float]]:
    """Return for each epoch the memory of a step in bytes."""
    return [
        (int(record["epoch"]), float(record["step_memory_bytes"]))
        for record in trial.epochs
        if record.get("step_memory_bytes")
    ]
