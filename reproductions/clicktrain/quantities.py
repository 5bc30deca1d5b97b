"""What the reproductions of ClickTrain share: the small network, the recipe, and the compression of a trial.

Source: Zhang, Yuan, Niu, Tian, Jin, Zhuang, Jiang, Wang, Ren, Song, Tao, "ClickTrain: Efficient and Accurate End-to-End
Deep Learning Training via Fine-Grained Architecture-Preserving Pruning", ICS 2021.
"""

from __future__ import annotations

from reports.data.records import Trial

SMALL = "vgg11_click[width=0.5]"  # in the short presets


def recipe_name(network: str) -> str:
    """The recipe of the published configuration: the ResNets' learning rate falls an epoch earlier than the VGGs'."""
    return "clicktrain_resnet" if network.startswith("resnet") else "clicktrain"


def compression_at_the_end(trial: Trial) -> dict[str, float]:
    """Compression by the published measure, as the last epoch left it: a column of the trials that have one."""
    record = trial.epochs[-1].get("method", {}) if trial.epochs else {}
    return {"compression": float(record["compression"])} if "compression" in record else {}
