"""The results table, with one row per trial from its record, or from the existing table if there is no record."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from suite import files
from suite.files import canonical_json
from suite.trials.folder.columns import (
    COLUMNS,
    RECIPE_PREFIX,
    differing_fields,
    execution_text,
    minor_version,
    read_table,
    recipe_cells,
)
from suite.trials.folder.store import RUNNING, Store, read_record
from suite.trials.folder.targets import read_declared_targets, target_columns
from suite.trials.spec import TrialSpec


def row(
    folder: Path,
    record: Mapping[str, Any],
    earlier: Mapping[str, Any] | None = None,
    targets: Sequence[float] = (),
) -> dict[str, Any]:
    """Return the row of one trial. Values of its spec take precedence over its result.

    Args:
        folder: Folder of the trial.
        record: Result of `read_record`.
        earlier: Row of the trial in the existing table. A damaged record keeps the numbers of this row; the status says
            that they do not count.
        targets: Target accuracies as fractions; see `suite.trials.folder.targets`.
    """
    outcome = {
        "trial_id": files.clean(folder.name),
        "status": record["status"],
        "message": str(record.get("message", "")),
    }
    if record["status"] == RUNNING:
        outcome |= {"status": "error", "message": "did not end: the command that ran it is gone"}
    cells = {**(earlier or dict.fromkeys(COLUMNS)), **outcome}
    if "spec" in record:
        values, wrong = _values(record)
        others = {
            name: value
            for name, value in (earlier or {}).items()
            if name not in COLUMNS and not name.startswith(RECIPE_PREFIX)
        }
        reached = target_columns(folder, targets) if record["status"] == "done" else {}
        cells = {**dict.fromkeys(COLUMNS), **others, **values, **reached, **outcome}
        if wrong:
            cells |= {"status": "error", "message": f"damaged record: {wrong}"}
    return cells


def _values(record: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the columns from a record's spec, provenance and result, and the first error in them."""
    spec = TrialSpec.from_json(record["spec"])
    provenance = record.get("provenance", {})
    hardware, software = (_mapping(provenance.get(name)) for name in ("hardware", "software"))
    copy, recipe = _mapping(spec.data_copy), _mapping(spec.recipe)
    known = {
        **{
            name: getattr(spec, name)
            for name in ("method", "variant", "task", "model", "preset", "seed", "device", "dtype", "arithmetic")
        },
        "hardware_id": provenance.get("hardware_id"),
        "data_copy": f"{copy.get('kind', '')}-{str(copy.get('checksum', ''))[:8]}",
        "parameters": canonical_json(spec.parameters),
        **recipe_cells(recipe),
        # Early records have no `execution`.
        "execution": execution_text(recipe.get("execution", "eager"), spec.processes),
        "threads": hardware.get("threads"),
        "torch": minor_version(str(software.get("torch", ""))) or None,
    }
    measured = record.get("result", {})
    sound = {name: value for name, value in {**measured, **known}.items() if name in COLUMNS or name in known}
    wrong = [f"results.csv has no column {name}" for name in measured if name not in COLUMNS]
    faults = {
        name: fault
        for name, value in sound.items()
        if name in COLUMNS and value is not None and (fault := COLUMNS[name].fault(value))
    }
    wrong += [f"{name} is {fault}" for name, fault in faults.items()]
    return {name: None if name in faults else value for name, value in sound.items()}, next(iter(wrong), "")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def rows(
    store: Store,
    none_runs: bool = False,
    earlier: Mapping[str, Mapping[str, Any]] | None = None,
    targets: Sequence[float] = (),
) -> list[dict[str, Any]]:
    """Return the rows of all trials that have ended.

    Args:
        none_runs: Whether the caller has locked the folder and runs no trial. A killed command then left every trial
            whose record says `running`.
        earlier: Rows of the existing table by trial id; see `row`.
        targets: See `row`.
    """
    busy = not none_runs and store.is_locked()
    lines = []
    for folder in store.trial_folders():
        record = read_record(folder)
        if record is not None and not (record["status"] == RUNNING and busy):
            lines.append(row(folder, record, (earlier or {}).get(files.clean(folder.name)), targets))
    return lines


def current_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows that `write_results` would write now. A row of the table counts only if there is no record.

    Raises:
        UsageError: There is a `results.csv` that cannot be read.
    """
    store, table = Store(folder), read_table(folder)
    current = rows(store, earlier=table, targets=read_declared_targets(folder))
    return _merged(table, current)


def _merged(table: Mapping[str, dict[str, Any]], found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all rows, by trial id, without rows of damaged ids, which repeat the row of a trial."""
    ours = {line["trial_id"]: line for line in found}
    known = {_content(line) for line in found if line["status"] == "done"}
    merged = {**{name: line for name, line in table.items() if name in ours or _content(line) not in known}, **ours}
    return [merged[name] for name in sorted(merged)]


def _content(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a row says besides the trial's id. Measured times make it unique to one trial."""
    parsed = (column.parse(line.get(name)) for name, column in COLUMNS.items() if name != "trial_id")
    return tuple(None if value == "" else value for value in parsed)


def write_results(
    store: Store,
    none_runs: bool = False,
    forget: Collection[str] = (),
    targets: Sequence[float] = (),
) -> list[dict[str, Any]]:
    """Update `results.csv` atomically. Cells without a value are empty.

    A trial in the folder replaces its row. Rows without a trial are kept, because suites are shared without their
    trials. Unknown columns are kept while they have values. Fields of the recipe are columns if trials differ in them.

    Args:
        none_runs: See `rows`.
        forget: Ids of trials whose rows are removed if the folder does not have the trial; `--only all` repeats them.
        targets: Target accuracies as fractions (default: those that a command declared in `suite.json`).

    Returns:
        The rows of the trials in the folder.

    Raises:
        UsageError: There is a `results.csv` that cannot be read.
    """
    earlier = {name: line for name, line in read_table(store.folder).items() if name not in forget}
    current = rows(store, none_runs, earlier, targets or read_declared_targets(store.folder))
    table = _merged(earlier, current)
    ours = {line["trial_id"] for line in current}
    others = [
        name
        for line in table
        for name, value in line.items()
        # The record of a trial in the folder has its recipe. For other trials, only this table has it.
        if name not in COLUMNS
        and value is not None
        and not (name.startswith(RECIPE_PREFIX) and line["trial_id"] in ours)
    ]
    columns = (*COLUMNS, *dict.fromkeys([*differing_fields(table), *others]))

    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in line.items()} for line in table)
    files.write(store.folder / "results.csv", text.getvalue())
    return current
