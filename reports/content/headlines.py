"""One sentence a method, made from its numbers by fixed rules.

1. A method is named with task, data copy, model and the number of its seeds; trials that are not done are said first.
2. Accuracy: where the 95 % interval of the paired difference to dense covers 0, "not told apart from dense"; else so
   many points "above" or "below". One seed has no interval, and the sentence says so before any number.
3. Training time: the mean of the paired ratios; where its interval covers 1, "not told apart"; else "longer" or
   "shorter". A time so short that not even the effective FLOPs explain it is said to be that, and one that records
   speak against is marked as disturbed where it stands.
4. Training FLOPs: "executed" only of what kernels really did. What could be skipped and was not (executed less
   effective) stands in the conditional: a saving that hardware did not make is never a verb in the past tense.
5. The final model: inference FLOPs of its shapes, and what its zeros would let hardware skip.
6. A share under half a percent of dense is not worth a clause. Worse is said in the words of better.
No rule knows a method's name: two methods with equal numbers get equal sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

from reports.content.model import Headline
from reports.data.disturbed_times import DISTURBED
from reports.data.estimates import Estimate, Missing, Quantity
from reports.data.method_rows import MethodRow
from reports.formatting import decimals_for_verdict, duration_interval, interval, percent, ratio

_NEGLIGIBLE = 0.005
# How much shorter than its effective FLOPs a training may be before something else must be in its time.
_EXPLAINED = 0.05


def headlines(rows: Sequence[MethodRow], setting: str) -> tuple[Headline, ...]:
    """One sentence a row.

    Args:
        rows: of one group.
        setting: where they were run: `"cifar10 (sample copy), resnet9[width=0.25]"`.
    """
    return tuple(Headline(row.label, sentence(row, setting), row.colour) for row in rows)


def sentence(row: MethodRow, setting: str) -> str:
    """The sentence about a row, without the method's name in front."""
    failed = f"{row.failures} of {len(row.trials)} trials" if row.failures else ""
    if not row.done:
        return f"on {setting}: no trial is done ({failed}), so there is no number."
    seeds = "1 seed, no interval" if row.seeds == 1 else f"{row.seeds} seeds"
    head = f"on {setting}, {seeds}" + (f" ({failed}, which no number here includes)" if failed else "")
    if row.is_baseline:
        clauses = [_own_accuracy(row.accuracy), _own_time(row), "what others are compared with"]
    else:
        clauses = [_accuracy(row), _time(row), *_training_flops(row), *_final_model(row), *_before(row)]
    return f"{head}: {'; '.join(clauses)}."


def _before(row: MethodRow) -> list[str]:
    """What had to be trained before it, which none of its own costs has in it."""
    spec = row.done[0].spec
    names = [
        *map(str, spec.get("depends_on") or ()),
        *(f"the file of {name}" for name in spec.get("files") or ()),
    ]
    return [f"it begins with what came of {' and '.join(names)}, whose cost is not in here"] if names else []


def _own_accuracy(accuracy: Quantity) -> str:
    if isinstance(accuracy, Missing):
        return "accuracy was not measured"
    return f"accuracy {percent(accuracy)} %"


def _own_time(row: MethodRow) -> str:
    if isinstance(row.train_time, Missing):
        return "training time was not measured"
    return f"measured training time {duration_interval(row.train_time)}" + _doubt(row.time_is_disturbed)


def _doubt(disturbed: bool) -> str:
    return f" ({DISTURBED}: not to be trusted)" if disturbed else ""


def _accuracy(row: MethodRow) -> str:
    difference = row.accuracy_difference
    if isinstance(difference, Missing):
        return f"{_own_accuracy(row.accuracy)}, not compared with dense ({difference.reason})"
    points = difference.scaled(100)
    if points.half_width is None:
        side = "below" if points.mean < 0 else "above"
        size = f"{abs(points.mean):.2f}"
        text = f"accuracy {size} points {'from' if size == '0.00' else side} dense"
        return text + _fewer_pairs(row, difference, "on 1 seed, no interval")
    if points.covers(0):
        text = interval(points, 2, sign=True, reference=0)
        return f"accuracy not told apart from dense ({text} points)" + _fewer_pairs(row, difference)
    size = interval(Estimate(abs(points.mean), points.half_width, points.count), 2, reference=0)
    return f"accuracy {size} points {'below' if points.mean < 0 else 'above'} dense" + _fewer_pairs(row, difference)


def _time(row: MethodRow) -> str:
    times = row.time_ratio
    if isinstance(times, Missing):
        return f"{_own_time(row)}, not compared with dense ({times.reason})"
    doubt = _doubt(row.ratio_is_disturbed)
    if times.half_width is None:
        text = f"measured training time {ratio(times)} × dense" + _fewer_pairs(row, times, "on 1 seed, no interval")
        return text + _unexplained(row, times) + doubt
    if times.covers(1):
        text = f"measured training time not told apart from dense ({ratio(times)} × dense)"
        return text + _fewer_pairs(row, times) + doubt
    word = "longer" if times.mean > 1 else "shorter"
    text = f"measured training time {ratio(times)} × dense, {word}"
    return text + _fewer_pairs(row, times) + _unexplained(row, times) + doubt


def _unexplained(row: MethodRow, times: Estimate) -> str:
    effective = row.flops_ratio["effective"]
    longest = times.mean + (times.half_width or 0.0)
    if isinstance(effective, Missing) or longest >= min(1.0, effective.mean) - _EXPLAINED:
        return ""
    return " (less than its FLOPs explain: expect other causes, such as load on the machine)"


def _fewer_pairs(row: MethodRow, compared: Estimate, single: str = "") -> str:
    if compared.half_width is None and compared.count > 1:
        return f" (alike on {compared.count} of {row.seeds} seeds, no interval)"
    if compared.count == row.seeds:
        return ""
    return f" ({single or f'paired over {compared.count} of {row.seeds} seeds'})"


def _training_flops(row: MethodRow) -> list[str]:
    executed, effective, current = (row.flops_ratio[kind] for kind in ("executed", "effective", "current"))
    if isinstance(executed, Missing):
        return ["executed training FLOPs were not recorded"]
    saved = _difference(Estimate(1.0, None, executed.count), executed)
    clauses = []
    if abs(saved.mean) >= _NEGLIGIBLE:
        clauses.append(f"executed {_share(saved)} training FLOPs than the dense net needs")
    if isinstance(effective, Missing):
        return clauses or ["executed as many training FLOPs as the dense net needs"]
    skippable = executed.mean - effective.mean
    if skippable >= _NEGLIGIBLE:
        # What kernels left out below the current shapes tells whether anything of the sparsity was used at all.
        used = isinstance(current, Estimate) and current.mean - executed.mean >= _NEGLIGIBLE
        more = "a further " if clauses else ""
        tail = "which no kernel here skipped" if used else "and no kernel here skipped them"
        clauses.append(f"{more}{100 * skippable:.0f} % of dense's training multiply-adds could be skipped, {tail}")
    return clauses or ["executed as many training FLOPs as the dense net needs, and none could be skipped"]


def _final_model(row: MethodRow) -> list[str]:
    inference, effective = row.inference_ratio, row.inference_effective_ratio
    if isinstance(inference, Missing):
        return []
    clauses = []
    saved = _difference(Estimate(1.0, None, inference.count), inference)
    if abs(saved.mean) >= _NEGLIGIBLE:
        clauses.append(f"the final model needs {_share(saved)} inference FLOPs")
    if isinstance(effective, Estimate) and inference.mean - effective.mean >= _NEGLIGIBLE:
        unused = 100 * (inference.mean - effective.mean)
        clauses.append(f"zero weights would let hardware skip {unused:.0f} % of the dense model's inference FLOPs")
    return clauses


def _difference(one: Estimate, other: Estimate) -> Estimate:
    return Estimate(one.mean - other.mean, other.half_width, other.count)


def _share(saved: Estimate) -> str:
    """`23 ± 4 % fewer`, `12 % more`: whole percents, and no interval where it rounds to nothing."""
    share = Estimate(abs(saved.mean), saved.half_width, saved.count).scaled(100)
    word = "fewer" if saved.mean > 0 else "more"
    if share.half_width is None or round(share.half_width) == 0:
        return f"{share.mean:.0f} % {word}"
    if share.covers(0):
        decimals = decimals_for_verdict(share, 0, 0)
        return f"{share.mean:.{decimals}f} ± {share.half_width:.{decimals}f} % {word} (an interval that covers 0)"
    return f"{interval(share, 0, reference=0)} % {word}"
