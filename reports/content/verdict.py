"""The verdict of a group: a sentence for each purpose, what it is based on, and what would change it.

The verdict follows from the rule's answers (`reports.data.verdict`) alone, and never from the name of a method. The
sentences are in `reports/sentences/verdict.j2`. Dense trainings for fewer epochs, which the answers need, have a table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from reports import formatting
from reports.content.model import Cell, Column, Table, Verdict, quantity_cell
from reports.data.estimates import Estimate, Missing, Quantity, Ratio
from reports.data.method_rows import MethodRow, spread_of_dense, with_interval
from reports.data.records import NO_PRUNING, PageGroup, epochs
from reports.data.rule import (
    FEWEST_PASSES,
    FEWEST_SEEDS,
    LEVEL,
    POWER,
    SURE_PASSES,
    SURE_SEEDS,
    UNSTEADY_PASSES,
    Answer,
    CostShare,
    Judged,
    Mean,
    costs_more,
    mean_of_dense,
)
from reports.data.verdict import Answers, Cost, evidence, gain_of
from reports.sentences import say
from suite.recipe import FEWEST_BUDGETS, WIDEST_GAP, control_epochs
from suite.trials.groups import BASELINE


def budget_table(group: PageGroup, slug: str, cost: Cost) -> tuple[Table, ...]:
    """Return a table with one row per number of epochs; none if dense was trained for one number of epochs only.

    Args:
        group: Trials that may be compared, with the shorter dense trainings.
        slug: Prefix of the table's name.
        cost: The main cost of the page, which the table gives.
    """
    known = zip((*group.budgets, group), evidence(group, (), cost).budgets, strict=False)
    points = [(epochs(one), budget) for one, budget in known if budget.accuracies]
    budgets = [budget for _, budget in points]
    if len(budgets) < 2 or budgets[-1].share != 1:
        return ()
    spread = spread_of_dense(budgets)
    means = [mean_of_dense(one.accuracies, spread) for one in budgets]
    columns = (
        Column("Epochs"),
        Column(
            "Cost",
            "× dense",
            "counted",
            f"The share of the whole training's {'time' if cost == 'time' else 'FLOPs'}, from its steps.",
        ),
        Column("Seeds done"),
        Column(
            "Test accuracy",
            "%",
            "measured",
            "± is a 95 % interval, with the spread over seeds of all lengths.",
        ),
        Column("Difference to all epochs", "points", "measured"),
    )
    rows = []
    for (count, budget), mean in zip(points, means, strict=True):
        seeds = len(budget.accuracies)
        difference = Mean(mean.value - means[-1].value, (*mean.parts, *means[-1].parts))
        rows.append(
            (
                Cell(f"{count:g}", value=count),
                Cell(f"{budget.share:.2f}", value=budget.share),
                Cell(str(seeds), value=float(seeds)),
                _cell(with_interval(mean, seeds), sign=False),
                Cell("0") if budget is budgets[-1] else _cell(with_interval(difference, seeds), sign=True),
            )
        )
    caption = "Dense training for fewer epochs, each with its whole learning-rate schedule: what a method has to beat."
    return (Table(f"{slug}-budgets", caption, columns, tuple(rows)),)


def _cell(points: Estimate, *, sign: bool) -> Cell:
    reference = 0 if sign else None
    return quantity_cell(
        points, points.count, lambda value: formatting.interval(value, 2, sign=sign, reference=reference)
    )


_NOTHING = 1e-9  # a share of dense's FLOPs or parameters
_CHEAPER = 0.005  # costs relative to dense that differ by less count as equal
_CEILING = 99.0  # percent


@dataclass(frozen=True)
class Setting:
    """What a verdict says besides the answers.

    Attributes:
        epochs: Number of epochs of the group; 0 if it is not known.
        margins: Margins that the commands of the folder declared, as fractions, in order; the last one applies.
        test_images: Number of test images; 0 if it is not known.
        learned: Whether dense training is better than a guess.
        exploratory: Why the answers are exploratory, as the commands of the folder say.
        out: The option with which a command continues in the folder of the report.
    """

    epochs: float
    margins: tuple[float, ...]
    test_images: int = 0
    learned: bool = True
    exploratory: tuple[str, ...] = ()
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
    """Return the cost that decides: time if there is an undisturbed time pass, otherwise executed FLOPs.

    Time passes of ways without pruning decide only where there is no method.
    """
    deciding = [row for row in rows if row.is_method] or [row for row in rows if row.is_without_pruning]
    return "time" if any(row.timed and row.timed.sound for row in deciding) else "flops"


def cost_text(cost: CostShare, of: Cost) -> str:
    """Return a method's cost relative to dense, with its interval, as the page writes it."""
    if of == "time":
        return f"{cost.share:.3f} [{cost.low:.3f}, {cost.high:.3f}]"
    half_width, bounds = ((cost.high - cost.low) / 2, (cost.low, cost.high)) if cost.error else (None, None)
    return formatting.ratio(Ratio(cost.share, half_width, 0, bounds), exact=True)


def share_text(judged: Judged, of: Cost) -> str:
    """Return the cost of the dense training that a method is compared with; empty if it has no cost."""
    return "1.00" if costs_more(judged) else cost_text(judged.cost, of).partition(" [")[0] if judged.cost else ""


def verdict(rows: Sequence[MethodRow], answers: Answers, setting: Setting) -> Verdict | None:
    """Return the verdict about the methods of a group; `None` if there is none to compare with dense.

    Args:
        rows: Ranked rows of one group.
        answers: What the rule says about them.
        setting: What else the verdict names.
    """
    methods = {row.label: row for row in rows if row.is_method}
    ways = {row.label: row for row in rows if row.is_without_pruning}
    if not methods and not ways:
        return None
    cost = main_cost(rows)
    answer = answers[cost]
    return Verdict(
        warnings=(*called_exploratory(setting), *_warnings(rows, answer, setting)),
        purposes=tuple(_purposes(methods, answer, cost, setting)) if methods else (say("verdict.no_method"),),
        basis=_basis(rows, answer, cost) if methods else "",
        advice=" ".join(_advice(methods | ways, answer, cost, setting)),
        certainty=_certainty(answer, cost, setting) if answer.curve is not None and answer.claims else "",
    )


def smoke_verdict(setting: Setting) -> Verdict:
    """Return the text in place of the verdict in the report of a smoke test."""
    return Verdict((say("verdict.smoke"),), warnings=called_exploratory(setting), advice=say("verdict.after_smoke"))


def called_exploratory(setting: Setting) -> tuple[str, ...]:
    """Return a sentence for each reason for which the answers are exploratory."""
    return tuple(say("verdict.exploratory", reason=reason) for reason in setting.exploratory)


def pruned_nothing(row: MethodRow) -> bool:
    """Return whether a method ended with dense's network, and its training had no multiply-add to skip."""
    shares = (row.flops_ratio.get("effective"), row.params_ratio, row.inference_effective_ratio)
    return all(isinstance(share, Estimate) and abs(share.mean - 1) < _NOTHING for share in shares)


def _warnings(rows: Sequence[MethodRow], answer: Answer, setting: Setting) -> list[str]:
    """Return what a reader must know before any number: methods that did nothing, and data that decide nothing."""
    idle = [row.label for row in rows if row.is_method and pruned_nothing(row)]
    lines = [say("verdict.pruned_nothing", methods=idle)] if idle else []
    for judged in answer.both:
        if lost := judged.candidate.diverged:
            seeds = lost + len(judged.candidate.accuracies)
            mark = NO_PRUNING if judged in answer.without_pruning else ""
            lines.append(say("verdict.lost_seeds", method=judged.candidate.label, mark=mark, lost=lost, seeds=seeds))
    known = {row.label: row.accuracy for row in rows if isinstance(row.accuracy, Estimate)}
    lowest = min(known.values(), key=lambda accuracy: accuracy.mean, default=None)
    if answer.curve is not None and answer.curve.at(0.0).value > 100 - setting.margin:
        lines.append(say("verdict.no_room", accuracy=known[BASELINE], margin=setting.margin))
    elif lowest is not None and 100 * lowest.mean >= _CEILING:
        lines.append(say("verdict.ceiling", accuracy=lowest))
    if setting.is_coarse:
        lines.append(say("verdict.coarse", images=setting.test_images, margin=setting.margin))
    return lines


def _purposes(methods: Mapping[str, MethodRow], answer: Answer, cost: Cost, setting: Setting) -> list[str]:
    """Return one sentence for each purpose, or why there is none."""
    if answer.without_curve is not None:
        return [say("verdict.no_verdict", reason=answer.without_curve.reason)]
    preliminary = [one for one in answer.judged if one.candidate.is_preliminary and is_answered(one)]
    few = [one.candidate.label for one in preliminary]
    sure = replace(answer, judged=tuple(one for one in answer.judged if one not in preliminary))
    every = bool(few) and not any(map(is_answered, sure.judged))
    lines = [say("verdict.preliminary", methods=few, all=every, seeds=SURE_SEEDS)] if few else []
    lines += [] if every else [_most_accurate(sure, cost), _fastest(sure, cost, setting)]
    if ways := [one for one in answer.without_pruning if not one.candidate.is_preliminary and is_answered(one)]:
        better = [one.candidate.label for one in ways if one.at_equal_cost == "better"]
        lines.append(say("verdict.without_pruning", cost=cost, better=better))
    return [*lines, _smallest(methods, answer)]


def _most_accurate(answer: Answer, cost: Cost) -> str:
    better = [(gain, one) for one in answer.judged if one.at_equal_cost == "better" and (gain := gain_of(one))]
    if better:
        gain, best = max(better, key=lambda pair: pair[0].mean)
        return say(
            "verdict.most_accurate", cost=cost, best=best.candidate.label, gain=gain, share=share_text(best, cost),
            others=[one.candidate.label for _, one in better if one is not best], ways=bool(answer.without_pruning),
        )  # fmt: skip
    if all(one.gain is None for one in answer.judged):
        return say("verdict.most_accurate_unknown", cost=cost)
    undecided, unstable = (
        [one.candidate.label for one in answer.judged if one.at_equal_cost == word]
        for word in ("undecided", "unstable")
    )
    ways = bool(answer.without_pruning)
    return say("verdict.none_better", cost=cost, undecided=undecided, unstable=unstable, ways=ways)


def _fastest(answer: Answer, cost: Cost, setting: Setting) -> str:
    shortest = answer.shortest or 1.0
    fast = [
        (one.cost.share, one.candidate.label, share_text(one, cost))
        for one in answer.judged
        if one.as_good == "yes" and one.cost and one.cost.high < shortest
    ]
    _, best, share = min(fast, default=(0.0, "", ""))
    return say(
        "verdict.fastest", cost=cost, margin=setting.margin, best=best, shortest=shortest, share=share,
        ways=bool(answer.without_pruning), unknown=all(one.as_good == "not measured" for one in answer.judged),
    )  # fmt: skip


def _smallest(methods: Mapping[str, MethodRow], answer: Answer) -> str:
    sizes = {name: shown for name, row in methods.items() if isinstance(shown := inference_share(row), Estimate)}
    name = min(sizes, key=lambda name: sizes[name].mean, default=None)
    ways = bool(answer.without_pruning)
    if name is None or sizes[name].mean > 1 - _CHEAPER:
        return say("verdict.smallest", name="", share=None, loss=None, ways=ways, skips=False)
    loss = methods[name].accuracy_difference
    lost = loss.scaled(100) if isinstance(loss, Estimate) and loss.half_width is not None else None
    return say("verdict.smallest", name=name, share=sizes[name], loss=lost, ways=ways, skips=skips(methods[name]))


def inference_share(row: MethodRow) -> Quantity:
    """Return the inference FLOPs over those of dense, without zero weights if the method's kernels skip them."""
    return row.inference_effective_ratio if skips(row) else row.inference_ratio


def skips(row: MethodRow) -> bool:
    """Return whether layers of a finished trial ended with another backend than torch, which may skip zeros."""
    backends = [trial.epochs[-1].get("backends", {}) for trial in row.done if trial.epochs]
    return any(name != "torch" for one in backends for name in one.values())


def _basis(rows: Sequence[MethodRow], answer: Answer, cost: Cost) -> str:
    """Return seeds, epochs, minutes, threads, the smallest gain that would have been shown, and the clock's error."""
    seeds = [len(judged.candidate.accuracies) for judged in answer.judged]
    dense = next((row for row in rows if row.is_baseline and isinstance(row.train_time, Estimate)), None)
    threads = (trial.number("threads") for row in rows for trial in row.done)
    return say(
        "verdict.basis",
        fewest=min(seeds),
        most=max(seeds),
        dense_time=dense.train_time if dense and not dense.time_is_disturbed else None,
        threads=next(filter(None, threads), None),
        gains=answer.smallest_gains,
        power=POWER,
        twice_error=answer.twice_error,
        unequal=_unequal(answer),
        unsteady=[judged.candidate.label for judged in answer.judged if _is_unsteady(judged)] if cost == "time" else [],
    )


def _is_unsteady(judged: Judged) -> bool:
    """Return whether a cost comes from a few passes that differ much."""
    few = len(judged.candidate.ratios) * judged.candidate.passes < SURE_PASSES
    return few and judged.cost is not None and judged.cost.spread > UNSTEADY_PASSES


def _unequal(answer: Answer) -> float | None:
    """Return the p-value of equal spreads. A training that is there with other statistics, too, counts once."""
    trainings = {re.sub(r",?recipe\.precise_bn=\d+", "", one.candidate.label): one for one in answer.judged}
    return replace(answer, judged=tuple(trainings.values())).unequal


def _advice(methods: Mapping[str, MethodRow], answer: Answer, cost: Cost, setting: Setting) -> list[str]:
    """Return what would give a missing verdict, and what could change a verdict, with commands between backticks.

    Ways without pruning are among `methods`: they need the same trials and time passes.
    """
    if not setting.learned:
        return [say("verdict.train_longer")]
    if setting.is_coarse:
        return [say("verdict.wider_margin", images=setting.test_images)]
    without = answer.without_curve
    needs = [*([without.need] if without else []), *(judged.need for judged in answer.both)]
    if "controls" in needs and setting.epochs and len(control_epochs(setting.epochs)) + 1 < FEWEST_BUDGETS:
        return [say("verdict.too_few_epochs", epochs=setting.epochs, lengths=FEWEST_BUDGETS)]
    advice, options = [], []
    few = [one.candidate.label for one in answer.both if one.need == "seeds" or one.candidate.is_preliminary]
    seeds = max([FEWEST_SEEDS, *(row.seeds for row in methods.values())])
    if "seeds" in needs or few:
        tried = [{trial.number("seed") for trial in row.trials} for row in methods.values()]
        failed = [len(known) - row.seeds for known, row in zip(tried, methods.values(), strict=True)]
        seeds = SURE_SEEDS + max([0, *failed])
        options.append(f"--seeds {seeds}")
    if "controls" in needs:
        options.append("--controls")
    more = {judged.candidate.label: count for judged in answer.both if (count := _seeds_needed(judged)) > seeds}
    rows = [one.candidate.label for one in answer.both if without or one.candidate.label in {*few} - {*more}]
    if options and rows:
        typed = f'--methods "{",".join([BASELINE, *rows])}"'
        advice.append(say("verdict.same_command", options=[typed, *options, setting.out]))
    folder = setting.out.removeprefix("--out ")
    if cost == "flops":
        advice.append(say("verdict.no_times", folder=folder))
    elif "passes" in needs:
        rows = [judged.candidate.label for judged in answer.both if judged.need == "passes"]
        hidden = (len(judged.candidate.ratios) for judged in answer.both if judged.need == "passes" and judged.gain)
        timed = {name: row.timed.passes for name, row in methods.items() if row.timed}
        if disturbed := [name for name, passes in timed.items() if any(one.is_disturbed for one in passes)]:
            advice.append(say("verdict.disturbed_passes", rows=disturbed))
        else:
            passes = max([SURE_PASSES, *(count + FEWEST_PASSES for count in hidden)])
            advice.append(say("verdict.more_passes", folder=folder, passes=passes, rows=rows))
    elif any(methods[name].timed is None for name in few):
        advice.append(say("verdict.no_times", folder=folder))
    pruned = [judged for judged in answer.judged if not pruned_nothing(methods[judged.candidate.label])]
    if shorter := _shorter_lengths([*pruned, *answer.without_pruning], answer, setting):
        rows = [judged.candidate.label for judged in answer.both if without or judged.need == "shorter"]
        advice.append(say("verdict.shorter_dense", epochs=shorter, seeds=seeds, out=setting.out, rows=rows))
    dearer = {judged.candidate.label: judged.cost.share for judged in pruned if judged.need == "longer" and judged.cost}
    if dearer and setting.epochs:
        epochs = math.ceil(max(dearer.values()) * setting.epochs)
        advice.append(say("verdict.longer_dense", names=[*dearer], epochs=epochs, seeds=seeds, out=setting.out))
    if more:
        advice.append(say("verdict.more_seeds", needed=more))
    if faster := _with_faster_kernels(pruned, methods, answer):
        advice.append(say("verdict.faster_kernels", gains=faster))
    if len(setting.margins) > 1:  # the author of a later command may have known the results
        advice.append(say("verdict.margin_changed", first=100 * setting.margins[0]))
    return advice


def _seeds_needed(judged: Judged) -> int:
    """Return with how many seeds an undecided method would get an answer that is not preliminary; 0 for others."""
    return max(SURE_SEEDS, judged.seeds_needed) if judged.seeds_needed else 0


def _shorter_lengths(pruned: Sequence[Judged], answer: Answer, setting: Setting) -> list[int]:
    """Return the numbers of epochs for which dense has to be trained, so that more can be compared."""
    gap = answer.without_curve.gap if answer.without_curve is not None else None
    if gap is not None:
        low, high = (round(share * setting.epochs) for share in gap)
        return _between(low, high, setting)
    shorter = [judged.cost.share for judged in pruned if judged.need == "shorter" and judged.cost]
    if not shorter or answer.curve is None:
        return []
    low, high = math.floor(min(shorter) * setting.epochs), round(answer.curve.budgets[0].share * setting.epochs)
    return [low, *_between(low, high, setting)] if low else []


def _between(low: int, high: int, setting: Setting) -> list[int]:
    """Return numbers of epochs that fill a gap between two lengths of dense training which the rule refuses."""
    return list(range(high, low, -max(1, math.floor(WIDEST_GAP * setting.epochs))))[:0:-1]


class _Faster(NamedTuple):
    name: str
    gain: float
    share: Estimate


def _with_faster_kernels(judged: Sequence[Judged], methods: Mapping[str, MethodRow], answer: Answer) -> list[_Faster]:
    """Return what methods would be worth at their effective FLOPs, if all that can be skipped took no time."""
    faster = []
    for one in judged:
        effective = methods[one.candidate.label].flops_ratio["effective"]
        if answer.curve is None or one.cost is None or one.accuracy is None or isinstance(effective, Missing):
            continue
        shortest = answer.curve.budgets[0].share
        if one.at_equal_cost != "better" and shortest <= effective.mean < one.cost.share - _CHEAPER:
            gain = one.accuracy.value - answer.curve.at(math.log(effective.mean)).value
            faster.append(_Faster(one.candidate.label, gain, effective))
    return faster


def _certainty(answer: Answer, cost: Cost, setting: Setting) -> str:
    """Return what the tests cover."""
    ways = next((one.claims for one in answer.without_pruning), 0)
    return say("verdict.certainty", cost=cost, claims=answer.claims, ways=ways, level=LEVEL, margin=setting.margin)


def word(judged: Judged, margin: float) -> str:
    """Return the outcome at equal cost as the page says it.

    Args:
        judged: The method.
        margin: δ, in points.
    """
    if judged.at_equal_cost == "not measured":
        return judged.lack
    text = f"same within {margin:g}" if judged.at_equal_cost == "same" else judged.at_equal_cost
    return text if text == "unstable" else _preliminary(judged, text)


def good_word(judged: Judged) -> str:
    """Return the answer to the second question as the page says it."""
    return judged.lack if judged.as_good == "not measured" else _preliminary(judged, judged.as_good)


def is_answered(judged: Judged) -> bool:
    """Return whether one of the questions about a method has an answer."""
    return not judged.at_equal_cost == judged.as_good == "not measured"


def _preliminary(judged: Judged, text: str) -> str:
    return f"{text}, preliminary" if judged.candidate.is_preliminary and text != "undecided" else text
