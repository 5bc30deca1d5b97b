"""Render a report as one HTML file that loads nothing from the network."""

from __future__ import annotations

import base64
import hashlib
from functools import cache

import jinja2
from markupsafe import Markup

from reports.content.model import Report
from reports.figures import svg
from reports.sentences import templates


@cache
def _environment() -> jinja2.Environment:
    return templates("reports.render", "templates", autoescape=True)


@cache
def _source(name: str) -> str:
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _policy(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def render(report: Report) -> str:
    """Return the page. The template escapes all text except the style, the script and the figures."""
    script = _source("tables.js")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            style=Markup(_source("style.css")),
            script=Markup(script),
            # The policy allows this script by its hash, so that even unescaped text could run or load nothing.
            script_policy=Markup(_policy(script)),
            figure_svg={figure.name: Markup(figure.inline) for figure in report.figures},
            css_colour=svg.css_colour,
        )
    )
