"""PruneTrain's numbers of final networks: Table 2 (inference), Fig. 6 and 7 (union and gating), Fig. 12 (density).

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019, Sec. 4.2, 5.1 and 5.3.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from reports.figures.panels import Line, Panel, bars_figure, curves_figure
from reports.papers.comparison import Comparison
from reports.papers.contract import Outcome, Part, Reproduction, ReproductionData
from reports.papers.prunetrain.quantities import IN_FEW_EPOCHS, MODELS, ONE_SEED, REPETITIONS, figure_part, strength
from reports.papers.prunetrain.timed_networks import cut_again
from reports.papers.trial_networks import classes, final_model, image_shape
from reports.papers.trial_values import done, doubts, line, model_file, timed_on, trained_model, with_own_trials
from suite.choices import build_model
from suite.engine.cost.flops import count_model
from suite.registry import register
from suite.trials.engines.subprocess_call import SubprocessResult, call_in_subprocess
from suite.trials.estimates import Missing, estimate
from suite.trials.folder.reader import Trial
from suite.trials.groups import seed_of

BATCHES = (10, 100)
RATIOS = (0.1, 0.2)
NEAR_ZERO = 1e-4  # the paper's threshold, which need not be that of the trial
NOT_DONE = "its trials are not done"
NETWORKS = ("resnet32", "resnet50_cifar")


@register("reproduction", "prunetrain-table2")
class Table2(Reproduction):
    """PruneTrain's Table 2: inference images per second of dense and pruned networks, at batch sizes 10 and 100."""

    title = "PruneTrain, Table 2: inference speed"
    reference = "prunetrain-table2-cifar100-speedup"
    compared_with = ("prunetrain-table2-cifar100-dense", "prunetrain-table2-cifar100-pruned")
    theirs = "prunetrain-table2-cifar100"  # beginning of the names of the groups of published numbers
    remarks: ClassVar[tuple[str, ...]] = (
        f"Median of {REPETITIONS} passes of random images; dense and pruned alternate, in the dtype of the trials. "
        "Weights and images are on the device beforehand. The paper uses a Titan Xp and mixed precision.",
    )
    parts = tuple(
        Part(
            name=f"{model}-{task}",
            title=f"{model} on {task}, dense and {method}",
            methods=f"dense,{method}",
            task=task,
            model=model,
            seeds={"smoke": 1, "quick": 1, "paper": 3},
            presets=presets,
            recipe="prunetrain",
        )
        for task, models, method, presets in (
            ("cifar10", MODELS[:1], IN_FEW_EPOCHS, ("smoke", "quick")),
            ("cifar100", MODELS, "prunetrain", ("paper",)),
        )
        for model in models
    )

    def where(self, part: Part, model: str) -> str:
        """Return the beginning of the names of a part's quantities, for the network that was trained."""
        return f"{model} on {part.task}"

    def rows(self, part: Part) -> tuple[str, str] | None:
        """Return the rows of dense and of the pruned network in the paper's table; `None` without such rows."""
        return part.model, part.model

    def outcome(self, data: ReproductionData) -> Outcome:
        lines: list[Comparison] = []
        timed: list[SubprocessResult] = []
        for part, trials in with_own_trials(self, data):
            for batch in BATCHES:
                lines += self._lines(data, part, trials, batch, timed)
        return Outcome(tuple(lines), remarks=(*self.remarks, *doubts(timed)), provenance=timed_on(timed))

    def _lines(
        self,
        data: ReproductionData,
        part: Part,
        trials: dict[str, list[Trial]],
        batch: int,
        timed: list[SubprocessResult],
    ) -> list[Comparison]:
        dense = trials.get("dense", [])
        method = part.methods.partition(",")[2]
        pruned = {seed_of(trial): trial for trial in trials.get(method, [])}
        speeds: list[list[float]] = []  # of dense and pruned, by seed
        for trial in dense:
            if seed_of(trial) in pruned:
                found = images_per_second(data, (trial, pruned[seed_of(trial)]), batch)
                speeds.append(found.value)
                timed.append(found)
        model = trained_model(part, dense)
        name = f"{self.where(part, model)}, batch {batch}"
        dense_row, row = (model == part.model and self.rows(part)) or (None, None)
        before, after, ratios = (
            estimate(values, NOT_DONE)
            for values in ([a for a, _ in speeds], [b for _, b in speeds], [b / a for a, b in speeds])
        )

        def published(what: str, of: str | None) -> str:
            key = ", ".join(filter(None, (of, f"batch {batch}")))
            group = f"{self.theirs}-{what}"
            return f"{group}/{key}" if of is not None and key in self.published.group(group).values else ""

        return [
            line(f"{name}: dense, images per second", part.name, before, "measured", unit="",
                 published=published("dense", dense_row), among=self.published),
            line(f"{name}: prunetrain, images per second", part.name, after, "measured", unit="",
                 published=published("pruned", row), among=self.published),
            line(f"{name}: prunetrain over dense", part.name, ratios, "measured", unit="×",
                 published=published("speedup", row), among=self.published),
        ]  # fmt: skip


def images_per_second(data: ReproductionData, trials: tuple[Trial, ...], batch: int) -> SubprocessResult:
    """Measure the images per second of each trial's final network, on the device of the command."""
    arguments = {
        "files": [str(model_file(data, trial)) for trial in trials],
        "dtype": trials[0].text("dtype"),
        "shape": image_shape(data, trials[0]),
        "batch": batch,
    }
    plugins = data.specs[trials[0].name].plugins
    return call_in_subprocess(
        "reports.papers.prunetrain.timed_networks:images_per_second", arguments, data.device, plugins
    )


@register("reproduction", "prunetrain-fig6")
class Figure6(Reproduction):
    """PruneTrain's Fig. 6: remaining inference FLOPs with channel union and with channel gating."""

    title = "PruneTrain, Fig. 6: channel union against channel gating"
    reference = "prunetrain-fig6-union"
    remarks = (
        "Both cuts are made once more at the threshold of the trial, starting from the final network of a trial with "
        "channel union. They therefore start from the same weights.",
    )
    parts = tuple(
        figure_part(
            model,
            f"{model}: prunetrain at the ratios {', '.join(map(str, RATIOS))}",
            [*map(strength, RATIOS)],
            model=model,
            presets=("smoke", "quick", "paper") if model == NETWORKS[0] else ("paper",),
        )
        for model in NETWORKS
    )

    def outcome(self, data: ReproductionData) -> Outcome:
        lines: list[Comparison] = []
        differences: list[float] = []
        panels = []
        for part, by_label in with_own_trials(self, data):
            found: dict[str, list[tuple[float, Any]]] = {"union": [], "gating": []}
            model = trained_model(part, [trial for trials in by_label.values() for trial in trials])
            for ratio in RATIOS:
                trials = by_label.get(strength(ratio), [])
                union, gated = ([inference_share(data, trial, gating) for trial in trials] for gating in (False, True))
                apart = [100 * (one - other) for one, other in zip(union, gated, strict=True)]
                differences += apart[:1]
                for name, shares in (("union", union), ("gating", gated)):
                    left = estimate([100 * share for share in shares], NOT_DONE)
                    what = f"{model}, ratio {ratio}: inference FLOPs left, {name}"
                    lines.append(line(what, part.name, left, "counted"))
                    if not isinstance(left, Missing):
                        found[name].append((ratio, left))
                what = f"{model}, ratio {ratio}: union above gating, of dense"
                lines.append(line(what, part.name, estimate(apart, NOT_DONE), "counted"))
            panels.append(
                Panel(model, "Penalty ratio", "Inference FLOPs (% of dense), counted",
                      [Line(name, points, joined=False) for name, points in found.items()], from_zero=True)
            )  # fmt: skip
        for name, of_all in (("least", min), ("most", max)):
            ours = estimate([of_all(differences)] if differences else [], NOT_DONE)
            what = f"union above gating, of dense, {name} of all that ran (first seed)"
            published = f"prunetrain-fig6-union/{name}"
            lines.append(line(what, self.parts[0].name, ours, "counted", published=published, among=self.published))
        figure = curves_figure(
            self.registered_name,
            "Inference FLOPs left by the channel union and by channel gating",
            "Mean over seeds, counted. Copies made by gates cost no FLOPs, but much time.",
            panels,
        )
        return Outcome(tuple(lines), figure, self.remarks)


def inference_share(data: ReproductionData, trial: Trial, gating: bool) -> float:
    """Return the inference FLOPs of a final network after one more cut, over those of the dense network."""
    shape, dense = image_shape(data, trial), trial.number("inference_flops_dense")
    assert dense is not None
    model = cut_again(str(model_file(data, trial)), *_again(data, trial, gating))
    return count_model(model, shape)["inference_flops"] / dense


def _again(data: ReproductionData, trial: Trial, gating: bool) -> tuple[float, bool, tuple[int, int, int], int]:
    """Return the arguments of `cut_again` for a trial."""
    return threshold(data, trial), gating, image_shape(data, trial), classes(data, trial)


def threshold(data: ReproductionData, trial: Trial) -> float:
    """Return the threshold below which a channel of the trial counted as dead."""
    return float(data.specs[trial.name].parameters["threshold"])


@register("reproduction", "prunetrain-fig12")
class Figure12(Reproduction):
    """PruneTrain's Fig. 12: remaining channels and weights of each layer after training with the group lasso."""

    title = "PruneTrain, Fig. 12: channels that are left, and zeros among their weights"
    reference = "prunetrain-fig12-weights"
    remarks = (
        f"Near zero means |w| < {NEAR_ZERO:g}, the threshold of the paper. Weights reach it in a long training; in a "
        "few epochs hardly any weight does.",
    )
    parts = (figure_part("layers", "prunetrain", ["prunetrain"], seeds=ONE_SEED),)

    def outcome(self, data: ReproductionData) -> Outcome:
        trials = done(data, "layers", "prunetrain")
        layers = densities(data, trials[0]) if trials else {}
        left = sum(layer["left"] for layer in layers.values())
        near = sum(layer["near zero"] for layer in layers.values())
        built = sum(layer["built"] for layer in layers.values())
        lines = [
            line("weights left, of those that the network was built with", "layers",
                 estimate([100 * left / built] if layers else [], NOT_DONE), "counted"),
            line("weights near zero, of those that are left", "layers",
                 estimate([100 * near / left] if layers else [], NOT_DONE), "counted",
                 published="prunetrain-fig12-weights/all layers", among=self.published),
        ]  # fmt: skip
        figure = None
        if layers:
            bars = {
                "channels (inputs times outputs)": [100 * layer["left"] / layer["built"] for layer in layers.values()],
                "weights that are not near zero": [
                    100 * (layer["left"] - layer["near zero"]) / layer["built"] for layer in layers.values()
                ],
            }
            figure = bars_figure(
                self.registered_name,
                "Density of channels and of weights by layer",
                "Counted in the final network, in percent of the dense layer.",
                "Density (%)",
                list(layers),
                bars,
            )
        return Outcome(tuple(lines), figure, self.remarks)


def densities(data: ReproductionData, trial: Trial) -> dict[str, dict[str, float]]:
    """Return for each layer the number of weights as `built`, those `left`, and those of them that are `near zero`."""
    whole = build_model(data.specs[trial.name].model, image_shape(data, trial), classes(data, trial))
    final = dict(final_model(data, trial).named_modules())
    counts = {}
    for name, layer in whole.named_modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            remaining = final.get(name)
            weight = remaining.weight if isinstance(remaining, (nn.Conv2d, nn.Linear)) else layer.weight[:0]
            near = float((weight.detach().abs() < NEAR_ZERO).sum())
            counts[name] = {"built": float(layer.weight.numel()), "left": float(weight.numel()), "near zero": near}
    return counts
