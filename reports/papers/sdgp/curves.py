"""SDGP's Fig. 6 and 7: training loss and accuracy over the epochs, dense and pruned to 2:4 in three ways.

Source: McDanel, Dinh, Magallanes, "Accelerating DNN Training with Structured Data Gradient Pruning", ICPR 2022
(arXiv 2202.00774), Sec. IV-A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.figures.panels import Line, Panel, curves_figure
from reports.papers.comparison import Compared, Comparison, accuracy
from reports.papers.contract import Outcome, Part, Reproduction, ReproductionData
from reports.papers.sdgp.tables import MODES, TABLE, label
from reports.papers.trial_values import done, line
from suite.registry import register
from suite.trials.estimates import Estimate, estimate
from suite.trials.folder.reader import Trial, finite
from suite.trials.groups import BASELINE, seed_of

PART = "cifar10"
METHODS = {BASELINE: BASELINE, **{mode: label(2, 4, mode) for mode in MODES}}
PICTURES = (
    "The paper has these curves only as a picture, for CIFAR-10 and ImageNet; no value was read off it. ImageNet is "
    "not trained here."
)


def curve(trial: Trial, name: str) -> list[tuple[int, float]]:
    """Return the number of each epoch and a field of its record, without epochs that lack a value."""
    points = ((finite(record.get("epoch")), finite(record.get(name))) for record in trial.epochs)
    return [(int(epoch), value) for epoch, value in points if epoch is not None and value is not None]


def mean_curve(trials: Sequence[Trial], name: str, scale: float = 1.0) -> list[tuple[float, float | Estimate]]:
    """Return the mean over seeds of a field at each epoch that all trials have, times `scale`."""
    curves = [dict(curve(trial, name)) for trial in trials]
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    return [(float(epoch), scale * sum(values[epoch] for values in curves) / len(curves)) for epoch in shared]


def mean_from(trial: Trial, name: str, share: float) -> float | None:
    """Return the mean of a field over the epochs after the given share of them; `None` without values."""
    left = [value for epoch, value in curve(trial, name) if epoch > int(share * len(trial.epochs))]
    return sum(left) / len(left) if left else None


def _part(compared: Sequence[Compared]) -> Part:
    return Part(
        name=PART,
        title="dense and 2:4 random, magnitude and rescaled, on CIFAR-10",
        methods=f"dense,sdgp[n=2,m=4,mode={'|'.join(MODES)}]",
        task="cifar10",
        compared=tuple(compared),
    )


def _figure(reproduction: Reproduction, data: ReproductionData, title: str, axis: str, field: str, scale: float) -> Any:
    lines = [Line(name, mean_curve(done(data, PART, method), field, scale)) for name, method in METHODS.items()]
    caption = "Means over seeds, on CIFAR-10. All pruned trainings are 2:4."
    return curves_figure(
        reproduction.registered_name, title, caption, [Panel("CIFAR-10", "Epoch", axis, lines, whole_x=True)]
    )


@register("reproduction", "sdgp-fig6")
class Figure6(Reproduction):
    """SDGP's Fig. 6: training loss over the epochs on CIFAR-10, dense and pruned to 2:4 in three ways."""

    title = "SDGP, Fig. 6: training loss over the epochs"
    reference = TABLE
    parts = (
        _part(
            [
                one
                for name, method in METHODS.items()
                for one in (
                    Compared(
                        f"training loss of the last epoch, {name}",
                        method,
                        column="last_train_loss",
                        scale=1.0,
                        unit="nats",
                    ),
                    Compared(
                        f"training loss, mean of all epochs, {name} minus dense",
                        method,
                        column="mean_train_loss",
                        against="difference",
                        scale=1.0,
                        unit="nats",
                    ),
                )
                if not (method == BASELINE and one.against)
            ]
        ),
    )

    def columns(self, trial: Trial) -> Mapping[str, float]:
        losses = [value for _, value in curve(trial, "train_loss")]
        return {"last_train_loss": losses[-1], "mean_train_loss": sum(losses) / len(losses)} if losses else {}

    def outcome(self, data: ReproductionData) -> Outcome:
        comparisons = (*self.compare(data), *self._higher(data))
        figure = _figure(self, data, "Training loss over the epochs", "Training loss (nats)", "train_loss", 1.0)
        remarks = (
            PICTURES,
            'The paper says that the loss of random is "generally higher" than that of dense, and that the losses of '
            "the other two are similar to it. The share of epochs with a higher loss shows this: it is about 50 % if "
            "the losses differ by chance alone.",
            "The loss is the cross entropy of the recipe, with its label smoothing, on the augmented batches of the "
            "epoch, before each update.",
        )
        return Outcome(comparisons, figure, remarks)

    def _higher(self, data: ReproductionData) -> list[Comparison]:
        """Return for each way of pruning the share of epochs with a higher loss than dense of the same seed."""
        dense = {seed_of(trial): dict(curve(trial, "train_loss")) for trial in done(data, PART, BASELINE)}
        lines = []
        for mode in MODES:
            shares = []
            for trial in done(data, PART, METHODS[mode]):
                both = [
                    (loss, dense[seed_of(trial)][epoch])
                    for epoch, loss in curve(trial, "train_loss")
                    if epoch in dense.get(seed_of(trial), {})
                ]
                if both:
                    shares.append(100 * sum(loss > of_dense for loss, of_dense in both) / len(both))
            ours = estimate(shares, "not run, or dense of the same seed was not")
            lines.append(line(f"epochs with a higher training loss than dense, {mode}", PART, ours, "measured"))
        return lines


@register("reproduction", "sdgp-fig7")
class Figure7(Reproduction):
    """SDGP's Fig. 7: accuracy over the epochs on CIFAR-10, dense and pruned to 2:4 in three ways."""

    title = "SDGP, Fig. 7: accuracy over the epochs"
    reference = TABLE
    parts = (
        _part(
            [
                one
                for name, method in METHODS.items()
                for one in (
                    *accuracy(name, method, f"{TABLE}/{name}", "" if method == BASELINE else f"{TABLE}/dense"),
                    *(
                        Compared(
                            f"{what}, {name} minus dense", method, column=column, against="difference", unit="points"
                        )
                        for what, column in (
                            ("mean accuracy of all epochs", "mean_accuracy"),
                            ("mean accuracy of the second half of the epochs", "late_accuracy"),
                        )
                        if method != BASELINE
                    ),
                )
            ]
        ),
    )

    def columns(self, trial: Trial) -> Mapping[str, float]:
        values = {
            name: mean_from(trial, "test_accuracy", share)
            for name, share in (("mean_accuracy", 0.0), ("late_accuracy", 0.5))
        }
        return {name: value for name, value in values.items() if value is not None}

    def outcome(self, data: ReproductionData) -> Outcome:
        figure = _figure(self, data, "Accuracy over the epochs", "Test accuracy (%)", "test_accuracy", 100.0)
        remarks = (
            f"{PICTURES} Its last points are those of Table I, with which the final accuracies are compared.",
            "The paper says that random has the lowest accuracy, and that the other two are similar to dense "
            '"throughout the course of training". The means over epochs show this.',
            "The paper calls the images of the test set validation images.",
        )
        return Outcome(self.compare(data), figure, remarks)
