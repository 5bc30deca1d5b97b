"""Reading `name[key=value,...]` against a signature, and printing it again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import pytest
from annotated_types import Ge, Gt, Interval, MultipleOf
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from suite.choices import Choice, read_list
from suite.errors import UsageError
from suite.method import Method
from suite.parameters import allowed, check, convert, declared, normal, resolve, show, split


@dataclass(kw_only=True)
class Toy:
    n: int = 2
    ratio: float = 1
    mode: Literal["random", "magnitude", "rescaled"] = "rescaled"
    pool: Literal[4, 8, "dynamic"] = 8
    gating: bool = False
    clip: float | None = None
    milestones: tuple[float, ...] = ()
    shape: tuple[int, int] = (1, 2)
    names: tuple[str, ...] = field(default_factory=tuple)
    of: str = "dense"


@dataclass(kw_only=True)
class Child(Toy):
    extra: int = 0


def read(text, thing=Toy):
    return [choice for request in read_list(text, "--methods") for choice in Choice.expand(request, thing)]


def one(text, thing=Toy):
    (choice,) = read(text, thing)
    return choice


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("toy", {}),
        ("toy[n=3]", {"n": 3}),
        ("toy[ n = 3 , ratio = .5 ]", {"n": 3, "ratio": 0.5}),
        ("toy[ratio=2]", {"ratio": 2.0}),
        ("toy[ratio=1e-3]", {"ratio": 0.001}),
        ("toy[mode=random]", {"mode": "random"}),
        ("toy[pool=4]", {"pool": 4}),
        ("toy[pool=dynamic]", {"pool": "dynamic"}),
        ("toy[gating=True]", {"gating": True}),
        ("toy[clip=none]", {"clip": None}),
        ("toy[clip=3]", {"clip": 3.0}),
        ("toy[milestones=(0.5,0.75),n=1]", {"n": 1, "milestones": (0.5, 0.75)}),
        ("toy[milestones=[0.5,0.75]]", {"milestones": (0.5, 0.75)}),
        ("toy[milestones=0.5]", {"milestones": (0.5,)}),
        ("toy[milestones=(0.5,)]", {"milestones": (0.5,)}),
        ("toy[milestones=[0.5, 0.75, ],n=1]", {"n": 1, "milestones": (0.5, 0.75)}),
        ("toy[milestones=()]", {"milestones": ()}),
        ("toy[shape=(3,4)]", {"shape": (3, 4)}),
        ("toy[of=sdgp[n=2,m=4]]", {"of": "sdgp[n=2,m=4]"}),
    ],
)
def test_typed_values(text, typed):
    choice = one(text)
    assert choice.typed == typed
    assert [type(value) for value in choice.typed.values()] == [type(value) for value in typed.values()]
    assert one(str(choice)) == choice  # what is printed reads back


def test_declaration_order_and_grid():
    assert str(one("toy[mode=random,n=3]")) == "toy[n=3,mode=random]"
    found = read("dense,toy[mode=random|magnitude,n=1|2]"[6:])
    assert [choice.variant for choice in found] == [
        "n=1,mode=random",
        "n=1,mode=magnitude",
        "n=2,mode=random",
        "n=2,mode=magnitude",
    ]
    assert [request.name for request in read_list("dense, sdgp[n=2,m=4] ,prunetrain", "x")] == [
        "dense",
        "sdgp",
        "prunetrain",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("toy[n=2", r"a '\[' is never closed"),
        ("toy n=2]", "closes nothing"),
        ("toy]n=2[", "closes nothing"),
        ("toy[n=2]]", "closes nothing"),
        ("toy[n=(2]", "closes nothing"),
        ("toy[[n=2]", "never closed"),
        ("toy[n=2]x", "expected name"),
        ("toy[]", "is not key=value"),
        ("toy[n]", "'n' is not key=value"),
        ("toy[n=]", "is not key=value"),
        ("toy[=2]", "is not key=value"),
        ("toy[n=2,]", "is not key=value"),
        ("toy[n=1|]", "is not key=value"),
        ("", "expected name"),
        ("toy,,toy", "expected name"),
        ("toy[n=1,n=2]", "n is given twice"),
        ("toy[mod=random]", "no parameter 'mod'; did you mean 'mode'"),
        ("toy[n=x]", "n is 'x'; allowed: an integer"),
        ("toy[n=1.0]", "allowed: an integer"),
        ("toy[n=1_0]", "allowed: an integer"),
        ("toy[ratio=nan]", "allowed: a number"),
        ("toy[ratio=inf]", "allowed: a number"),
        ("toy[ratio=1_0]", "allowed: a number"),
        ("toy[mode=rando]", "mode is 'rando'; allowed: random, magnitude, rescaled"),
        ("toy[gating=1]", "allowed: true, false"),
        ("toy[clip=no]", "allowed: a number or none"),
        ("toy[shape=(1,2,3)]", "allowed: a list in parentheses"),
        ("toy[milestones=(a,b)]", "allowed: a list in parentheses"),
        ("toy[milestones=(,)]", "allowed: a list in parentheses"),
        ("toy[milestones=(0.5,,)]", "allowed: a list in parentheses"),
    ],
)
def test_what_cannot_be_read_is_one_line(text, expected):
    with pytest.raises(UsageError, match=expected) as caught:
        read(text)
    assert "\n" not in str(caught.value)


def test_a_thing_without_parameters_says_so():
    with pytest.raises(UsageError, match="has no parameter 'n'; it takes none"):
        read("dense[n=2]", lambda: None)


def test_a_parameter_without_default_is_asked_for():
    def model(*, depth: int, num_classes: int): ...

    assert list(declared(model)) == ["depth"]
    with pytest.raises(UsageError, match="needs depth: an integer"):
        read("model", model)


def test_annotations_of_a_parent_and_factories_are_found():
    assert list(declared(Child)) == [*declared(Toy), "extra"]
    assert declared(Child)["ratio"].annotation is float
    assert declared(Child)["names"].default == ()


def test_resolve_overlays_in_order_and_normalises():
    values = resolve(Toy, {"ratio": 2, "n": 5}, {"n": 6, "milestones": [1, 2]})
    assert list(values) == list(declared(Toy))
    assert values["n"] == 6
    assert isinstance(values["ratio"], float)
    assert values["milestones"] == (1.0, 2.0)
    assert isinstance(values["milestones"][0], float)
    with pytest.raises(UsageError, match="no parameter rato"):
        resolve(Toy, {"rato": 1})


def test_the_canonical_form_drops_defaults():
    assert str(one("toy[ratio=1.0,n=3]").canonical()) == "toy[n=3]"
    assert str(one("toy[ratio=1]").canonical()) == "toy"


def test_words_for_types():
    assert allowed(float | None) == "a number or none"
    assert normal(1, float | None) == 1.0
    assert normal(None, float | None) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_reads_back(value):
    assert convert(show(value), float, "x") == value


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_every_tuple_reads_back(values):
    assert convert(show(tuple(values)), tuple[float, ...], "x") == tuple(values)


@given(st.text(alphabet="ab,=|[]()1. ", max_size=20))
def test_any_text_is_read_or_refused(text):
    try:
        found = read(text)
    except UsageError:
        return
    assert all(isinstance(choice, Choice) for choice in found)


@given(st.lists(st.text(alphabet="abc", min_size=1), min_size=1))
def test_split_undoes_join(parts):
    assert split(",".join(f"x[{part},{part}]" for part in parts)) == [f"x[{part},{part}]" for part in parts]


@dataclass(kw_only=True)
class Bounded:
    share: Annotated[float, Interval(gt=0, le=1)] = 0.5
    groups: Annotated[int, Interval(ge=2, le=32)] = 4
    clip: Annotated[float, Gt(0)] | None = None
    milestones: tuple[Annotated[float, Interval(ge=0, lt=1)], ...] = ()
    steps: Annotated[int, Field(ge=1)] = 1
    width: Annotated[int, Ge(8), MultipleOf(8)] = 8


BOUNDS = {
    "share": (
        "a number above 0 and at most 1",
        (0.5, 1, 1.0),
        (0, 1.5, None, "x", True),
    ),
    "groups": ("an integer from 2 to 32", (2, 32), (1, 33, 4.0)),
    "clip": ("a number above 0 or none", (None, 2.5), (0.0, float("nan"), float("inf"))),
    "milestones": (
        "a list in parentheses, like (0.5,0.75), each of at least 0 and below 1",
        ((), (0.0, 0.5)),
        ((0.5, 1.0), 0.5),
    ),
    "steps": ("an integer of at least 1", (1,), (0,)),
    "width": (
        "an integer of at least 8 that is a multiple of 8",
        (8, 16),
        (0, 12),
    ),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_is_declared_once_and_read_everywhere(name):
    allowed_values, right, wrong = BOUNDS[name]
    annotation = declared(Bounded)[name].annotation
    assert allowed(annotation) == allowed_values
    for value in right:
        check(Bounded, {name: value})
        assert convert(show(value), annotation, name) == value
    for value in wrong:
        with pytest.raises(ValueError, match=re.escape(f"toy.{name} is {value!r}; allowed: {allowed_values}") + "$"):
            check(Bounded, {name: value}, prefix="toy.")


@pytest.mark.parametrize("text", ["share=0", "groups=33", "clip=-1", "milestones=(0.5,1)", "steps=0", "width=12"])
def test_typed_values_are_checked_against_bounds(text):
    name, _, value = text.partition("=")
    line = f"toy[{text}]: {name} is '{value}'; allowed: {BOUNDS[name][0]}"
    with pytest.raises(UsageError, match=re.escape(line) + "$"):
        read(f"toy[{text}]", Bounded)


def test_normal_forms_ignore_bounds():
    assert normal(1, declared(Bounded)["clip"].annotation) == 1.0
    assert isinstance(resolve(Bounded, {"share": 1})["share"], float)
    assert resolve(Bounded, {"milestones": [0]})["milestones"] == (0.0,)


def test_a_method_is_checked_before_its_own_checks_run():
    class Careless(Method):
        n: Annotated[int, Ge(1)] = 1

        def __post_init__(self):  # calls no other check
            assert 12 % self.n == 0

    with pytest.raises(ValueError, match=r"^n is 0; allowed: an integer of at least 1$"):
        Careless(n=0)
    assert Careless(n=3).n == 3


def test_a_number_of_another_library_is_shown_with_its_type():
    with pytest.raises(ValueError, match=r"^n is np\.int64\(3\); allowed: an integer"):
        check(Toy, {"n": np.int64(3)})
