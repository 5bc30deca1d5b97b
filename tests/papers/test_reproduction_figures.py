"""What the figures of reproductions draw, looked up in the drawing itself: where points, bars and colours are."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from reports.data.estimates import Estimate
from reports.figures import svg
from reports.papers import charts
from reports.papers.comparison import Comparison
from reports.papers.paper import Chart


def compared(name, published, mean, half_width, *, difference=True):
    unit = "points" if difference else "%"
    return Comparison(
        name, unit, "a", Estimate(mean, half_width, 3), "measured", published, "published", is_difference=difference
    )


def test_each_difference_is_drawn_where_it_is_with_its_interval(drawn):
    rows = [compared("a minus dense", -0.8, -1.5, 0.4), compared("b minus dense", None, 0.2, None)]
    rows.append(compared("accuracy", 95.0, 90.0, 1.0, difference=False))
    chart = Chart(draw="differences", title="T")
    assert charts.differences("f", chart, rows[2:], None) is None  # there is no difference
    assert "a minus dense: published −0.8, ours −1.5 ± 0.4" in charts.differences("f", chart, rows, None).alt
    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    (published,) = [line for line in axes.lines if line.get_marker() == "D"]
    assert list(map(float, published.get_xydata()[0])) == [-0.8, pytest.approx(-0.14)]
    ours = [line for line in axes.lines if line.get_marker() == "o"]
    assert [tuple(map(float, line.get_xydata()[0])) for line in ours] == [
        pytest.approx(point) for point in ((-1.5, 0.14), (0.2, 1.14))
    ]
    bars = [tuple(segment[:, 0]) for line in axes.collections if isinstance(line, LineCollection)
            for segment in line.get_segments()]  # fmt: skip
    assert bars == [pytest.approx((-1.9, -1.1))]
    assert published.get_color() == svg.PALETTE[1]
    assert {line.get_color() for line in ours} == {svg.PALETTE[0]}
    legend = drawn[0].legends[0]
    labels = {text.get_text(): handle for text, handle in zip(legend.get_texts(), legend.get_lines(), strict=True)}
    assert labels["ours"].get_color() == svg.PALETTE[0]
    assert labels["published"].get_color() == svg.PALETTE[1]


def test_a_grid_colours_published_and_ours_by_their_own_differences(drawn):
    lines = []
    for name, theirs, mean in (("a", -0.6, -2.0), ("b", -0.1, -1.0), ("c", 0.0, 0.5)):
        lines.append(compared(f"accuracy, {name}", 95.0 + theirs, 90.0, 1.0, difference=False))
        lines.append(compared(f"{name} minus dense", theirs, mean, 1.0))
    cells = {"8": {"4": "", "8": "a"}, "2": {"4": "b", "8": "c"}}
    chart = Chart(draw="grid", title="T", lines=cells, panels=[{"x": "m", "y": "ratio"}])
    alt = charts.grid("g", chart, lines, None).alt
    assert "ratio 8, m 8: Published 94.4 (−0.6), Ours, measured 90.0 ± 1.0 (−2.0 ± 1.0)" in alt
    assert "ratio 8, m 4" not in alt
    published, ours = drawn[0].axes[:2]
    assert (published.get_title(), ours.get_title()) == ("Published", "Ours, measured")
    images = [axes.images[0] for axes in (published, ours)]
    values = [np.ma.filled(image.get_array().astype(float), np.nan) for image in images]
    np.testing.assert_array_equal(values[0], [[np.nan, -0.6], [-0.1, 0.0]])
    np.testing.assert_array_equal(values[1], [[np.nan, -2.0], [-1.0, 0.5]])
    assert [image.get_clim() for image in images] == [(-2.0, 0.5)] * 2  # one scale
    texts = {
        axes.get_title(): {text.get_position(): text.get_text() for text in axes.texts} for axes in drawn[0].axes[:2]
    }
    assert texts["Published"][1, 0] == "94.4\n(−0.6)"
    assert texts["Ours, measured"][1, 0] == "90.0 ± 1.0\n(−2.0 ± 1.0)"
    assert texts["Ours, measured"][0, 0] == "N/A"
    assert published.yaxis_inverted()  # the first row is on top
