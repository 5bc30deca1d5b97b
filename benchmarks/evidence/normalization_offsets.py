"""Print how far the inputs of batch normalisations are from zero mean, for the final models of a suite.

    python -m benchmarks.evidence.normalization_offsets DIR

A batch normalisation subtracts the mean of its input. A gradient that respects this does not move the mean; a pruned
weight gradient does, in every step. Where the mean becomes many standard deviations large, the running averages that an
evaluation uses lag behind it, and the test accuracy falls although the training loss does not. One line per trial: the
layer with the largest median over channels of |running mean| / running standard deviation, the median of all layers,
and the norm of all convolutional weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

from reports.data.groups import label
from reports.data.records import read
from suite.checkpoint import load_model


def offsets(model: nn.Module) -> dict[str, float]:
    """Return the median over channels of |running mean| / running standard deviation, by batch normalisation."""
    return {
        name: float((layer.running_mean.abs() / (layer.running_var + layer.eps).sqrt()).median())
        for name, layer in model.named_modules()
        if isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None and layer.running_var is not None
    }


def line(trial: str, model: nn.Module) -> str:
    """Return the line about a final model."""
    found = offsets(model)
    if not found:
        return f"{trial}: no batch normalisation with running averages"
    largest = max(found, key=found.__getitem__)
    weights = [layer.weight.detach().flatten() for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    median = float(torch.tensor(list(found.values())).median())
    norm = float(torch.cat(weights).norm())
    return f"{trial}: largest {found[largest]:.2f} ({largest}), median {median:.2f}, norm of the weights {norm:.1f}"


def main() -> int:
    """Print one line per trial that has a final model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="output folder of a suite, with its models")
    folder = parser.parse_args().folder
    models = sorted(folder.glob("trials/*/model.pt"))
    methods = {trial.name: label(trial) for trial in read(folder).trials}
    for path in models:
        print(line(f"{path.parent.name} ({methods[path.parent.name]})", load_model(path)))
    return 0 if models else 1


if __name__ == "__main__":
    raise SystemExit(main())
