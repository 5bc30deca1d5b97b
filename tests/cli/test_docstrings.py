"""Tests of the descriptions of parameters in `describe`."""

import pytest

from suite import registry
from suite.cli.docstrings import parameter_texts
from suite.parameters import declared


class Parent:
    """A parent.

    Attributes:
        n, m: both of
            them, in two lines.
        old: said by the parent.

    More text: not an entry.
    """


class Child(Parent):
    """A child.

    Attributes:
        old: said by the child.

    Class attributes:
        other: no parameter.
    """


def function(width):
    """A function.

    Args:
        width: of it.

    Raises:
        ValueError: never.
    """


def test_entries_of_attributes_and_args():
    both = "both of them, in two lines."
    assert parameter_texts(Parent) == {"n": both, "m": both, "old": "said by the parent."}
    assert parameter_texts(Child) == {"n": both, "m": both, "old": "said by the child."}
    assert parameter_texts(function) == {"width": "of it."}
    assert parameter_texts(type("Silent", (), {})) == {}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in ("method", "model") for name in registry.names(kind)]
)
def test_every_parameter_that_can_be_typed_is_described(kind, name):
    thing = registry.get(kind, name)
    texts = parameter_texts(thing)
    assert [parameter for parameter in declared(thing) if not texts.get(parameter)] == []
