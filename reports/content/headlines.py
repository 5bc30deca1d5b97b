"""One sentence per method, made from its numbers by fixed rules.

1. A sentence names task, data copy, model and number of seeds. Trials that are not done are named before any number.
2. Accuracy: if the 95 % interval of the difference to dense covers 0, the accuracy is "not distinguishable from dense";
   otherwise it is so many points "above" or "below". For one seed the sentence says that there is no interval. What is
   claimed about a method, as one of many, is in the verdict.
3. Training time: the mean ratio of the time passes, if there are any; otherwise that of the trials.
   A time of trials that is shorter than the effective FLOPs explain, and a disturbed time, are marked as such.
4. Training FLOPs: "executed" refers only to what kernels computed. Multiply-adds that could have been skipped but were
   not are stated in the conditional: a saving that the hardware did not realise is never stated in the past tense.
5. The final model: inference FLOPs of its shapes, and the share that hardware could skip because weights are zero.
6. A share below half a percent of dense is not mentioned. Worse results use the same words as better ones.

No rule depends on the name of a method: two methods with equal numbers get equal sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

from reports.content.model import Headline
from reports.data.disturbed_times import DISTURBED
from reports.data.estimates import Estimate, Missing, Quantity
from reports.data.method_rows import MethodRow
from reports.formatting import duration_interval, interval, percent, ratio

_NEGLIGIBLE = 0.005
# A training may be shorter than its effective FLOPs by this share before the sentence points to other causes.
_EXPLAINED = 0.05


def headlines(rows: Sequence[MethodRow], setting: str) -> tuple[Headline, ...]:
    """Return one sentence per row.

    Args:
        rows: Rows of one group.
        setting: Task, data copy and model of the group: `"cifar10 (sample copy), resnet9[width=0.25]"`.
    """
    return tuple(Headline(row.label, sentence(row, setting), row.colour) for row in rows)


def sentence(row: MethodRow, setting: str) -> str:
    """Return the sentence about a row, without the method's name in front."""
    failed = f"{row.failures} of {len(row.trials)} trials" if row.failures else ""
    if not row.done:
        return f"on {setting}: no trial is done ({failed}), so there are no numbers."
    seeds = "1 seed, no interval" if row.seeds == 1 else f"{row.seeds} seeds"
    head = f"on {setting}, {seeds}" + (f" ({failed}, not included in any number here)" if failed else "")
    if row.is_baseline:
        clauses = [_absolute_accuracy(row.accuracy), _absolute_time(row), "the baseline of all comparisons"]
    else:
        clauses = [_accuracy(row), _time(row), *_training_flops(row), *_final_model(row), *_prerequisites(row)]
    return f"{head}: {'; '.join(clauses)}."


def _prerequisites(row: MethodRow) -> list[str]:
    """Name the trainings that the method starts from, whose cost is not part of its own."""
    spec = row.done[0].spec
    names = [
        *map(str, spec.get("depends_on") or ()),
        *(f"the file {name}" for name in spec.get("files") or ()),
    ]
    return [f"it starts from the result of {' and '.join(names)}, whose cost is not included"] if names else []


def _absolute_accuracy(accuracy: Quantity) -> str:
    if isinstance(accuracy, Missing):
        return "accuracy was not measured"
    return f"accuracy {percent(accuracy)} %"


def _absolute_time(row: MethodRow) -> str:
    if isinstance(row.train_time, Missing):
        return "training time was not measured"
    return f"measured training time {duration_interval(row.train_time)}" + _warning(row.time_is_disturbed)


def _warning(disturbed: bool) -> str:
    return f" ({DISTURBED}: do not rely on it)" if disturbed else ""


def _accuracy(row: MethodRow) -> str:
    difference = row.accuracy_difference
    if isinstance(difference, Missing):
        return f"{_absolute_accuracy(row.accuracy)}, not compared with dense ({difference.reason})"
    points = difference.scaled(100)
    if points.half_width is None:
        side = "below" if points.mean < 0 else "above"
        size = f"{abs(points.mean):.2f}"
        single = "on 1 seed, no interval" if points.count == 1 else "no interval"
        return f"accuracy {size} points {'from' if size == '0.00' else side} dense ({single})"
    if points.covers(0):
        return f"accuracy not distinguishable from dense ({interval(points, 2, sign=True, reference=0)} points)"
    size = interval(Estimate(abs(points.mean), points.half_width, points.count), 2, reference=0)
    return f"accuracy {size} points {'below' if points.mean < 0 else 'above'} dense"


def _time(row: MethodRow) -> str:
    if row.timed is not None:  # load on the machine has less part in it than in the times of trials
        count = len(row.timed.sound or row.timed.passes)
        passes = "1 time pass" if count == 1 else f"{count} time passes"
        return f"training time {row.timed.ratio:.3f} × dense in {passes}" + _warning(row.timed.is_disturbed)
    times = row.time_ratio
    if isinstance(times, Missing):
        return f"{_absolute_time(row)}, not compared with dense ({times.reason})"
    warning = _warning(row.ratio_is_disturbed)
    if times.half_width is None:
        text = f"measured training time {ratio(times)} × dense" + _fewer_pairs(row, times, "on 1 seed, no interval")
        return text + _unexplained(row, times) + warning
    if times.covers(1):
        text = f"measured training time not distinguishable from dense ({ratio(times)} × dense)"
        return text + _fewer_pairs(row, times) + warning
    word = "longer" if times.mean > 1 else "shorter"
    text = f"measured training time {ratio(times)} × dense, {word}"
    return text + _fewer_pairs(row, times) + _unexplained(row, times) + warning


def _unexplained(row: MethodRow, times: Estimate) -> str:
    effective = row.flops_ratio["effective"]
    if isinstance(effective, Missing) or times.high >= min(1.0, effective.mean) - _EXPLAINED:
        return ""
    return " (less than its FLOPs explain: expect other causes, such as load on the machine)"


def _fewer_pairs(row: MethodRow, compared: Estimate, single: str = "") -> str:
    if compared.half_width is None and compared.count > 1:
        return f" (the same on {compared.count} of {row.seeds} seeds, no interval)"
    if compared.count == row.seeds:
        return ""
    return f" ({single or f'paired over {compared.count} of {row.seeds} seeds'})"


def _training_flops(row: MethodRow) -> list[str]:
    executed, effective, current = (row.flops_ratio[kind] for kind in ("executed", "effective", "current"))
    if isinstance(executed, Missing):
        return ["executed training FLOPs were not recorded"]
    saved = executed.complement()
    clauses = []
    if abs(saved.mean) >= _NEGLIGIBLE:
        clauses.append(f"executed {_share(saved)} training FLOPs than the dense network needs")
    if isinstance(effective, Missing):
        return clauses or ["executed as many training FLOPs as the dense network needs"]
    skippable = executed.mean - effective.mean
    if skippable >= _NEGLIGIBLE:
        # The kernels used some of the sparsity if they executed less than the current shapes need.
        used = isinstance(current, Estimate) and current.mean - executed.mean >= _NEGLIGIBLE
        more = "a further " if clauses else ""
        tail = "but no kernel here skipped these" if used else "but no kernel here skipped any"
        clauses.append(f"{more}{100 * skippable:.0f} % of dense's training multiply-adds could be skipped, {tail}")
    return clauses or ["executed as many training FLOPs as the dense network needs, and none could be skipped"]


def _final_model(row: MethodRow) -> list[str]:
    inference, effective = row.inference_ratio, row.inference_effective_ratio
    if isinstance(inference, Missing):
        return []
    clauses = []
    saved = inference.complement()
    if abs(saved.mean) >= _NEGLIGIBLE:
        clauses.append(f"the final model needs {_share(saved)} inference FLOPs")
    if isinstance(effective, Estimate) and inference.mean - effective.mean >= _NEGLIGIBLE:
        unused = 100 * (inference.mean - effective.mean)
        clauses.append(f"zero weights would let hardware skip {unused:.0f} % of the dense model's inference FLOPs")
    return clauses


def _share(saved: Estimate) -> str:
    """Write a saving as `23 [19, 27] % fewer` or `12 % more`, in whole percents; an interval of 0 is left out."""
    share = saved.scaled(100 if saved.mean > 0 else -100)
    word = "fewer" if saved.mean > 0 else "more"
    if share.half_width is None or round(share.half_width) == 0:
        return f"{share.mean:.0f} % {word}"
    text = f"{interval(share, 0, reference=0)} % {word}"
    return f"{text} (an interval that covers 0)" if share.covers(0) else text
