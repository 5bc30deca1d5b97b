"""Benchmarks of reports."""
