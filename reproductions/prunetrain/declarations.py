"""PruneTrain's tables of accuracy, FLOPs and time: Table 1 on CIFAR, Table 3 (ResNet-56), Table 4 (a growing batch).

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019, Sec. 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.data.records import Trial
from reports.figures.figure import Figure
from reproductions.comparison import Compared, Comparison, accuracy
from reproductions.contract import Part, Reproduction
from suite.registry import register

SMALL = "resnet9[width=0.25]"  # for which the thresholds of smoke and quick are tuned
ONE_SEED = {"smoke": 1, "quick": 1, "paper": 1}
MODELS = ("resnet32", "resnet50_cifar", "vgg11", "vgg13")
TASKS = ("cifar10", "cifar100")
PAPER = ("paper",)  # the preset
# Of ResNet-32, whose weights begin larger than those of the network that `quick` is tuned for.
IN_FEW_EPOCHS = "prunetrain[ratio=0.3,threshold=0.05]"
COUNTED = "By this suite's convention."
THEIR_COUNT = (
    "By the convention of their code for both, which charges the data gradient at a layer's padded input, and that of "
    "the first layer, which nobody needs."
)
MODELLED = "As their code models it, for each convolution eight passes over its output in 16 bits."
RING = "As they model it, by a ring, whatever the number of devices. Nothing was sent here."
TIMES = "Ours has the penalty and the reconfigurations in it; theirs leaves these out."
BEST_EPOCH = (
    "The published accuracies are the best of all epochs on the test set, both the pruned and the dense ones; ours are "
    "those of the last epoch.",
)


def figure_part(
    name: str,
    title: str,
    methods: Sequence[str],
    *,
    task: str = "cifar10",
    model: str = "resnet50_cifar",
    **fields: Any,
) -> Part:
    """A part of a figure: ResNet-50 by the paper's recipe, a small network in the short presets, which have one seed.

    Args:
        name, title, task, model: of the part.
        methods: as one types them.
        fields: others of `Part`.
    """
    return Part(
        name=name,
        title=title,
        methods=",".join(methods),
        task=task,
        model=model,
        small_model=SMALL,
        recipe="prunetrain",
        **{"seeds": {"smoke": 1, "quick": 1, "paper": 3}, **fields},
    )


def strength(ratio: float) -> str:
    """PruneTrain at a penalty ratio, as the lists and the tables have it."""
    return f"prunetrain[ratio={ratio}]"


def training_left(name: str, method: str) -> Compared:
    """What a method leaves of dense's training FLOPs, in percent; by our count nothing was published."""
    return Compared(
        f"{name}: training FLOPs left",
        method,
        column="train_flops_current",
        over="train_flops_dense",
        kind="counted",
        note=COUNTED,
    )


def inference_left(name: str, method: str, published: str) -> Compared:
    """What a method leaves of dense's inference FLOPs, in percent."""
    return Compared(
        f"{name}: inference FLOPs left",
        method,
        column="inference_flops",
        over="inference_flops_dense",
        kind="counted",
        published=published,
    )


def left(name: str, method: str, train_flops: str, train_time: str, inference_flops: str) -> tuple[Compared, ...]:
    """What a method leaves of dense's FLOPs and time, in percent, beside the published numbers (empty: none)."""
    return (
        training_left(name, method),
        Compared(
            f"{name}: training FLOPs left, counted as theirs",
            method,
            column="their_train_flops",
            against="ratio",
            kind="counted",
            published=train_flops,
            note=THEIR_COUNT,
        ),
        Compared(
            f"{name}: memory traffic of normalisation left",
            method,
            column="norm_traffic",
            against="ratio",
            kind="modelled",
            note=MODELLED,
        ),
        Compared(
            f"{name}: communication of gradients left",
            method,
            column="allreduce",
            against="ratio",
            kind="modelled",
            note=RING,
        ),
        Compared(
            f"{name}: training time left",
            method,
            column="train_time_s",
            against="ratio",
            published=train_time,
            note=TIMES,
        ),
        inference_left(name, method, inference_flops),
    )


def changed(name: str, method: str, published: str) -> tuple[Compared, ...]:
    """The accuracy of a method in percent, and its difference to dense, which is what the paper prints."""
    return (
        Compared(f"accuracy, {name}", method),
        Compared(f"{name} minus dense", method, against="difference", unit="points", published=published),
    )


def modelled_costs(trial: Trial) -> dict[str, float]:
    """What the paper's conventions say of a whole training: `their_train_flops`, `norm_traffic`, `allreduce`."""
    from suite.cost.paper_conventions import prunetrain_training, read_intervals

    intervals = read_intervals(trial.layers)
    if not intervals:
        return {}
    cost = prunetrain_training(intervals)
    return {
        "their_train_flops": cost["train_flops"],
        "norm_traffic": cost["norm_traffic_bytes"],
        "allreduce": cost["allreduce_bytes"],
    }


class AccuracyAndCost(Reproduction):
    """What PruneTrain's tables have in common: the differences of accuracy are drawn."""

    remarks = BEST_EPOCH

    def columns(self, trial: Trial) -> Mapping[str, float]:
        return modelled_costs(trial)

    def draw(self, comparisons: tuple[Comparison, ...]) -> Figure | None:
        from reproductions.figures import differences_figure

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
    """PruneTrain's Table 1 on CIFAR: accuracy, FLOPs and time that are left, for four networks on two data sets."""

    title = "PruneTrain, Table 1: accuracy, training and inference cost on CIFAR"
    reference = "prunetrain-table1-cifar10-accuracy"
    also = (
        *(
            f"prunetrain-table1-imagenet-{what}"
            for what in (
                *("accuracy", "accuracy-fine-tuned", "train-flops"),
                *("train-time", "train-time-v100", "inference-flops"),
            )
        ),
        "prunetrain-imagenet-norm-traffic-saved",
        "prunetrain-imagenet-allreduce-saved",
    )
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


GROWING = "prunetrain[dynamic_batch=start]"


def _batch_lines(name: str, method: str, key: str) -> tuple[Compared, ...]:
    group = "prunetrain-table4-cifar100"
    return (
        *changed(name, method, f"{group}-accuracy/{key}"),
        Compared(
            f"{name}: training time saved",
            method,
            column="train_time_s",
            against="saving",
            published=f"{group}-time-saved/{key}",
            note=TIMES,
        ),
        inference_left(name, method, f"{group}-inference-flops/{key}"),
    )


@register("reproduction", "prunetrain-table4")
class Table4(AccuracyAndCost):
    """PruneTrain's Table 4: a batch that grows within the memory of the start, ResNet-50 on CIFAR-100."""

    title = "PruneTrain, Table 4: dynamic mini-batch adjustment"
    reference = "prunetrain-table4-cifar100-accuracy"
    also = tuple(
        f"prunetrain-table4-imagenet-{what}"
        for what in ("accuracy", "time-saved", "time-saved-v100", "inference-flops")
    )
    parts = (
        Part(
            name="cifar100",
            title="ResNet-50 on CIFAR-100: dense, prunetrain, and with a batch that grows",
            methods=f"dense,prunetrain,{GROWING}",
            task="cifar100",
            model="resnet50_cifar",
            compared=(
                Compared("accuracy, dense", "dense"),
                *_batch_lines("batch as it was", "prunetrain", "naive"),
                *_batch_lines("growing batch", GROWING, "adjusted"),
            ),
        ),
    )
