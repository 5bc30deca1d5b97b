"""Benchmarks of input pipelines."""
