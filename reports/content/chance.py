"""The caution of a group: if dense training cannot be told from a guess, accuracies compare nothing."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from reports.data.estimates import chance, facts
from reports.data.method_rows import MethodRow
from reports.sentences import say

LEVEL = 0.025
"""Dense training cannot be told from a guess that reaches its accuracy with a larger probability than this."""


def chance_caution(rows: Sequence[MethodRow]) -> str:
    """Return one line if the accuracy of dense training cannot be told from that of a guess; otherwise nothing.

    The mean over the seeds of dense counts as one evaluation, because all seeds share their test images.

    Args:
        rows: Rows of one group.
    """
    dense = next((row for row in rows if row.is_baseline), None)
    trials = [] if dense is None else [trial for trial in dense.done if trial.number("test_accuracy") is not None]
    if not trials:
        return ""
    accuracy = fmean(trial.number("test_accuracy") or 0.0 for trial in trials)
    if dense is None or chance(accuracy, trials[0]) <= LEVEL:
        return ""
    classes, images, largest = facts(trials[0])
    share = max(1 / classes, largest / images)
    return say(
        "remarks.guess", accuracy=dense.accuracy, seeds=len(trials), percent=100 * share,
        classes=classes if share == 1 / classes else 0, images=images,
    )  # fmt: skip
