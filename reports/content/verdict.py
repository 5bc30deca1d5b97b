"""The verdict of a group: one sentence about all methods, and one line for each method that says why.

Both are made from the findings (`reports.data.verdict`) by fixed rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from reports.content.model import Headline, Verdict
from reports.content.why.causes import causes
from reports.data.budget import BudgetCurve
from reports.data.disturbed_times import is_disturbed_pass
from reports.data.estimates import Estimate, Missing, Quantity, mean_of
from reports.data.method_rows import MethodRow
from reports.data.significance import MOST_SEEDS
from reports.data.verdict import FEWEST_SEEDS, LEVEL, Cost, Finding, findings, is_dense
from reports.formatting import interval, ratio
from suite.recipe import control_epochs
from suite.runs.folder.profiles import MethodProfile

_MOST_REASONS = 2
_SAME_SHARE = 0.005  # costs relative to dense that differ by less count as equal
_LONGEST_NAMES = 40  # characters of the names in a clause of the sentence; more methods are counted instead
_LONGER = (
    "First train longer (`--epochs`) or with smaller batches (`--batch-size`), until dense training is better than a "
    "guess; before that, more seeds say nothing about the methods."
)
_AT = {"time": "at the same measured training time", "flops": "at the same executed FLOPs"}


def verdict(
    rows: Sequence[MethodRow],
    curve: BudgetCurve,
    device: str,
    epochs: float,
    margins: Sequence[float],
    groups: int = 1,
    profiles: Mapping[str, MethodProfile] | None = None,
    out: str = "--out DIR",
    learned: bool = True,
) -> Verdict | None:
    """Return the verdict about the methods of a group; `None` if there is none to compare with dense.

    Args:
        rows: Ranked rows of one group.
        curve: Dense training for shares of the epochs.
        device: Device of the group, `cpu` or `cuda`.
        epochs: Number of epochs of the group; 0 if it is not known.
        margins: Margins that the commands of the folder declared, in order; the last one applies.
        groups: Number of groups on the page that make claims.
        profiles: Where the time of a step goes, by method, for those that have a profile.
        out: The option with which a command continues in the folder of the report.
        learned: Whether dense training has learned the task; if not, the only advice is to train longer.
    """
    methods = [row for row in rows if not is_dense(row)]
    if not methods:
        return None
    found = findings(rows, curve, margins[-1], groups)
    length = f"{epochs:g} {'epoch' if epochs == 1 else 'epochs'}" if epochs else "these epochs"
    seeds = [one.gain.count for one in found if one.outcome != "none" and isinstance(one.gain, Estimate)]
    with_seeds = f" and {min(seeds)} seeds" if seeds else ""
    where = f"On this {'GPU' if device.startswith('cuda') else 'CPU'}, for {length}{with_seeds}"
    lines = []
    for row in methods:
        why = [*_why(row), *causes((profiles or {}).get(row.label), epochs)]
        outcomes = "; ".join(_outcome(one) for one in found if one.label == row.label)
        lines.append(Headline(row.label, f"{outcomes}. Why: {'; '.join(why)}.", row.colour))
    # The measured time decides; FLOPs say what other kernels could make of the method.
    margin = _points(margins[-1])
    answers = f"{where}, {_sentence(found, 'time', margin)}.", f"A{_sentence(found, 'flops', margin)[1:]}."
    return Verdict(
        answers,
        " ".join([*(_advice(found, methods, epochs, out) if learned else [_LONGER]), *_changed(margins)]),
        tuple(lines),
        " ".join(_certainty(found, methods, groups)),
        " ".join(_changes(found) if learned else []),
    )


def smoke_verdict() -> Verdict:
    """Return the text in place of the verdict in the report of a smoke test."""
    answer = "A smoke test shows that everything runs; its numbers do not show which method to use."
    return Verdict((answer, ""), "The same command with `--preset quick --seeds 3 --controls` can give a verdict.", ())


def _points(margin: float) -> str:
    return f"{100 * margin:g} {'point' if margin == 0.01 else 'points'}"


def _changed(margins: Sequence[float]) -> list[str]:
    """Say that the margin was changed by a later command, which may have known results."""
    if len(margins) == 1:
        return []
    return [f"The margin was {_points(margins[0])} in the first command and was changed later."]


def _sentence(found: Sequence[Finding], cost: Cost, margin: str) -> str:
    """Return the sentence about all methods at one cost, without its first capital letter and its full stop."""
    ours = [one for one in found if one.cost == cost]
    by_outcome = {
        outcome: [one.label for one in ours if one.outcome == outcome]
        for outcome in ("pays", "does not pay", "undecided", "none")
    }
    at = _AT[cost]
    if by_outcome["pays"]:
        return f"{at}, {_subject(by_outcome['pays'], 'reaches')} a higher accuracy than dense"
    if len(by_outcome["none"]) == len(ours):
        reasons = list(dict.fromkeys(one.reason for one in ours))
        why = "; ".join(reasons) if len(reasons) <= _MOST_REASONS else "for several reasons, one per method below"
        return f"{at}, there is no verdict ({why})"
    if len(by_outcome["does not pay"]) == len(ours):
        return f"{at}, use dense: no method gains {margin} over it"
    endings = {
        "undecided": ("is", "undecided"),
        "none": ("has", "no verdict"),
        "does not pay": ("does", f"not gain {margin}"),
    }
    clauses = [
        f"{_subject(names, verb)} {ending}"
        for outcome, (verb, ending) in endings.items()
        if (names := by_outcome[outcome])
    ]
    return f"{at}, no method is shown to gain over dense: {'; '.join(clauses)}"


def _advice(found: Sequence[Finding], methods: Sequence[MethodRow], epochs: float, out: str) -> list[str]:
    """Return what would give a verdict where there is none, or would decide.

    Its commands are between backticks, and have the option `out` or its folder.
    """
    options, advice = [], []
    tried = {row.label: len({trial.number("seed") for trial in row.trials}) for row in methods}
    # A seed that failed will fail again, so that another one has to take its place. Few seeds may have another reason.
    failed = [tried[one.label] - one.seeds for one in found if one.outcome == "none" and 0 < one.seeds < FEWEST_SEEDS]
    if failed:
        options.append(f"--seeds {FEWEST_SEEDS + max(failed)}")
    untrained = [mean_of(one.share) or 0.0 for one in found if one.reason.startswith("dense was not trained")]
    # The epochs of dense that cost as much, where dense can be trained for so few.
    shorter = [count for share in untrained if share < 1 and (count := math.floor(share * epochs)) >= 1]
    least = min(control_epochs(int(epochs)), default=1)
    if any(count >= least for count in shorter) or any(one.reason == "dense was not run" for one in found):
        options.append("--controls")
    gives = f"can give {'a verdict' if all(one.outcome == 'none' for one in found) else 'the missing verdicts'}"
    pass_of_time = f"`python run_suite.py time {out.removeprefix('--out ')}`"
    disturbed = any("disturbed" in one.reason for one in found)
    if options:
        then = f", and then the time pass, {pass_of_time}," if disturbed else ""
        advice.append(f"The same command with `{' '.join([*options, out])}`{then} {gives}.")
    elif disturbed:
        advice.append(f"The time pass, {pass_of_time}, {gives}.")
    if shorter and min(shorter) < least:
        command = f"`--methods dense --epochs {min(shorter)} {out}`"
        advice.append(
            f"So can {command} for the smallest cost." if options else f"The same command with {command} {gives}."
        )
    if any(share > 1 for share in untrained):
        advice.append("A method that costs more than dense cannot be shown to pay here.")
    undecided = {one.cost for one in found if one.seeds_needed is not None}
    if undecided:
        where = "undecided methods" if "time" in undecided else "methods that are undecided at equal FLOPs"
        advice.append(f"More seeds, as many as the table says and chosen in advance, may decide the {where}.")
    if disturbed:
        advice.append("Times are compared only if they were measured on a quiet machine.")
    return advice


def _certainty(found: Sequence[Finding], methods: Sequence[MethodRow], groups: int) -> list[str]:
    """Return how certain the outcomes are, and what their intervals do not cover; nothing without an outcome."""
    tested = [one for one in found if one.outcome != "none"]
    if not tested:
        return []
    claims = len(tested) * groups
    lines = [
        "If no method gained anything, the chance that this page says that one pays would be at most "
        f"{100 * LEVEL:g} %, and as small for a false 'does not pay' if all gained the margin (tests corrected for "
        f"{claims} {'claim' if claims == 1 else 'claims'})."
    ]
    decided = [one for one in tested if one.p_value is not None]
    if decided:
        least = max(decided, key=lambda one: one.p_value or 0.0)
        lines.append(
            f"The least certain outcome: {least.label} {least.outcome} {_AT[least.cost]} (corrected p-value "
            f"{least.p_value:.2g}, limit {LEVEL:g})."
        )
    twice = [row.timed.dense_twice for row in methods if row.timed is not None]
    if twice:
        low, high = min(one.low for one in twice), max(one.high for one in twice)
        lines.append(
            f"Where the time pass timed dense against itself, its intervals were within [{low:.3f}, {high:.3f}]. They "
            "cover the steps of one pass with the networks of one seed, not differences between passes."
        )
    return lines


def _changes(found: Sequence[Finding]) -> list[str]:
    """Return what could change the answer at equal time; nothing without an outcome."""
    at_time = {one.label: one for one in found if one.cost == "time" and one.outcome != "none"}
    if not at_time:
        return []
    lines = []
    # The same gains, if each method's time were in proportion to what it executes.
    slower = [
        one
        for one in found
        if one.cost == "flops"
        and isinstance(one.share, Estimate)
        and (timed := at_time.get(one.label)) is not None
        and timed.outcome != "pays"
        and isinstance(timed.share, Estimate)
        and one.share.mean < timed.share.mean - _SAME_SHARE
    ]
    endings = {"pays": "pay", "undecided": "be undecided", "does not pay": "still not pay"}
    clauses = [
        f"{_counted(names)} would {ending}"
        for outcome, ending in endings.items()
        if (names := [one.label for one in slower if one.outcome == outcome])
    ]
    if clauses:
        lines.append(f"Faster kernels: if time fell in proportion to executed FLOPs, {'; '.join(clauses)}.")
    lines.append("Other networks, data, hardware or numbers of epochs were not measured here.")
    return lines


def _outcome(finding: Finding) -> str:
    at = _AT[finding.cost]
    if finding.outcome == "none":
        return f"has no verdict {at} ({finding.reason})"
    assert isinstance(finding.gain, Estimate)
    assert isinstance(finding.share, Estimate)
    gain = interval(finding.gain.scaled(100), 2, sign=True, reference=0)
    verb = "is " if finding.outcome == "undecided" else ""
    text = f"{verb}{finding.outcome} {at} ({gain} points, at {ratio(finding.share)} × dense"
    if finding.outcome == "undecided":
        text += f"; {_more_seeds(finding, finding.gain)}"
    return f"{text})"


def _more_seeds(finding: Finding, gain: Estimate) -> str:
    if gain.half_width is None:
        return "all seeds have the same gain, so that it is unknown how many would decide"
    if finding.seeds_needed is None:
        return f"more than {MOST_SEEDS} seeds would be needed to decide"
    more = finding.seeds_needed - gain.count
    return f"about {more} more {'seed' if more == 1 else 'seeds'} would decide"


def _why(row: MethodRow) -> list[str]:
    """Return what was saved in theory, what was skipped, what that gained in time, and what it cost in accuracy."""

    effective, executed = row.flops_ratio["effective"], row.flops_ratio["executed"]
    pieces = [
        f"{_saved(effective)} of dense's training FLOPs can be skipped in theory",
        f"{_saved(executed)} were skipped",
    ]
    if row.timed is not None:
        disturbed = ", disturbed" if is_disturbed_pass(row.timed) else ""
        pieces.append(f"training takes {row.timed.ratio:.3f} × the time of dense (time pass{disturbed})")
    elif isinstance(row.time_ratio, Estimate):
        disturbed = " (disturbed)" if row.ratio_is_disturbed else ""
        pieces.append(f"training took {ratio(row.time_ratio)} × the time of dense{disturbed}")
    if isinstance(row.accuracy_difference, Estimate):
        points = interval(row.accuracy_difference.scaled(100), 2, sign=True, reference=0)
        pieces.append(f"after equal epochs, accuracy differs by {points} points")
    if row.failures:
        pieces.append(f"{row.failures} of {len(row.trials)} trials, which are not included")
    return pieces


def _saved(quantity: Quantity) -> str:
    if isinstance(quantity, Missing):
        return "an unknown number"
    share = 100 * (1 - quantity.mean)
    return f"{abs(share):.0f} %" if share >= -0.5 else f"minus {abs(share):.0f} %"


def _names(labels: Sequence[str]) -> str:
    *most, last = labels
    return f"{', '.join(most)} and {last}" if most else last


def _subject(labels: Sequence[str], singular: str) -> str:
    """Return the methods as the subject of a clause, with its verb."""
    plural = {"reaches": "reach", "is": "are", "does": "do", "has": "have"}
    return f"{_counted(labels)} {singular if len(labels) == 1 else plural[singular]}"


def _counted(labels: Sequence[str]) -> str:
    """Return the names of methods, or their number if the names are long."""
    names = _names(labels)
    return f"{len(labels)} methods" if len(labels) > 1 and len(names) > _LONGEST_NAMES else names
