"""Figures of accuracy against cost, inspected as matplotlib objects."""

import json

import pytest
from matplotlib.colors import to_hex

from reports.data.budget import BudgetCurve
from reports.data.groups import group_trials, looks
from reports.data.method_rows import method_rows
from reports.data.records import read
from reports.figures import svg
from reports.figures.tradeoff import tradeoff_figures
from reports.figures.training_curves import curve_figures


def test_methods_with_equal_accuracy_and_cost_are_both_visible(suite, drawn):
    suite.rows.clear()
    for method in ("dense", "sdgp"):
        for seed, accuracy in enumerate((70.0, 72.0)):
            suite.add(method, seed, accuracy=accuracy, time=100.0, variant="", train_flops_effective=1e12)
    (group,), _ = group_trials(read(suite.write()).trials)
    figures, missing = tradeoff_figures(method_rows(group, looks(["sdgp"])), "slug", BudgetCurve({}))
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
            suite.add(method, seed, accuracy=accuracy, time=100.0 + seed, variant="", train_flops_effective=1e12)
    folder = suite.write()
    disturb(folder, "sdgp")
    (group,), _ = group_trials(read(folder).trials)
    figures, _ = tradeoff_figures(method_rows(group, looks(["sdgp"])), "slug", BudgetCurve({}))
    by_time, by_flops = (figure.axes[0] for figure in drawn)
    assert crosses(by_time) == [pytest.approx((100.0, 70.0)), pytest.approx((100.5, 71.0))]  # the trial, and the mean
    assert by_time.get_xlabel().endswith("×: disturbed, not reliable")
    assert "Crosses mark disturbed times" in figures[0].caption
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
