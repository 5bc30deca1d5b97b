"""The caution of a group: dense training that cannot be told from a guess, so that accuracies compare nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from reports.data.method_rows import MethodRow
from reports.data.records import Trial
from reports.data.trial_files import finite

LEVEL = 0.025
"""A guess that reaches dense's accuracy with a larger probability cannot be told from it."""


def chance_caution(rows: Sequence[MethodRow]) -> str:
    """Return one line if the accuracy of dense training cannot be told from that of a guess; otherwise nothing.

    A guess is right for each test image with a probability of 1/classes, or with the share of the largest class if that
    is known. The number of its correct answers is binomial. The mean over the seeds of dense counts as one evaluation,
    since all seeds share their test images. Nothing is said where the record of a trial has no such numbers, or numbers
    that contradict each other.

    Args:
        rows: Rows of one group.
    """
    dense = next((row for row in rows if row.is_baseline), None)
    trials = [] if dense is None else [one for one in dense.done if one.number("test_accuracy") is not None]
    if not trials:
        return ""
    accuracy = fmean(one.number("test_accuracy") or 0.0 for one in trials)
    classes, images, largest = _facts(trials[0])
    if classes < 2 or images < 1 or largest > images:
        return ""
    from scipy.special import bdtrc  # takes half a second to import

    guess, of_class = max((1 / classes, f"one of {classes} classes"), (largest / images, "always the largest class"))
    correct = round(accuracy * images)
    if float(bdtrc(correct - 1, images, guess)) <= LEVEL:
        return ""
    seeds = "" if len(trials) == 1 else f", the mean of {len(trials)} seeds"
    return (
        f"Dense training has not learned the task: its accuracy, {100 * accuracy:.1f} %{seeds}, cannot be told from a "
        f"guess ({of_class}: {100 * guess:.1f} %) on {images:,} test images. The accuracies and verdicts here say "
        "nothing about the methods; train for more epochs, or with smaller batches or another learning rate."
    )


def _facts(trial: Trial) -> tuple[int, int, int]:
    """Return the numbers of classes, of test images and of those of the largest class; 0 where it is not recorded."""
    data = trial.provenance.get("data")
    numbers = [finite(data.get(name)) for name in _NAMES] if isinstance(data, Mapping) else [None] * len(_NAMES)
    classes, images, largest = (0 if number is None or number < 0 else int(number) for number in numbers)
    return classes, images, largest


_NAMES = ("classes", "test_images", "largest_test_class")
