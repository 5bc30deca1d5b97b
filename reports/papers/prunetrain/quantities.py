"""Quantities, parts and notes that the reproductions of PruneTrain share.

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019, Sec. 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reports.papers.comparison import Compared
from reports.papers.contract import Part
from suite.engine.cost.paper_conventions import prunetrain_training, read_intervals
from suite.trials.folder.reader import Trial

SMALL = "resnet9[width=0.25]"  # the network for which the thresholds of smoke and quick are tuned
ONE_SEED = {"smoke": 1, "quick": 1, "paper": 1}
REPETITIONS = 20  # measurements of a time, whose median counts
MODELS = ("resnet32", "resnet50_cifar", "vgg11", "vgg13")
TASKS = ("cifar10", "cifar100")
PAPER = ("paper",)  # the preset
# ResNet-32 has larger initial weights than the network that `quick` is tuned for. Of the settings with the default
# update in results/cpu-zen4-2cores/prunetrain-resnet32.csv, this one is the weakest that saves more than 20 % of the
# inference FLOPs. Its accuracy had no part in the choice.
IN_FEW_EPOCHS = "prunetrain[ratio=0.3,threshold=0.05]"
GROWING = "prunetrain[dynamic_batch=start]"
COUNTED = "Counted by the convention of this suite."
THEIR_COUNT = (
    "Both are counted by the convention of PruneTrain's code. It counts the data gradient at the padded input of a "
    "layer, and also that of the first layer, which training does not need."
)
MODELLED = "Modelled as in their code: eight passes over the output of each convolution, in 16 bits."
RING = "Modelled as in the paper, by a ring all-reduce, for any number of devices. No data was sent here."
TIMES = "Our time includes the penalty and the reconfigurations; theirs does not."
BEST_EPOCH = (
    "The published accuracies, pruned and dense, are the best of all epochs on the test set. Ours are those of the "
    "last epoch.",
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
    """Return a part of a figure: ResNet-50 with the paper's recipe, or a small network and one seed in short presets.

    Args:
        name, title, task, model: Fields of the part.
        methods: Methods in the form that `--methods` takes.
        fields: Further fields of `Part`.
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
    """Return the label of PruneTrain with a penalty ratio."""
    return f"prunetrain[ratio={ratio}]"


def training_left(name: str, method: str) -> Compared:
    """Return the remaining training FLOPs in percent of dense. No published number uses the count of this suite."""
    return Compared(
        f"{name}: training FLOPs left",
        method,
        column="train_flops_current",
        over="train_flops_dense",
        kind="counted",
        note=COUNTED,
    )


def inference_left(name: str, method: str, published: str) -> Compared:
    """Return the remaining inference FLOPs in percent of dense."""
    return Compared(
        f"{name}: inference FLOPs left",
        method,
        column="inference_flops",
        over="inference_flops_dense",
        kind="counted",
        published=published,
    )


def left(name: str, method: str, train_flops: str, train_time: str, inference_flops: str) -> tuple[Compared, ...]:
    """Return the remaining FLOPs and time in percent of dense, with the names of published numbers (empty: none)."""
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
    """Return the accuracy of a method in percent, and its difference to dense, which the paper prints."""
    return (
        Compared(f"accuracy, {name}", method),
        Compared(f"{name} minus dense", method, against="difference", unit="points", published=published),
    )


def modelled_costs(trial: Trial) -> dict[str, float]:
    """Return the costs of a whole training by the conventions of the paper.

    Returns:
        The columns `their_train_flops`, `norm_traffic` and `allreduce`; nothing if the trial has no layers.
    """
    intervals = read_intervals(trial.layers)
    if not intervals:
        return {}
    cost = prunetrain_training(intervals)
    return {
        "their_train_flops": cost["train_flops"],
        "norm_traffic": cost["norm_traffic_bytes"],
        "allreduce": cost["allreduce_bytes"],
    }
