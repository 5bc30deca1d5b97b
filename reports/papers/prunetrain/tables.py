"""PruneTrain's tables of accuracy, FLOPs and time: Table 1 on CIFAR, Table 3 (ResNet-56), Table 4 (a growing batch).

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019, Sec. 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from reports.figures.figure import Figure
from reports.papers.comparison import Compared, Comparison, accuracy
from reports.papers.contract import Part, Reproduction
from reports.papers.figures import differences_figure
from reports.papers.prunetrain.quantities import (
    BEST_EPOCH,
    GROWING,
    IN_FEW_EPOCHS,
    MODELS,
    PAPER,
    TASKS,
    TIMES,
    changed,
    inference_left,
    left,
    modelled_costs,
)
from suite.registry import register
from suite.trials.folder.reader import Trial


class AccuracyAndCost(Reproduction):
    """Base class of PruneTrain's tables, whose figure shows the differences of accuracy to dense."""

    remarks: ClassVar[tuple[str, ...]] = BEST_EPOCH

    def columns(self, trial: Trial) -> Mapping[str, float]:
        return modelled_costs(trial)

    def draw(self, comparisons: tuple[Comparison, ...]) -> Figure | None:
        return differences_figure(self.registered_name, "Accuracy minus dense, published and ours", comparisons)


def _part(model: str, task: str, method: str = "prunetrain", name: str = "", presets: tuple[str, ...] = PAPER) -> Part:
    group = f"prunetrain-table1-{task}"
    where = f"{model} on {task}"
    return Part(
        name=name or f"{model}-{task}",
        title=f"{where}, dense and {method}",
        methods=f"dense,{method}",
        task=task,
        model=model,
        presets=presets,
        recipe="prunetrain",
        compared=(
            Compared(f"accuracy, {where}, dense", "dense"),
            *changed(where, method, f"{group}-accuracy/{model}"),
            *left(
                where,
                method,
                f"{group}-train-flops/{model}",
                f"{group}-train-time/{model}",
                f"{group}-inference-flops/{model}",
            ),
        ),
    )


@register("reproduction", "prunetrain-table1")
class Table1(AccuracyAndCost):
    """PruneTrain's Table 1: accuracy and remaining FLOPs and time of four networks on CIFAR-10 and CIFAR-100."""

    title = "PruneTrain, Table 1: accuracy, training and inference cost on CIFAR"
    reference = "prunetrain-table1-cifar10-accuracy"
    parts = (
        _part("resnet32", "cifar10", IN_FEW_EPOCHS, "resnet32-few-epochs", ("smoke", "quick")),
        *(_part(model, task) for task in TASKS for model in MODELS),
    )


@register("reproduction", "prunetrain-table3")
class Table3(AccuracyAndCost):
    """PruneTrain's Table 3: ResNet-56 on CIFAR-10, which the paper compares with AMC."""

    title = "PruneTrain, Table 3: ResNet-56 on CIFAR-10"
    reference = "prunetrain-table3-accuracy"
    also = ("prunetrain-table3-removed-layers",)
    parts = (
        Part(
            name="resnet56",
            title="ResNet-56, dense and prunetrain",
            methods="dense,prunetrain",
            task="cifar10",
            model="resnet56",
            recipe="prunetrain",
            compared=(
                *accuracy("dense", "dense", "prunetrain-table3-accuracy/dense"),
                *changed("prunetrain", "prunetrain", "prunetrain-table3-accuracy-change/prunetrain"),
                *left("prunetrain", "prunetrain", "", "", "prunetrain-table3-inference-flops/prunetrain"),
            ),
        ),
    )


def batch_lines(name: str, method: str, group: str, key: str) -> tuple[Compared, ...]:
    """Return the lines of a method in Table 4.

    Args:
        name: Name of the quantities.
        method: Label of the method.
        group: Beginning of the names of the groups of published numbers; empty for none.
        key: Name of the published numbers in their groups.
    """

    def published(what: str) -> str:
        return group and f"{group}-{what}/{key}"

    return (
        *changed(name, method, published("accuracy")),
        Compared(
            f"{name}: training time saved",
            method,
            column="train_time_s",
            against="saving",
            published=published("time-saved"),
            note=TIMES,
        ),
        inference_left(name, method, published("inference-flops")),
    )


@register("reproduction", "prunetrain-table4")
class Table4(AccuracyAndCost):
    """PruneTrain's Table 4: a batch that grows within the initial memory, for ResNet-50 on CIFAR-100."""

    title = "PruneTrain, Table 4: dynamic mini-batch adjustment"
    reference = "prunetrain-table4-cifar100-accuracy"
    parts = (
        Part(
            name="cifar100",
            title="ResNet-50 on CIFAR-100: dense, prunetrain, and prunetrain with a growing batch",
            methods=f"dense,prunetrain,{GROWING}",
            task="cifar100",
            model="resnet50_cifar",
            compared=(
                Compared("accuracy, dense", "dense"),
                *batch_lines("batch as it was", "prunetrain", "prunetrain-table4-cifar100", "naive"),
                *batch_lines("growing batch", GROWING, "prunetrain-table4-cifar100", "adjusted"),
            ),
        ),
    )
