"""The methods: a module or a package for each. `masks`, `gradients` and `backends` have what several of them share."""

from suite.registry import check_own_packages

check_own_packages()
