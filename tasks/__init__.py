"""Data sets and their recipes; the models are in `tasks.models`."""

from suite.own_packages import check_own_packages

check_own_packages()
