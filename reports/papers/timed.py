"""Pages whose numbers are timed after the trials: SDGP's Fig. 9, PruneTrain's Table 2, ClickTrain's Fig. 9 and 10.

The declarations of the papers name these functions. `reports.papers.timed_calls` measures in a process of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reports.figures.panels import bars_figure
from reports.papers.comparison import Comparison
from reports.papers.contract import Outcome, Reproduction, ReproductionData
from reports.papers.paper import Part
from suite.choices import build_model
from suite.engine.cost.flops import PRODUCTS as COUNTED
from suite.engine.cost.flops import count_layers
from suite.trials.building import inputs_of
from suite.trials.engines.subprocess_call import SubprocessResult, call_in_subprocess
from suite.trials.estimates import Missing, estimate
from suite.trials.folder.reader import Trial
from suite.trials.groups import seed_of

BUSY = 0.5  # cores; if other programs keep more busy, times are unreliable


def timed_outcome(
    lines: Sequence[Comparison], timed: Sequence[SubprocessResult], remarks: Sequence[str] = (), figure: Any = None
) -> Outcome:
    """Return an outcome with the hardware of its measurements, and a remark if other programs disturbed them."""
    busy = max((result.busy_cores for result in timed), default=0.0)
    doubt = f"Other programs kept {busy:.1f} cores busy while these times were measured, so the times are unreliable."
    where = tuple(dict.fromkeys(f"Timed on {result.where}" for result in timed))
    return Outcome(tuple(lines), figure, (*remarks, *([doubt] if busy >= BUSY else [])), where)


def call(data: ReproductionData, trial: Trial, function: str, arguments: Mapping[str, Any], device: str = "") -> Any:
    """Call a function of `timed_calls` in a new process, on the device of the command unless another one is given."""
    plugins = data.specs[trial.name].plugins
    return call_in_subprocess(f"reports.papers.timed_calls:{function}", arguments, device or data.device, plugins)


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
    timed = [
        call(data, trials[0], "product_seconds", {"dtype": spec.dtype, "method": METHOD, **network})
        for network in (large, small)
    ]
    saved = "sdgp-time-saved-resnet18"
    for result, name, group in (
        (timed[0], "ResNet-18 at 224 pixels", page.declared.reference),
        (timed[1], f"{spec.model} on {spec.task}", "sdgp-data-gradient-share-resnet9"),
    ):
        total = {part: math.fsum(one.get(part, 0.0) for one in result.value.values()) for part in (*BARS, "pruning")}
        share, pruning = (100 * total[part] / sum(total[one] for one in BARS) for part in ("dgrad", "pruning"))
        notes = " ".join(page.paper.groups[group].notes)
        what = f"data gradient's share of the products' time, {name}"
        lines.append(page.line(what, share, published=f"{group}/share", note=notes))
        lines.append(page.line(f"2:4 pruning relative to the products' time, {name}", pruning))
        for pair, left in {"2:4": 1 / 2, "1:4": 1 / 4}.items() if result is timed[0] else ():
            model, notes = share * (1 - left), " ".join(page.paper.groups[saved].notes)
            what = f"saved by {pair}, if pruning takes no time"
            lines.append(page.line(what, model, "modelled", published=f"{saved}/{pair}", note=notes))
            lines.append(page.line(f"saved by {pair}, less our time of 2:4 pruning", model - pruning, "modelled"))
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


def inference_speed(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """PruneTrain's Table 2: inference images per second of dense and pruned networks."""
    timed: list[SubprocessResult] = []
    for part, trials in page.with_own_trials(data):
        method = part.methods.partition("dense,")[2]
        pruned = {seed_of(trial): trial for trial in trials.get(method, [])}
        pairs = [(trial, pruned[seed_of(trial)]) for trial in trials.get("dense", []) if seed_of(trial) in pruned]
        model = trials["dense"][0].text("model") if trials.get("dense") else part.model
        row = part.name if part.task == "imagenet" else part.model
        where = f"{model} on {part.task}" + (f", {part.name}" if part.task == "imagenet" else "")
        for batch in (10, 100):
            found = [_images_per_second(data, pair, batch) for pair in pairs]
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


def _images_per_second(data: ReproductionData, pair: Sequence[Trial], batch: int) -> Any:
    arguments = {
        "files": [str(data.model_file(trial)) for trial in pair],
        "dtype": pair[0].text("dtype"),
        "shape": inputs_of(data.specs[pair[0].name]).shape,
        "batch": batch,
    }
    return call(data, pair[0], "images_per_second", arguments)


PRODUCTS = ("forward", "data gradient", "weight gradient")
DENSE = ("dense, contiguous", "dense, channels-last")
MASKED, OURS, CSR = "masked, channels-last", "skipping", "sparse CSR"
METHODS = (*DENSE, MASKED, OURS, CSR)
CONVERSIONS = ("to_sparse_csr", "packed form, mask known", "packed form, index and lists rebuilt")
MASKED_TRIAL = "clicktrain[schedule=paper,backend=masked]"
NOT_DONE = "its trial is not done"
NOTHING_PRUNED = "nothing was pruned in this network"
NOT_HERE = {
    OURS: "kernels that skip weights are not available: no C++ compiler, or PDT_CPU_KERNEL=0",
    CSR: "this build of torch has no such products",
}
THAN_DENSE = "skipping, times as fast as dense in the faster layout"
REPETITIONS = {"smoke": 5, "quick": 20, "paper": 20}
Seconds = Sequence[float]
"""Minimum, median and third quartile of the seconds of a call; empty if none were measured."""


def conversions(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """ClickTrain's Fig. 9: time to convert a pruned weight to a sparse format, and to torch's CSR."""
    timed, figures = [], []
    csr, known, rebuilt = CONVERSIONS
    for part, trial in _first_trials(page, data):
        result = _layers(data, trial, "conversion_times", {})
        timed.append(result)
        layers, model = result.value, trial.text("model")
        total = {way: _sum([layer["seconds"][way] for layer in layers.values()]) for way in CONVERSIONS}
        for way in CONVERSIONS:
            lines.append(_milliseconds(page, part, f"{model}, all {len(layers)} pruned layers: {way}", total[way]))
        for way in (known, rebuilt):
            what = f"{model}, all pruned layers: {way}, times as fast as {csr}"
            lines.append(_times_as_fast(page, part, what, total[csr], total[way]))
        for name, layer in layers.items():
            what = f"{model}, {name} ({_text(layer)}): {known}, times as fast as {csr}"
            lines.append(_times_as_fast(page, part, what, layer["seconds"][csr], layer["seconds"][known]))
        if layers:
            title = "Time to convert a pruned weight to a sparse format"
            caption = f"{model}; minimal times, measured on the CPU. The axis is logarithmic."
            times = {way: [layer["seconds"][way] for layer in layers.values()] for way in CONVERSIONS}
            figures.append(_marks(page, title, caption, "Time (microseconds)", 1e6, list(layers), times))
    lines = lines or [page.line("to_sparse_csr over the packed form", Missing(NOT_DONE), unit="×")]
    return timed_outcome(lines, timed, figure=figures[0] if figures else None)


def convolutions(page: Reproduction, data: ReproductionData, lines: list[Comparison]) -> Outcome:
    """ClickTrain's Fig. 10: time of the three products of pruned convolutions, by method."""
    timed, figures, losses = [], [], []
    for part, trial in _first_trials(page, data):
        batch = data.specs[trial.name].make_recipe().batch_size
        result = _layers(data, trial, "product_times", {"batch": batch})
        timed.append(result)
        layers, model = result.value, trial.text("model")
        whole = f"{model}, all {len(layers)} pruned layers"
        for method in METHODS:
            for product in (*PRODUCTS, ""):
                several = [_product(layer["seconds"].get(method), product) for layer in layers.values()]
                what = f"{whole}, {product or 'three products'}: {method}"
                lines.append(_milliseconds(page, part, what, _sum([one for one in several if one]), method))
        for product in (*PRODUCTS, ""):
            several = [_product(layer["seconds"].get(OURS), product) for layer in layers.values()]
            dense = _sum([fastest_dense(layer["seconds"], product) for layer in layers.values()])
            what = f"{model}, all pruned layers, {product or 'three products'}: {THAN_DENSE}"
            lines.append(_times_as_fast(page, part, what, dense, _sum([one for one in several if one])))
        for name, layer in layers.items():
            what = f"{model}, {name} ({_text(layer)}), three products: {THAN_DENSE}"
            ours, dense = _product(layer["seconds"].get(OURS), ""), fastest_dense(layer["seconds"], "")
            lines.append(_times_as_fast(page, part, what, dense, ours))
        losses += loses(model, layers)
        if layers:
            title = "Time of forward, data gradient and weight gradient of pruned convolutions"
            caption = (
                f"{model} at batch {batch}; the three products together, minimal times, measured on the CPU in "
                "float32. The axis is logarithmic."
            )
            times = {
                method: [_product(layer["seconds"][method], "") for layer in layers.values()]
                for method in METHODS
                if all(method in layer["seconds"] for layer in layers.values())
            }
            figures.append(_marks(page, title, caption, "Time (ms)", 1e3, list(layers), times))
    lines = lines or [page.line("skipping over dense", Missing(NOT_DONE), unit="×")]
    return timed_outcome(lines, timed, losses, figures[0] if figures else None)


def loses(model: str, layers: Mapping[str, Any]) -> list[str]:
    """Return one line that names the layers in which skipping is no faster than the faster dense layout.

    Args:
        model: Name of the network.
        layers: Result of `timed_calls.product_times`.
    """
    slower = [
        name
        for name, layer in layers.items()
        if (ours := _product(layer["seconds"].get(OURS), "")) and ours[0] >= fastest_dense(layer["seconds"], "")[0]
    ]
    if not slower:
        return []
    return [
        f"Skipping is no faster in {len(slower)} of {len(layers)} pruned layers of {model}, where its three products "
        f"take at least as long as dense ones: {', '.join(slower)}. backend=auto keeps such layers dense."
    ]


def fastest_dense(seconds: Mapping[str, Any], product: str) -> Seconds:
    """Return the times of a product in the faster memory format; for an empty product, their sum over all products."""
    if not product:
        return _sum([fastest_dense(seconds, one) for one in PRODUCTS])
    return min((seconds[method][product] for method in DENSE), key=lambda each: float(each[0]))


def _first_trials(page: Reproduction, data: ReproductionData) -> list[tuple[str, Trial]]:
    own = [(part.name, trials.get(MASKED_TRIAL, [])) for part, trials in page.with_own_trials(data)]
    return [(part, trials[0]) for part, trials in own if trials]


def _layers(data: ReproductionData, trial: Trial, function: str, more: Mapping[str, Any]) -> Any:
    repetitions, shape = REPETITIONS[trial.text("preset")], inputs_of(data.specs[trial.name]).shape
    arguments = {"file": str(data.model_file(trial)), "shape": shape, "repetitions": repetitions, **more}
    return call(data, trial, function, arguments, "cpu")


def _text(layer: Mapping[str, Any]) -> str:
    """Return the shape of a layer, the size of its input if known, and its density."""
    sizes = ("x".join(map(str, layer[name])) for name in ("shape", "size") if name in layer)
    return f"{' on '.join(sizes)}, {100 * layer['density']:.0f} % left"


def _product(seconds: Mapping[str, Seconds] | None, product: str) -> Seconds:
    """Return the times of a product, or of all three if it is empty."""
    if not seconds:
        return []
    return seconds[product] if product else _sum([*seconds.values()])


def _sum(several: Sequence[Seconds]) -> Seconds:
    return [sum(points) for points in zip(*several, strict=True)]


def _times_as_fast(page: Reproduction, part: str, what: str, theirs: Seconds, ours: Seconds) -> Comparison:
    """Return how many times as fast ours is. Torch's own products have times for every pruned layer."""
    if not theirs or not ours:
        return page.line(what, Missing(NOT_HERE[OURS] if theirs else NOTHING_PRUNED), part=part, unit="×")
    note = f"Ratio of the medians: {theirs[1] / ours[1]:.3g} ×."
    return page.line(what, theirs[0] / ours[0], part=part, unit="×", note=note)


def _milliseconds(page: Reproduction, part: str, what: str, seconds: Seconds, method: str = "") -> Comparison:
    if not seconds:
        return page.line(f"{what}, milliseconds", Missing(NOT_HERE.get(method, NOTHING_PRUNED)), part=part, unit="")
    note = f"Sums over the layers: median {1e3 * seconds[1]:.3g}, third quartile {1e3 * seconds[2]:.3g} ms."
    return page.line(f"{what}, milliseconds", 1e3 * seconds[0], part=part, unit="", note=note)


def _marks(
    page: Reproduction, title: str, caption: str, y: str, scale: float, layers: list[str],
    times: Mapping[str, Sequence[Seconds]],
) -> Any:  # fmt: skip
    """Draw minima, with a line from the minimum to the third quartile."""
    heights = {name: [scale * one[0] for one in several] for name, several in times.items()}
    spreads = {name: [(scale * one[0], scale * one[2]) for one in several] for name, several in times.items()}
    return bars_figure(page.registered_name, title, caption, y, layers, heights, spreads, logarithmic=True)
