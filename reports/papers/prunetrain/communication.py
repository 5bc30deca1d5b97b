"""PruneTrain's figure of the communication of gradients: Fig. 11.

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019, Sec. 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping

from reports.figures.panels import Line, Panel, curves_figure
from reports.papers.comparison import Compared
from reports.papers.contract import Outcome, Part, Reproduction, ReproductionData
from reports.papers.prunetrain.imagenet import ADJUSTED, RATIOS, label
from reports.papers.prunetrain.over_epochs import NAIVE, NO_GROWTH
from reports.papers.prunetrain.quantities import GROWING, ONE_SEED, figure_part
from reports.papers.trial_values import done
from suite.engine.cost.ring import gradient_bytes, relative_traffic
from suite.registry import register
from suite.trials.folder.reader import Trial

PUBLISHED = "prunetrain-imagenet-allreduce-saved/mean"
ON_IMAGENET = "The paper's number is for ResNet-50 on ImageNet, whose batch grows with the two strongest penalties."
NO_PROCESSES = (
    "The gradients are counted from the shapes of every epoch, which the trials recorded; the count does not depend on "
    "the number of processes, so that one process suffices. A ring all-reduce among p processes sends 2(p - 1)/p bytes "
    "for each of them, with PruneTrain and with dense training, so that this factor cancels. In data-parallel trials "
    "(--nproc-per-trial) the column allreduce_bytes has the bytes that were measured."
)
MORE_WEIGHTS = (
    "Communication is saved by removed weights and by fewer steps per epoch. It falls by more than the FLOPs where "
    "wide layers with small images lose most, since these have many weights and few multiply-adds."
)


def lines(where: str, methods: Mapping[str, str], compared: str) -> tuple[Compared, ...]:
    """Return the lines of a part.

    Args:
        where: Start of each line's name.
        methods: Labels of the methods by their names for readers.
        compared: Name of the method to compare with the published number.
    """
    compared_lines: list[Compared] = []
    for name, method in methods.items():
        compared_lines += [
            Compared(f"{where}, {name}: communication of gradients saved", method, column="communication_saved",
                     kind="modelled", published=PUBLISHED if name == compared else "",
                     note=ON_IMAGENET if name == compared else ""),
            Compared(f"{where}, {name}: communication in the last epoch, of dense's", method,
                     column="last_communication", kind="modelled"),
            Compared(f"{where}, {name}: gradients of a step in the last epoch, of those in the first", method,
                     column="last_gradients", kind="counted"),
        ]  # fmt: skip
    return tuple(compared_lines)


GROWS = {ratio: f"ratio {ratio}, growing batch" for ratio in RATIOS[:2]}
_ON_CIFAR10 = {"batch as it was": NAIVE, "growing batch": GROWING}
_ON_IMAGENET = {
    **{f"ratio {ratio}": label(ratio) for ratio in RATIOS},
    **{name: label(ratio, ADJUSTED) for ratio, name in GROWS.items()},
}


@register("reproduction", "prunetrain-fig11")
class Figure11(Reproduction):
    """PruneTrain's Fig. 11: communication of gradients per epoch, by a model of a ring all-reduce."""

    title = "PruneTrain, Fig. 11: communication of gradients per epoch"
    reference = "prunetrain-imagenet-allreduce-saved"
    remarks = (NO_PROCESSES, MORE_WEIGHTS)
    parts = (
        figure_part(
            "cifar10",
            "cifar10: prunetrain with a constant and with a growing batch",
            [*_ON_CIFAR10.values()],
            presets=("smoke", "quick"),
            compared=lines("cifar10", _ON_CIFAR10, "growing batch"),
        ),
        Part(
            name="resnet50",
            title=f"ResNet-50 on ImageNet: prunetrain at the penalty ratios {', '.join(map(str, RATIOS))}",
            methods=",".join(_ON_IMAGENET.values()),
            task="imagenet",
            model="resnet50",
            seeds=ONE_SEED,
            presets=("paper",),
            recipe="prunetrain",
            compared=lines("imagenet", _ON_IMAGENET, GROWS[RATIOS[0]]),
        ),
    )

    def columns(self, trial: Trial) -> Mapping[str, float]:
        epochs = payloads(trial)
        if not epochs:
            return {}
        shares = relative_to_dense(trial)
        return {
            "communication_saved": 1 - sum(share for _, share in shares) / len(shares),
            "last_communication": shares[-1][1],
            "last_gradients": epochs[-1][0] / epochs[0][0],
        }

    def outcome(self, data: ReproductionData) -> Outcome:
        drawn: dict[str, Trial] = {}
        for part, methods in zip(self.parts, (_ON_CIFAR10, _ON_IMAGENET), strict=True):
            drawn = drawn or {name: trials[0] for name, method in methods.items()
                              if (trials := done(data, part.name, method))}  # fmt: skip
        courses = [
            Line(name, [(epoch, 100 * share) for epoch, share in relative_to_dense(trial)])
            for name, trial in drawn.items()
        ]
        figure = curves_figure(
            self.registered_name,
            "Communication of gradients per epoch",
            f"First seed, {' and '.join({trial.text('task') for trial in drawn.values()}) or 'no trial'}. Modelled by "
            "a ring all-reduce from counted gradients, for any number of processes.",
            [Panel("Communication", "Epoch", "Gradients sent (% of dense)", courses, whole_x=True, from_zero=True)],
        )
        growing = [trial for name, trial in drawn.items() if "growing" in name]
        stayed = growing and all(len({record["batch_size"] for record in trial.epochs}) == 1 for trial in growing)
        return Outcome(self.compare(data), figure, (*self.remarks, NO_GROWTH) if stayed else self.remarks)


def payloads(trial: Trial) -> list[tuple[int, int]]:
    """Return for each epoch the bytes of a step's gradients, and the number of steps.

    The record of an epoch describes the network after the epoch, which is the network that the next epoch trains.
    """
    dense = trial.number("params_dense")
    if dense is None or not trial.epochs:
        return []
    trained = [int(dense), *(int(record["params"]) for record in trial.epochs[:-1])]
    return [
        (gradient_bytes(params), int(record["steps"])) for params, record in zip(trained, trial.epochs, strict=True)
    ]


def relative_to_dense(trial: Trial) -> list[tuple[int, float]]:
    """Return for each epoch its number, and the bytes sent in a ring relative to dense training."""
    epochs = payloads(trial)
    return (
        [
            (int(record["epoch"]), relative_traffic([part], *epochs[0]))
            for record, part in zip(trial.epochs, epochs, strict=True)
        ]
        if epochs
        else []
    )
