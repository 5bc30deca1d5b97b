"""The rule: its worked example digit by digit, what it never says, and what changes no outcome."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reports.data import rule
from reports.data.rule import Budget, Candidate, CostShare, DenseCurve, Evidence, dense_curve, judge, shortest_dense

DENSE = (
    Budget(0.55, (86.0, 86.3, 86.1)),
    Budget(0.70, (87.3, 87.2, 87.6)),
    Budget(0.80, (87.9, 88.2, 88.0)),
    Budget(0.90, (88.4, 88.3, 88.6)),
    Budget(1.00, (88.8, 88.6, 88.7)),
)
A = Candidate("A", (88.7, 88.9, 88.6, 88.8, 88.5), (0.862, 0.868, 0.859))
B = Candidate("B", (88.7, 88.8, 88.6, 88.7, 88.7), (1.000, 1.002, 1.001))
C = Candidate("C", (84.1, 84.6, 84.3), (0.902, 0.906, 0.899))
D = Candidate("D", (88.9, 88.8, 89.0, 88.7, 89.1), (1.051, 1.046, 1.055))
E = Candidate("E", (88.6, 87.2, 88.4, 88.5, 87.9), (0.91, 0.87, 0.93))
EXAMPLE = Evidence(DENSE, (A, B, C, D, E), (0.999, 1.003, 0.998))
MARGIN = 0.5


def only(evidence, margin=MARGIN):
    (answer,) = judge([evidence], margin)
    return answer


def outcomes(page, margin=MARGIN):
    return {
        (number, one.candidate.label): (one.at_equal_cost, one.as_good)
        for number, answer in enumerate(judge(page, margin))
        for one in answer.judged
    }


def test_the_worked_example():
    answer = only(EXAMPLE)
    assert answer.curve.spread == (pytest.approx(0.02467, abs=5e-6), 10)
    assert answer.curve.coefficients == pytest.approx((88.7214, 2.6217, -2.8899), abs=5e-5)
    assert answer.curve.lack_of_fit == pytest.approx(0.7281, abs=5e-5)
    assert answer.twice_error == pytest.approx(0.00264, abs=5e-6)
    assert answer.unequal == pytest.approx(0.0029, abs=5e-5)
    assert [(one.at_equal_cost, one.as_good, one.candidate.is_preliminary) for one in answer.judged] == [
        ("better", "yes", False), ("same", "undecided", False), ("worse", "no", True), ("not measured", "no", False),
        ("undecided", "undecided", False),
    ]  # fmt: skip
    assert [one.has_own_spread for one in answer.judged] == [True, False, True, True, True]
    costs = [(one.cost.share, one.cost.low, one.cost.high, one.cost.error) for one in answer.judged]
    assert [(*(round(value, 4) for value in cost[:3]), round(cost[3], 5)) for cost in costs] == [
        (0.8630, 0.8517, 0.8744, 0.00306), (1.0010, 0.9944, 1.0076, 0.00153), (0.9023, 0.8936, 0.9111, 0.00225),
        (1.0507, 1.0395, 1.0619, 0.00248), (0.9030, 0.8298, 0.9826, 0.01964),
    ]  # fmt: skip
    gains = [(one.dense, one.gain.value, one.gain.error, one.gain.freedom) for one in answer.judged]
    assert [tuple(round(value, 4) for value in gain) for gain in gains] == [
        (88.2723, 0.4277, 0.0878, 8.5830), (88.7240, -0.0240, 0.1080, 12.8389), (88.4214, -4.0881, 0.1541, 2.5210),
        (88.7214, 0.1786, 0.1080, 12.7927), (88.4237, -0.3037, 0.2719, 4.7799),
    ]  # fmt: skip
    assert [(round(v, 6), f) for v, f in answer.judged[4].gain.parts] == [(0.0674, 4), (0.002579, 10), (0.003977, 2)]
    losses = [(one.loss.value, one.loss.error, one.loss.freedom) for one in answer.judged]
    assert [tuple(round(value, 4) for value in loss) for loss in losses] == [
        (-0.0214, 0.1078, 12.7013), (-0.0214, 0.1075, 12.7545), (-4.3880, 0.1665, 3.3852),
        (0.1786, 0.1078, 12.7013), (-0.6014, 0.2721, 4.8062),
    ]  # fmt: skip
    assert [one.p_value and float(f"{one.p_value:.4g}") for one in answer.judged] == [
        0.004223, 0.002423, 0.002814, None, None,
    ]  # fmt: skip
    widths = [one.gain.half_width(one.level) for one in answer.judged]
    assert [round(width, 4) for width in widths] == [0.3182, 0.3547, 1.7077, 0.3551, 1.2773]
    smallest = [one.smallest_gain for one in answer.judged]
    assert [gain and round(gain, 4) for gain in smallest] == [0.3960, 0.4487, 1.8631, None, 1.5284]
    assert answer.smallest_gains == (smallest[0], smallest[2])
    assert [one.seeds_needed for one in answer.judged] == [None, None, None, None, 69]
    assert (answer.judged[3].reason, answer.judged[3].need) == (
        "it costs more than dense, which was not trained for longer", "longer"
    )  # fmt: skip


def test_the_worked_example_of_costs_by_seed():
    counted = Candidate("E", E.accuracies, (0.91, 0.87, 0.93, 0.92, 0.88), by_seed=True)
    (found,) = only(Evidence(DENSE, (counted,), measured=False)).judged
    assert (round(found.cost.share, 4), round(found.cost.low, 4), round(found.cost.high, 4)) == (0.9017, 0.87, 0.9345)
    assert [round(value, 4) for value in (found.gain.value, found.gain.error, found.gain.freedom)] == [
        -0.2972, 0.2291, 4.4165,
    ]  # fmt: skip
    assert [(round(variance, 6), freedom) for variance, freedom in found.gain.parts] == [(0.049908, 4), (0.002561, 10)]
    assert round(1 - found.gain.p_above(0), 4) == 0.1290


def test_seeds_that_cost_more_than_dense_are_compared_with_the_whole_training():
    dear = Candidate("E", E.accuracies, (1.05, 1.06, 1.04, 1.07, 1.03), by_seed=True)
    (found,) = only(Evidence(DENSE, (dear,), measured=False)).judged
    assert found.gain.value == pytest.approx(found.loss.value)
    assert found.at_equal_cost == "not measured"


def test_the_floor_of_costs_by_seed_is_the_error_of_as_many_passes():
    equal = dataclasses.replace(E, ratios=(0.9,) * 5, by_seed=True, passes=2)
    (found,) = only(dataclasses.replace(EXAMPLE, candidates=(equal,))).judged
    assert found.cost.error == pytest.approx(np.std(np.log(EXAMPLE.twice), ddof=1) / math.sqrt(2 * 5))


def test_what_costs_more_than_dense_can_only_be_worse():
    worse = dataclasses.replace(D, accuracies=(80.0, 80.1, 80.2))
    (found,) = only(dataclasses.replace(EXAMPLE, candidates=(worse,))).judged
    assert (found.at_equal_cost, found.as_good) == ("worse", "no")
    assert found.dense == only(EXAMPLE).curve.at(0.0).value  # the whole dense training, which costs less


@pytest.mark.parametrize(
    ("budgets", "reason", "need"),
    [
        (DENSE[:4], "dense was not trained", "controls"),
        (DENSE[2:], "dense was trained for 3 lengths, and at least 4 are needed", "controls"),
        (
            (*DENSE[2:], Budget(0.7, (87.0,))),
            "dense was trained for 3 lengths with 3 seeds, and at least 4 are needed",
            "seeds",
        ),
        ((DENSE[0], DENSE[1], *DENSE[3:], Budget(0.8, (88.0, 88.1))), None, None),
        ((Budget(0.4, (83.0, 83.1, 83.2)), *DENSE[1:]), "differ by 0.30 of the whole", "between"),
        ((Budget(0.49, (85.0, 85.1, 85.2)), *DENSE[1:]), "differ by 0.21 of the whole", "between"),
        ((*DENSE[:4], Budget(1.0, (88.0, 88.1))), "dense has 2 of at least 3 seeds", "seeds"),
        ((*DENSE[:4], Budget(1.0, (88.0, 88.1, 88.2), 1)), "1 of 4 seeds of dense diverged", "none"),
        (
            (*DENSE[:2], Budget(0.8, (86.0, 86.1, 86.2)), *DENSE[3:]),
            "the dense curve is not smooth",
            "none",
        ),
        (tuple(Budget(one.share, (one.accuracies[0],) * 3) for one in DENSE), "same accuracy", "none"),
        (
            (DENSE[0], *(dataclasses.replace(one, diverged=1) for one in DENSE[1:3]), *DENSE[3:]),
            "dense was trained for 3 lengths without diverged seeds",
            "none",
        ),
        (tuple(Budget(one.share, one.accuracies[:1]) for one in DENSE), "dense has 1 of at least 3 seeds", "seeds"),
    ],
)
def test_too_few_dense_trainings_give_no_outcome(budgets, reason, need):
    answer = only(dataclasses.replace(EXAMPLE, budgets=budgets))
    if reason is None:  # a length with two seeds enters nothing
        assert [one.share for one in answer.curve.budgets] == [0.55, 0.7, 0.9, 1.0]
        return
    assert reason in answer.without_curve.reason
    assert answer.without_curve.need == need
    assert {(one.at_equal_cost, one.as_good) for one in answer.judged} == {("not measured", "not measured")}


@pytest.mark.parametrize(
    ("changes", "reason", "need"),
    [
        ({"accuracies": (88.7, 88.9)}, "2 of at least 3 seeds", "seeds"),
        ({"ratios": (0.86, 0.87)}, "2 of at least 3 time passes", "passes"),
        ({"ratios": ()}, "0 of at least 3 time passes", "passes"),
    ],
)
def test_a_method_without_enough_evidence_is_not_measured(changes, reason, need):
    found = only(dataclasses.replace(EXAMPLE, candidates=(dataclasses.replace(A, **changes), B))).judged[0]
    assert (found.at_equal_cost, found.as_good, found.need) == ("not measured", "not measured", need)
    assert reason in found.reason


def test_dense_needs_three_passes_against_itself():
    (found, *_) = only(dataclasses.replace(EXAMPLE, twice=EXAMPLE.twice[:2])).judged
    assert (found.at_equal_cost, found.need, found.cost) == ("not measured", "passes", None)
    assert found.reason == "it has 2 of at least 3 time passes"


def test_below_the_shortest_dense_training_only_the_second_question_has_an_answer():
    short = dataclasses.replace(A, ratios=(0.5, 0.501, 0.502))
    found = only(dataclasses.replace(EXAMPLE, candidates=(short, B))).judged[0]
    assert (found.at_equal_cost, found.as_good, found.need) == ("not measured", "yes", "shorter")
    assert (found.lack, found.reason) == ("no dense as short", "it costs less than the shortest dense training")
    lossy = dataclasses.replace(short, accuracies=C.accuracies)
    assert only(dataclasses.replace(EXAMPLE, candidates=(lossy, B))).judged[0].as_good == "no"


def test_seeds_that_all_agree_have_the_spread_of_dense():
    equal = dataclasses.replace(A, accuracies=(88.7,) * 5)
    (found,) = only(dataclasses.replace(EXAMPLE, candidates=(equal,))).judged
    assert found.accuracy.parts == ((pytest.approx(only(EXAMPLE).curve.spread[0] / 5), 4),)
    assert not found.has_own_spread


def test_a_cost_that_cannot_be_told_from_dense_counts_as_it_is():
    above = dataclasses.replace(B, ratios=(0.999, 1.006, 1.003))
    found = only(dataclasses.replace(EXAMPLE, candidates=(above, A))).judged[0]
    assert found.cost.low < 1 < found.cost.of_dense == found.cost.share
    assert found.dense == only(EXAMPLE).curve.at(found.cost.log).value


def test_numbers_with_unequal_seeds_are_those_of_another_computation():
    """Weighted least squares by polyfit, and the formulas of the rule written out once more."""
    budgets = (Budget(0.55, (*DENSE[0].accuracies, 86.4, 85.9)), *DENSE[1:4], Budget(1.0, (88.8, 88.6, 88.7, 88.9)))
    other = dataclasses.replace(B, accuracies=(88.7, 88.8, 88.5, 89.9), ratios=(0.93, 0.94, 0.93))
    answer = only(Evidence(budgets, (A, other), EXAMPLE.twice))
    x, n = np.log([one.share for one in budgets]), np.array([len(one.accuracies) for one in budgets])
    means = np.array([np.mean(one.accuracies) for one in budgets])
    within = np.concatenate([np.array(one.accuracies) - np.mean(one.accuracies) for one in budgets])
    spread, freedom = (within**2).sum() / (n - 1).sum(), (n - 1).sum()
    c = np.log(A.ratios).mean()
    assert answer.curve.at(c).value == pytest.approx(np.polyval(np.polyfit(x, means, 2, w=np.sqrt(n)), c))
    units = np.array([np.polyval(np.polyfit(x, unit, 2, w=np.sqrt(n)), c) for unit in np.eye(5)])
    variances = [np.var(one.accuracies, ddof=1) for one in (A, other)]
    of_method, of_dense, *_ = answer.judged[0].gain.parts
    assert of_method == (pytest.approx(max(variances[0], spread) / 5), 4)
    assert of_dense == (pytest.approx(spread * (units**2 / n).sum()), freedom)
    shown = [
        (stats.t.ppf(1 - 0.025 * (1 - 2 / seeds) / 2, one.gain.freedom) + stats.t.ppf(0.8, one.gain.freedom))
        * one.gain.error
        for one, seeds in zip(answer.judged, (5, 4), strict=True)
    ]
    assert answer.smallest_gains == pytest.approx((min(shown), max(shown)))


def test_the_smallest_gain_is_that_of_methods_that_could_be_compared():
    wide = dataclasses.replace(D, accuracies=(80.0, 89.0, 98.0))  # costs more than dense
    answer = only(dataclasses.replace(EXAMPLE, candidates=(A, wide)))
    first, second = answer.judged
    assert second.gain.error > first.gain.error
    assert second.at_equal_cost == "not measured"
    assert answer.smallest_gains == (first.smallest_gain,) * 2


def test_a_curve_that_falls_gives_the_cost_no_part_in_the_error():
    noise = ((-0.1, 0.0, 0.11), (-0.1, 0.02, 0.1), (-0.09, 0.0, 0.1), (-0.1, 0.01, 0.1), (-0.1, 0.0, 0.08))
    falling = tuple(
        Budget(one.share, tuple(90 - one.share + value for value in values))
        for one, values in zip(DENSE, noise, strict=True)
    )
    assert len(only(Evidence(falling, (A,), EXAMPLE.twice)).judged[0].gain.parts) == 2
    assert len(only(Evidence(DENSE, (A,), EXAMPLE.twice)).judged[0].gain.parts) == 3


def test_a_parabola_is_refused_below_one_percent_only():
    found = set()
    for shift in np.linspace(0, 0.6, 121):
        budgets = (*DENSE[:2], Budget(0.8, tuple(one + shift for one in DENSE[2].accuracies)), *DENSE[3:])
        curve = dense_curve(budgets)
        found.add(curve.lack_of_fit if isinstance(curve, DenseCurve) else 0.0)
    assert 0.0 in found
    assert 0.01 <= min(found - {0.0}) < 0.015


def test_the_p_value_of_same_is_the_larger_of_both():
    same = only(EXAMPLE).judged[1]
    distances = [MARGIN + same.gain.value, MARGIN - same.gain.value]
    single = [stats.t.sf(one / same.gain.error, same.gain.freedom) for one in distances]
    assert 2 * min(single) < max(single) <= same.p_value <= 5 * 5 / 3 * max(single)


def test_an_exact_cost_of_1_is_neither_less_nor_more():
    same = dataclasses.replace(A, accuracies=(89.7, 89.9, 89.6), ratios=(1.0, 1.0, 1.0))
    flops = dataclasses.replace(EXAMPLE, measured=False, twice=(), candidates=(same, B))
    assert only(flops).judged[0].as_good == "undecided"


def test_the_number_of_seeds_that_is_asked_for_would_decide():
    evidence = dataclasses.replace(EXAMPLE, candidates=(E, B))
    (found, _) = only(evidence, 0.05).judged
    gain, needed = found.gain, found.seeds_needed
    ((first, f1), (second, f2), *cost) = gain.parts

    def is_shown(seeds):
        parts = ((first * 5 / seeds, f1 * (seeds - 1) / 4), (second * 5 / seeds, f2 * (seeds - 1) / 4), *cost)
        variance = sum(one for one, _ in parts)
        freedom = variance**2 / sum(one**2 / of for one, of in parts)
        return abs(gain.value) >= stats.t.ppf(1 - 0.025 * (1 - 2 / seeds) / 2, freedom) * math.sqrt(variance)

    assert is_shown(needed)
    assert not is_shown(needed - 1)


def test_every_p_value_of_seeds_has_the_factor_of_their_number_and_all_methods_of_the_page_count():
    """Those of C have the factor 3 of three seeds, and that of five methods, or of six with one that is not tested."""
    untested = Candidate("F", (88.0, 88.1), ())
    for more, methods in (((), 5), ((untested,), 6)):
        answer = only(dataclasses.replace(EXAMPLE, candidates=(*EXAMPLE.candidates, *more)))
        assert answer.claims == methods
        assert answer.judged[2].p_value == pytest.approx(0.0001876 * 3 * methods, rel=1e-3)
    assert rule._p_values(only(EXAMPLE).judged[2], MARGIN)["lossy"] == pytest.approx(3 * 0.00003677, rel=1e-3)


def test_another_method_changes_neither_spread_nor_cost():
    wild = Candidate("wild", (20.0, 50.0, 80.0), (0.5, 0.9, 0.7))
    with_it = only(dataclasses.replace(EXAMPLE, candidates=(*EXAMPLE.candidates, wild)))
    for one, same in zip(only(EXAMPLE).judged, with_it.judged, strict=False):
        assert (one.gain, one.cost) == (same.gain, same.cost)


def test_diverged_seeds_are_counted_and_never_better():
    for left, outcome, as_good in (((88.7, 88.9, 88.6), "unstable", "undecided"), ((80.0, 80.1, 80.2), "worse", "no")):
        candidate = dataclasses.replace(A, accuracies=left, diverged=4)
        (found, *_) = only(dataclasses.replace(EXAMPLE, candidates=(candidate, B, C, D))).judged
        assert (found.at_equal_cost, found.as_good) == (outcome, as_good)
        assert found.reason == "4 of 7 seeds diverged or learned nothing"
    few = dataclasses.replace(A, accuracies=(88.7,), diverged=2)
    assert only(dataclasses.replace(EXAMPLE, candidates=(few,))).judged[0].at_equal_cost == "unstable"


def test_a_length_of_dense_with_a_diverged_seed_is_left_out():
    budgets = (*DENSE[:2], dataclasses.replace(DENSE[2], diverged=1), *DENSE[3:])
    assert [one.share for one in dense_curve(budgets).budgets] == [0.55, 0.7, 0.9, 1.0]


def test_flops_have_the_error_of_the_seeds():
    flops = dataclasses.replace(
        EXAMPLE, measured=False, twice=(),
        candidates=(dataclasses.replace(A, ratios=(0.8,) * 3), dataclasses.replace(B, ratios=(0.9, 0.95, 1.0))),
    )  # fmt: skip
    first, second = only(flops).judged
    assert first.cost == CostShare(math.log(0.8))
    assert len(first.gain.parts) == 2
    assert first.as_good == "yes"
    assert (second.cost.freedom, len(second.gain.parts)) == (2, 3)
    assert second.as_good == "undecided"


def test_the_shortest_dense_training_stops_at_the_first_length_that_loses():
    curve = dense_curve(DENSE)
    assert shortest_dense(curve, 0.5) == 0.9
    assert shortest_dense(curve, 0.01) == 1.0
    assert shortest_dense(curve, 5.0) == 0.55
    loss = curve.less(0.9)
    edge = stats.t.ppf(1 - 0.025, loss.freedom) * loss.error - loss.value
    assert (shortest_dense(curve, edge - 0.001), shortest_dense(curve, edge + 0.001)) == (1.0, 0.9)


def test_more_seeds_are_asked_for_only_where_they_decide():
    close = dataclasses.replace(A, accuracies=(88.5, 88.7, 88.3))
    (found,) = only(dataclasses.replace(EXAMPLE, candidates=(close,)), 0.05).judged
    assert found.at_equal_cost == "undecided"
    assert 3 < found.seeds_needed < 30
    # The cost is too uncertain for any number of seeds.
    vague = dataclasses.replace(close, ratios=(0.7, 0.86, 0.99))
    (found,) = only(dataclasses.replace(EXAMPLE, candidates=(vague,)), 0.05).judged
    assert (found.at_equal_cost, found.seeds_needed, found.need) == ("undecided", None, "passes")


SEEDS = st.lists(st.floats(85, 90).map(lambda value: round(value, 2)), min_size=3, max_size=6).map(tuple)
RATIOS = st.lists(st.floats(0.6, 1.1).map(lambda value: round(value, 3)), min_size=3, max_size=4).map(tuple)


@st.composite
def pages(draw):
    noise = st.lists(st.floats(-0.3, 0.3).map(lambda value: round(value, 2)), min_size=3, max_size=4)
    budgets = tuple(
        Budget(share, tuple(88.0 + 6 * math.log(share) + value for value in draw(noise)))
        for share in (0.55, 0.7, 0.8, 0.9, 1.0)
    )
    groups = []
    for _ in range(draw(st.integers(1, 2))):
        count = draw(st.integers(1, 3))
        candidates = tuple(
            Candidate(f"m{number}", draw(SEEDS), draw(RATIOS), draw(st.sampled_from([0, 0, 0, 1])))
            for number in range(count)
        )
        groups.append(Evidence(budgets, candidates, draw(RATIOS)))
    return groups


@settings(max_examples=60)
@given(pages(), st.floats(0.05, 1), st.floats(0.05, 3))
def test_a_larger_margin_changes_neither_better_nor_worse(page, margin, more):
    first, second = outcomes(page, margin), outcomes(page, margin + more)
    for key, (at_equal_cost, as_good) in first.items():
        if at_equal_cost in ("better", "worse"):
            assert second[key][0] == at_equal_cost
        else:
            assert second[key][0] not in ("better", "worse")
        assert not (as_good == "yes" and second[key][1] == "no")


@settings(max_examples=40)
@given(pages(), st.randoms(use_true_random=False))
def test_the_order_of_methods_seeds_and_groups_changes_nothing(page, random):
    def shuffled(values):
        return tuple(random.sample(list(values), len(values)))

    other = [
        dataclasses.replace(
            evidence,
            budgets=shuffled(
                [dataclasses.replace(one, accuracies=shuffled(one.accuracies)) for one in evidence.budgets]
            ),
            candidates=shuffled(
                [
                    dataclasses.replace(one, accuracies=shuffled(one.accuracies), ratios=shuffled(one.ratios))
                    for one in evidence.candidates
                ]
            ),
            twice=shuffled(evidence.twice),
        )
        for evidence in page
    ]
    assert outcomes(other) == outcomes(page)
    swapped = outcomes(page[::-1])
    assert {(len(page) - 1 - number, name): found for (number, name), found in swapped.items()} == outcomes(page)


def test_data_that_only_grow_turn_better_into_worse_no_more_often_than_stated():
    """A true gain of 0: how often one method is `better` with some number of seeds and `worse` with more."""
    generator = np.random.default_rng(0)
    turned = 0
    for _ in range(300):
        seeds = {share: 88 + 6 * math.log(share) + generator.normal(0, 0.2, 10) for share in (0.55, 0.7, 0.8, 0.9, 1.0)}
        method = 88 + 6 * math.log(0.8) + generator.normal(0, 0.2, 10)
        ratios = tuple(np.exp(math.log(0.8) + generator.normal(0, 0.0075, 3)))
        found = []
        for count in (3, 4, 5, 7, 10):
            budgets = tuple(Budget(share, tuple(values[:count])) for share, values in seeds.items())
            candidate = Candidate("m", tuple(method[:count]), ratios)
            found.append(only(Evidence(budgets, (candidate,), ratios)).judged[0].at_equal_cost)
        if "better" in found:
            turned += "worse" in found[found.index("better") :]
    assert turned <= 0.025 * 300
