"""Accuracies that a guess would reach."""

from __future__ import annotations

from collections.abc import Mapping

from reports.data.records import Trial
from reports.data.trial_files import finite

GUESS_LEVEL = 0.01
"""A guess that reaches a trial's accuracy with a larger probability cannot be told from it."""
_NAMES = ("classes", "test_images", "largest_test_class")


def facts(trial: Trial) -> tuple[int, int, int]:
    """Return the numbers of classes, of test images and of those of the largest class; 0 where it is not recorded."""
    data = trial.provenance.get("data")
    numbers = [finite(data.get(name)) for name in _NAMES] if isinstance(data, Mapping) else [None] * len(_NAMES)
    classes, images, largest = (0 if number is None or number < 0 else int(number) for number in numbers)
    return classes, images, largest


def chance(accuracy: float, trial: Trial) -> float:
    """Return the probability that a guess reaches an accuracy, on the test images of a trial.

    A guess is right for each image with a probability of 1/classes, or with the share of the largest class if that is
    known. The number of its correct answers is binomial.

    Args:
        accuracy: As a fraction.
        trial: A trial with these test images.

    Returns:
        0 where the record has no such numbers, or numbers that contradict each other.
    """
    classes, images, largest = facts(trial)
    if classes < 2 or images < 1 or largest > images:
        return 0.0
    from scipy.special import bdtrc  # takes half a second to import

    return float(bdtrc(round(accuracy * images) - 1, images, max(1 / classes, largest / images)))


def is_guess(trial: Trial) -> bool:
    """Return whether the accuracy of a finished trial cannot be told from that of a guess (one-sided, 1 %)."""
    accuracy = trial.number("test_accuracy")
    return trial.done and accuracy is not None and chance(accuracy, trial) > GUESS_LEVEL
