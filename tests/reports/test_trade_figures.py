"""Accuracy against cost, looked up in the drawing itself."""

import pytest
from matplotlib.colors import to_hex

from reports import svg
from reports.records import read
from reports.rows import group_trials, method_rows
from reports.trade_figures import trade_figures


def test_methods_of_one_accuracy_and_cost_are_both_seen(suite, drawn):
    suite.rows.clear()
    for method in ("dense", "sdgp"):
        for seed, accuracy in enumerate((70.0, 72.0)):
            suite.add(method, seed, accuracy=accuracy, time=100.0, variant="", train_flops_effective=1e12)
    (group,), _ = group_trials(read(suite.write()).trials)
    figures, missing = trade_figures(method_rows(group, {"dense": 0, "sdgp": 1}), "slug")
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
