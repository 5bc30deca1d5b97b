"""The remark on the gradients that data-parallel trials communicated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reports.content.build import build
from suite.trials.folder import reader as records

pytestmark = pytest.mark.usefixtures("without_figures")


def set_bytes(suite: Any, method: str, measured: int, counted: int) -> None:
    """Write bytes into the last record of each trial of a method."""
    for place in (suite.folder / "trials").iterdir():
        if json.loads((place / "trial.json").read_text())["spec"]["method"] == method:
            *before, last = (place / "epochs.jsonl").read_text().splitlines()
            record = json.loads(last) | {
                "communication": {"gradients": measured, "start": 7},
                "train_communication": {"gradients": counted, "decisions": 4},
            }
            (place / "epochs.jsonl").write_text("\n".join([*before, json.dumps(record)]) + "\n")


def lines(suite: Any) -> list[str]:
    suite.write()
    (group,) = build(records.read(suite.folder)).groups
    return [remark for remark in group.remarks if remark.startswith("Gradients that each process")]


def test_trials_of_one_process_give_no_remark(suite: Any) -> None:
    suite.add_all()
    assert lines(suite) == []


def test_bytes_are_compared_with_dense_and_with_the_count(suite: Any) -> None:
    suite.add_all()
    set_bytes(suite, "dense", 4_000_000, 4_000_000)
    set_bytes(suite, "sdgp", 1_000_000, 1_000_000)
    (line,) = lines(suite)
    assert "dense 4.00 MB" in line
    assert "sdgp[n=2,m=4] 1.00 MB (0.250 × dense)" in line
    assert line.endswith("They equal the counted bytes.")
    set_bytes(suite, "sdgp", 1_000_000, 999_996)
    (line,) = lines(suite)
    assert line.endswith("They differ from the counted bytes in sdgp[n=2,m=4].")
