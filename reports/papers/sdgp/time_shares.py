"""SDGP's Fig. 9: the share of the data gradient in the time of the convolutions, and what follows from it.

Source: McDanel, Dinh, Magallanes, "Accelerating DNN Training with Structured Data Gradient Pruning", ICPR 2022
(arXiv 2202.00774), Sec. IV-C.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from reports.figures.figure import Figure
from reports.figures.panels import bars_figure
from reports.papers.comparison import Comparison
from reports.papers.contract import Outcome, Part, Reproduction, ReproductionData
from suite.choices import build_model
from suite.engine.cost.flops import PRODUCTS as COUNTED
from suite.engine.cost.flops import count_layers
from suite.registry import register
from suite.trials.building import task_of
from suite.trials.engines.subprocess_call import call_in_subprocess
from suite.trials.estimates import Estimate, Missing

SHARE = "sdgp-data-gradient-share-resnet18"
SMALL_SHARE = "sdgp-data-gradient-share-resnet9"
SAVED = "sdgp-time-saved-resnet18"
MODEL, SHAPE, CLASSES = "resnet18", (3, 224, 224), 1000
BATCH = {"cpu": 8, "cuda": 256}
METHOD = "sdgp[n=2,m=4,backend=masked]"
"""This backend multiplies gradients as dense ones, so that only pruning adds to the times of dense products."""
RATIOS = {"2:4": 1 / 2, "1:4": 1 / 4}  # n:m, and n/m
PRODUCTS = {"forward": "forward", "dgrad": "data gradient", "wgrad": "weight gradient"}
Seconds = Mapping[str, Mapping[str, float]]


@register("reproduction", "sdgp-fig9")
class Figure9(Reproduction):
    """SDGP's Fig. 9: the time of each convolution's three products, and the data gradient's share."""

    title = "SDGP, Fig. 9: time of the products of each convolution"
    reference = SHARE
    compared_with = (SMALL_SHARE, SAVED)
    parts = (
        Part(
            name="resnet9",
            title="a dense network, trained for one epoch; ResNet-18 is timed after it",
            methods="dense",
            task="cifar10",
            seeds={"smoke": 1, "quick": 1, "paper": 1},
            overrides={"epochs": 1},
        ),
    )

    def outcome(self, data: ReproductionData) -> Outcome:
        """Time the products of ResNet-18 at 224 pixels and of the trial's network, and compare the shares."""

        trials = [trial for trial in data.trials[self.parts[0].name].get("dense", ()) if trial.done]
        if not trials:
            return Outcome((self._line("data gradient's share", Missing("the dense trial is not done"), "measured"),))
        spec = data.specs[trials[0].name]
        kind = "cuda" if data.device.startswith("cuda") else "cpu"
        task = task_of(spec)
        shared = {"dtype": spec.dtype, "method": METHOD}
        large: dict[str, Any] = {"model": MODEL, "shape": SHAPE, "classes": CLASSES, "batch": BATCH[kind]}
        small = {
            "model": spec.model,
            "shape": task.input_shape,
            "classes": task.num_classes,
            "batch": spec.recipe["batch_size"],
        }
        timed = [
            call_in_subprocess(
                "reports.papers.sdgp.layer_times:product_seconds", {**shared, **network}, data.device, spec.plugins
            )
            for network in (large, small)
        ]
        lines = self.lines(timed[0].value, "ResNet-18 at 224 pixels", SHARE)
        lines += self.saved(timed[0].value)
        lines += self.lines(timed[1].value, f"{spec.model} on {spec.task}", SMALL_SHARE)
        lines.append(self._line("data gradient's share of FLOPs, ResNet-18 at 224 pixels", counted_share(), "counted"))
        return Outcome(
            tuple(lines),
            self._figure(timed[0].value, BATCH[kind]),
            (
                "Times are those of new networks with random images, in forward and backward passes with clocks around "
                "each product; a product takes as long with other weights.",
                f"The batch has {BATCH[kind]} images at 224 pixels here and 256 in the paper.",
                "The first convolution has no data gradient, so that its share of FLOPs is below a third.",
            ),
            (f"Timed: {timed[0].where}, {spec.dtype}; {METHOD}",),
        )

    def lines(self, seconds: Seconds, network: str, published: str) -> list[Comparison]:
        """Return the share of the data gradient and of pruning in the time of the three products."""
        totals = part_totals(seconds)
        products = sum(totals[product] for product in PRODUCTS)
        return [
            self._line(
                f"data gradient's share of the products' time, {network}", totals["dgrad"] / products, "measured",
                f"{published}/share",
            ),
            self._line(
                f"2:4 pruning relative to the products' time, {network}", totals["pruning"] / products, "measured"
            ),
        ]  # fmt: skip

    def saved(self, seconds: Seconds) -> list[Comparison]:
        """Return the saving by the paper's model from our share, and that saving less our measured time of pruning."""
        totals = part_totals(seconds)
        products = sum(totals[product] for product in PRODUCTS)
        share, pruning = totals["dgrad"] / products, totals["pruning"] / products
        lines = []
        for name, left in RATIOS.items():
            model = share * (1 - left)
            lines.append(self._line(f"saved by {name}, if pruning takes no time", model, "modelled", f"{SAVED}/{name}"))
            lines.append(self._line(f"saved by {name}, less our time of 2:4 pruning", model - pruning, "modelled"))
        return lines

    def _figure(self, seconds: Seconds, batch: int) -> Figure:
        bars = {
            title: [1e3 * parts.get(product, 0.0) for parts in seconds.values()] for product, title in PRODUCTS.items()
        }
        caption = (
            f"ResNet-18 at 224 pixels with {batch} random images; each layer in the order in which it is first timed."
        )
        return bars_figure(
            self.registered_name, "Time of each layer's three products", caption, "Time (ms)", list(seconds), bars
        )

    def _line(self, quantity: str, ours: float | Missing, kind: Any, published: str = "") -> Comparison:
        part = self.parts[0].name
        value = ours if isinstance(ours, Missing) else Estimate(100 * ours, None, 1)
        if not published:
            return Comparison(quantity, "%", part, value, kind)
        group, theirs = self.published.find(published)
        return Comparison(
            quantity, "%", part, value, kind, theirs, group.kind, group.citation, note=" ".join(group.notes)
        )


def part_totals(seconds: Seconds) -> dict[str, float]:
    """Return the seconds of each part over all layers."""
    return {part: math.fsum(parts.get(part, 0.0) for parts in seconds.values()) for part in (*PRODUCTS, "pruning")}


def counted_share() -> float:
    """Return the data gradient's share of the FLOPs of a training step of ResNet-18 at 224 pixels."""
    costs = count_layers(build_model(MODEL, SHAPE, CLASSES), SHAPE).values()
    return sum(cost.flops("dgrad") for cost in costs) / sum(cost.flops(one) for cost in costs for one in COUNTED)
