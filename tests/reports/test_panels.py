"""Panels and bars of reproductions, inspected as matplotlib objects."""

import pytest
from matplotlib.colors import to_hex

from reports.data.estimates import Estimate
from reports.figures import svg
from reports.figures.panels import Line, Panel, bars_figure, curves_figure


def test_lines_are_drawn_where_their_points_are_in_one_colour_a_label(drawn):
    left = [Line("dense", [(100.0, Estimate(90.0, 99.0, 3))]), Line("a", [(60.0, 88.0), (40.0, 80.0)])]
    right = [Line("a", [(1.0, 2.0)]), Line("empty", [])]
    figure = curves_figure("f", "T", "C", [Panel("L", "x", "y", left, from_zero=True), Panel("R", "x", "y", right)])
    one, other = drawn[0].axes
    lines = {tuple(map(tuple, line.get_xydata())): line.get_color() for line in one.lines if len(line.get_xydata())}
    assert lines[((40.0, 80.0), (60.0, 88.0))] == svg.PALETTE[0]  # in the order of x
    assert lines[((100.0, 90.0),)] == svg.DENSE
    assert [line.get_color() for line in other.lines] == [svg.PALETTE[0]]
    assert one.get_ylim()[0] <= -9.0  # the end of an interval
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["dense", "a"]
    assert "L, a: 80.00 at 40, 88.00 at 60" in figure.alt


def test_panels_without_points_give_no_figure(drawn):
    assert curves_figure("f", "T", "C", [Panel("L", "x", "y", [Line("a", [])])]) is None
    assert not drawn


def test_bars_are_side_by_side(drawn):
    bars_figure("f", "T", "C", "y", ["p", "q"], {"one": [1.0, 2.0], "other": [3.0, 4.0]})
    bars = sorted((bar.get_x(), bar.get_height()) for bar in drawn[0].axes[0].patches)
    assert [height for _, height in bars] == [1.0, 3.0, 2.0, 4.0]
    starts = [left for left, _ in bars]
    assert starts == pytest.approx([-0.4, 0.0, 0.6, 1.0])  # each as wide as the next one is away
    assert [label.get_text() for label in drawn[0].axes[0].get_xticklabels()] == ["p", "q"]
    assert _legend(drawn[0], lambda patch: to_hex(patch.get_facecolor())) == {
        "one": svg.colour(1),
        "other": svg.colour(2),
    }


def test_a_logarithmic_axis_has_markers_instead_of_bars(drawn):
    spreads = {"dense": [(1.0, 3.0)]}
    figure = bars_figure("f", "T", "C", "y", ["p"], {"other": [30.0], "dense": [2.0]}, spreads, logarithmic=True)
    (axes,) = drawn[0].axes
    assert not axes.patches
    marks = {float(line.get_ydata()[0]): (line.get_color(), line.get_marker()) for line in axes.lines}
    assert marks == {30.0: (svg.PALETTE[0], svg.marker(1)), 2.0: (svg.DENSE, svg.marker(0))}
    assert [float(line.get_xdata()[0]) for line in axes.lines] == pytest.approx([-0.2, 0.2])  # side by side
    assert {line.get_linestyle() for line in axes.lines} == {"None"}
    (spread,) = [lines for lines in axes.collections if len(lines.get_segments())]
    assert spread.get_segments()[0][0, 0] == pytest.approx(0.2)
    assert _legend(drawn[0], lambda line: (line.get_color(), line.get_marker(), line.get_linestyle())) == {
        "other": (svg.PALETTE[0], svg.marker(1), "None"),
        "dense": (svg.DENSE, svg.marker(0), "None"),
    }
    assert _ends(axes) == {(1.0, 3.0)}
    assert axes.get_yscale() == "log"
    assert "1 marks each" in figure.alt


def _legend(figure, look):
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    return dict(zip(texts, map(look, legend.legend_handles), strict=True))


def _ends(axes):
    return {tuple(line[:, 1]) for lines in axes.collections for line in lines.get_segments()}


def test_parts_are_stacked_under_a_mark(drawn):
    bars = {"forward": [25.0, 40.0], "backward": [75.0, 60.0]}
    bars_figure("f", "T", "C", "y", ["net", "other"], bars, stacked=True, mark=(30.0, "mark"))
    (axes,) = drawn[0].axes
    assert [(bar.get_y(), bar.get_height()) for bar in axes.patches] == [
        (0.0, 25.0), (0.0, 40.0), (25.0, 75.0), (40.0, 60.0),
    ]  # fmt: skip
    assert {bar.get_x() for bar in axes.patches} == {-0.4, 0.6}
    assert list(axes.lines[0].get_ydata()) == [30.0, 30.0]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["forward", "backward", "mark"]
