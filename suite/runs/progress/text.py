"""Lines about the progress of a trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suite.recipe import Recipe
from suite.runs.progress.work import work
from suite.runs.spec import TrialSpec


def duration(seconds: float) -> str:
    """Return seconds as `3.2 s`, `2 min 10 s` or `1 h 5 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def epoch_line(trial: TrialSpec, record: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> str:
    """Return one line for an epoch, without the values that the record does not have.

    Args:
        trial: The trial.
        record: Record of the epoch.
        before: Record of an earlier epoch; the remaining time is estimated from the epochs since.
    """
    left = record.get("epochs_left")
    total = record.get("epoch", 0) + left if isinstance(left, int) else trial.recipe.get("epochs", "?")
    parts = [trial.trial_id, f"epoch {record.get('epoch', '?')}/{total}"]
    name = "accuracy" if "test_accuracy" in record else "validation accuracy"
    accuracy = record.get("test_accuracy", record.get("val_accuracy"))
    loss, seconds = record.get("train_loss"), record.get("train_time_s")
    if isinstance(loss, (int, float)):
        parts.append(f"loss {loss:.3f}")
    if isinstance(accuracy, (int, float)):
        parts.append(f"{name} {100 * accuracy:.2f} %")
    if isinstance(seconds, (int, float)):
        parts.append(duration(seconds))
    remaining = remaining_seconds(record, before, trial.make_recipe())
    if remaining is not None:
        parts.append(f"about {duration(remaining)} left")
    return "  ".join(parts)


def remaining_seconds(record: Mapping[str, Any], before: Mapping[str, Any] | None, recipe: Recipe) -> float | None:
    """Estimate the seconds that the remaining epochs will take; `None` if the record does not allow it.

    Training and evaluation count, compilation does not. The training of an epoch is assumed to take as long as since
    `before`, because the network may have become smaller; without `before`, as long as the mean of all epochs so far.
    Epochs with images of another size are assumed to take as much longer as they have more pixels (`work`).
    The evaluations that remain (`recipe.evaluations`) are assumed to take as long as the mean of those so far; before
    the first one, their time is not known and left out.
    """
    left, epoch, seconds = record.get("epochs_left"), record.get("epoch"), record.get("train_time_s")
    evaluating = record.get("eval_time_s")
    if not isinstance(left, int) or not isinstance(epoch, int) or left <= 0:
        return None
    if not isinstance(seconds, (int, float)) or not isinstance(evaluating, (int, float)):
        return None
    earlier = before or {}
    first, already = earlier.get("epoch", 0), earlier.get("train_time_s", 0.0)
    if not isinstance(first, int) or not 0 <= first < epoch:
        return None
    if not isinstance(already, (int, float)) or seconds < already:
        return None
    evaluated = epoch // recipe.eval_every
    to_evaluate = recipe.evaluations(epoch + left) - evaluated
    evaluation = evaluating / evaluated if evaluated else 0.0
    # A method may have begun the schedule again; the epochs before that belong to an earlier schedule.
    began = max(0, epoch + left - recipe.whole_epochs)
    done = work(recipe, epoch - began)
    since = done - work(recipe, first - began) if first >= began else done + work(recipe, began) - work(recipe, first)
    return (seconds - already) / since * (work(recipe, epoch - began + left) - done) + evaluation * to_evaluate


def ended_line(trial: TrialSpec, record: dict[str, Any], seconds: float) -> str:
    """Return one line on how a trial ended, from its `trial.json` and the seconds that its process took."""
    line = f"{trial.trial_id}  {record['status']} after {duration(seconds)}"
    if failed := (record.get("provenance") or {}).get("callbacks_failed"):
        line = f"{line}; {'; '.join(failed)}"
    if record.get("message"):
        return f"{line}: {record['message']}"
    result = record.get("result", {})
    training, evaluation, compilation = (result.get(f"{name}_time_s") for name in ("train", "eval", "compile"))
    rest = seconds - (training or 0.0) - (evaluation or 0.0) - (compilation or 0.0)
    if training is None or evaluation is None or rest < 0:
        return line  # a resumed trial: an earlier process did a part of it
    compiled = f"compilation {duration(compilation)}, " if compilation else ""
    parts = f"training {duration(training)}, evaluation {duration(evaluation)}, {compiled}"
    return f"{line}: {parts}start, files and inference speed {duration(rest)}"
