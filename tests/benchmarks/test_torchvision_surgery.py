"""The committed table of surgery on torchvision's networks: it names all of them, and states what is found today."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torchvision")

from benchmarks.surgery import NOT_YET, Row, builders, examine, examined, line_of, table

TABLE = (Path(__file__).parents[2] / "docs/development/torchvision-surgery.md").read_text(encoding="utf-8")
LIMITS = (1e-4, 1e-6)  # of the differences of outputs and of the next step
SAMPLE = [name for name in builders() if name in examined(TABLE)][:3]  # the smallest ones


def columns(line):
    """Return name, channels, both differences and what else freezes channels."""
    name, share, outputs, step, *reasons = re.split(r" {2,}", line)
    return name, share, outputs, step, *(reasons or [""])


def findings(line):
    name, share, _, _, reasons = columns(line)
    return name, share, reasons


def test_the_table_names_every_network_of_torchvision_once():
    rows = TABLE.split("```")[1].strip().splitlines()[1:]
    assert [row.split()[0] for row in rows] == sorted(builders())
    left = sum(NOT_YET in row for row in rows)
    assert len(examined(TABLE)) + left == len(builders())


def test_a_table_keeps_what_was_examined():
    lines = {"alexnet": line_of(Row("alexnet", 9, 10, (("LayerNorm", 1),), 1e-7, None))}
    assert columns(lines["alexnet"]) == ("alexnet", "9/10", "1e-07", "–", "LayerNorm (1)")
    assert examined(table(lines)) == lines


def test_the_table_states_small_differences():
    for line in examined(TABLE).values():
        _, _, outputs, step, _ = columns(line)
        assert outputs == "–" or float(outputs) < LIMITS[0], line
        assert step == "–" or float(step) < LIMITS[1], line


@pytest.mark.parametrize("name", SAMPLE)
def test_rows_of_the_table_are_what_is_found_today(name):
    assert findings(line_of(examine(name, compares=False))) == findings(examined(TABLE)[name])


def holds(name):
    line = line_of(examine(name))
    assert findings(line) == findings(examined(TABLE)[name])
    assert all(value == "–" or float(value) < limit for value, limit in zip(columns(line)[2:4], LIMITS, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["densenet121", "convnext_tiny", "swin_t"])
def test_cut_networks_of_each_kind_are_still_the_masked_ones(name):
    holds(name)


@pytest.mark.long
@pytest.mark.parametrize("name", builders())
def test_every_cut_network_is_still_the_masked_one(name):
    holds(name)
