"""Target accuracies: the first epoch after which a trial reaches one, and what the training cost until then.

The accuracy is that of the test images, recorded after every evaluation. Targets are found in this record afterwards.
No training, checkpoint or parameter depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from suite.errors import UsageError

MOST_TARGETS = 5
COSTS = {"flops_to_target": "train_flops", "time_to_target_s": "train_time_s", "energy_to_target_j": "energy_j"}
"""Columns of the results table, and the fields of `epochs.jsonl` that they are read from."""


def read_targets(text: str) -> tuple[float, ...]:
    """Read target accuracies in percent, `90` or `88,90.5`, and return them as fractions in the same order.

    Raises:
        UsageError: A part is not a percentage above 1 and up to 100, or occurs twice, or there are too many parts.
    """
    try:
        percents = [float(part) for part in text.split(",")]
    except ValueError:
        percents = [0.0]
    if all(0 < percent <= 1 for percent in percents):
        raise UsageError(f"--target '{text}': targets are percentages; did you mean {100 * percents[0]:g}?")
    if not all(1 < percent <= 100 for percent in percents):
        raise UsageError(f"--target '{text}': expected percentages above 1 and up to 100, separated by commas: 88,90.5")
    if len(set(percents)) < len(percents):
        raise UsageError(f"--target '{text}': a target occurs twice")
    if len(percents) > MOST_TARGETS:
        raise UsageError(f"--target '{text}': at most {MOST_TARGETS} targets")
    return tuple(percent / 100 for percent in percents)


def refuse_guesses(targets: Sequence[float], classes: int) -> None:
    """Refuse a target that a guess among the classes reaches, such as the 5 % of `--target 88,5`.

    Raises:
        UsageError: A target is at most that of a guess.
    """
    for target in targets:
        if target <= 1 / classes:
            raise UsageError(
                f"--target {100 * target:g}: a guess among {classes} classes reaches {100 / classes:.3g} %; a comma "
                "separates targets, and decimals have a point: 88.5"
            )


def declared_targets(suite: Mapping[str, Any]) -> list[tuple[float, ...]]:
    """Return the targets that the commands of a folder declared, in order, without repetitions and without empty ones.

    Args:
        suite: Content of `suite.json`.
    """
    declared = [tuple(command["spec"].get("targets") or ()) for command in suite.get("commands", ())]
    return [targets for targets, _ in groupby(filter(None, declared))]


def first_reached(epochs: Iterable[Mapping[str, Any]], target: float) -> Mapping[str, Any] | None:
    """Return the record of the first epoch whose test accuracy is at least the target; `None` if there is none.

    Args:
        epochs: Records of `epochs.jsonl`, in order.
        target: Accuracy as a fraction.
    """
    # Binary fractions cannot hold percentages and shares of images exactly.
    return next((record for record in epochs if (record.get("test_accuracy") or 0.0) >= target - 1e-9), None)


def cost_until(record: Mapping[str, Any], column: str) -> float | None:
    """Return what the training cost until the end of an epoch; `None` if that was not measured.

    Args:
        record: Record of `epochs.jsonl`, whose costs are sums over the epochs so far.
        column: A key of `COSTS`.
    """
    value = record.get(COSTS[column])
    value = value.get("executed") if isinstance(value, Mapping) else value
    return None if value is None else float(value)


def target_columns(epochs: Sequence[Mapping[str, Any]], targets: Sequence[float]) -> dict[str, Any]:
    """Return the columns of a trial for the first of several targets; empty without targets.

    Args:
        epochs: Records of `epochs.jsonl`, in order; empty for a trial that is not done.
        targets: Accuracies as fractions.
    """
    if not targets or not epochs:
        return {}
    record = first_reached(epochs, targets[0])
    costs = {column: None if record is None else cost_until(record, column) for column in COSTS}
    return {"target_accuracy": targets[0], **costs}
