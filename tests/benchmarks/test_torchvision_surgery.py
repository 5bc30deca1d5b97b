"""The committed table of surgery on torchvision's networks: it names all of them, and states what is found today."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torchvision")

from benchmarks.surgery import NOT_YET, builders, examine, examined, line_of

TABLE = (Path(__file__).parents[2] / "docs/development/torchvision-surgery.md").read_text(encoding="utf-8")
LIMITS = (1e-4, 1e-6)  # of the differences of outputs and of the next step
SAMPLE = [name for name in builders() if name in examined(TABLE)][:3]  # the smallest ones


def columns(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_names_every_network_of_torchvision_once():
    assert re.findall(r"^\| `(\w+)` \|", TABLE, re.MULTILINE) == sorted(builders())
    left = sum(NOT_YET in line for line in TABLE.splitlines() if line.startswith("| `"))
    assert len(examined(TABLE)) + left == len(builders())


def test_the_table_states_small_differences():
    for line in examined(TABLE).values():
        outputs, step = columns(line)[3:]
        assert outputs == "–" or float(outputs) < LIMITS[0], line
        assert step == "–" or float(step) < LIMITS[1], line


@pytest.mark.parametrize("name", SAMPLE)
def test_rows_of_the_table_are_what_is_found_today(name):
    assert columns(line_of(examine(name, compares=False)))[:3] == columns(examined(TABLE)[name])[:3]


def holds(name):
    found = columns(line_of(examine(name)))
    assert found[:3] == columns(examined(TABLE)[name])[:3]
    assert all(value == "–" or float(value) < limit for value, limit in zip(found[3:], LIMITS, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["densenet121", "convnext_tiny", "swin_t"])
def test_cut_networks_of_each_kind_are_still_the_masked_ones(name):
    holds(name)


@pytest.mark.long
@pytest.mark.parametrize("name", builders())
def test_every_cut_network_is_still_the_masked_one(name):
    holds(name)
