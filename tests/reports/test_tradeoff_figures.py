"""Figures of accuracy against cost, inspected as matplotlib objects."""

import json
from dataclasses import replace

import pytest
from matplotlib.colors import to_hex
from time_passes import one_pass

from reports.data.looks import looks
from reports.data.method_rows import method_rows
from reports.data.pooling import pool_machines
from reports.figures import svg
from reports.figures.tradeoff import lower_edge, pareto_line, tradeoff_figures
from reports.figures.training_curves import curve_figures
from suite.trials.folder.reader import read
from suite.trials.folder.times import MethodTime
from suite.trials.groups import group_trials

NO_BUDGETS = {"time": (), "flops": ()}


def test_methods_with_equal_accuracy_and_cost_are_both_visible(suite, drawn):
    for method in ("dense", "sdgp"):
        for seed, accuracy in enumerate((70.0, 72.0)):
            suite.add(method, seed, accuracy=accuracy, time=100.0, variant="", train_flops_executed=1e12)
    (group,), _ = group_trials(read(suite.write()).trials)
    figures, missing = tradeoff_figures(method_rows(group, looks(["sdgp"])), "slug", NO_BUDGETS)
    assert not missing
    assert [figure.name for figure in figures] == ["slug-accuracy-time", "slug-accuracy-flops"]
    for figure in drawn:
        (axes,) = figure.axes
        means = [line for line in axes.lines if line.get_markersize() > 8]
        assert [tuple(line.get_ydata()) for line in means] == [(71.0,), (71.0,)]
        assert [(to_hex(line.get_markeredgecolor()), line.get_marker()) for line in means] == [
            (svg.colour(0), svg.marker(0)),
            (svg.colour(1), svg.marker(1)),
        ]
        assert all(line.get_markerfacecolor() == "none" for line in means)
        assert all(line.get_markeredgewidth() == pytest.approx(1.7) for line in means)


def test_trials_of_another_machine_move_the_accuracy_of_a_mean_and_not_its_cost(suite, drawn):
    for seed, hardware in ((0, "12e45678"), (1, "12e45678"), (2, "99999999")):
        accuracy, flops = 70.0 + seed, 1e12 if seed < 2 else 9e12
        suite.add("dense", seed, accuracy=accuracy, time=100.0, train_flops_executed=flops, hardware_id=hardware)
    (group,) = pool_machines(group_trials(read(suite.write()).trials)[0], ())
    tradeoff_figures(method_rows(group, looks([])), "slug", NO_BUDGETS)
    for figure, cost in zip(drawn, (100.0, 1.0), strict=True):
        (mean,) = [line for line in figure.axes[0].lines if line.get_markersize() > 8]
        assert (*mean.get_xdata(), *mean.get_ydata()) == (cost, 71.0)


def test_the_axis_leaves_out_a_few_means_that_are_far_below_the_others():
    near = [(86.0, 85.5), (85.0, 84.9), (83.0, 82.5)]
    assert lower_edge([*near, (64.0, 64.0)]) == 82.5
    assert lower_edge([*near, (78.0, 77.0)]) is None  # less than twice the range of the others
    assert lower_edge([*near[:2], (64.0, 64.0)]) is None  # too few others
    assert lower_edge([*near, (64.0, 64.0), (63.0, 63.0)]) is None  # as many as that are no exception


def test_a_mean_below_the_axis_is_an_arrow_with_its_value(suite, drawn):
    for method, accuracy in (("dense", 80.0), ("sdgp", 79.0), ("prunetrain", 78.0), ("clicktrain", 30.0)):
        suite.add(method, 0, accuracy=accuracy, time=100.0, variant="", train_flops_executed=1e12)
    (group,), _ = group_trials(read(suite.write()).trials)
    rows = method_rows(group, looks(["sdgp", "prunetrain", "clicktrain"]))
    (figure, _), _ = tradeoff_figures(rows, "slug", NO_BUDGETS)
    (axes,) = drawn[0].axes
    low, high = axes.get_ylim()
    assert 70.0 < low < 78.0
    assert 80.0 < high < 85.0
    assert [text.get_text() for text in axes.texts] == ["↓ 30.0 %"]
    assert "Arrows at the lower edge" in figure.caption
    assert "clicktrain: 30.00 %" in figure.alt


def disturb(folder, method):
    """Record that other programs were running when the first trial of a method started."""
    path = min(folder.glob(f"trials/{method}-*/trial.json"))
    record = json.loads(path.read_text())
    record["provenance"] |= {"busy_cores": 2.0}
    path.write_text(json.dumps(record))


def crosses(axes):
    """Return the positions of the crosses."""
    drawn = [collection for collection in axes.collections if collection.get_zorder() == 4]
    return sorted(tuple(place) for collection in drawn for place in collection.get_offsets())


def test_a_disturbed_time_is_crossed_out_in_the_figure_itself(suite, drawn):
    for seed, accuracy in enumerate((70.0, 72.0)):
        for method in ("dense", "sdgp"):
            suite.add(method, seed, accuracy=accuracy, time=100.0 + seed, variant="", train_flops_executed=1e12)
    folder = suite.write()
    disturb(folder, "sdgp")
    (group,), _ = group_trials(read(folder).trials)
    figures, _ = tradeoff_figures(method_rows(group, looks(["sdgp"])), "slug", NO_BUDGETS)
    by_time, by_flops = (figure.axes[0] for figure in drawn)
    assert crosses(by_time) == [pytest.approx((100.0, 70.0)), pytest.approx((100.5, 71.0))]  # the trial, and the mean
    assert by_time.get_xlabel() == "Training time, measured (s); ×: disturbed, not reliable;\naxis not from 0"
    assert "Crosses: disturbed times" in figures[0].caption
    assert "sdgp: 71.00 % at 100 s (disturbed)" in figures[0].alt
    assert crosses(by_flops) == []
    assert "disturbed" not in by_flops.get_xlabel() + figures[1].caption + figures[1].alt


def test_a_disturbed_time_is_dotted_where_accuracy_is_drawn_over_it(suite, drawn):
    suite.add_all(("dense", "sdgp"), seeds=1)
    folder = suite.write()
    disturb(folder, "sdgp")
    (group,), _ = group_trials(read(folder).trials)
    curve_figures(method_rows(group, looks(["sdgp[n=2,m=4]"])), "slug")
    (axes,) = [axes for figure in drawn for axes in figure.axes if "Training time" in axes.get_xlabel()]
    assert axes.get_xlabel().endswith("dotted: disturbed, not reliable")
    styles = {(to_hex(line.get_color()), line.is_dashed()) for line in axes.lines if len(line.get_xdata()) > 1}
    assert styles == {(svg.colour(0), False), (svg.colour(1), True)}


def test_the_figure_has_each_trial_and_the_intervals_of_the_table(suite, drawn):
    for seed, accuracy in enumerate((60.0, 70.0, 80.0)):
        suite.add("dense", seed, accuracy=accuracy, time=100.0, variant="")
        suite.add("sdgp", seed, accuracy=accuracy - 1 + 0.01 * seed, time=90.0 + seed, variant="")
    (group,), _ = group_trials(read(suite.write()).trials)
    rows = method_rows(group, looks(["sdgp"]))
    (by_time, _), _ = tradeoff_figures(rows, "slug", NO_BUDGETS)
    dense, sdgp = drawn[0].axes[0].containers
    assert dense.lines[2] == ()
    (across,), (upright,) = (bars.get_segments() for bars in sdgp.lines[2])
    half, ratio = 100 * rows[1].accuracy_difference.half_width, rows[1].time_ratio
    assert [y for _, y in upright] == pytest.approx([69.01 - half, 69.01 + half])
    assert [x for x, _ in across] == pytest.approx(
        [91 - 100 * (ratio.mean - ratio.low), 91 + 100 * (ratio.high - ratio.mean)]
    )
    trials = [tuple(place) for drawing in drawn[0].axes[0].collections for place in drawing.get_offsets()]
    assert {(100.0, 60.0), (90.0, 59.0)} < set(trials)
    assert "dense: 70.00 % at 100 s; sdgp: 69.01 % at 91 s" in by_time.alt
    assert "with 95 % intervals of the differences to dense" in by_time.caption


def test_the_time_of_the_time_pass_is_drawn_where_all_methods_have_one(suite, drawn):
    for seed, accuracy in enumerate((60.0, 70.0)):
        for method in ("dense", "sdgp"):
            suite.add(method, seed, accuracy=accuracy - (method == "sdgp"), time=100.0, variant="")
    (group,), _ = group_trials(read(suite.write()).trials)
    timed = MethodTime.model_validate({"passes": [one_pass(0.9)]})
    rows = method_rows(replace(group, times={"sdgp": timed}), looks(["sdgp"]))
    (by_time, by_flops), _ = tradeoff_figures(rows, "slug", NO_BUDGETS)
    assert "sdgp: 64.00 % at 0.9 × dense" in by_time.alt
    assert drawn[0].axes[0].get_xlabel().startswith("Training time, measured (× dense)")
    assert "time passes" in by_time.caption
    assert "Pareto line" in by_time.caption
    disturbed = MethodTime.model_validate({"passes": [one_pass(0.9, load=1.0)]})
    rows = method_rows(replace(group, times={"sdgp": disturbed}), looks(["sdgp"]))
    (by_time, by_flops), _ = tradeoff_figures(rows, "slug", NO_BUDGETS)
    assert "Crosses: disturbed times" in by_time.caption
    assert "Pareto line" not in by_time.caption
    assert "time pass" not in by_flops.caption


def test_the_pareto_line_has_the_points_that_none_beats():
    points = [(1.0, 80.0), (0.8, 78.0), (0.9, 77.0), (0.8, 79.0), (1.2, 80.0), (0.5, 60.0)]
    assert pareto_line(points) == [(0.5, 60.0), (0.8, 79.0), (1.0, 80.0)]


def test_axes_that_do_not_start_at_zero_say_so(suite, drawn):
    for seed, accuracy in enumerate((70.0, 72.0)):
        suite.add("dense", seed, accuracy=accuracy, time=100.0 + seed, variant="")
    (group,), _ = group_trials(read(suite.write()).trials)
    rows = method_rows(group, looks([]))
    figures = [*tradeoff_figures(rows, "slug", NO_BUDGETS)[0], *curve_figures(rows, "slug")[0]]
    assert len(figures) == len(drawn) == 6
    for figure in drawn:
        (axes,) = figure.axes
        for label, limits in ((axes.get_xlabel(), axes.get_xlim()), (axes.get_ylabel(), axes.get_ylim())):
            assert label.endswith("axis not from 0") == (limits[0] > 0), label


def test_axes_end_where_accuracies_and_times_do(suite, drawn):
    """The interval of two very different seeds extends beyond 100 % and below 0 s."""
    for seed, (accuracy, time) in enumerate(((60.0, 1.0), (95.0, 9.0))):
        suite.add("dense", seed, accuracy=accuracy, time=time)
    (group,), _ = group_trials(read(suite.write()).trials)
    tradeoff_figures(method_rows(group, looks([])), "slug", NO_BUDGETS)
    (axes,) = drawn[0].axes
    assert axes.get_xlim()[0] >= 0
    assert axes.get_ylim()[1] <= 100
