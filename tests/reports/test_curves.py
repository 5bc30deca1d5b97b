"""Curves, bars and heat maps of reproductions, looked up in the drawing itself."""

import numpy as np
from matplotlib.collections import QuadMesh

from reports import svg
from reports.curves import Line, Panel, bars_figure, curves_figure, peaks_figure
from reports.estimates import Estimate


def test_lines_are_drawn_where_their_points_are_in_one_colour_a_label(drawn):
    left = [Line("dense", [(100.0, Estimate(90.0, 1.5, 3))]), Line("a", [(60.0, 88.0), (40.0, 80.0)])]
    right = [Line("a", [(1.0, 2.0)]), Line("empty", [])]
    figure = curves_figure("f", "T", "C", [Panel("L", "x", "y", left), Panel("R", "x", "y", right)])
    one, other = drawn[0].axes
    lines = {tuple(map(tuple, line.get_xydata())): line.get_color() for line in one.lines if len(line.get_xydata())}
    assert lines[((40.0, 80.0), (60.0, 88.0))] == svg.PALETTE[0]  # in the order of x
    assert lines[((100.0, 90.0),)] == svg.DENSE
    assert [line.get_color() for line in other.lines] == [svg.PALETTE[0]]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["dense", "a"]
    assert "L, a: 80.00 at 40, 88.00 at 60" in figure.alt


def test_nothing_is_drawn_of_nothing(drawn):
    assert curves_figure("f", "T", "C", [Panel("L", "x", "y", [Line("a", [])])]) is None
    assert not drawn


def test_bars_stand_side_by_side(drawn):
    bars_figure("f", "T", "C", "y", ["p", "q"], {"one": [1.0, 2.0], "other": [3.0, 4.0]})
    bars = sorted((bar.get_x(), bar.get_height()) for bar in drawn[0].axes[0].patches)
    assert [height for _, height in bars] == [1.0, 3.0, 2.0, 4.0]
    assert [label.get_text() for label in drawn[0].axes[0].get_xticklabels()] == ["p", "q"]


def test_dead_channels_are_masked_and_channels_ordered_by_their_last_value(drawn):
    figure = peaks_figure("f", "T", "C", {"conv": [[0.5, 0.3], [1e-5, 0.4]]}, 1e-4)
    (mesh,) = [one for one in drawn[0].axes[0].collections if isinstance(one, QuadMesh)]
    values = mesh.get_array()
    assert np.ma.getmaskarray(values).tolist() == [[False, False], [False, True]]
    assert values.filled(0).tolist() == [[0.3, 0.4], [0.5, 0.0]]
    assert "conv: 50 % of 2 channels dead" in figure.alt
