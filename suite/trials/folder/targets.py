"""Target accuracies: the first epoch after which a trial reaches one, and what the training cost until then.

The accuracy is that of the test images, recorded after every evaluation. Targets are found in this record afterwards.
No training, checkpoint or parameter depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from suite.errors import UsageError

MOST_TARGETS = 5
_INEXACT = 1e-9  # binary fractions cannot hold percentages and shares of images exactly
COSTS = {"time_to_target_s": "train_time_s", "energy_to_target_j": "energy_j"}
"""Columns of the results table, and the fields of `epochs.jsonl` that they are read from."""


def read_targets(text: str) -> tuple[float, ...]:
    """Read target accuracies in percent, `90` or `88,90.5`, and return them as fractions in the same order.

    Raises:
        UsageError: A part is not a percentage above 1 and up to 100, or occurs twice, or there are too many parts.
    """
    hint = "expected percentages above 1 and up to 100, separated by commas: 88,90.5"
    targets: list[float] = []
    for part in text.split(","):
        try:
            percent = float(part)
        except ValueError:
            raise UsageError(f"--target '{text}': {hint}") from None
        if 0 < percent <= 1:
            raise UsageError(f"--target '{text}': targets are percentages; did you mean {100 * percent:g}?")
        if not 1 < percent <= 100:
            raise UsageError(f"--target '{text}': {hint}")
        targets.append(percent / 100)
    if len(set(targets)) < len(targets):
        raise UsageError(f"--target '{text}': a target occurs twice")
    if len(targets) > MOST_TARGETS:
        raise UsageError(f"--target '{text}': at most {MOST_TARGETS} targets")
    return tuple(targets)


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
        suite: Content of `suite.json`, of any version.
    """
    commands = suite.get("commands")
    declared: list[tuple[float, ...]] = []
    for command in commands if isinstance(commands, list) else ():
        spec = command.get("spec") if isinstance(command, Mapping) else None
        targets = spec.get("targets") if isinstance(spec, Mapping) else None
        if isinstance(targets, list) and targets and all(map(_is_share, targets)):
            declared.append(tuple(map(float, targets)))
    return [targets for targets, _ in groupby(declared)]


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1


def first_reached(epochs: Iterable[Mapping[str, Any]], target: float) -> Mapping[str, Any] | None:
    """Return the record of the first epoch whose test accuracy is at least the target; `None` if there is none.

    Args:
        epochs: Records of `epochs.jsonl`, in order.
        target: Accuracy as a fraction.
    """
    for record in epochs:
        accuracy = record.get("test_accuracy")
        if isinstance(accuracy, (int, float)) and accuracy >= target - _INEXACT:
            return record
    return None


def cost_until(record: Mapping[str, Any], column: str) -> float | None:
    """Return what the training cost until the end of an epoch; `None` if that was not measured.

    Args:
        record: Record of `epochs.jsonl`, whose costs are sums over the epochs so far.
        column: `flops_to_target`, or a key of `COSTS`.
    """
    if column == "flops_to_target":
        flops = record.get("train_flops")
        value = flops.get("executed") if isinstance(flops, Mapping) else None
    else:
        value = record.get(COSTS[column])
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def target_columns(epochs: Sequence[Mapping[str, Any]], targets: Sequence[float]) -> dict[str, Any]:
    """Return the columns of a trial for the first of several targets; empty without targets.

    Args:
        epochs: Records of `epochs.jsonl`, in order; empty for a trial that is not done.
        targets: Accuracies as fractions.
    """
    if not targets or not epochs:
        return {}
    record = first_reached(epochs, targets[0])
    columns = dict.fromkeys(("flops_to_target", *COSTS))
    costs = {} if record is None else {column: cost_until(record, column) for column in columns}
    return {"target_accuracy": targets[0], **columns, **costs}
