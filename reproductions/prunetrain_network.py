"""PruneTrain's numbers of finished networks: Table 2 (inference), Fig. 6 and 7 (union and gating), Fig. 12 (density).

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019, Sec. 4.2, 5.1 and 5.3.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reports.comparison import Comparison
from reports.estimates import Missing, estimate
from reports.records import Trial
from reports.rows import seed_of
from reproductions.finished import done, final_model, image_shape, line
from reproductions.prunetrain import MODELS, RECIPE
from suite.registry import register
from suite.reproduction import Outcome, Part, Ran, Reproduction

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

BATCHES = (10, 100)
REPETITIONS = 20
RATIOS = (0.1, 0.2)
NEAR_ZERO = 1e-4  # the paper's threshold, whatever that of the trial is
NOT_DONE = "its trials are not done"
NETWORKS = ("resnet32", "resnet50_cifar")


@register("reproduction", "prunetrain-table2")
class Table2(Reproduction):
    """PruneTrain's Table 2: images a second in inference of the dense and the pruned network, at batch 10 and 100."""

    title = "PruneTrain, Table 2: inference speed"
    reference = "prunetrain-table2-cifar100-speedup"
    also = ("prunetrain-table2-imagenet-speedup",)
    beside = ("prunetrain-table2-cifar100-dense",)
    remarks = (
        f"Median of {REPETITIONS} passes of random images, dense and pruned in alternation, in the trials' arithmetic; "
        "weights and images are where they are computed on before. The paper has a Titan Xp and mixed precision.",
    )
    parts = tuple(
        Part(
            name=f"{model}-{task}",
            title=f"{model} on {task}, dense and prunetrain",
            methods="dense,prunetrain",
            task=task,
            model=model,
            seeds={"smoke": 1, "quick": 1, "paper": 3},
            presets=("smoke", "quick") if task == "cifar10" else ("paper",),
            paper_recipe=RECIPE,
        )
        for task, models in (("cifar10", MODELS[:1]), ("cifar100", MODELS))
        for model in models
    )

    def outcome(self, ran: Ran) -> Outcome:
        lines = [one for part in self.parts for batch in BATCHES for one in self._lines(ran, part, batch)]
        return Outcome(tuple(lines), remarks=self.remarks)

    def _lines(self, ran: Ran, part: Part, batch: int) -> list[Comparison]:
        dense_trials, pruned_trials = (
            {seed_of(trial): trial for trial in done(ran, part.name, method)} for method in ("dense", "prunetrain")
        )
        speeds = [  # of dense and pruned, by seed
            images_per_second(ran, (trial, pruned_trials[seed]), batch)
            for seed, trial in dense_trials.items()
            if seed in pruned_trials
        ]
        model = trained_model(part, [*dense_trials.values()])
        name = f"{model} on {part.task}, batch {batch}"
        key = f"{part.model}, batch {batch}" if model == part.model else ""
        dense, pruned, ratios = (
            estimate(values, NOT_DONE)
            for values in ([a for a, _ in speeds], [b for _, b in speeds], [b / a for a, b in speeds])
        )
        theirs = "prunetrain-table2-cifar100"
        return [
            line(f"{name}: dense, images a second", part.name, dense, "measured", unit="",
                 published=key and f"{theirs}-dense/{key}", among=self.published),
            line(f"{name}: prunetrain, images a second", part.name, pruned, "measured", unit=""),
            line(f"{name}: prunetrain over dense", part.name, ratios, "measured", unit="×",
                 published=key and f"{theirs}-speedup/{key}", among=self.published),
        ]  # fmt: skip


def trained_model(part: Part, trials: list[Trial]) -> str:
    """The network's name: the command may have asked for another than the part's."""
    return trials[0].text("model") if trials else part.model


def images_per_second(ran: Ran, trials: tuple[Trial, ...], batch: int) -> list[float]:
    """Images a second of each trial's final network, at a batch, on the command's device."""
    import torch

    from suite.inference import interleaved_seconds

    device = torch.device(ran.device)
    calls: list[Callable[[], object]] = []
    for trial in trials:
        model = _on(device, final_model(ran, trial))
        images = _images(ran, trial, batch, device)
        dtype = getattr(torch, trial.text("dtype"))
        calls.append(lambda model=model, images=images, dtype=dtype: _infer(model, images, dtype))  # type: ignore[misc]
    return [batch / statistics.median(seconds) for seconds in interleaved_seconds(calls, REPETITIONS, device)]


def _infer(model: nn.Module, images: Tensor, dtype: torch.dtype) -> Tensor:
    import torch

    with torch.no_grad(), torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
        logits: Tensor = model(images)
        return logits


def _on(device: torch.device, model: nn.Module) -> nn.Module:
    import torch

    moved: nn.Module = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return moved


def _images(ran: Ran, trial: Trial, batch: int, device: torch.device) -> Tensor:
    import torch

    images = torch.randn(batch, *image_shape(ran, trial), generator=torch.Generator().manual_seed(0))
    return images.to(device).contiguous(memory_format=torch.channels_last)


def strength(ratio: float) -> str:
    """The method's label."""
    return f"prunetrain[ratio={ratio}]"


def cut_again(ran: Ran, trial: Trial, gating: bool) -> nn.Module:
    """A trial's final network, with what is dead in it cut once more: by the union, or by gates."""
    import torch

    from suite import registry
    from suite.ops import apply

    model = final_model(ran, trial)
    spec = ran.specs[trial.name]
    method = registry.get("method", "prunetrain")(interval=1, threshold=spec.parameters["threshold"], gating=gating)
    classes = registry.get("task", spec.task).num_classes
    with torch.no_grad():
        hooks = apply(model, method, input_shape=image_shape(ran, trial), num_classes=classes, epochs=1, batch_size=1)
        hooks.end_epoch()
        hooks.finish()
    return model.eval()


@register("reproduction", "prunetrain-fig6")
class Figure6(Reproduction):
    """PruneTrain's Fig. 6: inference FLOPs that are left by the channel union and by channel gating."""

    title = "PruneTrain, Fig. 6: channel union against channel gating"
    reference = "prunetrain-fig6-union"
    remarks = (
        "Of the network that a trial by the union ended with, both cuts are made once more at the trial's threshold: "
        "both start from the same weights.",
    )
    parts = tuple(
        Part(
            name=model,
            title=f"{model}: prunetrain at the ratios {', '.join(map(str, RATIOS))}",
            methods=",".join(map(strength, RATIOS)),
            task="cifar10",
            model=model,
            seeds={"smoke": 1, "quick": 1, "paper": 3},
            presets=("smoke", "quick", "paper") if model == NETWORKS[0] else ("paper",),
            paper_recipe=RECIPE,
        )
        for model in NETWORKS
    )

    def outcome(self, ran: Ran) -> Outcome:
        from reports.curves import Line, Panel, curves_figure

        lines: list[Comparison] = []
        differences: list[float] = []
        panels = []
        for part in self.parts:
            found: dict[str, list[tuple[float, Any]]] = {"union": [], "gating": []}
            model = trained_model(part, [one for ratio in RATIOS for one in done(ran, part.name, strength(ratio))])
            for ratio in RATIOS:
                trials = done(ran, part.name, strength(ratio))
                union, gated = ([inference_share(ran, trial, gating) for trial in trials] for gating in (False, True))
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
                      [Line(name, points) for name, points in found.items()])
            )  # fmt: skip
        for name, of_all in (("least", min), ("most", max)):
            ours = estimate([of_all(differences)] if differences else [], NOT_DONE)
            what = f"union above gating, of dense, {name} of all that ran (first seed)"
            published = f"prunetrain-fig6-union/{name}"
            lines.append(line(what, self.parts[0].name, ours, "counted", published=published, among=self.published))
        figure = curves_figure(
            self.registered_name,
            "Inference FLOPs left by the channel union and by channel gating",
            "Mean over seeds. Counted: what gates copy costs no FLOPs and much time (prunetrain-fig7).",
            panels,
        )
        return Outcome(tuple(lines), figure, self.remarks)


def inference_share(ran: Ran, trial: Trial, gating: bool) -> float:
    """Inference FLOPs of a trial's network after one more cut, over those of the network as it was built."""
    from suite.ledger import count_model

    cost = count_model(cut_again(ran, trial, gating), image_shape(ran, trial))["inference_flops"]
    dense = trial.number("inference_flops_dense")
    assert dense is not None
    return cost / dense


@register("reproduction", "prunetrain-fig7")
class Figure7(Reproduction):
    """PruneTrain's Fig. 7: time of the last layer of each residual block, with channel union and with gating."""

    title = "PruneTrain, Fig. 7: what channel gating costs"
    reference = "prunetrain-fig6-union"
    remarks = (
        f"Forward and backward of one layer by itself, gates included, median of {REPETITIONS}, union and gating in "
        "alternation, batch of the recipe. The paper measures ResNet50 at ImageNet's size on a V100 and draws the "
        "times in the picture alone.",
    )
    parts = (
        Part(
            name="blocks",
            title=f"prunetrain at the ratio {RATIOS[-1]}",
            methods=strength(RATIOS[-1]),
            task="cifar10",
            model="resnet50_cifar",
            small_model="resnet32",
            seeds={"smoke": 1, "quick": 1, "paper": 1},
            paper_recipe=RECIPE,
        ),
    )

    def outcome(self, ran: Ran) -> Outcome:
        from reports.curves import bars_figure

        trials = done(ran, "blocks", strength(RATIOS[-1]))
        times = layer_times(ran, trials[0]) if trials else {}
        lines = [
            line(f"{layer}: gating over union", "blocks", estimate([gated / union], ""), "measured", unit="×")
            for layer, (union, gated) in times.items()
        ]
        sums = [1e3 * sum(column) for column in zip(*times.values(), strict=True)]
        both = [estimate(sums[place : place + 1], NOT_DONE) for place in (0, 1)]
        lines += [
            line(f"all of them, {name}: milliseconds", "blocks", quantity, "measured", unit="")
            for name, quantity in zip(("union", "gating"), both, strict=True)
        ]
        figure = None
        if times:
            figure = bars_figure(
                self.registered_name,
                "Time of the last layer of each residual block",
                f"Milliseconds of forward and backward at batch {trials[0].number('batch_size'):g}; measured.",
                "Time (ms)",
                list(times),
                {name: [1e3 * one[place] for one in times.values()] for place, name in enumerate(("union", "gating"))},
            )
        return Outcome(tuple(lines), figure, self.remarks)


def layer_times(ran: Ran, trial: Trial) -> dict[str, tuple[float, float]]:
    """Seconds of forward and backward of the last layer of each residual branch: cut by the union, and by gates."""
    import torch

    from suite.inference import interleaved_seconds
    from suite.surgery import find_index_spaces

    device, dtype = torch.device(ran.device), getattr(torch, trial.text("dtype"))
    shape, batch = image_shape(ran, trial), ran.specs[trial.name].make_recipe().batch_size
    branches = find_index_spaces(final_model(ran, trial), shape).removable_branches
    names = [branch.layers[-1] for branch in branches.values()]
    calls: list[dict[str, Callable[[], object]]] = []
    for gating in (False, True):
        model = _on(device, cut_again(ran, trial, gating))
        calls.append(_layer_calls(model, names, _images(ran, trial, batch, device), dtype))
    found = {}
    for name in names:
        if all(name in several for several in calls):  # the second cut may have taken the branch out
            seconds = interleaved_seconds([several[name] for several in calls], REPETITIONS, device)
            found[name] = (statistics.median(seconds[0]), statistics.median(seconds[1]))
    return found


def _layer_calls(
    model: nn.Module, names: list[str], images: Tensor, dtype: torch.dtype
) -> dict[str, Callable[[], object]]:
    """For each layer that the network has a function that runs it forward and backward on what it is given in there."""
    layers = {name: module for name, module in model.named_modules() if name in names}
    given: dict[str, Tensor] = {}
    # Before its gate: hooks of this kind run in the order in which they were put.
    handles = [
        layer.register_forward_pre_hook(lambda _, inputs, name=name: given.__setitem__(name, inputs[0]), prepend=True)
        for name, layer in layers.items()
    ]
    _infer(model, images, dtype)
    for handle in handles:
        handle.remove()

    def call(name: str) -> None:
        import torch

        x = given[name].detach().requires_grad_()
        with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
            output = layers[name](x)
        output.backward(torch.ones_like(output))
        layers[name].zero_grad(set_to_none=True)

    return {name: lambda name=name: call(name) for name in layers}  # type: ignore[misc]


@register("reproduction", "prunetrain-fig12")
class Figure12(Reproduction):
    """PruneTrain's Fig. 12: by layer the density of channels and of weights that the lasso leaves."""

    title = "PruneTrain, Fig. 12: channels that are left, and zeros among their weights"
    reference = "prunetrain-fig12-weights"
    remarks = (
        f"Near zero is |w| < {NEAR_ZERO:g}, the paper's threshold. Weights reach it in a long training; in a few "
        "epochs hardly one does.",
    )
    parts = (
        Part(
            name="layers",
            title="prunetrain",
            methods="prunetrain",
            task="cifar10",
            model="resnet50_cifar",
            small_model="resnet32",
            seeds={"smoke": 1, "quick": 1, "paper": 1},
            paper_recipe=RECIPE,
        ),
    )

    def outcome(self, ran: Ran) -> Outcome:
        from reports.curves import bars_figure

        trials = done(ran, "layers", "prunetrain")
        found = densities(ran, trials[0]) if trials else {}
        left = sum(one["left"] for one in found.values())
        near = sum(one["near zero"] for one in found.values())
        built = sum(one["built"] for one in found.values())
        lines = [
            line("weights left, of those that the network was built with", "layers",
                 estimate([100 * left / built] if found else [], NOT_DONE), "counted"),
            line("weights near zero, of those that are left", "layers",
                 estimate([100 * near / left] if found else [], NOT_DONE), "counted",
                 published="prunetrain-fig12-weights/all layers", among=self.published),
        ]  # fmt: skip
        figure = None
        if found:
            bars = {
                "channels (inputs times outputs)": [100 * one["left"] / one["built"] for one in found.values()],
                "weights that are not near zero": [
                    100 * (one["left"] - one["near zero"]) / one["built"] for one in found.values()
                ],
            }
            figure = bars_figure(
                self.registered_name,
                "Density of channels and of weights by layer",
                "Of what the layer was built with. Counted, in the final network.",
                "Density (%)",
                list(found),
                bars,
            )
        return Outcome(tuple(lines), figure, self.remarks)


def densities(ran: Ran, trial: Trial) -> dict[str, dict[str, float]]:
    """By layer the weights that it was `built` with, those `left`, and those of them that are `near zero`."""
    from torch import nn

    from suite import registry
    from suite.parameters import build_model

    spec = ran.specs[trial.name]
    classes = registry.get("task", spec.task).num_classes
    whole = build_model(spec.model, image_shape(ran, trial), classes)
    final = dict(final_model(ran, trial).named_modules())
    found = {}
    for name, layer in whole.named_modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            own = final.get(name)
            weight = own.weight if isinstance(own, (nn.Conv2d, nn.Linear)) else layer.weight[:0]
            near = float((weight.detach().abs() < NEAR_ZERO).sum())
            found[name] = {"built": float(layer.weight.numel()), "left": float(weight.numel()), "near zero": near}
    return found
