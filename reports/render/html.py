"""Renders a report as one HTML file that loads nothing from the network."""

from __future__ import annotations

import base64
import hashlib
from functools import cache

import jinja2
from markupsafe import Markup

from reports.content.model import Report
from reports.figures import svg


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("reports.render", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(report: Report) -> str:
    """Return the page. The template escapes all text of records, but not the style, the script and the figures."""
    environment = _environment()
    loader = environment.loader
    assert loader is not None
    sources = {name: loader.get_source(environment, name)[0] for name in ("style.css", "sort.js")}
    # The policy allows only this script, by its hash: even unescaped text could neither run nor load anything.
    digest = base64.b64encode(hashlib.sha256(sources["sort.js"].encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        report=report,
        style=Markup(sources["style.css"]),
        script=Markup(sources["sort.js"]),
        script_hash=f"sha256-{digest}",
        figure_svg={figure.name: Markup(figure.inline) for figure in report.figures},
        css_colour=svg.css_colour,
    )
