"""Fixtures of the tests of methods."""

from pathlib import Path

import pytest
from toy_suite import forget_plugins

from suite import registry


@pytest.fixture(scope="module")
def tiny_residual():
    """Register the small network as a plugin, which a saved model can be opened with."""
    registry.load_plugin(Path(__file__).with_name("tiny_residual.py"))
    yield
    forget_plugins()
