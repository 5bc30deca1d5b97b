"""The report as one HTML file that asks for nothing from anywhere."""

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
    """The page. Text of records is escaped by the template; only our own style, script and figures are not."""
    environment = _environment()
    loader = environment.loader
    assert loader is not None
    sources = {name: loader.get_source(environment, name)[0] for name in ("style.css", "sort.js")}
    # The policy names the one script by its hash: should an escape ever be forgotten, nothing else runs or loads.
    digest = base64.b64encode(hashlib.sha256(sources["sort.js"].encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        report=report,
        style=Markup(sources["style.css"]),
        script=Markup(sources["sort.js"]),
        script_hash=f"sha256-{digest}",
        figure_svg={figure.name: Markup(figure.inline) for figure in report.figures},
        css_colour=svg.css_colour,
    )
