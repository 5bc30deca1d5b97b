"""Quantities that are counted in networks: PruneTrain's Fig. 6 and 12, and ClickTrain's Fig. 1.

The declarations of the papers name these functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from reports.data.estimates import Missing, estimate
from reports.figures.panels import Line, Panel, bars_figure, curves_figure
from reports.papers.comparison import Comparison
from reports.papers.contract import Outcome, Reproduction, ReproductionData
from suite import registry
from suite.choices import build_model
from suite.engine.cost.flops import LayerCost, count_layers, count_model
from suite.engine.cost.paper_conventions import prunetrain
from suite.engine.network.model_files import load_model
from suite.engine.training.method_runner import MethodRunner
from suite.method import Context
from suite.trials.building import inputs_of
from suite.trials.folder.records import TrialRecord

NEAR_ZERO = 1e-4  # the paper's threshold, which need not be that of the trial
NOT_DONE = "its trials are not done"


def cut_again(file: str, threshold: float, gating: bool, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Load a final network and let PruneTrain remove its dead channels once more, with channel union or gating.

    Args:
        file: Path of its `model.pt`.
        threshold: A channel of a layer is dead if all its |w| are below this value.
        gating: Whether to use channel gating; otherwise channel union.
        shape: Shape of an image, (C, H, W).
        classes: Number of classes of the task.
    """
    model = load_model(file)
    method = registry.get("method", "prunetrain")(interval=1, threshold=threshold, gating=gating)
    hooks = MethodRunner(method, Context(model, input_shape=shape, num_classes=classes, epochs=1, batch_size=1))
    hooks.end_epoch()
    hooks.finish()
    return model.eval()


def inference_share(data: ReproductionData, trial: TrialRecord, gating: bool) -> float:
    """Return the inference FLOPs of a final network after one more cut, over those of the dense network."""
    spec, dense = data.specs[trial.name], trial.number("inference_flops_dense")
    assert dense is not None
    inputs, threshold = inputs_of(spec), float(spec.parameters["threshold"])
    model = cut_again(str(data.model_file(trial)), threshold, gating, inputs.shape, inputs.classes)
    return count_model(model, inputs.shape)["inference_flops"] / dense


def union_and_gating(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """PruneTrain's Fig. 6: remaining inference FLOPs with channel union and with channel gating."""
    differences: list[float] = []
    panels = []
    for part, by_label in page.with_own_trials(data):
        points: dict[str, list[tuple[float, Any]]] = {"union": [], "gating": []}
        model = next((trials[0].text("model") for trials in by_label.values() if trials), part.model)
        for ratio in (0.1, 0.2):
            trials = by_label.get(f"prunetrain[ratio={ratio}]", [])
            shares = {
                name: [100 * inference_share(data, trial, name == "gating") for trial in trials] for name in points
            }
            apart = [union - gated for union, gated in zip(*shares.values(), strict=True)]
            differences += apart[:1]
            for name, several in shares.items():
                left = estimate(several, NOT_DONE)
                what = f"{model}, ratio {ratio}: inference FLOPs left, {name}"
                lines.append(page.line(what, left, "counted", part=part.name))
                if not isinstance(left, Missing):
                    points[name].append((ratio, left))
            what = f"{model}, ratio {ratio}: union above gating, of dense"
            lines.append(page.line(what, estimate(apart, NOT_DONE), "counted", part=part.name))
        drawn = [Line(name, several, joined=False) for name, several in points.items()]
        panels.append(Panel(model, "Penalty ratio", "Inference FLOPs (% of dense), counted", drawn, from_zero=True))
    for name, of_all in (("least", min), ("most", max)):
        ours = estimate([of_all(differences)] if differences else [], NOT_DONE)
        what = f"union above gating, of dense, {name} of all that ran (first seed)"
        lines.append(page.line(what, ours, "counted", published=f"{page.declared.reference}/{name}"))
    title = "Inference FLOPs left by the channel union and by channel gating"
    caption = "Mean over seeds, counted. Copies made by gates cost no FLOPs, but much time."
    return Outcome(tuple(lines), curves_figure(page.registered_name, title, caption, panels))


def weights_left(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """PruneTrain's Fig. 12: remaining channels and weights of each layer."""
    trials = data.done("layers", "prunetrain")
    layers = densities(data, trials[0]) if trials else {}
    left, near, built = (sum(layer[what] for layer in layers.values()) for what in ("left", "near zero", "built"))
    lines += [
        page.line("weights left, of those that the network was built with",
                  estimate([100 * left / built] if layers else [], NOT_DONE), "counted"),
        page.line("weights near zero, of those that are left",
                  estimate([100 * near / left] if layers else [], NOT_DONE), "counted",
                  published=f"{page.declared.reference}/all layers"),
    ]  # fmt: skip
    if not layers:
        return Outcome(tuple(lines))
    bars = {
        "channels (inputs times outputs)": [100 * one["left"] / one["built"] for one in layers.values()],
        "weights that are not near zero": [
            100 * (one["left"] - one["near zero"]) / one["built"] for one in layers.values()
        ],
    }
    title, caption = "Density of channels and of weights by layer", "Counted in the final network, in percent of dense."
    figure = bars_figure(page.registered_name, title, caption, "Density (%)", list(layers), bars)
    return Outcome(tuple(lines), figure)


def densities(data: ReproductionData, trial: TrialRecord) -> dict[str, dict[str, float]]:
    """Return for each layer the number of weights as `built`, those `left`, and those of them that are `near zero`."""
    spec, inputs = data.specs[trial.name], inputs_of(data.specs[trial.name])
    final = dict(load_model(data.model_file(trial)).named_modules())
    counts = {}
    for name, layer in build_model(spec.model, inputs.shape, inputs.classes).named_modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            remaining = final.get(name)
            weight = remaining.weight if isinstance(remaining, (nn.Conv2d, nn.Linear)) else layer.weight[:0]
            near = float((weight.detach().abs() < NEAR_ZERO).sum())
            counts[name] = {"built": float(layer.weight.numel()), "left": float(weight.numel()), "near zero": near}
    return counts


CIFAR, IMAGENET = ((3, 32, 32), 10), ((3, 224, 224), 1000)  # shape of an image, and classes
NETWORKS = {
    **dict.fromkeys(("resnet32_wide", "resnet50_wide", "vgg11_click", "vgg13_click", "vgg16_click"), CIFAR),
    **dict.fromkeys(("resnet18", "resnet50", "resnet101", "vgg16"), IMAGENET),
}
COUNTS = ("this suite's count", "PruneTrain's count")


def backward_shares(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """ClickTrain's Fig. 1: the share of the backward pass in the FLOPs of a training step, by network."""
    shares = {network: network_shares(network) for network in NETWORKS}
    for index, count in enumerate(COUNTS):
        largest = max(shares, key=lambda network, index=index: shares[network][index])  # type: ignore[misc]
        published = f"{page.declared.reference}/more than"
        what = f"backward, most of all networks, {count}"
        ours = shares[largest][index]
        lines.append(page.line(what, ours, "counted", published=published, note=f"That is {largest}."))
    for network, both in shares.items():
        size = NETWORKS[network][0]
        lines += [
            page.line(f"backward, {network}, {size[1]}x{size[2]}, {count}", share, "counted")
            for count, share in zip(COUNTS, both, strict=True)
        ]
    trials = data.done("steps", "dense")
    model = trials[0].text("model") if trials else page.declared.parts[0].model
    for name, values in (
        (COUNTS[0], [own_share(_costs(data, trial)) for trial in trials]),
        ("as the ledger of its steps has it", [executed_share(trial) for trial in trials]),
    ):
        what = f"backward, {model}, the trial's network, {name}"
        lines.append(page.line(what, estimate(values, "its trial is not done"), "counted"))
    figure = bars_figure(
        page.registered_name,
        "The backward pass in the FLOPs of a training step",
        "Counted, in two ways. The line is at the published share.",
        "Share of a step's FLOPs (%)",
        [*NETWORKS],
        {count: [both[index] for both in shares.values()] for index, count in enumerate(COUNTS)},
        mark=(70.0, "70 %, published"),
    )
    return Outcome(tuple(lines), figure)


def network_shares(network: str) -> tuple[float, float]:
    """Return the percent of a step's FLOPs in the backward pass, by this suite's count and by PruneTrain's."""
    shape, count = NETWORKS[network]
    with torch.device("meta"):  # counting needs only shapes
        costs = count_layers(build_model(network, shape, count), shape).values()
    return own_share(costs), prunetrain_share(costs)


def _costs(data: ReproductionData, trial: TrialRecord) -> Iterable[LayerCost]:
    return count_layers(load_model(data.model_file(trial)), inputs_of(data.specs[trial.name]).shape).values()


def own_share(costs: Iterable[LayerCost]) -> float:
    """Return the share in percent by this suite's count, in which the first layer has no data gradient."""
    costs = list(costs)
    forward, *backward = (sum(cost.flops(product) for cost in costs) for product in ("forward", "dgrad", "wgrad"))
    return 100 * sum(backward) / (forward + sum(backward))


def prunetrain_share(costs: Iterable[LayerCost]) -> float:
    """Return the share in percent by PruneTrain's count: data gradients of the padded input, also in the first layer.

    Source: PruneTrain's code; `suite.engine.cost.paper_conventions`.
    """
    counted = prunetrain(costs)
    return 100 * (counted["train_flops"] - counted["inference_flops"]) / counted["train_flops"]


def executed_share(trial: TrialRecord) -> float:
    """Return the share in percent of the backward pass in the FLOPs that a trial executed, from its ledger."""
    columns = ("forward_executed", "dgrad_executed", "wgrad_executed")
    forward, *backward = (sum(float(row[column] or 0) for row in trial.layers) for column in columns)
    return 100 * sum(backward) / (forward + sum(backward))
