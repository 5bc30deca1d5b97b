"""Reading `name[key=value,...]` against a signature, and printing it again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.brackets import read_list, split
from suite.choices import Choice
from suite.errors import UsageError
from suite.parameters import allowed, convert, declared, normal, resolve, show, type_name


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
    assert type_name(float | None) == "float or none"
    assert type_name(Literal["a", "b"]) == "a | b"
    assert type_name(tuple[float, ...]) == "tuple[float, ...]"
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
