"""The committed lists of surgery on torchvision's and timm's networks: complete, right, and what is found today."""

import importlib.util
from pathlib import Path

import pytest
import torchvision
from masked_cuts import IN_TIMM, Row, examine, rows_of

ROOT = Path(__file__).parents[3]
PAGES = ("docs/development/torchvision-surgery.md", "results/cpu-zen4-2cores/timm-surgery.md")
TORCHVISION, TIMM = (rows_of((ROOT / page).read_text(encoding="utf-8")) for page in PAGES)
ROWS = TORCHVISION | TIMM
LIMITS = (1e-4, 1e-6)  # of the differences of outputs and of the next step
FAST = ("squeezenet1_1", "shufflenet_v2_x0_5", "timm/lcnet_035")


def findings(cells):
    name, share, _, _, reasons = cells
    return name, share, reasons


def right(cells):
    return all(value == "–" or float(value) < limit for value, limit in zip(cells[2:4], LIMITS, strict=True))


def networks(names, *marks):
    """Return parameters, of which those of timm are skipped without it."""
    skip = pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="needs the extra [timm]")
    return [pytest.param(name, marks=[*marks, *([skip] if name.startswith(IN_TIMM) else [])]) for name in names]


def test_the_lists_have_every_network_and_none_is_cut_wrongly():
    assert list(TORCHVISION) == sorted(torchvision.models.list_models(module=torchvision.models))
    assert len(TIMM) == 98
    assert [cells for cells in ROWS.values() if not right(cells)] == []


def test_a_row_is_read_as_it_is_written():
    row = Row("alexnet", 9, 10, (("LayerNorm", 1),), 1e-7, None)
    assert row.cells() == ("alexnet", "9/10", "1e-07", "–", "LayerNorm (1)")
    assert rows_of("```\nnetwork\n" + "   ".join(row.cells()) + "\n```") == {"alexnet": row.cells()}


@pytest.mark.parametrize("name", networks(FAST))
def test_rows_are_what_is_found_today(name):
    assert findings(examine(name, compares=False).cells()) == findings(ROWS[name])


@pytest.mark.parametrize(
    "name",
    [
        *networks(("densenet121", "convnext_tiny", "swin_t"), pytest.mark.slow),
        *networks(ROWS, pytest.mark.long),
    ],
)
def test_a_cut_network_is_still_the_masked_one(name):
    cells = examine(name).cells()
    assert findings(cells) == findings(ROWS[name])
    assert right(cells)
