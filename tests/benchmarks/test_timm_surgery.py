"""The committed table of surgery on timm's networks: it is complete, no network is cut wrongly, and it holds today."""

import re
from pathlib import Path

import pytest

pytest.importorskip("timm", reason="needs the extra [timm]")

from test_torchvision_surgery import LIMITS, columns, findings
from test_torchvision_surgery import TABLE as OF_TORCHVISION

from benchmarks.surgery import TIMMS, builders, examine, examined, line_of

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "results/cpu-zen4-2cores/timm-surgery.md").read_text(encoding="utf-8")
ROWS = examined(TABLE)
SAME = ("densenet121", "efficientnet_b0", "resnet18", "vgg11_bn", "vgg13_bn", "inception_v3", "resnext50_32x4d")
"""Networks of timm that torchvision has too."""


def share(line):
    free, channels = (int(number.replace(",", "")) for number in columns(line)[1].split("/"))
    return free / channels


def test_the_table_has_every_network_of_the_list_and_none_is_cut_wrongly():
    assert list(ROWS) == sorted(builders(TIMMS))
    for line in ROWS.values():
        _, _, outputs, step, _ = columns(line)
        assert outputs == "–" or float(outputs) < LIMITS[0], line
        assert step == "–" or float(step) < LIMITS[1], line


def test_no_network_is_refused_and_most_can_be_cut_almost_whole():
    assert not re.search("cannot be traced", TABLE)
    assert sum(share(line) >= 0.85 for line in ROWS.values()) >= 60


@pytest.mark.parametrize("name", SAME)
def test_a_network_that_torchvision_has_too_is_cut_as_far(name):
    assert share(ROWS[f"timm/{name}"]) == pytest.approx(share(examined(OF_TORCHVISION)[name]), abs=0.02)


@pytest.mark.parametrize("name", ["timm/lcnet_035", "timm/repvgg_a0", "timm/ghostnet_100"])
def test_rows_are_what_is_found_today(name):
    assert findings(line_of(examine(name, compares=False))) == findings(ROWS[name])
