"""The rows of PruneTrain's Tables 1, 2 and 4 for ImageNet, and its Fig. 9a.

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019, Sec. 5.
"""

from __future__ import annotations

from collections.abc import Sequence

from reports.papers.comparison import Compared
from reports.papers.contract import Part
from reports.papers.prunetrain.final_networks import Table2
from reports.papers.prunetrain.over_epochs import NAIVE, Figure9, memory_lines
from reports.papers.prunetrain.quantities import BEST_EPOCH, GROWING, ONE_SEED, changed, left
from reports.papers.prunetrain.tables import AccuracyAndCost, batch_lines
from suite.registry import register

RATIOS = (0.25, 0.2, 0.1)
STRONGEST = RATIOS[0]
ADJUSTED = ",dynamic_batch=start"
STAND_IN = (
    "The presets smoke and quick train ResNet-18 on Imagenette, which has 10 of the 1,000 classes; no published number "
    "is next to it. Preset paper trains ResNet-50 on ImageNet."
)


def label(ratio: float, more: str = "") -> str:
    """Return the label of PruneTrain with a penalty ratio, and the interval of 5 epochs of the published code."""
    return f"prunetrain[ratio={ratio},interval=5{more}]"


_LAST_BATCH = Compared(
    "imagenet: images per GPU in the last batch",
    label(STRONGEST, ADJUSTED),
    column="last_batch",
    scale=1 / 4,
    unit="",
    kind="counted",
    published="prunetrain-fig9a-batch/epoch 30",
    note="A quarter of our batch, which the paper spread over four GPUs.",
)


def _imagenette(methods: Sequence[str], compared: tuple[Compared, ...] = ()) -> Part:
    return Part(
        name="imagenette",
        title=f"ResNet-18 on Imagenette: dense, {', '.join(methods)}",
        methods=",".join(["dense", *methods]),
        task="imagenette",
        model="resnet18",
        seeds=ONE_SEED,
        presets=("smoke", "quick"),
        compared=(Compared("accuracy, resnet18 on imagenette, dense", "dense"), *compared),
    )


def _imagenet(methods: Sequence[str], compared: tuple[Compared, ...] = (), name: str = "resnet50") -> Part:
    return Part(
        name=name,
        title=f"ResNet-50 on ImageNet: dense, {', '.join(methods)}",
        methods=",".join(["dense", *methods]),
        task="imagenet",
        model="resnet50",
        seeds=ONE_SEED,
        presets=("paper",),
        recipe="prunetrain",
        compared=(Compared("accuracy, resnet50 on imagenet, dense", "dense"), *compared),
    )


def _row(ratio: float) -> tuple[Compared, ...]:
    where, key = f"resnet50 on imagenet, ratio {ratio}", f"ratio {ratio}"
    costs = (f"prunetrain-table1-imagenet-{what}/{key}" for what in ("train-flops", "train-time", "inference-flops"))
    return (
        *changed(where, label(ratio), f"prunetrain-table1-imagenet-accuracy/{key}"),
        *left(where, label(ratio), *costs),
    )


@register("reproduction", "prunetrain-table1-imagenet")
class Table1OfImageNet(AccuracyAndCost):
    """PruneTrain's Table 1, rows for ImageNet: ResNet-50; in short presets, ResNet-18 on Imagenette."""

    title = "PruneTrain, Table 1: accuracy, training and inference cost on ImageNet"
    reference = "prunetrain-table1-imagenet-accuracy"
    also = (
        "prunetrain-table1-imagenet-accuracy-fine-tuned",
        "prunetrain-table1-imagenet-train-time-v100",
        "prunetrain-imagenet-norm-traffic-saved",
        "prunetrain-imagenet-allreduce-saved",
    )
    remarks = (*BEST_EPOCH, STAND_IN)
    parts = (
        _imagenette(
            ["prunetrain"],
            (
                *changed("resnet18 on imagenette", "prunetrain", ""),
                *left("resnet18 on imagenette", "prunetrain", "", "", ""),
            ),
        ),
        _imagenet([label(ratio) for ratio in RATIOS], tuple(line for ratio in RATIOS for line in _row(ratio))),
    )


@register("reproduction", "prunetrain-table4-imagenet")
class Table4OfImageNet(AccuracyAndCost):
    """PruneTrain's Table 4, rows for ImageNet: a growing batch; in short presets, ResNet-18 on Imagenette."""

    title = "PruneTrain, Table 4: dynamic mini-batch adjustment on ImageNet"
    reference = "prunetrain-table4-imagenet-accuracy"
    also = ("prunetrain-table4-imagenet-time-saved-v100", "prunetrain-fig9a-batch")
    remarks = (*BEST_EPOCH, STAND_IN)
    parts = (
        _imagenette(
            [NAIVE, GROWING],
            (
                *batch_lines("imagenette, batch as it was", "prunetrain", "", ""),
                *batch_lines("imagenette, growing batch", GROWING, "", ""),
            ),
        ),
        _imagenet(
            [label(STRONGEST), label(STRONGEST, ADJUSTED)],
            (
                *batch_lines("batch as it was", label(STRONGEST), "prunetrain-table4-imagenet", "naive"),
                *batch_lines(
                    "growing batch",
                    label(STRONGEST, ADJUSTED),
                    "prunetrain-table4-imagenet",
                    "adjusted",
                ),
            ),
        ),
    )


@register("reproduction", "prunetrain-fig9-imagenet")
class Figure9OfImageNet(Figure9):
    """PruneTrain's Fig. 9a: memory of a step and the growing batch on ImageNet; in short presets, on Imagenette."""

    title = "PruneTrain, Fig. 9a: memory of a step, and the batch that grows, on ImageNet"
    reference = "prunetrain-fig9a-batch"
    also = ("prunetrain-fig9a-batch",)
    remarks = (STAND_IN,)
    parts = (
        _imagenette([NAIVE, GROWING], memory_lines("imagenette", NAIVE, GROWING)),
        _imagenet(
            [label(STRONGEST), label(STRONGEST, ADJUSTED)],
            memory_lines("imagenet", label(STRONGEST), label(STRONGEST, ADJUSTED), _LAST_BATCH),
        ),
    )

    def labels(self, part: Part) -> tuple[str, str]:
        return (NAIVE, GROWING) if part.task == "imagenette" else (label(STRONGEST), label(STRONGEST, ADJUSTED))


@register("reproduction", "prunetrain-table2-imagenet")
class Table2OfImageNet(Table2):
    """PruneTrain's Table 2, rows for ImageNet: images per second; in short presets, ResNet-18 on Imagenette."""

    title = "PruneTrain, Table 2: inference speed on ImageNet"
    reference = "prunetrain-table2-imagenet-speedup"
    compared_with = ("prunetrain-table2-imagenet-dense", "prunetrain-table2-imagenet-pruned")
    theirs = "prunetrain-table2-imagenet"
    remarks = (*Table2.remarks, STAND_IN)
    parts = (_imagenette(["prunetrain"]), *(_imagenet([label(ratio)], name=f"ratio {ratio}") for ratio in RATIOS))

    def where(self, part: Part, model: str) -> str:
        where = super().where(part, model)
        return f"{where}, {part.name}" if part.task == "imagenet" else where

    def rows(self, part: Part) -> tuple[str, str] | None:
        return ("", part.name) if part.task == "imagenet" else None
