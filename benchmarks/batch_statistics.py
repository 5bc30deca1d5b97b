"""How much accuracy do trained networks lose to the running statistics of batch normalisation?

    python -m benchmarks.batch_statistics DIR -o results/MACHINE/batch-statistics.csv

An evaluation uses running averages of mean and variance, which lag behind weights that change fast. Each finished trial
of DIR that has its network is evaluated twice, with the views of its recipe: as it was saved, and with the mean and the
variance of about `IMAGES` augmented training images under its final weights (Wu and Johnson, arXiv 2105.07576).
Both have the same training, so the difference says how a method is judged and not how it learns.
"""

from __future__ import annotations

import argparse
import math
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from suite.choices import build_method
from suite.engine.network.model_files import load_model
from suite.engine.training.data_parallel import DataParallel
from suite.engine.training.evaluation import Evaluation
from suite.engine.training.method_runner import MethodRunner
from suite.engine.training.trainer import with_running_statistics
from suite.errors import UsageError
from suite.method import Context
from suite.task import Splits
from suite.trials.building import device_of, inputs_of, load_splits, with_data_here
from suite.trials.folder.records import model_damage, read_record
from suite.trials.folder.store import Store
from suite.trials.spec import TrialSpec

IMAGES = 5_000


def row_of(spec: TrialSpec, model: nn.Module, splits: Splits) -> dict[str, Any] | None:
    """Return the accuracies of a trained network; `None` if it has no running statistics.

    Args:
        spec: The trial.
        model: Its network, whose statistics are replaced.
        splits: Its data.

    Returns:
        `saved` and `estimated`: accuracies in percent, of the test split or, where the recipe does not evaluate it, of
        the validation split. `shift`: the distance between running and estimated means relative to the
        standard deviation, and `bias`: the size of the biases. Both are means over the channels of a layer, namely of
        that where they are largest.
    """
    norms = with_running_statistics(model)
    if not norms:
        return None
    recipe, device, inputs = spec.make_recipe(), device_of(spec), inputs_of(spec)
    sizes: dict[str, Any] = {"num_classes": inputs.classes, "epochs": 1, "batch_size": recipe.batch_size}
    context = Context(model.to(device), input_shape=inputs.shape, device=device, **sizes)
    parallel = DataParallel(MethodRunner(build_method("dense", {}), context))
    evaluation = Evaluation(parallel, model, recipe, device, getattr(torch, spec.dtype))
    split = splits.validation if splits.test is None else splits.test
    assert split is not None

    def accuracy() -> float:
        return 100 * evaluation.accuracy_and_loss(split, evaluation.logits_of(is_last=True))[0]

    saved, means = accuracy(), [one.running_mean.clone() for one in norms]
    batches = islice(splits.train.epoch(0, recipe.batch_size), math.ceil(IMAGES / recipe.batch_size))
    with torch.autocast(device.type, evaluation.dtype, enabled=evaluation.dtype != torch.float32):
        update_bn(batches, model)
    shifts = [
        ((one.running_mean - mean).abs().mean() / one.running_var.sqrt().mean()).item()
        for one, mean in zip(norms, means, strict=True)
    ]
    biases = [one.bias.abs().mean().item() for one in norms if one.bias is not None]
    return {"saved": saved, "estimated": accuracy(), "shift": max(shifts), "bias": max(biases, default=0.0)}


def table_of(folder: Path) -> pd.DataFrame:
    """Return one row per finished trial whose network is in the folder.

    Raises:
        UsageError: There is none with running statistics; or a network is damaged, or its data is not here.
    """
    rows = []
    for place in Store(folder).trial_folders():
        record = read_record(place) or {}
        if record.get("status") != "done" or not (place / "model.pt").is_file():
            continue
        if damage := model_damage(place, record):
            raise UsageError(f"{place}: {damage}")
        spec = with_data_here(TrialSpec.from_json(record["spec"]).of_record(()))
        if row := row_of(spec, load_model(place / "model.pt"), load_splits(spec)):
            rows.append({"trial_id": spec.trial_id, "method": spec.label, "epochs": spec.make_recipe().epochs, **row})
    if not rows:
        raise UsageError(f"{folder}: no finished trial has a network with running statistics")
    return pd.DataFrame(rows)


def main() -> int:
    """Write the table, print it, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of a suite, with the networks of its trials")
    parser.add_argument("-o", "--out", type=Path, required=True, help="path of the table")
    typed = parser.parse_args()
    try:
        table = table_of(typed.folder).round({"saved": 2, "estimated": 2, "shift": 3, "bias": 2})
        table.to_csv(typed.out, index=False)
    except (UsageError, OSError) as error:
        parser.error(str(error))
    print(table.to_string(index=False))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
