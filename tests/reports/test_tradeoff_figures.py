"""Figures of accuracy against cost, inspected as matplotlib objects."""

import json
from dataclasses import replace

import pytest
from matplotlib.colors import to_hex
from time_passes import one_pass

from reports.data.method_rows import method_rows
from reports.data.pooling import pool_machines
from reports.data.records import looks, page_groups, read
from reports.figures import svg
from reports.figures.tradeoff import lower_edge, pareto_line, tradeoff_figures
from reports.figures.training_curves import curve_figures
from suite.measure.times import MethodTime

NO_BUDGETS = {"time": (), "flops": ()}


def test_methods_with_equal_accuracy_and_cost_are_both_visible(suite, drawn):
    for method in ("dense", "sdgp"):
        for seed, accuracy in enumerate((70.0, 72.0)):
            suite.add(method, seed, accuracy=accuracy, time=100.0, variant="", train_flops_executed=1e12)
    (group,), _ = page_groups(read(suite.write()).trials)
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
    (group,) = pool_machines(page_groups(read(suite.write()).trials)[0], ())
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
    (group,), _ = page_groups(read(suite.write()).trials)
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
    record["provenance"] |= {"busy_cores": 0.0, "attempts": [{"busy_cores": 2.0}]}
    path.write_text(json.dumps(record))


def test_a_disturbed_time_is_in_no_figure_and_the_caption_names_what_is_left_out(suite, drawn):
    suite.add_all(("dense", "sdgp"), seeds=2)
    folder = suite.write()
    disturb(folder, "sdgp")
    (group,), _ = page_groups(read(folder).trials)
    rows = method_rows(group, looks(["sdgp[n=2,m=4]"]))
    (by_time, by_flops), _ = tradeoff_figures(rows, "slug", NO_BUDGETS)
    assert "sdgp" not in by_time.alt
    assert by_time.caption.endswith("Not drawn, for want of an undisturbed time: sdgp[n=2,m=4].")
    assert "sdgp" in by_flops.alt
    curve_figures(rows, "slug")
    (axes,) = [axes for figure in drawn[2:] for axes in figure.axes if "Training time" in axes.get_xlabel()]
    assert {to_hex(line.get_color()) for line in axes.lines if len(line.get_xdata()) > 1} == {svg.colour(0)}
    disturb(folder, "dense")
    (group,), _ = page_groups(read(folder).trials)
    rows = method_rows(group, looks(["sdgp[n=2,m=4]"]))
    figures, (missing,) = tradeoff_figures(rows, "slug", NO_BUDGETS)
    assert [figure.name for figure in figures] == ["slug-accuracy-flops"]
    assert missing.endswith("not drawn, because no finished trial has an accuracy and an undisturbed time.")


def test_the_figure_has_each_trial_and_the_intervals_of_the_table(suite, drawn):
    for seed, accuracy in enumerate((60.0, 70.0, 80.0)):
        suite.add("dense", seed, accuracy=accuracy, time=100.0, variant="")
        suite.add("sdgp", seed, accuracy=accuracy - 1 + 0.01 * seed, time=90.0 + seed, variant="")
    (group,), _ = page_groups(read(suite.write()).trials)
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


def test_time_passes_are_drawn_for_the_methods_that_have_them_and_seconds_only_where_none_has(suite, drawn):
    for seed, accuracy in enumerate((60.0, 70.0)):
        for method in ("dense", "sdgp", "rigl"):
            suite.add(method, seed, accuracy=accuracy - (method == "sdgp"), time=100.0, variant="")
    folder = suite.write()
    disturb(folder, "dense")
    (group,), _ = page_groups(read(folder).trials)

    def drawn_with(load):
        timed = MethodTime.model_validate({"passes": [one_pass(0.9, load=load)]})
        rows = method_rows(replace(group, times={"sdgp": timed}), looks(["sdgp", "rigl"]))
        drawn.clear()
        (by_time, by_flops), _ = tradeoff_figures(rows, "slug", NO_BUDGETS)
        curve_figures(rows, "slug")
        assert "time pass" not in by_flops.caption
        return by_time, [axes for figure in drawn for axes in figure.axes if "Training time" in axes.get_xlabel()]

    figure, (points, curves) = drawn_with(load=0.1)
    assert "dense: 65.00 % at 1 × dense; sdgp: 64.00 % at 0.9 × dense." in figure.alt
    assert "Times: mean ratio of the time passes" in figure.caption
    assert figure.caption.endswith("Not drawn, for want of an undisturbed time pass: rigl.")
    assert {axes.get_xlabel().partition(";")[0] for axes in (points, curves)} == {"Training time, measured (× dense)"}
    ends = [line.get_xdata()[-1] for line in curves.lines if len(line.get_xdata()) > 1]
    assert ends == pytest.approx([1.0, 0.9])
    figure, (points, curves) = drawn_with(load=1.0)  # which disturbs the pass
    assert "rigl: 65.00 % at 100 s; sdgp: 64.00 % at 100 s" in figure.alt
    assert {axes.get_xlabel().partition(";")[0] for axes in (points, curves)} == {"Training time, measured (s)"}


def test_the_pareto_line_has_the_points_that_none_beats():
    points = [(1.0, 80.0), (0.8, 78.0), (0.9, 77.0), (0.8, 79.0), (1.2, 80.0), (0.5, 60.0)]
    assert pareto_line(points) == [(0.5, 60.0), (0.8, 79.0), (1.0, 80.0)]


def test_axes_that_do_not_start_at_zero_say_so(suite, drawn):
    for seed, accuracy in enumerate((70.0, 72.0)):
        suite.add("dense", seed, accuracy=accuracy, time=100.0 + seed, variant="")
    (group,), _ = page_groups(read(suite.write()).trials)
    rows = method_rows(group, looks([]))
    figures = [*tradeoff_figures(rows, "slug", NO_BUDGETS)[0], *curve_figures(rows, "slug")[0]]
    assert len(figures) == len(drawn) == 6
    for figure in drawn:
        (axes,) = figure.axes
        for label, limits in ((axes.get_xlabel(), axes.get_xlim()), (axes.get_ylabel(), axes.get_ylim())):
            assert label.endswith("axis not from 0") == (limits[0] > 0), label


def test_axes_end_where_accuracies_and_times_do_with_room_for_markers_and_arrowheads_of_longer_intervals(suite, drawn):
    """The interval of two very different seeds extends beyond 100 % and below 0 s."""
    for seed, (accuracy, time) in enumerate(((60.0, 1.0), (100.0, 9.0))):
        suite.add("sdgp", seed, accuracy=accuracy, time=time, variant="")
    (group,), _ = page_groups(read(suite.write()).trials)
    (figure, _), _ = tradeoff_figures(method_rows(group, looks(["sdgp"])), "slug", NO_BUDGETS)
    (axes,) = drawn[0].axes
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    assert left == 0
    assert 101 < high <= 104  # half a marker more
    heads = {line.get_marker(): line.get_xydata()[0].tolist() for line in axes.lines if line.get_marker() in "<>v^"}
    assert heads == {"<": [left, 80], ">": [right, 80], "v": [5, low], "^": [5, high]}
    assert "Arrowheads: the interval goes on." in figure.caption
