"""Data of interactive figures: traces and layout for plotly.js, which the page draws in place of a static figure.

Colours that follow the scheme of the page are written as CSS variables (`var(--ink)`); the page's script replaces them
by their values. Plotly understands a subset of HTML in labels, so that all text of records is escaped here.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes

from reports.data.groups import Look
from reports.figures import svg

# Plotly's names of `svg.MARKERS` and `svg.DASHES`, in the same order.
_MARKERS = (
    *("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "pentagon"),
    *("triangle-left", "triangle-right", "hexagon", "star"),
)
_DASHES = ("solid", "dash", "dashdot", "longdash")
DOTTED = "dot"  # disturbed times
_INK, _MUTED, _GRID = "var(--ink)", "var(--muted)", "var(--grid)"

# An interval: half-widths below and above, or `None`.
Spread = tuple[float, float] | None


def text(lines: Iterable[str]) -> str:
    """Return lines as one text that Plotly shows unchanged, without reading markup from it."""
    return "<br>".join(html.escape(line, quote=False) for line in lines)


class Plot:
    """Collects the traces of one figure."""

    def __init__(self) -> None:
        self._traces: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []

    def line(
        self,
        name: str,
        look: Look,
        xs: Sequence[float],
        ys: Sequence[float],
        hover: Sequence[Sequence[str]],
        *,
        width: float = 2.0,
        steps: bool = False,
        dotted: bool = False,
        markers: bool = True,
        legend: bool = True,
    ) -> None:
        """Add a line of a method.

        Args:
            name: Name in the legend. Lines of one name are shown and hidden together.
            look: How the method is drawn.
            xs: Positions on the x axis.
            ys: Positions on the y axis.
            hover: For each point, the lines of text that are shown when the pointer is on it.
            width: Width of the line in pixels.
            steps: Whether the value of a point holds until the next point.
            dotted: Whether the line is dotted, for disturbed times.
            markers: Whether points have markers.
            legend: Whether the line has an entry in the legend.
        """
        dashes = DOTTED if dotted else _DASHES[look.dash % len(_DASHES)]
        self._add(
            name, xs, ys, hover, mode="lines+markers" if markers else "lines", showlegend=legend,
            line={"color": _colour(look), "width": width, "dash": dashes, "shape": "hv" if steps else "linear"},
            marker={"symbol": _symbol(look), "size": 6, "color": _colour(look)},
        )  # fmt: skip

    def band(self, name: str, look: Look, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> None:
        """Fill the area between two lines of a method, without an entry in the legend."""
        self._traces.append(
            {
                "type": "scatter", "mode": "lines", "x": [*xs, *reversed(xs)], "y": [*highs, *reversed(lows)],
                "fill": "toself", "fillcolor": _colour(look), "opacity": 0.18, "line": {"width": 0},
                "hoverinfo": "skip", "showlegend": False, "legendgroup": html.escape(name, quote=False),
            }
        )  # fmt: skip

    def points(
        self, name: str, look: Look, xs: Sequence[float], ys: Sequence[float], hover: Sequence[Sequence[str]]
    ) -> None:
        """Add small markers of single trials, without an entry in the legend."""
        marker = {"symbol": _symbol(look), "size": 7, "color": _colour(look), "opacity": 0.65}
        self._add(name, xs, ys, hover, mode="markers", showlegend=False, marker=marker)

    def mean(
        self, name: str, look: Look, x: float, y: float, x_spread: Spread, y_spread: Spread, hover: Sequence[str]
    ) -> None:
        """Add a large hollow marker with its intervals, and the entry of the method in the legend."""
        colour = _colour(look)
        marker = {"symbol": f"{_symbol(look)}-open", "size": 13, "color": colour, "line": {"width": 2, "color": colour}}
        self._add(
            name, [x], [y], [hover], mode="markers", showlegend=True, marker=marker,
            error_x=_error(x_spread, colour), error_y=_error(y_spread, colour),
        )  # fmt: skip

    def reference(
        self, name: str, points: Sequence[tuple[float, float]], hover: Sequence[Sequence[str]], *, steps: bool
    ) -> None:
        """Add a line that belongs to no method: grey steps, or a dashed line through its points."""
        xs, ys = [x for x, _ in points], [y for _, y in points]
        line = {"color": _MUTED, "width": 1.2, "dash": "solid", "shape": "hv"}
        if not steps:
            line = {"color": _INK, "width": 1.4, "dash": "dash", "shape": "linear"}
        mode = "lines" if steps else "lines+markers"
        self._add(name, xs, ys, hover, mode=mode, showlegend=True, line=line, marker={"size": 6, "color": _INK})

    def crosses(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Cross out points whose time is disturbed."""
        marker = {"symbol": "x-thin", "size": 11, "line": {"width": 1.4, "color": _INK}}
        self._add("disturbed time", xs, ys, [["disturbed time"]] * len(xs), mode="markers", showlegend=True,
                  marker=marker)  # fmt: skip
        self._traces[-1]["hoverinfo"] = "skip"

    def below(self, name: str, x: float) -> None:
        """Name what is drawn at the lower edge, at x, because it is far below the axis."""
        self._annotations.append({"text": text([name]), "x": x, "y": 0, "yref": "paper", "yanchor": "bottom",
                                  "yshift": 16, "showarrow": False, "font": {"size": 11, "color": _INK}})  # fmt: skip

    def figure(self, axes: Axes, *, at_side: bool = False) -> dict[str, Any]:
        """Return traces and layout with the titles and limits of the static figure.

        Args:
            axes: Axes of the static figure.
            at_side: Whether the legend is to the right of the axes, where it can be scrolled.
        """
        above = {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"}
        axis = {"gridcolor": _GRID, "linecolor": _MUTED, "zeroline": False, "automargin": True, "ticks": "outside",
                "tickcolor": _MUTED}  # fmt: skip
        layout = {
            "xaxis": {**axis, "title": _title(axes.get_xlabel()), "range": list(axes.get_xlim())},
            "yaxis": {**axis, "title": _title(axes.get_ylabel()), "range": list(axes.get_ylim())},
            "font": {"color": _INK, "size": 12},
            "hoverlabel": {"align": "left", "bgcolor": "var(--panel)", "bordercolor": _MUTED,
                           "font": {"color": _INK, "size": 12}, "namelength": -1},
            "legend": {**({"x": 1.04, "y": 1} if at_side else above), "font": {"size": 11}},
            "annotations": self._annotations,
            "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "hovermode": "closest",
            "margin": {"l": 50, "r": 12, "t": 10, "b": 45}, "uirevision": "kept",
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": _MUTED, "activecolor": _INK, "orientation": "v"},
        }  # fmt: skip
        return {"data": self._traces, "layout": layout}

    def _add(
        self, name: str, xs: Sequence[float], ys: Sequence[float], hover: Sequence[Sequence[str]], **more: Any
    ) -> None:
        escaped = html.escape(name, quote=False)
        self._traces.append(
            {
                "type": "scatter", "x": list(xs), "y": list(ys), "name": escaped, "legendgroup": escaped,
                "hoverinfo": "text", "hovertext": [text(lines) for lines in hover], **more,
            }
        )  # fmt: skip


def _title(label: str) -> dict[str, Any]:
    return {"text": text(label.splitlines()), "font": {"size": 12}}


def _colour(look: Look) -> str:
    return svg.css_colour(look.colour)


def _symbol(look: Look) -> str:
    return _MARKERS[look.marker % len(_MARKERS)]


def _error(spread: Spread, colour: str) -> dict[str, Any]:
    if spread is None:
        return {"visible": False}
    below, above = spread
    return {
        "type": "data", "symmetric": False, "array": [above], "arrayminus": [below], "color": colour, "thickness": 1.4,
        "width": 4,
    }  # fmt: skip
