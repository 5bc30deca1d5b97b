"""Network, recipe and compression that the reproductions of ClickTrain share.

Source: Zhang, Yuan, Niu, Tian, Jin, Zhuang, Jiang, Wang, Ren, Song, Tao, "ClickTrain: Efficient and Accurate End-to-End
Deep Learning Training via Fine-Grained Architecture-Preserving Pruning", ICS 2021.
"""

from __future__ import annotations

from suite.trials.folder.reader import Trial

SMALL = "vgg11_click[width=0.5]"  # in the short presets


def recipe_name(network: str) -> str:
    """Return the recipe of the published configuration. ResNets lower the learning rate an epoch earlier than VGGs."""
    return "clicktrain_resnet" if network.startswith("resnet") else "clicktrain"


def compression_at_the_end(trial: Trial) -> dict[str, float]:
    """Return the compression after the last epoch, by the published measure, if the trial recorded one."""
    record = trial.epochs[-1].get("method", {}) if trial.epochs else {}
    return {"compression": float(record["compression"])} if "compression" in record else {}
