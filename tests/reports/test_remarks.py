"""The remarks on backends of layers, and on gradients that data-parallel trials communicated."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from reports.content.build import build
from reports.data.records import read

GRADIENTS = "Gradients that each process"
pytestmark = pytest.mark.usefixtures("without_figures")


def edit_last(suite: Any, method: str, change: Callable[[int, dict[str, Any]], None]) -> None:
    """Change the last record of each trial of a method, of which the seed is given."""
    for place in (suite.folder / "trials").iterdir():
        spec = json.loads((place / "trial.json").read_text())["spec"]
        if spec["method"] == method:
            *before, last = (place / "epochs.jsonl").read_text().splitlines()
            record = json.loads(last)
            change(spec["seed"], record)
            (place / "epochs.jsonl").write_text("\n".join([*before, json.dumps(record)]) + "\n")


def set_backends(
    suite: Any,
    method: str,
    by_seed: dict[int, dict[str, str]],
    density: Mapping[str, list[float]] = MappingProxyType({}),
) -> None:
    """Write backends and densities of layers into the last record of each trial of a method."""

    def change(seed: int, record: dict[str, Any]) -> None:
        record["backends"] = {name: by_seed.get(seed, {}).get(name, "torch") for name in record["layers"]}
        for name, several in density.items():
            record["layers"][name]["density"] = several

    edit_last(suite, method, change)


def set_bytes(suite: Any, method: str, measured: int, counted: int) -> None:
    """Write bytes into the last record of each trial of a method."""
    sent = {"gradients": measured, "start": 7}
    found = {"communication": sent, "train_communication": {"gradients": counted, "decisions": 4}}
    edit_last(suite, method, lambda seed, record: record.update(found))


def lines(suite: Any, beginning: str = "Backend used per layer") -> list[str]:
    suite.write()
    (group,) = build(read(suite.folder)).groups
    return [remark for remark in group.remarks if remark.startswith(beginning)]


def test_torch_alone_and_records_without_backends_give_no_remark(suite: Any) -> None:
    suite.add_all()
    set_backends(suite, "sdgp", {})
    assert lines(suite) == []
    assert lines(suite, GRADIENTS) == []


def test_backends_are_named_with_their_layers_and_that_seeds_differ(suite: Any) -> None:
    suite.add_all()
    two = {"block1.conv1": "skipping", "block2.conv1": "skipping"}
    set_backends(suite, "sdgp", dict.fromkeys(range(3), two))
    expected = (
        "Backend used per layer in the last epoch of sdgp[n=2,m=4] (seed 0): "
        "skipping in 2 of 5 layers (block1.conv1, block2.conv1); torch in 3 of 5 layers"
    )
    assert lines(suite) == [expected + "."]
    set_backends(suite, "sdgp", {0: two, 1: two})
    assert lines(suite) == [expected + "; other seeds differ."]


def test_layers_whose_zeros_torch_multiplied_are_named(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"), seeds=1)
    density = {"block1.conv1": [0.5, 1, 1], "block1.conv2": [1, 0.5, 1], "block2.conv1": [0.25, 0.25, 0.25]}
    set_backends(suite, "sdgp", {0: {"block2.conv1": "skipping"}}, density)
    assert lines(suite) == [
        "Backend used per layer in the last epoch of sdgp[n=2,m=4] (seed 0): skipping in 1 of 5 layers (block2.conv1); "
        "torch in 4 of 5 layers, multiplying zeros in 2 (block1.conv1, block1.conv2)."
    ]


def test_bytes_are_compared_with_dense_and_with_the_count(suite: Any) -> None:
    suite.add_all()
    set_bytes(suite, "dense", 4_000_000, 4_000_000)
    set_bytes(suite, "sdgp", 1_000_000, 1_000_000)
    (line,) = lines(suite, GRADIENTS)
    assert "dense 4.00 MB" in line
    assert "sdgp[n=2,m=4] 1.00 MB (0.250 × dense)" in line
    assert line.endswith("They equal the counted bytes.")
    set_bytes(suite, "sdgp", 1_000_000, 999_996)
    (line,) = lines(suite, GRADIENTS)
    assert line.endswith("They differ from the counted bytes in sdgp[n=2,m=4].")
