"""Renders a report as one HTML file that loads nothing from the network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

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


@cache
def _source(name: str) -> str:
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


@cache
def _plotly() -> tuple[str, str]:
    """Return plotly.js of the installed package, and its hash for the content security policy."""
    from plotly.offline import get_plotlyjs

    source = get_plotlyjs()
    return source, _policy(source)


def _policy(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def embedded(data: Mapping[str, Any]) -> str:
    """Return data as JSON that can be inside a script element: without characters that HTML could read as markup."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def render(report: Report) -> str:
    """Return the page. The template escapes all text of records, but not the style, the scripts and the figures."""
    scripts = [(_source("tables.js"), _policy(_source("tables.js")))]
    if any(figure.interactive for figure in report.figures):
        scripts += [_plotly(), (_source("figures.js"), _policy(_source("figures.js")))]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            style=Markup(_source("style.css")),
            scripts=[Markup(source) for source, _ in scripts],
            # The policy allows only these scripts, by their hashes: even unescaped text could not run or load anything.
            script_policy=Markup(" ".join(policy for _, policy in scripts)),
            figure_svg={figure.name: Markup(figure.inline) for figure in report.figures},
            figure_data={
                figure.name: Markup(embedded(figure.interactive)) for figure in report.figures if figure.interactive
            },
            css_colour=svg.css_colour,
        )
    )
