"""Parts of a long test, of which `.ci/run` runs a few."""

from collections.abc import Container, Iterable

import pytest


def shards(numbers: Iterable[int], slow: Container[int]) -> pytest.MarkDecorator:
    """Return a parametrization by `number`, whose other numbers have the marker `long`."""
    marked = {True: pytest.mark.slow, False: pytest.mark.long}
    return pytest.mark.parametrize("number", [pytest.param(one, marks=marked[one in slow]) for one in numbers])
