"""Pages whose numbers are timed after the trials: SDGP's Fig. 9, PruneTrain's Table 2, ClickTrain's Fig. 9.

The declarations of the papers name these functions. `reports.papers.timed_calls` measures in a process of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reports.data.estimates import Missing, estimate
from reports.figures.figure import Figure
from reports.figures.panels import bars_figure
from reports.papers.comparison import Comparison
from reports.papers.contract import Outcome, Reproduction, ReproductionData
from reports.papers.paper import Part
from suite.choices import build_model
from suite.engine.cost.flops import PRODUCTS as COUNTED
from suite.engine.cost.flops import count_layers
from suite.measure.calls import SubprocessResult, call_in_subprocess
from suite.trials.building import inputs_of
from suite.trials.folder.records import TrialRecord
from suite.trials.groups import seed_of
from suite.trials.progress import Measurements

BUSY = 0.5  # cores; if other programs keep more busy, times are unreliable


def timed_outcome(
    lines: Sequence[Comparison], timed: Sequence[SubprocessResult], figure: Figure | None = None
) -> Outcome:
    """Return an outcome with the hardware of its measurements, and a remark if other programs disturbed them."""
    busy = max((result.busy_cores for result in timed), default=0.0)
    doubt = f"Other programs kept {busy:.1f} cores busy while these times were measured, so the times are unreliable."
    where = tuple(dict.fromkeys(f"Timed on {result.where}" for result in timed))
    return Outcome(tuple(lines), figure, (doubt,) if busy >= BUSY else (), where)


def call(
    data: ReproductionData, shown: Measurements, trial: TrialRecord, function: str, arguments: Mapping[str, Any],
    device: str = "",
) -> Any:  # fmt: skip
    """Call a function of `timed_calls` in a new process, on the device of the command unless another one is given."""
    spec, name = data.specs[trial.name], f"reports.papers.timed_calls:{function}"
    with shown.measuring(spec, f"{function.replace('_', ' ')} of {arguments.get('model', spec.model)}"):
        device = device or data.device
        return call_in_subprocess(name, {**arguments, "device": device}, device, spec.plugins)


MODEL, SHAPE, CLASSES = "resnet18", (3, 224, 224), 1000
BATCH = {"cpu": 8, "cuda": 256}
METHOD = "sdgp[n=2,m=4,backend=masked]"
"""This backend multiplies gradients as dense ones, so that only pruning adds to the times of dense products."""
BARS = {"forward": "forward", "dgrad": "data gradient", "wgrad": "weight gradient"}


def product_shares(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """SDGP's Fig. 9: the data gradient's share of the time of ResNet-18's convolutions and of those of the trial."""
    trials = data.done("resnet9", "dense")
    if not trials:
        return Outcome((page.line("data gradient's share", Missing("the dense trial is not done")),))
    spec, inputs = data.specs[trials[0].name], inputs_of(data.specs[trials[0].name])
    batch = BATCH["cuda" if data.device.startswith("cuda") else "cpu"]
    large = {"model": MODEL, "shape": SHAPE, "classes": CLASSES, "batch": batch}
    small = {"model": spec.model, "shape": inputs.shape, "classes": inputs.classes, "batch": spec.recipe["batch_size"]}
    shown = Measurements([spec, spec])
    timed = [
        call(data, shown, trials[0], "product_seconds", {"dtype": spec.dtype, "method": METHOD, **network})
        for network in (large, small)
    ]
    own = f"{spec.model} on {spec.task}"
    lines, share, pruning = _shares(page, timed[0], "ResNet-18 at 224 pixels", page.declared.reference)
    saved = "sdgp-time-saved-resnet18"
    note = " ".join(page.paper.groups[saved].notes)
    for pair, left in {"2:4": 1 / 2, "1:4": 1 / 4}.items():
        model, what = share * (1 - left), f"saved by {pair}, if pruning takes no time"
        lines.append(page.line(what, model, "modelled", published=f"{saved}/{pair}", note=note))
        lines.append(page.line(f"saved by {pair}, less our time of 2:4 pruning", model - pruning, "modelled"))
    lines += _shares(page, timed[1], own, "sdgp-data-gradient-share-resnet9")[0]
    costs = count_layers(build_model(MODEL, SHAPE, CLASSES), SHAPE).values()
    counted = sum(cost.flops("dgrad") for cost in costs) / sum(cost.flops(one) for cost in costs for one in COUNTED)
    what = "data gradient's share of FLOPs, ResNet-18 at 224 pixels"
    lines.append(page.line(what, 100 * counted, "counted"))
    figure = bars_figure(
        page.registered_name,
        "Time of each layer's three products",
        f"ResNet-18 at 224 pixels with {batch} random images; each layer in the order in which it is first timed.",
        "Time (ms)",
        list(timed[0].value),
        {title: [1e3 * one.get(product, 0.0) for one in timed[0].value.values()] for product, title in BARS.items()},
    )
    remark = f"The batch has {batch} images at 224 pixels here and 256 in the paper."
    return Outcome(tuple(lines), figure, (remark,), (f"Timed: {timed[0].where}, {spec.dtype}; {METHOD}",))


def _shares(
    page: Reproduction, timed: SubprocessResult, network: str, group: str
) -> tuple[list[Comparison], float, float]:
    """Return the lines of a network, and the data gradient and pruning in percent of the products' time."""
    total = {part: math.fsum(one.get(part, 0.0) for one in timed.value.values()) for part in (*BARS, "pruning")}
    products = sum(total[part] for part in BARS)
    share, pruning = 100 * total["dgrad"] / products, 100 * total["pruning"] / products
    what, note = f"data gradient's share of the products' time, {network}", " ".join(page.paper.groups[group].notes)
    lines = [
        page.line(what, share, published=f"{group}/share", note=note),
        page.line(f"2:4 pruning relative to the products' time, {network}", pruning),
    ]
    return lines, share, pruning


BATCHES = (10, 100)


def inference_speed(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """PruneTrain's Table 2: inference images per second of dense and pruned networks."""
    timed: list[SubprocessResult] = []
    parts = [(part, trials, _pairs(part, trials)) for part, trials in page.with_own_trials(data)]
    shown = Measurements([data.specs[pair[0].name] for _, _, pairs in parts for pair in pairs for _ in BATCHES])
    for part, trials, pairs in parts:
        model = trials["dense"][0].text("model") if trials.get("dense") else part.model
        row = part.name if part.task == "imagenet" else part.model
        where = f"{model} on {part.task}" + (f", {part.name}" if part.task == "imagenet" else "")
        for batch in BATCHES:
            found = [_images_per_second(data, shown, pair, batch) for pair in pairs]
            timed += found
            for what, group, unit, values in (
                ("dense, images per second", "dense", "", [one.value[0] for one in found]),
                ("prunetrain, images per second", "pruned", "", [one.value[1] for one in found]),
                ("prunetrain over dense", "speedup", "×", [one.value[1] / one.value[0] for one in found]),
            ):
                published = _published(page, part, group, row, batch) if model == part.model else ""
                quantity = f"{where}, batch {batch}: {what}"
                ours = estimate(values, "its trials are not done")
                lines.append(page.line(quantity, ours, part=part.name, unit=unit, published=published))
    return timed_outcome(lines, timed)


def _published(page: Reproduction, part: Part, what: str, row: str, batch: int) -> str:
    """Return the name of the published number of a row, if the paper has it. Dense has one number on ImageNet."""
    name = page.declared.reference.replace("speedup", what)
    key = f"batch {batch}" if part.task == "imagenet" and what == "dense" else f"{row}, batch {batch}"
    return f"{name}/{key}" if part.task != "imagenette" and key in page.paper.groups[name].values else ""


def _pairs(part: Part, trials: Mapping[str, Sequence[TrialRecord]]) -> list[tuple[TrialRecord, TrialRecord]]:
    """Return the trials of dense and of the method, by seed."""
    pruned = {seed_of(trial): trial for trial in trials.get(part.methods.partition("dense,")[2], [])}
    return [(trial, pruned[seed_of(trial)]) for trial in trials.get("dense", []) if seed_of(trial) in pruned]


def _images_per_second(data: ReproductionData, shown: Measurements, pair: Sequence[TrialRecord], batch: int) -> Any:
    arguments = {
        "files": [str(data.model_file(trial)) for trial in pair],
        "dtype": pair[0].text("dtype"),
        "shape": inputs_of(data.specs[pair[0].name]).shape,
        "batch": batch,
    }
    return call(data, shown, pair[0], "images_per_second", arguments)


CONVERSIONS = ("to_sparse_csr", "packed form, mask known", "packed form, index and lists rebuilt")
MASKED_TRIAL = "clicktrain[schedule=paper,backend=masked]"
NOTHING_PRUNED = "nothing was pruned in this network"
REPETITIONS = {"smoke": 5, "quick": 20, "paper": 20}
Seconds = Sequence[float]
"""Minimum, median and third quartile of the seconds of a call; empty if none were measured."""


def conversions(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """ClickTrain's Fig. 9: time to convert a pruned weight to a sparse format, and to torch's CSR."""
    timed, figures = [], []
    csr, known, rebuilt = CONVERSIONS
    own = [(part.name, trials.get(MASKED_TRIAL, [])) for part, trials in page.with_own_trials(data)]
    firsts = [(part, trials[0]) for part, trials in own if trials]
    shown = Measurements([data.specs[trial.name] for _, trial in firsts])
    for part, trial in firsts:
        repetitions, shape = REPETITIONS[trial.text("preset")], inputs_of(data.specs[trial.name]).shape
        arguments = {"file": str(data.model_file(trial)), "shape": shape, "repetitions": repetitions}
        timed.append(call(data, shown, trial, "conversion_times", arguments, "cpu"))
        layers, model = timed[-1].value, trial.text("model")
        times = {way: [layer["seconds"][way] for layer in layers.values()] for way in CONVERSIONS}
        total = {way: [sum(points) for points in zip(*several, strict=True)] for way, several in times.items()}
        for way in CONVERSIONS:
            what = f"{model}, all {len(layers)} pruned layers: {way}, milliseconds"
            lines.append(_milliseconds(page, part, what, total[way]))
        for way in (known, rebuilt):
            what = f"{model}, all pruned layers: {way}, times as fast as {csr}"
            lines.append(_times_as_fast(page, part, what, total[csr], total[way]))
        for name, layer in layers.items():
            size = f"{'x'.join(map(str, layer['shape']))}, {100 * layer['density']:.0f} % left"
            what = f"{model}, {name} ({size}): {known}, times as fast as {csr}"
            lines.append(_times_as_fast(page, part, what, layer["seconds"][csr], layer["seconds"][known]))
        if layers:
            heights = {way: [1e6 * one[0] for one in several] for way, several in times.items()}
            spreads = {way: [(1e6 * one[0], 1e6 * one[2]) for one in several] for way, several in times.items()}
            title = "Time to convert a pruned weight to a sparse format"
            caption = f"{model}; minimal times, measured on the CPU. The axis is logarithmic."
            axis = "Time (microseconds)"
            figures.append(
                bars_figure(
                    page.registered_name, title, caption, axis, list(layers), heights, spreads, logarithmic=True
                )
            )
    lines = lines or [page.line("to_sparse_csr over the packed form", Missing("its trial is not done"), unit="×")]
    return timed_outcome(lines, timed, figures[0] if figures else None)


def _times_as_fast(page: Reproduction, part: str, what: str, theirs: Seconds, ours: Seconds) -> Comparison:
    if not ours:
        return page.line(what, Missing(NOTHING_PRUNED), part=part, unit="×")
    note = f"Ratio of the medians: {theirs[1] / ours[1]:.3g} ×."
    return page.line(what, theirs[0] / ours[0], part=part, unit="×", note=note)


def _milliseconds(page: Reproduction, part: str, what: str, seconds: Seconds) -> Comparison:
    if not seconds:
        return page.line(what, Missing(NOTHING_PRUNED), part=part, unit="")
    note = f"Sums over the layers: median {1e3 * seconds[1]:.3g}, third quartile {1e3 * seconds[2]:.3g} ms."
    return page.line(what, 1e3 * seconds[0], part=part, unit="", note=note)
