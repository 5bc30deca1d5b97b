"""PruneTrain's tables of accuracy, FLOPs and time: Table 1 on CIFAR, Table 3 (ResNet-56), Table 4 (a growing batch).

Source: Lym, Choukse, Zangeneh, Wen, Sanghavi, Erez, "PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration", SC 2019, Sec. 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reports.data.records import Trial
from reproductions.comparison import Compared
from reproductions.contract import Part

SMALL = "resnet9[width=0.25]"  # for which the thresholds of smoke and quick are tuned
ONE_SEED = {"smoke": 1, "quick": 1, "paper": 1}
MODELS = ("resnet32", "resnet50_cifar", "vgg11", "vgg13")
TASKS = ("cifar10", "cifar100")
PAPER = ("paper",)  # the preset
# Of ResNet-32, whose weights begin larger than those of the network that `quick` is tuned for.
IN_FEW_EPOCHS = "prunetrain[ratio=0.3,threshold=0.05]"
GROWING = "prunetrain[dynamic_batch=start]"
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
