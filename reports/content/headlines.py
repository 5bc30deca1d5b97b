"""A sentence a method, made from its numbers by fixed rules; the clauses are in `reports/sentences/methods.j2`.

1. Trials that are not done are named before any number.
2. Accuracy: if the 95 % interval of the difference to dense covers 0, the accuracy is "not distinguishable from dense";
   otherwise it is so many points "above" or "below". What is claimed about a method, as one of many, is in its outcome.
3. Training time: the mean ratio of the time passes, if there are any; otherwise that of the trials.
   A time of trials that is shorter than the effective FLOPs explain, and a disturbed time, are marked as such.
4. Multiply-adds that could have been skipped but were not are stated in the conditional.
5. The final model: inference FLOPs of its shapes, and the share that hardware could skip because weights are zero.
6. A share below half a percent of dense is not mentioned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.content.model import Headline
from reports.content.verdict import skips
from reports.content.why.causes import causes
from reports.data.estimates import Estimate, Missing, Quantity
from reports.data.method_rows import MethodRow
from reports.sentences import say
from suite.runs.folder.profiles import MethodProfile

_NEGLIGIBLE = 0.005
# A training may be shorter than its effective FLOPs by this share before the sentence points to other causes.
_EXPLAINED = 0.05


def headlines(
    rows: Sequence[MethodRow],
    outcomes: Mapping[str, str],
    profiles: Mapping[str, MethodProfile],
    epochs: float,
) -> tuple[Headline, ...]:
    """Return one sentence per row.

    Args:
        rows: Rows of one group.
        outcomes: What the rule says, by method; it comes first.
        profiles: Where the time of a step goes, by method, for those that have a profile.
        epochs: Number of epochs of the trials; 0 if it is not known.
    """
    lines = []
    for row in rows:
        text = sentence(row, causes(profiles.get(row.label), epochs))
        outcome = outcomes.get(row.label)
        lines.append(Headline(row.label, f"{outcome}. {text}" if outcome else text, row.colour))
    return tuple(lines)


def sentence(row: MethodRow, why: Sequence[str] = ()) -> str:
    """Return the sentence about a row, without the method's name in front.

    Args:
        row: A method.
        why: Clauses about the causes of its time, which come last.
    """
    failures = f"{row.failures} of {len(row.trials)} trials" if row.failures else ""
    if not row.done:
        return say("methods.nothing_done", failures=failures)
    head = say("methods.head", seeds=row.seeds, failures=failures)
    if row.is_baseline:
        clauses = [say("methods.accuracy", accuracy=_known(row.accuracy)), _seconds(row), say("methods.baseline")]
    else:
        clauses = [_accuracy(row), _time(row), *_training_flops(row), *_final_model(row), *_prerequisites(row)]
    return f"{head}: {'; '.join([*clauses, *why])}."


def _known(quantity: Quantity) -> Estimate | None:
    return quantity if isinstance(quantity, Estimate) else None


def _prerequisites(row: MethodRow) -> list[str]:
    """Name the trainings that the method starts from, whose cost is not part of its own."""
    spec = row.done[0].spec
    names = [
        *map(str, spec.get("depends_on") or ()),
        *(f"the file {name}" for name in spec.get("files") or ()),
    ]
    return [say("methods.starts_from", names=names)] if names else []


def _seconds(row: MethodRow) -> str:
    return say("methods.time", seconds=_known(row.train_time), is_disturbed=row.time_is_disturbed)


def _accuracy(row: MethodRow) -> str:
    difference = row.accuracy_difference
    if isinstance(difference, Missing):
        return say("methods.accuracy_alone", known=_known(row.accuracy), reason=difference.reason)
    return say("methods.difference", points=difference.scaled(100))


def _time(row: MethodRow) -> str:
    if row.timed is not None:
        count = len(row.timed.sound or row.timed.passes)
        return say("methods.passes", share=row.timed.ratio, count=count, is_disturbed=row.timed.is_disturbed)
    times = row.time_ratio
    if isinstance(times, Missing):
        return say(
            "methods.time_alone", seconds=_known(row.train_time), is_disturbed=row.time_is_disturbed,
            reason=times.reason,
        )  # fmt: skip
    effective = row.flops_ratio["effective"]
    unexplained = (
        isinstance(effective, Estimate)
        and not (times.half_width is not None and times.covers(1))
        and times.high < min(1.0, effective.mean) - _EXPLAINED
    )
    return say(
        "methods.trials", times=times, seeds=row.seeds, unexplained=unexplained, is_disturbed=row.ratio_is_disturbed
    )


def _training_flops(row: MethodRow) -> list[str]:
    executed, effective, current = (row.flops_ratio[kind] for kind in ("executed", "effective", "current"))
    if isinstance(executed, Missing):
        return [say("methods.flops_unknown")]
    saved = executed.complement()
    clauses = [say("methods.executed", saved=saved)] if abs(saved.mean) >= _NEGLIGIBLE else []
    if isinstance(effective, Estimate) and executed.mean - effective.mean >= _NEGLIGIBLE:
        # The kernels used some of the sparsity if they executed less than the current shapes need.
        used = isinstance(current, Estimate) and current.mean - executed.mean >= _NEGLIGIBLE
        skipped = "some" if used else "few" if skips(row) else "none"
        percent = 100 * (executed.mean - effective.mean)
        clauses.append(say("methods.skippable", percent=percent, further=bool(clauses), skipped=skipped))
    return clauses or [say("methods.all_executed", effective_known=isinstance(effective, Estimate))]


def _final_model(row: MethodRow) -> list[str]:
    inference, effective = row.inference_ratio, row.inference_effective_ratio
    if isinstance(inference, Missing):
        return []
    saved = inference.complement()
    clauses = [say("methods.inference", saved=saved)] if abs(saved.mean) >= _NEGLIGIBLE else []
    if isinstance(effective, Estimate) and inference.mean - effective.mean >= _NEGLIGIBLE:
        clauses.append(say("methods.zero_weights", percent=100 * (inference.mean - effective.mean)))
    return clauses
