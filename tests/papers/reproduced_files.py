"""What `reproduce` leaves in a folder, read back."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from suite import registry


def rows(folder: Path, name: str) -> dict[str, dict[str, str]]:
    """The lines of a reproduction's table, by quantity; of parts with the same quantity, that of a part which ran."""
    with open(folder / "reproduce" / f"{name}.csv", encoding="utf-8", newline="") as file:
        return {row["quantity"]: row for row in sorted(csv.DictReader(file), key=lambda row: bool(row["ours"]))}


def ours(folder: Path, name: str, quantity: str) -> float:
    return float(rows(folder, name)[quantity]["ours"])


def trials_of(folder: Path, task: str = "") -> dict[str, tuple[dict[str, str], list[Any], Path]]:
    """Return the row of the table, the records of the epochs and the model's path of each trial, by method.

    Args:
        folder: Folder of a suite.
        task: Name of a task; trials of all tasks if it is empty.
    """
    found = {}
    with open(folder / "results.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if task not in ("", row["task"]):
                continue
            place = folder / "trials" / row["trial_id"]
            records = [json.loads(line) for line in (place / "epochs.jsonl").read_text().splitlines()]
            label = f"{row['method']}[{row['variant']}]" if row["variant"] else row["method"]
            found[label] = (row, records, place / "model.pt")
    return found


def page(name: str) -> Any:
    """A reproduction by name."""
    return registry.get("reproduction", name)()


def parts_of(name: str) -> Any:
    """The declared parts of a reproduction."""
    return page(name).declared.parts
