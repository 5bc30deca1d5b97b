"""Tests of the schema of the results table, and of the documentation generated from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.trials.folder.table import COLUMNS, KINDS, SCHEMA, markdown

DOCS = Path(__file__).parents[2] / "docs" / "results.md"


def test_the_documented_table_is_the_schema():
    text = DOCS.read_text(encoding="utf-8")
    assert "\n".join(markdown()) in text, (
        "run python -m suite.trials.folder.table and paste its table into docs/results.md"
    )
    assert all(f"- **{kind}**: {meaning}." in text for kind, meaning in KINDS.items())


def test_every_column_is_described_once():
    assert len(COLUMNS) == len(SCHEMA)
    for column in SCHEMA:
        assert column.kind in KINDS
        assert column.title
        assert column.meaning.endswith(".")


@pytest.mark.parametrize(
    ("name", "cell", "value"),
    [
        ("seed", "3", 3), ("seed", "3.5", None), ("seed", "", None), ("seed", str(2**63), None),
        ("test_accuracy", "0.25", 0.25), ("test_accuracy", "high", None), ("test_accuracy", "nan", None),
        ("train_flops_dense", str(3 * 10**18), 3e18), ("method", "NA", "NA"),
        ("message", "", ""), ("message", None, None),
    ],
)  # fmt: skip
def test_a_cell_is_read_with_the_type_of_its_column(name, cell, value):
    parsed = COLUMNS[name].parse(cell)
    assert parsed == value
    assert type(parsed) is type(value)
