"""Rendering of a report as HTML and Markdown."""
