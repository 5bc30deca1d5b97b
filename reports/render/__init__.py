"""Rendering of a report as HTML, Markdown and LaTeX."""
