"""ClickTrain's figures of sparse convolutions: Fig. 9 (time of the conversion) and Fig. 10 (time by method).

Source: Zhang, Yuan, Niu, Tian, Jin, Zhuang, Jiang, Wang, Ren, Song, Tao, "ClickTrain: Efficient and Accurate End-to-End
Deep Learning Training via Fine-Grained Architecture-Preserving Pruning", ICS 2021, slides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.figures.figure import Figure
from reports.figures.panels import bars_figure
from reports.papers.clicktrain.quantities import SMALL, recipe_name
from reports.papers.comparison import Comparison
from reports.papers.contract import Outcome, Part, Reproduction, ReproductionData
from reports.papers.trial_networks import image_shape
from reports.papers.trial_values import doubts, line, model_file, timed_on, with_own_trials
from suite.registry import register
from suite.trials.engines.subprocess_call import SubprocessResult, call_in_subprocess
from suite.trials.estimates import Missing, estimate
from suite.trials.folder.reader import Trial

PRODUCTS = ("forward", "data gradient", "weight gradient")
DENSE = ("dense, contiguous", "dense, channels-last")
MASKED, OURS, CSR = "masked, channels-last", "skipping", "sparse CSR"
METHODS = (*DENSE, MASKED, OURS, CSR)
CONVERSIONS = ("to_sparse_csr", "packed form, mask known", "packed form, index and lists rebuilt")
Seconds = list[float]
"""Minimum, median and third quartile of the seconds of a call."""
MASKED_TRIAL = "clicktrain[schedule=paper,backend=masked]"
NOT_DONE = "its trial is not done"
NOTHING_PRUNED = "nothing was pruned in this network"
NOT_HERE = "kernels that skip weights are not available: no C++ compiler, or PDT_CPU_KERNEL=0"
THAN_DENSE = "skipping, times as fast as dense in the faster layout"
NO_CSR = "this build of torch has no such products"
REPETITIONS = {"smoke": 5, "quick": 20, "paper": 20}
MILLI, MICRO = 1e3, 1e6
PARTS = tuple(
    Part(
        name=network,
        title=f"{network}, two epochs: the network whose pruned layers are timed",
        methods=MASKED_TRIAL,
        task="cifar10",
        model=network,
        small_model=SMALL if network == "vgg11_click" else "",
        seeds={"smoke": 1, "quick": 1, "paper": 1},
        presets=("smoke", "quick", "paper") if network == "vgg11_click" else ("paper",),
        overrides={"epochs": 2},  # times depend on the positions of the remaining weights, and not on the accuracy
        recipe=recipe_name(network),
    )
    for network in ("vgg11_click", "resnet32_wide")
)
ON_THE_CPU = (
    "Measured on the CPU in float32, in a separate process, whatever the device and dtype of the trial. Times are "
    f"minima of {REPETITIONS['paper']} repetitions ({REPETITIONS['smoke']} in smoke), which other programs disturb "
    "least. The methods alternate, so that other load affects all of them. Notes give the median and the third "
    "quartile; the lines in the figure end there. The slides measure on a GPU and their charts have no numbers, so no "
    "published number is compared."
)


@register("reproduction", "clicktrain-fig9")
class Figure9(Reproduction):
    """ClickTrain's Fig. 9: time to convert a pruned weight to a sparse format, and to torch's CSR."""

    title = "ClickTrain, Fig. 9: time of the conversion to a sparse format"
    source = "clicktrain-slides"
    remarks = (
        ON_THE_CPU,
        "Torch's to_sparse_csr searches for nonzero weights. Packing is one gather with an index that is built once "
        "per mask. The third way also builds that index and the lists of input positions of each weight, which "
        "happens once per training.",
    )
    parts = PARTS

    def outcome(self, data: ReproductionData) -> Outcome:
        lines: list[Comparison] = []
        timed: list[SubprocessResult] = []
        figures: list[Figure] = []
        for part, trials in with_own_trials(self, data):
            for trial in trials.get(MASKED_TRIAL, [])[:1]:
                layers = _of_layers(data, trial, "conversion_times", {})
                timed.append(layers)
                lines += self._lines(part.name, trial, layers.value)
                if layers.value:
                    figures.append(self._figure(trial, layers.value))
        if not lines:
            lines = [line("to_sparse_csr over the packed form", PARTS[0].name, Missing(NOT_DONE), "measured", unit="×")]
        return Outcome(tuple(lines), figures[0] if figures else None, (*self.remarks, *doubts(timed)), timed_on(timed))

    def _lines(self, part: str, trial: Trial, layers: Mapping[str, Any]) -> list[Comparison]:
        model = trial.text("model")
        csr, known, rebuilt = CONVERSIONS
        total = {way: _sum([layer["seconds"][way] for layer in layers.values()]) for way in CONVERSIONS}
        lines = [
            _milliseconds(f"{model}, all {len(layers)} pruned layers: {way}", part, seconds)
            for way, seconds in total.items()
        ]
        lines += [
            _times_as_fast(f"{model}, all pruned layers: {way}, times as fast as {csr}", part, total[csr], total[way])
            for way in (known, rebuilt)
        ]
        for name, layer in layers.items():
            seconds = layer["seconds"]
            shape = "x".join(map(str, layer["shape"]))
            what = f"{model}, {name} ({shape}, {100 * layer['density']:.0f} % left): {known}, times as fast as {csr}"
            lines.append(_times_as_fast(what, part, seconds[csr], seconds[known]))
        return lines

    def _figure(self, trial: Trial, layers: Mapping[str, Any]) -> Figure:
        return bars_figure(
            self.registered_name,
            "Time to convert a pruned weight to a sparse format",
            f"{trial.text('model')}; minimal times, measured on the CPU. The axis is logarithmic.",
            "Time (microseconds)",
            list(layers),
            {way: [MICRO * layer["seconds"][way][0] for layer in layers.values()] for way in CONVERSIONS},
            {way: [_ends(layer["seconds"][way], MICRO) for layer in layers.values()] for way in CONVERSIONS},
            logarithmic=True,
        )


@register("reproduction", "clicktrain-fig10")
class Figure10(Reproduction):
    """ClickTrain's Fig. 10: time of the three products of pruned convolutions, dense, masked, skipped, sparse CSR."""

    title = "ClickTrain, Fig. 10: convolution time by method"
    source = "clicktrain-slides"
    remarks = (
        ON_THE_CPU,
        "Dense: oneDNN by torch, in two memory formats. Masked: the same, with the mask multiplied in. Skipping: this "
        "suite's kernels, with every change of layout. Sparse CSR: torch's sparse matrices times columns of the "
        "images, which are built within the measured time; building the matrices is measured in Fig. 9.",
    )
    parts = PARTS

    def outcome(self, data: ReproductionData) -> Outcome:
        lines: list[Comparison] = []
        timed: list[SubprocessResult] = []
        figures: list[Figure] = []
        losses: list[str] = []
        for part, trials in with_own_trials(self, data):
            for trial in trials.get(MASKED_TRIAL, [])[:1]:
                batch = data.specs[trial.name].make_recipe().batch_size
                layers = _of_layers(data, trial, "product_times", {"batch": batch})
                timed.append(layers)
                lines += self._lines(part.name, trial, layers.value)
                losses += loses(trial.text("model"), layers.value)
                if layers.value:
                    figures.append(self._figure(trial, batch, layers.value))
        if not lines:
            lines = [line("skipping over dense", PARTS[0].name, Missing(NOT_DONE), "measured", unit="×")]
        remarks = (*losses, *self.remarks, *doubts(timed))
        return Outcome(tuple(lines), figures[0] if figures else None, remarks, timed_on(timed))

    def _lines(self, part: str, trial: Trial, layers: Mapping[str, Any]) -> list[Comparison]:
        model = trial.text("model")
        lines = []
        for method in METHODS:
            for product in (*PRODUCTS, ""):
                several = [_product(layer["seconds"].get(method), product) for layer in layers.values()]
                what = f"{model}, all {len(layers)} pruned layers, {product or 'three products'}: {method}"
                lines.append(_milliseconds(what, part, _sum([each for each in several if each]), method))
        for product in (*PRODUCTS, ""):
            ours = _sum([each for layer in layers.values() if (each := _product(layer["seconds"].get(OURS), product))])
            dense = _sum([fastest_dense(layer["seconds"], product) for layer in layers.values()])
            what = f"{model}, all pruned layers, {product or 'three products'}: {THAN_DENSE}"
            lines.append(_times_as_fast(what, part, dense, ours))
        for name, layer in layers.items():
            ours, dense = _product(layer["seconds"].get(OURS), ""), fastest_dense(layer["seconds"], "")
            shape, size = "x".join(map(str, layer["shape"])), "x".join(map(str, layer["size"]))
            left = f"{100 * layer['density']:.0f} % left"
            what = f"{model}, {name} ({shape} on {size}, {left}), three products: {THAN_DENSE}"
            lines.append(_times_as_fast(what, part, dense, ours))
        return lines

    def _figure(self, trial: Trial, batch: int, layers: Mapping[str, Any]) -> Figure:
        drawn = [method for method in METHODS if all(method in layer["seconds"] for layer in layers.values())]
        times = {method: [_product(layer["seconds"][method], "") for layer in layers.values()] for method in drawn}
        return bars_figure(
            self.registered_name,
            "Time of forward, data gradient and weight gradient of pruned convolutions",
            f"{trial.text('model')} at batch {batch}; the three products together, minimal times, measured on the CPU "
            "in float32. The axis is logarithmic.",
            "Time (ms)",
            list(layers),
            {method: [MILLI * each[0] for each in several] for method, several in times.items()},
            {method: [_ends(each, MILLI) for each in several] for method, several in times.items()},
            logarithmic=True,
        )


def loses(model: str, layers: Mapping[str, Any]) -> list[str]:
    """Return one line that names the layers in which skipping is no faster than the faster dense layout.

    Args:
        model: Name of the network.
        layers: Result of `timed_layers.product_times`.
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


def _of_layers(data: ReproductionData, trial: Trial, function: str, more: Mapping[str, Any]) -> SubprocessResult:
    file, repetitions = str(model_file(data, trial)), REPETITIONS[trial.text("preset")]
    arguments = {"file": file, "shape": image_shape(data, trial), "repetitions": repetitions, **more}
    return call_in_subprocess(
        f"reports.papers.clicktrain.timed_layers:{function}", arguments, "cpu", data.specs[trial.name].plugins
    )


def _product(seconds: Mapping[str, Seconds] | None, product: str) -> Seconds:
    """Return the times of a product, or of all three if it is empty; an empty list if none were measured."""
    if not seconds:
        return []
    return seconds[product] if product else _sum([*seconds.values()])


def _sum(several: Sequence[Seconds]) -> Seconds:
    """Return the sums of the minima, of the medians and of the third quartiles."""
    return [sum(points) for points in zip(*several, strict=True)]


def _times_as_fast(what: str, part: str, theirs: Seconds, ours: Seconds) -> Comparison:
    """Return how many times as fast ours is. Torch's own products have times for every pruned layer."""
    if not theirs or not ours:
        return line(what, part, Missing(NOT_HERE if theirs else NOTHING_PRUNED), "measured", unit="×")
    note = f"Ratio of the medians: {theirs[1] / ours[1]:.3g} ×."
    return line(what, part, estimate([theirs[0] / ours[0]], ""), "measured", unit="×", note=note)


def _milliseconds(what: str, part: str, seconds: Seconds, method: str = "") -> Comparison:
    if not seconds:
        reason = {OURS: NOT_HERE, CSR: NO_CSR}.get(method, NOTHING_PRUNED)
        return line(f"{what}, milliseconds", part, Missing(reason), "measured", unit="")
    note = f"Sums over the layers: median {MILLI * seconds[1]:.3g}, third quartile {MILLI * seconds[2]:.3g} ms."
    return line(f"{what}, milliseconds", part, estimate([MILLI * seconds[0]], ""), "measured", unit="", note=note)


def _ends(seconds: Seconds, scale: float) -> tuple[float, float]:
    return scale * seconds[0], scale * seconds[2]
