"""ClickTrain's table of accuracy, compression and saved FLOPs: Fig. 11 of its slides.

Source: Zhang, Yuan, Niu, Tian, Jin, Zhuang, Jiang, Wang, Ren, Song, Tao, "ClickTrain: Efficient and Accurate End-to-End
Deep Learning Training via Fine-Grained Architecture-Preserving Pruning", ICS 2021.
"""

from __future__ import annotations

from collections.abc import Mapping

from reports.figures.figure import Figure
from reports.papers.clicktrain.quantities import SMALL, compression_at_the_end, recipe_name
from reports.papers.comparison import Compared, Comparison
from reports.papers.contract import Part, Reproduction
from reports.papers.figures import differences_figure
from suite.registry import register
from suite.trials.folder.reader import Trial

# Rows of the table by task and network: the compression and the parameters that give it here. If no published list of
# ratios reaches the compression, the method solves for one share of kernels in all layers.
ROWS = {
    ("cifar10", "vgg11_click"): {"8.7x": "ratios=cifar10-vgg11_click-1", "11.5x": "ratios=cifar10-vgg11_click-4"},
    ("cifar10", "vgg13_click"): {"8.6x": "ratios=cifar10-vgg13_click-2", "10.9x": "ratios=solved,compression=10.9"},
    ("cifar10", "resnet32_wide"): {"8.6x": "ratios=cifar10-resnet32_wide-2", "10.7x": "ratios=solved,compression=10.7"},
    ("cifar10", "resnet50_wide"): {"8.5x": "ratios=cifar10-resnet50_wide-1"},
    ("cifar100", "vgg11_click"): {"6.7x": "ratios=solved,compression=6.7", "8.4x": "ratios=cifar100-vgg11_click-2"},
    ("cifar100", "vgg13_click"): {"7.4x": "ratios=solved,compression=7.4", "9.2x": "ratios=solved,compression=9.2"},
    ("cifar100", "resnet32_wide"): {
        "8.3x": "ratios=solved,compression=8.3",
        "10.4x": "ratios=solved,compression=10.4",
    },
}
SHORT = ("cifar10", "vgg11_click")
SAVED = "Effective FLOPs: only nonzero weights count. Executed FLOPs and times show what was saved."
OF_TRAINING = (
    "Theirs is the saving of inference times the share of epochs after hard pruning, plus 0.1 to 0.9 points in every "
    "row; ours is counted step by step."
)


def _lines(task: str, network: str, row: str, method: str) -> tuple[Compared, ...]:
    where, group = f"{network} on {task}, {row}", f"clicktrain-fig11-{task}"
    key = f"{network}, {row}"
    return (
        Compared(f"accuracy, {where}", method),
        Compared(
            f"{where} minus dense", method, against="difference", unit="points", published=f"{group}-accuracy/{key}"
        ),
        Compared(
            f"{where}: compression",
            method,
            column="compression",
            scale=1.0,
            unit="×",
            kind="counted",
            published=f"{group}-compression/{key}",
        ),
        Compared(
            f"{where}: inference FLOPs saved",
            method,
            column="inference_flops_effective",
            against="saving",
            kind="counted",
            published=f"{group}-inference-flops/{key}",
            note=SAVED,
        ),
        Compared(
            f"{where}: training FLOPs saved",
            method,
            column="train_flops_effective",
            against="saving",
            kind="counted",
            published=f"{group}-train-flops/{key}",
            note=OF_TRAINING,
        ),
        Compared(
            f"{where}: training FLOPs saved, executed",
            method,
            column="train_flops_executed",
            against="saving",
            kind="counted",
        ),
        Compared(f"{where}: training time, of dense's", method, column="train_time_s", against="ratio"),
    )


def _part(task: str, network: str) -> Part:
    methods = {row: f"clicktrain[{given},schedule=paper]" for row, given in ROWS[task, network].items()}
    return Part(
        name=f"{network}-{task}",
        title=f"{network} on {task}, dense and clicktrain, weights masked at the time of the paper",
        methods=",".join(["dense", *methods.values()]),
        task=task,
        model=network,
        small_model=SMALL if (task, network) == SHORT else "",
        seeds={"smoke": 1, "quick": 2, "paper": 3},
        presets=("smoke", "quick", "paper") if (task, network) == SHORT else ("paper",),
        recipe=recipe_name(network),
        compared=(
            Compared(
                f"accuracy, {network} on {task}, dense",
                "dense",
                published=f"clicktrain-fig11-{task}-dense/{network}",
            ),
            *(line for row, method in methods.items() for line in _lines(task, network, row, method)),
        ),
    )


@register("reproduction", "clicktrain-fig11")
class Figure11(Reproduction):
    """ClickTrain's Fig. 11: accuracy, compression and saved FLOPs on CIFAR, where published ratios allow it."""

    title = "ClickTrain, Fig. 11: accuracy, compression and saved FLOPs on CIFAR"
    reference = "clicktrain-fig11-cifar10-accuracy"
    also = (
        *(
            f"clicktrain-fig11-imagenet-{what}"
            for what in ("dense", "accuracy", "compression", "train-flops", "inference-flops")
        ),
        "clicktrain-claim-accuracy",
        "clicktrain-claim-compression",
    )
    remarks = (
        "The published accuracies are the best of all epochs on the test set, possibly before anything was pruned. "
        "Ours are those of the last epoch.",
        "Three rows are not run: both of ResNet-50 on CIFAR-100, for which no ratios were published, and its second "
        "row on CIFAR-10. Half of its weights are in 1x1 convolutions, so pruning 3x3 convolutions cannot compress it "
        "as much.",
        "These networks share names with PruneTrain's networks, but have other sizes; the PruneTrain rows of the table "
        "are not repeated.",
    )
    parts = tuple(_part(task, network) for task, network in ROWS)

    def columns(self, trial: Trial) -> Mapping[str, float]:
        return compression_at_the_end(trial)

    def draw(self, comparisons: tuple[Comparison, ...]) -> Figure | None:
        return differences_figure(self.registered_name, "Accuracy minus dense, published and ours", comparisons)
