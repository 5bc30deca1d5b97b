"""Figures of a report, as SVG."""
