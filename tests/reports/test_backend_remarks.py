"""The remark that names the backends of layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from reports.content.build import build
from suite.trials.folder import reader as records

pytestmark = pytest.mark.usefixtures("without_figures")


def set_backends(
    suite: Any,
    method: str,
    by_seed: dict[int, dict[str, str]],
    density: Mapping[str, list[float]] = MappingProxyType({}),
) -> None:
    """Write backends and densities of layers into the last record of each trial of a method."""
    for place in (suite.folder / "trials").iterdir():
        spec = json.loads((place / "trial.json").read_text())["spec"]
        if spec["method"] != method:
            continue
        *before, last = (place / "epochs.jsonl").read_text().splitlines()
        record = json.loads(last)
        chosen = by_seed.get(spec["seed"], {})
        record["backends"] = {name: chosen.get(name, "torch") for name in record["layers"]}
        for name, several in density.items():
            record["layers"][name]["density"] = several
        (place / "epochs.jsonl").write_text("\n".join([*before, json.dumps(record)]) + "\n")


def lines(suite: Any) -> list[str]:
    suite.write()
    (group,) = build(records.read(suite.folder)).groups
    return [remark for remark in group.remarks if remark.startswith("Backend used per layer")]


def test_torch_alone_and_records_without_backends_give_no_remark(suite: Any) -> None:
    suite.add_all()
    set_backends(suite, "sdgp", {})
    assert lines(suite) == []


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
