"""PruneTrain's figures of accuracy against cost: Fig. 8 (pruning a trained network) and Fig. 10 (the interval).

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019, Sec. 5.2 and 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from reports.figures.figure import Figure
from reports.figures.panels import Line, Panel, curves_figure
from reports.papers.comparison import Compared
from reports.papers.contract import Outcome, Part, Reproduction, ReproductionData
from reports.papers.prunetrain.quantities import (
    MODELLED,
    changed,
    figure_part,
    inference_left,
    modelled_costs,
    strength,
    training_left,
)
from reports.papers.trial_values import done, point, share_of_dense
from suite.registry import register
from suite.trials.folder.reader import Trial

RATIOS = (0.05, 0.1, 0.15, 0.2)
SHORT = (0.1, 0.2)  # ratios in the short presets
NAMES = {"ssl": "ssl, from trained", "prunetrain": "prunetrain"}


def label(method: str, ratio: float) -> str:
    """Return the label of a method with a penalty ratio."""
    return f"ssl[ratio={ratio},from_trained=dense]" if method == "ssl" else strength(ratio)


def _tradeoff_part(name: str, ratios: Sequence[float], presets: tuple[str, ...]) -> Part:
    return figure_part(
        name,
        f"dense, prunetrain, and ssl on the trained dense network, at the ratios {', '.join(map(str, ratios))}",
        ["dense", *(label(method, ratio) for ratio in ratios for method in NAMES)],
        presets=presets,
        compared=(
            Compared("accuracy, dense", "dense"),
            *(
                line
                for ratio in ratios
                for method in NAMES
                for line in (
                    *changed(f"{NAMES[method]}, ratio {ratio}", label(method, ratio), ""),
                    inference_left(f"{NAMES[method]}, ratio {ratio}", label(method, ratio), ""),
                    training_left(f"{NAMES[method]}, ratio {ratio}", label(method, ratio)),
                )
            ),
            *(
                Compared(
                    f"prunetrain, ratio {ratio}: memory traffic of normalisation left",
                    label("prunetrain", ratio),
                    column="norm_traffic",
                    against="ratio",
                    kind="modelled",
                    note=MODELLED,
                )
                for ratio in ratios
            ),
        ),
    )


@register("reproduction", "prunetrain-fig8")
class Figure8(Reproduction):
    """PruneTrain's Fig. 8: accuracy against inference and training cost, compared with pruning a trained network."""

    title = "PruneTrain, Fig. 8: accuracy against cost, and SSL from a trained network"
    reference = "prunetrain-fig8-most-accurate"
    also = ("prunetrain-fig8-most-accurate",)
    remarks = (
        "FLOPs of ssl are those of its own training; the dense training that it starts from is not included.",
        "The paper shows its points only in the picture. It also draws ResNet-32 and CIFAR-100, which are not run "
        "here. It has no points for ImageNet: the comparison with SSL is for CIFAR-10 and CIFAR-100 only.",
    )
    parts = (
        _tradeoff_part("ends", SHORT, ("smoke", "quick", "paper")),
        _tradeoff_part("between", tuple(ratio for ratio in RATIOS if ratio not in SHORT), ("paper",)),
    )

    def columns(self, trial: Trial) -> Mapping[str, float]:
        return modelled_costs(trial)

    def outcome(self, data: ReproductionData) -> Outcome:
        by_method: dict[str, list[list[Trial]]] = {"dense": [done(data, "ends", "dense")]}
        for method, name in NAMES.items():
            by_method[name] = [
                done(data, "ends" if ratio in SHORT else "between", label(method, ratio)) for ratio in RATIOS
            ]
        figure = tradeoff_figure(
            self.registered_name,
            "Accuracy over inference FLOPs and over training FLOPs",
            "One point per penalty ratio: the mean over seeds with its 95 % interval. The training FLOPs of ssl do not "
            "include the dense training before it.",
            by_method,
        )
        return Outcome(self.compare(data), figure, self.remarks)


def tradeoff_figure(name: str, title: str, caption: str, by_method: Mapping[str, list[list[Trial]]]) -> Figure | None:
    """Draw accuracy over inference and training FLOPs: one line per method, one point per group of trials."""

    def lines(cost: Callable[[Trial], float | None]) -> list[Line]:
        return [
            Line(method, [one for trials in groups if (one := point(trials, cost)) is not None])
            for method, groups in by_method.items()
        ]

    accuracy = "Test accuracy (%), measured"
    inference, training = map(share_of_dense, ("inference_flops", "train_flops_current"))
    panels = [
        Panel("Inference", "Inference FLOPs (% of dense), counted", accuracy, lines(inference)),
        Panel("Training", "Training FLOPs (% of dense), counted", accuracy, lines(training)),
    ]
    return curves_figure(name, title, caption, panels)
