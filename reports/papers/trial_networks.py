"""Load the final networks of trials for reproductions, and read inputs and classes from their tasks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from reports.papers.contract import ReproductionData
from reports.papers.trial_values import model_file
from suite.engine.network.model_files import load_model
from suite.trials.building import inputs_of
from suite.trials.folder.reader import Trial

BARELY_LEARNED = 1.5  # times the accuracy of chance


def final_model(data: ReproductionData, trial: Trial) -> nn.Module:
    """Load the final network of a trial on the CPU in evaluation mode."""
    return load_model(model_file(data, trial))


def image_shape(data: ReproductionData, trial: Trial) -> tuple[int, int, int]:
    """Return the shape of a trial's images, (C, H, W)."""
    return inputs_of(data.specs[trial.name]).shape


def classes(data: ReproductionData, trial: Trial) -> int:
    """Return the number of classes of a trial's task."""
    return inputs_of(data.specs[trial.name]).classes


def learned_nothing(data: ReproductionData, trials: Sequence[Trial]) -> list[str]:
    """Return one line if a dense network among these trials is hardly better than chance, which hides any loss."""
    found = [accuracy for trial in trials if (accuracy := trial.number("test_accuracy")) is not None]
    if not found or min(found) * (number_of_classes := classes(data, trials[0])) > BARELY_LEARNED:
        return []
    return [
        f"A dense network learned almost nothing in this short training: it classifies {100 * min(found):.0f} % of the "
        f"test images correctly, and {100 / number_of_classes:.0f} % is chance. A loss of accuracy by pruning cannot "
        "be seen here."
    ]
