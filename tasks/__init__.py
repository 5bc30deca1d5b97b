"""Data sets and their recipes; the models are in `tasks.models`."""

from suite.registry import check_own_packages

check_own_packages()
