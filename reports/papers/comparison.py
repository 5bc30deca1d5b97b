"""Comparison with published numbers: how a declared quantity is read from trials, and the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from reports.content.remarks import time_remarks
from reports.data.estimates import Estimate, Missing, Quantity, estimate, paired
from reports.data.method_rows import by_seed
from reports.data.records import DISTURBED_RATIO, is_disturbed
from reports.papers.paper import Compared, Group, Paper, kind_of
from suite.trials.folder.records import TrialRecord
from suite.trials.groups import BASELINE, column_text, seed_of

TIMES = ("_time_s", "_per_s")  # endings of columns that depend on the machine
# Two times can be compared if their trials agree in these columns, of which the machine's come first.
SETTING = ("hardware_id", "threads", "torch", "device", "dtype", "execution")
_MACHINE = 3
_INEXACT = 1e-9  # published numbers are decimals, whose differences are not exact in binary


@dataclass(frozen=True)
class Comparison:
    """One line of a reproduction: our number, the published number, and their sources.

    Attributes:
        quantity, unit: Name and unit of the quantity.
        part: Part of the reproduction; empty for a number that is only published.
        ours: Our number, or the reason why it is missing.
        kind: Kind of our number.
        published: Published number; `None` if none was printed.
        published_kind: Kind of the published number; empty without a number.
        source: Citation with its place; empty without a number.
        rounding: Largest rounding error of the published number: half a unit of its last decimal, summed over both
            terms of a difference.
        is_difference: Whether it is a difference to dense, which transfers to other settings better than an absolute
            number.
        note: Remark for readers.
        disturbed: Whether our number is a measured time that other programs disturbed.
    """

    quantity: str
    unit: str
    part: str
    ours: Quantity
    kind: str
    published: float | None = None
    published_kind: str = ""
    source: str = ""
    rounding: float = 0.0
    is_difference: bool = False
    note: str = ""
    disturbed: bool = False

    @property
    def known(self) -> Estimate | None:
        """Our number; `None` if it is missing."""
        return self.ours if isinstance(self.ours, Estimate) else None

    @property
    def difference(self) -> float | None:
        """Our number minus the published one, in `unit`; `None` if one is missing or the published one is modelled."""
        if self.published is None or self.known is None or self.published_kind == kind_of("modelled"):
            return None
        return self.known.mean - self.published

    @property
    def covered(self) -> bool | None:
        """Whether our interval, widened by the rounding of the published number, covers that number.

        `None` without a `difference` or an interval.
        """
        if self.difference is None or self.known is None or self.known.half_width is None:
            return None
        return abs(self.difference) <= self.known.half_width + self.rounding + _INEXACT


def comparison(one: Compared, part: str, trials: Mapping[str, Sequence[TrialRecord]], paper: Paper) -> Comparison:
    """Compare a quantity of one part with the published number.

    Args:
        one: Declaration of the quantity.
        part: Name of the part.
        trials: Trials by label; labels without trials are absent.
        paper: Published numbers.
    """
    ours = _ours(one, trials)
    disturbed = _is_disturbed(one, trials)
    if isinstance(ours, Estimate):
        ours = Missing(DISTURBED_RATIO) if disturbed and (one.against or one.over) else ours.scaled(one.scale)
    compared = line(
        one.quantity, part, ours, one.kind, unit=one.unit, published=one.published, paper=paper, note=one.note
    )
    theirs, source, rounding = compared.published, compared.source, compared.rounding
    if theirs is not None and one.published_baseline:
        dense = paper.find(one.published_baseline)
        rounding += dense.rounding
        # Both numbers have few decimals. Without rounding, binary rounding would show, as in 0.09999.
        theirs = round(theirs - dense.value, 9)
        source += f", minus {one.published_baseline.partition('/')[2]} of {dense.place}"
    return replace(
        compared, published=theirs, source=source, rounding=rounding, is_difference=one.against == "difference",
        disturbed=disturbed,
    )  # fmt: skip


def doubts_about_times(compared: Iterable[Compared], trials: Sequence[TrialRecord]) -> list[str]:
    """Return lines on why measured times of these trials are unreliable; empty without quantities that are times."""
    if not any(quantity.column.endswith(TIMES) for quantity in compared):
        return []
    return time_remarks(trials)


def published_alone(paper: Paper, name: str) -> list[Comparison]:
    """Return a line for each value of a group that is compared with no number of ours."""
    group = paper.groups[name]
    reason = group.doubt or "this suite does not reproduce it"
    note = "; ".join(filter(None, (conditions_in_words(group), *group.notes)))
    return [
        Comparison(
            f"{group.quantity}, {key} ({group.place})", group.unit, "", Missing(reason), "", value, group.kind,
            paper.citation(group), rounding=group.rounding(key), note=note,
        )
        for key, value in group.values.items()
    ]  # fmt: skip


def conditions_in_words(group: Group) -> str:
    """Return the conditions of a group in words, for example `task imagenet, model resnet50, dtype float16`."""
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in group.conditions.items())


def line(
    quantity: str, part: str, ours: Quantity, kind: str, *, unit: str = "%", published: str = "", paper: Paper,
    note: str = "",
) -> Comparison:  # fmt: skip
    """Return a line whose number was computed from files of trials.

    Args:
        quantity, part, ours, kind, unit, note: Fields of the line.
        published: `GROUP/KEY` of the published number; empty if there is none.
        paper: Published numbers in which to look it up.
    """
    if not published:
        return Comparison(quantity, unit, part, ours, kind, note=note)
    theirs = paper.find(published)
    return Comparison(
        quantity, unit, part, ours, kind, theirs.value, theirs.kind, theirs.citation, theirs.rounding, note=note
    )


def _is_disturbed(one: Compared, trials: Mapping[str, Sequence[TrialRecord]]) -> bool:
    if not one.column.endswith(TIMES):
        return False
    labels = (one.method, BASELINE) if one.against else (one.method,)
    return any(is_disturbed(trial) for label in labels for trial in trials.get(label, ()))


def _ours(one: Compared, trials: Mapping[str, Sequence[TrialRecord]]) -> Quantity:
    done, dense = ([trial for trial in trials.get(label, ()) if trial.done] for label in (one.method, BASELINE))
    if not done:
        return Missing(_why_none(trials.get(one.method, ())))
    if one.column.endswith(TIMES) and not one.over:
        if not one.against and len({_setting(trial) for trial in done}) > 1:
            return Missing("trials ran on several machines or in several formats, so their times have no mean")
        if one.against and _paired_trials(done, dense, ())[0]:
            on_same_hardware = bool(_paired_trials(done, dense, SETTING[:1])[0])
            on_same_machine = bool(_paired_trials(done, dense, SETTING[:_MACHINE])[0])
            done, dense = _paired_trials(done, dense, SETTING)
            if not done and on_same_hardware and not on_same_machine:
                return Missing("dense ran with another number of threads or version of torch")
            if not done:
                return Missing(
                    f"dense ran {'in another format or execution' if on_same_hardware else 'on other hardware'}"
                )
    values, reason = by_seed(done, one.column), f"not measured: {one.column} is empty"
    if one.over:
        return paired(values, by_seed(done, one.over), "ratio", reason)
    if not one.against:
        return estimate(list(values.values()), reason)
    if not dense:
        return Missing("no dense trial is done to compare with")
    combine = "difference" if one.against == "difference" else "ratio"
    quantity = paired(values, by_seed(dense, one.column), combine, reason)
    if one.against == "saving" and isinstance(quantity, Estimate):
        return quantity.complement()
    return quantity


def _setting(trial: TrialRecord) -> tuple[str, ...]:
    return tuple(column_text(trial, name) for name in SETTING)


def _paired_trials(
    ours: Sequence[TrialRecord], dense: Sequence[TrialRecord], equal: Sequence[str]
) -> tuple[list[TrialRecord], list[TrialRecord]]:
    """Return our trials that have a dense trial of the same seed with equal columns, and those dense trials."""

    def key(trial: TrialRecord) -> tuple[object, ...]:
        return seed_of(trial), *(column_text(trial, name) for name in equal)

    both = set(map(key, ours)) & set(map(key, dense))
    return [trial for trial in ours if key(trial) in both], [trial for trial in dense if key(trial) in both]


def _why_none(trials: Sequence[TrialRecord]) -> str:
    if not trials:
        return "not run"
    statuses = sorted({trial.text("status") or "without a status" for trial in trials})
    return f"no trial is done: {', '.join(statuses)}"
