"""The verdict of a group: a sentence for each purpose, what it rests on, what would change it, and a line per method.

All of it is made from the rule's answers (`reports.data.verdict`) by fixed rules; no name of a method decides anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.content.model import Headline, Verdict
from reports.content.why.causes import causes
from reports.data.estimates import Estimate, Missing, Quantity
from reports.data.method_rows import MethodRow
from reports.data.rule import FEWEST_PASSES, FEWEST_SEEDS, LEVEL, POWER, Answer, Judged, costs_more
from reports.data.verdict import Answers, Cost
from reports.formatting import duration, ratio, signed
from suite.recipe import FEWEST_BUDGETS, WIDEST_GAP, control_epochs
from suite.runs.folder.profiles import MethodProfile

_AT: Mapping[Cost, str] = {"time": "equal time", "flops": "equal executed FLOPs"}
_ITS: Mapping[Cost, str] = {"time": "its time", "flops": "its executed FLOPs"}
_LESS: Mapping[Cost, str] = {"time": "in less time", "flops": "for fewer FLOPs"}
_UNIT: Mapping[Cost, str] = {"time": "of dense's time", "flops": "of dense's FLOPs"}
_NOTHING = 1e-9  # a share of dense's FLOPs or parameters
_LEVEL_OF_ONE = 0.033  # three seeds of one method; `simulate_claims` gives 3.0 to 3.2 %
_CHEAPER = 0.005  # costs relative to dense that differ by less count as equal
_MOST_NAMES = 3
_LONGER = (
    "First train longer (`--epochs`) or with smaller batches (`--batch-size`), until dense training is better than a "
    "guess; before that, more seeds say nothing about the methods."
)
_EARLIER = (
    "These trials are from before subnormal numbers were flushed to zero. The same command trains new ones, which are "
    "not compared with them."
)


@dataclass(frozen=True)
class Setting:
    """What a verdict says besides the answers.

    Attributes:
        epochs: Number of epochs of the group; 0 if it is not known.
        margins: Margins that the commands of the folder declared, as fractions, in order; the last one applies.
        test_images: Number of test images; 0 if it is not known.
        learned: Whether dense training is better than a guess.
        is_ieee: Whether the trials computed with subnormal numbers, as those of earlier versions.
        out: The option with which a command continues in the folder of the report.
    """

    epochs: float
    margins: tuple[float, ...]
    test_images: int = 0
    learned: bool = True
    is_ieee: bool = False
    out: str = "--out DIR"

    @property
    def margin(self) -> float:
        """δ, in points."""
        return 100 * self.margins[-1]

    @property
    def is_coarse(self) -> bool:
        """Whether one test image changes an accuracy by more than δ."""
        return 0 < self.test_images < 100 / self.margin


def main_cost(rows: Sequence[MethodRow]) -> Cost:
    """Return the cost that decides: time if a time pass was run, otherwise executed FLOPs."""
    return "time" if any(row.timed is not None for row in rows if not row.is_control) else "flops"


def verdict(
    rows: Sequence[MethodRow], answers: Answers, setting: Setting, profiles: Mapping[str, MethodProfile] | None = None
) -> Verdict | None:
    """Return the verdict about the methods of a group; `None` if there is none to compare with dense.

    Args:
        rows: Ranked rows of one group.
        answers: What the rule says about them.
        setting: What else the verdict names.
        profiles: Where the time of a step goes, by method, for those that have a profile.
    """
    methods = {row.label: row for row in rows if not row.is_baseline and not row.is_control}
    if not methods:
        return None
    cost = main_cost(rows)
    answer = answers[cost]
    lines = []
    for name, row in methods.items():
        found = [(one, of) for of in answers for one in answers[of].judged if one.candidate.label == name]
        shown = [(one, of) for one, of in found if of in ("flops", cost)]
        outcomes = "; ".join(_outcome(one, of, answers[of].claims, setting) for one, of in shown)
        judged = next(one for one, of in found if of == cost)
        why = [*_why(row, judged), *causes((profiles or {}).get(name), setting.epochs)]
        lines.append(Headline(name, f"{outcomes}. Why: {'; '.join(why)}.", row.colour))
    return Verdict(
        warnings=tuple(_warnings([*methods.values()], answer, setting)),
        purposes=tuple(_purposes(methods, answer, cost, setting)),
        basis=_basis(rows, answer, cost, setting),
        advice=" ".join(_advice(methods, answer, cost, setting)),
        certainty=_certainty(answer, cost, setting) if answer.claims else "",
        lines=tuple(lines),
    )


def smoke_verdict() -> Verdict:
    """Return the text in place of the verdict in the report of a smoke test."""
    answer = "A smoke test shows that everything runs; its numbers do not show which method to use."
    return Verdict((answer,), advice="The same command with `--preset quick --seeds 3 --controls` can give a verdict.")


def pruned_nothing(row: MethodRow) -> bool:
    """Return whether a method ended with dense's network, and no multiply-add of its training could be skipped."""
    shares = (row.flops_ratio.get("effective"), row.params_ratio, row.inference_effective_ratio)
    return all(isinstance(one, Estimate) and abs(one.mean - 1) < _NOTHING for one in shares)


def _warnings(methods: Sequence[MethodRow], answer: Answer, setting: Setting) -> list[str]:
    """Return what a reader must know before any number: methods that did nothing, and data that cannot decide."""
    lines = [
        f"{_code(row.label)} pruned nothing: its network and FLOPs are those of dense."
        for row in methods
        if pruned_nothing(row)
    ]
    for one in answer.judged:
        if one.candidate.diverged:
            total = one.candidate.diverged + len(one.candidate.accuracies)
            lines.append(
                f"{_code(one.candidate.label)}: {one.candidate.diverged} of {total} seeds diverged or learned nothing."
            )
    if answer.curve is not None and (whole := answer.curve.at(0.0).value) > 100 - setting.margin:
        lines.append(f"Dense reaches {whole:.1f} %, so that no method can be {setting.margin:g} points better here.")
    if setting.is_coarse:
        lines.append(
            f"{setting.test_images} test images cannot show a difference of {setting.margin:g} points: one image is "
            f"{100 / setting.test_images:.1f} points."
        )
    return lines


def _purposes(methods: Mapping[str, MethodRow], answer: Answer, cost: Cost, setting: Setting) -> list[str]:
    """Return one sentence for each purpose, or why there is none."""
    if answer.without_curve is not None:
        return [f"No verdict: {answer.without_curve.reason}."]
    return [
        _most_accurate(answer, cost),
        _fastest(answer, cost, setting),
        *_smallest(methods, answer),
    ]


def _most_accurate(answer: Answer, cost: Cost) -> str:
    better = [one for one in answer.judged if one.at_equal_cost == "better" and one.gain and one.cost]
    if better:
        best = max(better, key=lambda one: one.gain.value if one.gain else -math.inf)
        assert best.gain is not None
        assert best.cost is not None
        others = [one for one in better if one is not best]
        more = f"; {_names(others)} {'is' if len(others) == 1 else 'are'} better, too" if others else ""
        return (
            f"Most accurate for {_ITS[cost]}: {_code(best.candidate.label)}, {_points(best, answer)} points above "
            f"dense training for {best.cost.share:.3f} {_UNIT[cost]}{more}."
        )
    if all(one.gain is None for one in answer.judged):
        return f"Most accurate for {_ITS[cost]}: no method could be compared with dense."
    ends = []
    for word in ("undecided", "unstable"):
        if found := [one for one in answer.judged if one.at_equal_cost == word]:
            ends.append(f" {_names(found)} {'is' if len(found) == 1 else 'are'} {word}.")
    return f"Most accurate for {_ITS[cost]}: dense; no method is shown to be better.{''.join(ends)}"


def _fastest(answer: Answer, cost: Cost, setting: Setting) -> str:
    shortest = answer.shortest or 1.0
    fast = [one for one in answer.judged if one.as_good == "yes" and one.cost and one.cost.high < shortest]
    purpose = f"{'Fastest' if cost == 'time' else 'Cheapest'} within {setting.margin:g} points of dense:"
    dense = f"dense for {shortest:.2f} {_UNIT[cost]}" if shortest < 1 else "dense"
    if all(one.as_good == "not measured" for one in answer.judged):
        return f"{purpose} no method could be compared with dense."
    if not fast:
        return f"{purpose} {dense}; no method is shown to be {'faster' if cost == 'time' else 'cheaper'}."
    best = min(fast, key=lambda one: one.cost.share if one.cost else math.inf)
    assert best.cost is not None
    return f"{purpose} {_code(best.candidate.label)}, {best.cost.share:.3f} {_UNIT[cost]}; the next is {dense}."


def _smallest(methods: Mapping[str, MethodRow], answer: Answer) -> list[str]:
    sizes = {name: shown.mean for name, row in methods.items() if isinstance(shown := inference_share(row), Estimate)}
    name = min(sizes, key=lambda name: sizes[name], default=None)
    if name is None or sizes[name] > 1 - _CHEAPER:
        return ["Smallest network: dense; no method here needs fewer inference FLOPs."]
    loss = next((one.loss for one in answer.judged if one.candidate.label == name), None)
    lost = "" if loss is None else f", {signed(loss.value, 1)} ± {loss.half_width():.1f} points from dense"
    return [f"Smallest network: {_code(name)}, {sizes[name]:.2f} of dense's inference FLOPs{lost}."]


def inference_share(row: MethodRow) -> Quantity:
    """Return the inference FLOPs over those of dense: without zero weights if the method's kernels skip them."""
    return row.inference_effective_ratio if skips(row) else row.inference_ratio


def skips(row: MethodRow) -> bool:
    """Return whether layers of a finished trial had another backend than torch at the end, which may skip zeros."""
    backends = [trial.epochs[-1].get("backends") for trial in row.done if trial.epochs]
    return any(isinstance(one, Mapping) and any(name != "torch" for name in one.values()) for one in backends)


def _basis(rows: Sequence[MethodRow], answer: Answer, cost: Cost, setting: Setting) -> str:
    """Return seeds, epochs, minutes, threads, the smallest gain that would have been shown, and the clock's error."""
    seeds = sorted({len(one.candidate.accuracies) for one in answer.judged})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    parts = [f"{count} {'seed' if seeds == [1] else 'seeds'} a method"]
    if setting.epochs:
        parts.append(f"{setting.epochs:g} {'epoch' if setting.epochs == 1 else 'epochs'}")
    dense = next((row for row in rows if row.is_baseline), None)
    threads = next((trial.number("threads") for row in rows for trial in row.done if trial.number("threads")), None)
    if dense is not None and isinstance(dense.train_time, Estimate):
        on = f" on {threads:g} {'thread' if threads == 1 else 'threads'}" if threads else ""
        disturbed = " (disturbed)" if dense.time_is_disturbed else ""
        parts.append(f"dense trains in {duration(dense.train_time.mean)}{on}{disturbed}")
    if answer.smallest_gain is not None:
        gain = f"a gain of {answer.smallest_gain:.2f} points"
        parts.append(f"{gain} would have been shown with {100 * POWER:g} %, for every method")
    if cost == "time" and answer.pass_error is not None:
        parts.append(f"ratios of time differ between passes by {100 * answer.pass_error:.1f} % (standard deviation)")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _advice(methods: Mapping[str, MethodRow], answer: Answer, cost: Cost, setting: Setting) -> list[str]:
    """Return what would give a verdict where there is none, and what could change it.

    Its commands are between backticks.
    """
    if not setting.learned:
        return [_LONGER]
    if setting.is_ieee:
        return [_EARLIER]
    without = answer.without_curve
    needs = [*([without.need] if without else []), *(one.need for one in answer.judged)]
    advice, options = [], []
    time_pass = f"`python run_suite.py time {setting.out.removeprefix('--out ')}`"
    if setting.is_coarse:
        least = f"{100 / setting.test_images:.1f} points"
        return [f"A margin above {least} (`--margin`), or more test images, can give a verdict."]
    if "seeds" in needs:
        tried = [{trial.number("seed") for trial in row.trials} for row in methods.values()]
        failed = [len(one) - row.seeds for one, row in zip(tried, methods.values(), strict=True)]
        options.append(f"--seeds {FEWEST_SEEDS + max([0, *failed])}")
    if "controls" in needs:
        if setting.epochs and len(control_epochs(setting.epochs)) + 1 < FEWEST_BUDGETS:
            return [
                f"{setting.epochs:g} epochs allow no {FEWEST_BUDGETS} lengths of dense training: train for "
                f"{FEWEST_BUDGETS + 1} or more (`--epochs {FEWEST_BUDGETS + 1}`)."
            ]
        options.append("--controls")
    if options:
        advice.append(f"The same command with `{' '.join([*options, setting.out])}` can give a verdict.")
    if cost == "flops":
        advice.append(f"Times need the time pass: {time_pass}.")
    elif "passes" in needs:
        hidden = (len(one.candidate.ratios) for one in answer.judged if one.need == "passes" and one.gain)
        most = max([FEWEST_PASSES, *(count + FEWEST_PASSES for count in hidden)])
        if any(one.is_disturbed for row in methods.values() if row.timed for one in row.timed.passes):
            advice.append("On a quiet machine, `time` measures again the passes that other programs disturbed.")
        else:
            advice.append(f"More passes can give one: {time_pass.removesuffix('`')} --passes {most}`.")
    pruned = [one for one in answer.judged if not pruned_nothing(methods[one.candidate.label])]
    shorter = [one.cost.share for one in pruned if one.need == "shorter" and one.cost]
    if without is not None and without.gap is not None:
        low, high = (round(share * setting.epochs) for share in without.gap)
        advice += _shorter_dense(_between(low, high, setting), methods, setting)
    elif shorter and answer.curve is not None:
        low, high = math.floor(min(shorter) * setting.epochs), round(answer.curve.budgets[0].share * setting.epochs)
        advice += _shorter_dense([low, *_between(low, high, setting)] if low else [], methods, setting)
    dearer = [one for one in pruned if one.need == "longer" and one.cost]
    if dearer and setting.epochs:
        count = math.ceil(max(one.cost.share for one in dearer if one.cost) * setting.epochs)
        longer = f"`--methods dense --epochs {count} --seeds {_most_seeds(methods)} {setting.out}`"
        advice.append(f"{_names(dearer)} would have to be compared with dense for {count} epochs, {longer}.")
    more = [one.seeds_needed - len(one.candidate.accuracies) for one in answer.judged if one.seeds_needed]
    if more:
        advice.append(
            f"More seeds, {max(more)} at most and chosen in advance, may decide what is undecided; adding seeds until "
            "something is decided raises the rate of false claims."
        )
    return [*advice, *_faster_kernels(pruned, methods, answer), *_changed(setting)]


def _between(low: int, high: int, setting: Setting) -> list[int]:
    """Return numbers of epochs that leave no gap between two lengths of dense training that the rule refuses."""
    return list(range(high, low, -max(1, math.floor(WIDEST_GAP * setting.epochs))))[:0:-1]


def _shorter_dense(counts: Sequence[int], methods: Mapping[str, MethodRow], setting: Setting) -> list[str]:
    """Return the command that trains dense for fewer epochs."""
    if not counts:
        return []
    first, *others = counts
    more = f", and for {' and '.join(map(str, others))} epochs" if others else ""
    typed = f"--methods dense --epochs {first} --seeds {_most_seeds(methods)} {setting.out}"
    return [f"Dense for fewer epochs can give one: the same command with `{typed}`{more}."]


def _most_seeds(methods: Mapping[str, MethodRow]) -> int:
    return max([FEWEST_SEEDS, *(row.seeds for row in methods.values())])


def _faster_kernels(judged: Sequence[Judged], methods: Mapping[str, MethodRow], answer: Answer) -> list[str]:
    """Return what methods would be worth if all that can be skipped took no time: at their effective FLOPs."""
    clauses = []
    for one in judged:
        effective = methods[one.candidate.label].flops_ratio["effective"]
        if answer.curve is None or one.cost is None or one.accuracy is None or isinstance(effective, Missing):
            continue
        shortest = answer.curve.budgets[0].share
        if one.at_equal_cost != "better" and shortest <= effective.mean < one.cost.share - _CHEAPER:
            gain = one.accuracy.value - answer.curve.at(math.log(effective.mean)).value
            clauses.append(f"{_code(one.candidate.label)} {signed(gain, 1)} points (at {effective.mean:.2f} of dense)")
    if not clauses:
        return []
    more = f" and {len(clauses) - _MOST_NAMES} more" if len(clauses) > _MOST_NAMES else ""
    return [
        "Kernels that skip all that can be skipped, at no cost, would change the gain to (modelled): "
        f"{', '.join(clauses[:_MOST_NAMES])}{more}."
    ]


def _changed(setting: Setting) -> list[str]:
    """Say that the margin was changed by a later command, which may have known results."""
    if len(setting.margins) == 1:
        return []
    return [f"The margin was {100 * setting.margins[0]:g} points in the first command and was changed later."]


def _certainty(answer: Answer, cost: Cost, setting: Setting) -> str:
    """Return what the tests cover."""
    methods = "1 method" if answer.claims == 1 else f"{answer.claims} methods"
    level = _LEVEL_OF_ONE if answer.claims == 1 else LEVEL
    return (
        f"A page makes a false claim of each kind (better, worse, same within {setting.margin:g} points, as good "
        f"{_LESS[cost]}) with a probability of at most {100 * level:g} %, for its {methods} together. Not covered: a "
        "method whose spread over seeds or between passes is several times that of the others, and seeds that are "
        "added until something is decided. Other networks, data and machines were not measured."
    )


def _outcome(judged: Judged, cost: Cost, claims: int, setting: Setting) -> str:
    """Return the answers to both questions about a method at one cost, in words."""
    if judged.at_equal_cost == "not measured":
        text = f"at {_AT[cost]}: not measured ({judged.reason})"
    elif judged.at_equal_cost == "unstable":
        text = f"at {_AT[cost]}: unstable ({judged.reason})"
    else:
        assert judged.gain is not None
        assert judged.cost is not None
        text = (
            f"at {_AT[cost]}: {word(judged, setting.margin)} ({signed(judged.gain.value, 2)} ± "
            f"{judged.gain.half_width(claims):.2f} points against dense for {judged.cost.of_dense:.3f})"
        )
        if judged.reason:
            text += f", {judged.reason}"
        if judged.seeds_needed and not setting.is_coarse:
            more = judged.seeds_needed - len(judged.candidate.accuracies)
            text += f", about {more} more {'seed' if more == 1 else 'seeds'} would decide"
    return f"{text}; as good as dense {_LESS[cost]}: {judged.as_good}"


def word(judged: Judged, margin: float) -> str:
    """Return the outcome at equal cost as the page says it.

    Args:
        judged: The method.
        margin: δ, in points.
    """
    return f"same within {margin:g}" if judged.at_equal_cost == "same" else judged.at_equal_cost


def _points(judged: Judged, answer: Answer) -> str:
    """Return a gain, with the half-width that holds for all methods of the page together."""
    assert judged.gain is not None
    return f"{signed(judged.gain.value, 2)} ± {judged.gain.half_width(answer.claims):.2f}"


def _why(row: MethodRow, judged: Judged) -> list[str]:
    """Return what was saved in theory, what was skipped, what that gained in time, and what it cost in accuracy."""
    effective, executed = row.flops_ratio["effective"], row.flops_ratio["executed"]
    pieces = [
        f"{_saved(effective)} of dense's training FLOPs can be skipped in theory",
        f"{_saved(executed)} were skipped",
    ]
    if row.timed is not None:
        count = len(row.timed.sound or row.timed.passes)
        passes = "1 pass" if count == 1 else f"{count} passes"
        disturbed = ", disturbed" if row.timed.is_disturbed else ""
        pieces.append(f"training takes {row.timed.ratio:.3f} × the time of dense ({passes}{disturbed})")
    elif isinstance(row.time_ratio, Estimate):
        disturbed = ", disturbed" if row.ratio_is_disturbed else ""
        pieces.append(f"training took {ratio(row.time_ratio)} × the time of dense (trials, not paired{disturbed})")
    if isinstance(row.accuracy_difference, Estimate):
        difference = row.accuracy_difference.scaled(100)
        width = "" if difference.half_width is None else f" ± {difference.half_width:.2f}"
        pieces.append(f"after equal epochs, accuracy differs by {signed(difference.mean, 2)}{width} points")
    if costs_more(judged):
        pieces.append("it costs more than dense, which is then compared for its whole training")
    if row.failures:
        pieces.append(f"{row.failures} of {len(row.trials)} trials")
    return pieces


def _saved(quantity: Quantity) -> str:
    if isinstance(quantity, Missing):
        return "an unknown number"
    share = 100 * (1 - quantity.mean)
    return f"{abs(share):.0f} %" if share >= -0.5 else f"minus {abs(share):.0f} %"


def _code(name: str) -> str:
    """Return a name between backticks, which the page sets as code."""
    return f"`{name.replace('`', '')}`"


def _names(judged: Sequence[Judged]) -> str:
    names = [_code(one.candidate.label) for one in judged]
    if len(names) > _MOST_NAMES:
        return f"{len(names)} methods"
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
