"""Rendering of figures as SVG: inline, following the light or dark scheme of the page, and as a light file.

Colours that change with the scheme are drawn in sentinel colours, which no data uses. In the text they are replaced by
CSS variables of the page (inline) or by the colours of the light scheme (file). Equal figures give equal text.
"""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

INK, MUTED, GRID, DENSE, GROUND = "#010101", "#020202", "#030303", "#040404", "#050505"
_INLINE = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    DENSE: "var(--dense)",
    GROUND: "var(--ground)",
}
_LIGHT = {INK: "#1b1f23", MUTED: "#57606a", GRID: "#d8dee4", DENSE: "#000000", GROUND: "#ffffff"}

# Palette of Okabe and Ito, without black, which is reserved for dense, and with yellow, faint on white, at the end.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*")
# Shades: the grey that a dark and a light colour are mixed with, and its share. No light colour becomes lighter.
_SHADES = (((0.0, 0.0), (0.0, 0.0)), ((1.0, 0.4), (0.0, 0.25)), ((0.0, 0.35), (0.0, 0.45)))
_LUMINANCE, _LIGHT_COLOUR = (0.2126, 0.7152, 0.0722), 0.6
# As seaborn takes them: empty for a solid line. Dotted lines are reserved for disturbed times.
DASHES: tuple[Any, ...] = ("", (5, 2), (6, 2, 1.5, 2), (10, 2.5))
_HOVER = "hover:"
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
    """Return a colour by its number (`reports.data.groups.Look`); 0 is dense, -1 a control.

    Beyond the palette there are two shades of each colour, which both schemes show; then the colours repeat.
    """
    if index <= 0:
        return MUTED if index < 0 else DENSE
    shade, place = divmod(index - 1, len(PALETTE))
    own = np.array(to_rgb(PALETTE[place]))
    is_light = bool(own @ _LUMINANCE > _LIGHT_COLOUR)
    ground, share = _SHADES[shade % len(_SHADES)][is_light]
    red, green, blue = own + share * (ground - own)
    return to_hex((red, green, blue))


def marker(index: int) -> str:
    """Return a marker by its number. It distinguishes methods whose colours are equal or hard to see."""
    return MARKERS[index % len(MARKERS)]


def dash(index: int) -> Any:
    """Return the dashes of a line by their number. They distinguish variants of one method."""
    return DASHES[index % len(DASHES)]


def hover(artist: Artist, texts: Iterable[str]) -> None:
    """Give each mark of an artist a text, in the order of its points, or a single one to the artist as a whole.

    Browsers show it when the pointer is on the mark. It is kept in the id of the artist until `render`.
    """
    artist.set_gid(_HOVER + json.dumps(list(texts)))


def say_where_axes_start(axes: Axes) -> None:
    """Add to the titles of axes that do not start at 0 that they do not. Set titles and limits before."""
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
    _add_texts(root)
    _prefix_ids(root, name)
    _describe(root, name, title, alt)
    inline = _text(_without_namespaces(root), _INLINE)
    background = ElementTree.Element("rect", {"width": "100%", "height": "100%", "fill": GROUND})
    root.insert(2, background)
    root.set("xmlns", "http://www.w3.org/2000/svg")
    return inline, _text(root, _LIGHT) + "\n"


def _add_texts(root: ElementTree.Element) -> None:
    """Give the marks of artists the texts that `hover` has put into their ids."""
    for group in root.iter():
        if not group.get("id", "").startswith(_HOVER):
            continue
        texts = json.loads(group.attrib.pop("id").removeprefix(_HOVER))
        marks = [group] if len(texts) == 1 else [*_marks(group)]
        for mark, text in zip(marks, texts, strict=True):
            title = ElementTree.Element("title")
            title.text = text
            mark.insert(0, title)


def _marks(group: ElementTree.Element) -> Iterator[ElementTree.Element]:
    for child in group:
        tag = child.tag.rpartition("}")[2]
        if tag in ("path", "use"):
            yield child
        elif tag != "defs":
            yield from _marks(child)


def _prefix_ids(root: ElementTree.Element, name: str) -> None:
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            if key == "id":
                element.set(key, f"{name}-{value}")
            elif key.endswith("}href") and value.startswith("#"):
                # SVG 2 needs no namespace for href, and all current browsers support this.
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
