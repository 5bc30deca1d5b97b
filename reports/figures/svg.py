"""Figures as SVG: their colours, their lines and points by seaborn, and the names of methods inside them.

A figure has two forms: inline SVG that follows the light or dark scheme of the page, and a light file. Colours that
change with the scheme are drawn in sentinel colours, which no data uses. `render` replaces them in the text by CSS
variables of the page (inline) or by the colours of the light scheme (file). Equal figures give equal text.

Lines and points are drawn from frames with a row for each point. The columns are `method` (the label) and those of both
axes.
"""

from __future__ import annotations

import io
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
import seaborn
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.data.records import Look
from suite.parameters import split

INK, MUTED, GRID, DENSE, GROUND = "#010101", "#020202", "#030303", "#040404", "#050505"
_INLINE = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    DENSE: "var(--dense)",
    GROUND: "var(--ground)",
}
_LIGHT = {INK: "#1b1f23", MUTED: "#57606a", GRID: "#d8dee4", DENSE: "#000000", GROUND: "#ffffff"}

# Equally bright, so that shades that are darker or lighter than these are still seen on both grounds.
PALETTE = ("#1f7ad6", "#cc5900", "#008d66", "#c8509c", "#9d7600", "#8f63de", "#00889b")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*")
_LUMINANCE = (0.2126, 0.7152, 0.0722)  # of linear red, green and blue (WCAG 2)
# With these luminances, the contrast to the grounds of both schemes is just above 3:1.
_DARKEST, _LIGHTEST = 0.13, 0.29
_GREY, _GOLDEN = 0.8, 0.618  # largest share of grey in a shade, and the step that repeats no share
# Dashes in seaborn's form, which is empty for a solid line.
DASHES: tuple[Any, ...] = ("", (5, 2), (6, 2, 1.5, 2), (10, 2.5))
_LONG_TITLE = 45  # characters; longer titles of axes get a second line
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pruning during training",
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}


@contextmanager
def style() -> Iterator[None]:
    """Set the style of all figures. Draw and render inside this context."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


@cache
def colour(index: int) -> str:
    """Return a colour by its number (`reports.data.records.Look`); 0 is dense, -1 a control.

    After the palette come shades of each colour, all different: by turns as bright, lighter and darker, with another
    share of grey in each turn. Their contrast to the grounds of both schemes is at least 3:1.
    """
    if index <= 0:
        return MUTED if index < 0 else DENSE
    shade, place = divmod(index - 1, len(PALETTE))
    rgb = np.array(to_rgb(PALETTE[place]))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    own = float(linear @ _LUMINANCE)
    bright = (own, _LIGHTEST, _DARKEST)[shade % 3]
    linear = linear * bright / own if bright <= own else 1 - (1 - linear) * (1 - bright) / (1 - own)
    linear += _GREY * (shade // 3 * _GOLDEN % 1) * (bright - linear)
    red, green, blue = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return to_hex((red, green, blue))


def marker(index: int) -> str:
    """Return a marker by its number. Markers distinguish methods whose colours are equal or hard to see."""
    return MARKERS[index % len(MARKERS)]


def dash(index: int) -> Any:
    """Return the dashes of a line by their number. Dashes distinguish variants of one method."""
    return DASHES[index % len(DASHES)]


def say_where_axes_start(axes: Axes) -> None:
    """Say in the title of an axis if it does not start at 0. Set titles and limits before."""
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if min(low, high) > 0:
            title = axis.get_label_text()
            separator = ";\n" if len(title) > _LONG_TITLE else "; "
            axis.set_label_text(f"{title}{separator}axis not from 0")


def css_colour(index: int) -> str:
    """Return the colour of a method for the style sheet of the page."""
    return _INLINE.get(colour(index), colour(index))


def render(figure: Figure, name: str, title: str, alt: str) -> tuple[str, str]:
    """Return the figure as SVG text, `(inline, standalone)`.

    Args:
        figure: Figure that was drawn within `style()`.
        name: Name that is unique in the report. All ids start with it, so that one page can contain several figures.
        title: Title for readers who do not see the figure.
        alt: Description for readers who do not see the figure.
    """
    buffer = io.BytesIO()
    canvas = FigureCanvasSVG(figure)
    # Arrange the axes here and print directly: `print_figure` would draw the figure twice.
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
    canvas.print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for child in list(root):
        if child.tag.endswith("metadata"):
            root.remove(child)
    _prefix_ids(root, name)
    _describe(root, name, title, alt)
    inline = _text(_without_namespaces(root), _INLINE)
    background = ElementTree.Element("rect", {"width": "100%", "height": "100%", "fill": GROUND})
    root.insert(2, background)
    root.set("xmlns", "http://www.w3.org/2000/svg")
    return inline, _text(root, _LIGHT) + "\n"


def _prefix_ids(root: ElementTree.Element, name: str) -> None:
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            if key == "id":
                element.set(key, f"{name}-{value}")
            elif key.endswith("}href") and value.startswith("#"):
                # SVG 2, which all current browsers support, needs no namespace for href.
                del element.attrib[key]
                element.set("href", f"#{name}-{value[1:]}")
            elif key.endswith("}href"):
                del element.attrib[key]
                element.set("href", value)
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{name}-"))


def _describe(root: ElementTree.Element, name: str, title: str, alt: str) -> None:
    for position, (tag, text) in enumerate((("title", title), ("desc", alt))):
        element = ElementTree.Element(tag, {"id": f"{name}-{tag}"})
        element.text = text
        root.insert(position, element)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-desc")


def _without_namespaces(root: ElementTree.Element) -> ElementTree.Element:
    for element in root.iter():
        element.tag = element.tag.rsplit("}", 1)[-1]
    # The style sheet of the page sets the width; the view box keeps the aspect ratio.
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    return root


def _text(root: ElementTree.Element, colours: dict[str, str]) -> str:
    text = ElementTree.tostring(root, encoding="unicode")
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", lambda found: f"font-size: {found[1]}px; font-family: {_FONT}", text)
    for sentinel, value in colours.items():
        text = text.replace(sentinel, value)
    return text


if TYPE_CHECKING:
    import pandas as pd

LETTERS = 45
"""Most letters in the name of a row."""


def draw_lines(
    axes: Axes,
    frame: pd.DataFrame,
    x: str,
    y: str,
    looks: Mapping[str, Look],
    **options: Any,
) -> None:
    """Draw a line for each method, through its points in their order, with some markers.

    Args:
        axes: Axes.
        frame: Points, in the order of the lines.
        x, y: Columns of the axes.
        looks: How each method is drawn.
        options: Further options of `seaborn.lineplot`.
    """
    dashes = {name: dash(look.dash) for name, look in looks.items()}
    markers = {name: marker(look.marker) for name, look in looks.items()}
    seaborn.lineplot(
        frame, x=x, y=y, hue="method", style="method", palette=_colours(looks), dashes=dashes, markers=markers,
        markevery=0.1, markersize=5, markeredgewidth=0, sort=False, estimator=None, legend=False, ax=axes,
        clip_on=False, **options,
    )  # fmt: skip


def draw_points(axes: Axes, frame: pd.DataFrame, x: str, y: str, looks: Mapping[str, Look], **options: Any) -> None:
    """Draw a small marker for each point. `options` are passed to `seaborn.scatterplot`."""
    markers = {name: marker(look.marker) for name, look in looks.items()}
    seaborn.scatterplot(
        frame, x=x, y=y, hue="method", style="method", palette=_colours(looks), markers=markers, legend=False,
        linewidth=0, ax=axes, **options,
    )  # fmt: skip


def name_rows(axes: Axes, labels: Sequence[str], looks: Mapping[str, Look] | None = None) -> None:
    """Give a row to each label, the first on top, with its name in place of a tick.

    With `looks`, names tell all methods of these apart, and the words after names are there, too.
    """
    names = short_names([*(looks or labels)], LETTERS)
    axes.set_yticks(range(len(labels)), [looks[one].named(names[one]) if looks else names[one] for one in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")


def _colours(looks: Mapping[str, Look]) -> dict[str, str]:
    return {name: colour(look.colour) for name, look in looks.items()}


_MOST_ABOVE = 12  # methods in a legend above the axes; a longer one is to the right of the axes, in a wide figure
_WIDE = 8.6  # inches
_SHORT, _LONG = 30, 60  # characters of a name to the right of the axes, and above them
_ROW = 0.17  # inches
_LETTERS = 74  # letters that fit in a row above the axes; each marker takes the space of six


def short_names(labels: Iterable[str], most: int = _SHORT) -> dict[str, str]:
    """Return a distinct short name of each method: `sdgp m=8` for `sdgp[m=8,recipe.learning_rate=1.5]`.

    This is the name, and the parameters in which methods of this name differ. The tables of a report show the full
    names. Longer names are cut at `most` characters, and names that become equal get numbers.
    """
    parts: dict[str, tuple[str, list[str]]] = {}
    for label in dict.fromkeys(labels):
        name, _, rest = " ".join(label.split()).partition("[")
        parts[label] = (name, split(rest.removesuffix("]")) if rest else [])
    shorts: dict[str, str] = {}
    for label, (name, parameters) in parts.items():
        twins = [others for same, others in parts.values() if same == name]
        differing = [one for one in parameters if any(one not in others for others in twins)]
        short = " ".join([name, *(one.removeprefix("recipe.") for one in differing)])
        short = short if len(short) <= most else f"{short[: most - 1]}…"
        number = 2
        unique = short
        while unique in shorts.values():
            unique, number = f"{short} ({number})", number + 1
        shorts[label] = unique
    return shorts


def is_long(methods: int) -> bool:
    """Return whether a legend of this many methods is to the right of the axes, in a wide figure."""
    return methods > _MOST_ABOVE


def add_legend(axes: Axes, methods: Sequence[tuple[str, Look]], labels: Sequence[str], *, lines: bool) -> None:
    """Add a legend above the axes, or to the right of them if it is long (`is_long`).

    Args:
        axes: The only axes of a figure.
        methods: Label of each method, and how it is drawn.
        labels: Labels of all methods, also of those that are not drawn, so that names are the same in all figures.
        lines: Whether the methods are drawn as lines; otherwise they are drawn as markers only.
    """
    at_side = is_long(len(methods))
    shortened = short_names(labels, _SHORT if at_side else _LONG)
    names = {label: look.named(shortened[label]) for label, look in methods}
    handles = [
        Line2D(
            [],
            [],
            color=colour(look.colour),
            marker=marker(look.marker),
            linestyle=((0, dash(look.dash)) if dash(look.dash) else "-") if lines else "none",
            label=names[label],
        )
        for label, look in methods
    ]
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    if at_side:
        figure.set_size_inches(_WIDE, max(figure.get_figheight(), 0.4 + _ROW * len(handles)))
        figure.legend(handles=handles, loc="outside right upper", fontsize=8.5, handletextpad=0.3, labelspacing=0.3)
        return
    columns = max(1, min(len(handles), _LETTERS // (6 + max(map(len, names.values())))))
    # A taller figure lets the axes keep their height.
    figure.set_figheight(figure.get_figheight() + _ROW * (math.ceil(len(handles) / columns) - 1))
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=columns,
        fontsize=8.5,
        handletextpad=0.3,
        columnspacing=1.2,
    )
