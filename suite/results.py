"""The table of results: a row a trial, rebuilt from the trials' records whenever one of them changes."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from suite import files
from suite.spec import TrialSpec, canonical_json
from suite.store import RUNNING, Store, read_record

TEXT_COLUMNS = (
    *("trial_id", "method", "variant", "task", "model", "preset", "status", "message", "device", "hardware_id"),
    *("dtype", "data_copy", "parameters", "execution"),
)
INTEGER_COLUMNS = (
    *("seed", "batch_size", "epochs", "params_dense", "params", "nonzero_params"),
    *("peak_memory_bytes", "peak_rss_bytes", "allreduce_bytes"),
)
COLUMNS = (
    *("trial_id", "method", "variant", "task", "model", "preset", "seed", "status", "message", "device", "hardware_id"),
    *("dtype", "data_copy", "parameters", "batch_size", "epochs", "test_accuracy", "test_loss", "val_accuracy"),
    *("best_epoch_accuracy", "train_time_s", "eval_time_s", "reconfigure_time_s", "wall_time_s", "samples_per_s"),
    *("inference_images_per_s", "train_flops_dense", "train_flops_current", "train_flops_effective"),
    *("train_flops_executed", "inference_flops_dense", "inference_flops", "inference_flops_effective", "params_dense"),
    *("params", "nonzero_params", "peak_memory_bytes", "peak_rss_bytes", "energy_j", "allreduce_bytes"),
    *("modelled_train_time_s", "target_accuracy", "time_to_target_s", "execution", "compile_time_s"),
)


def row(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """One trial's row. What its spec says is taken from there; a result cannot contradict it."""
    outcome = {"trial_id": folder.name, "status": record["status"], "message": record.get("message", "")}
    if record["status"] == RUNNING:
        outcome |= {"status": "error", "message": "did not end: the command that ran it is gone"}
    if "spec" not in record:
        return {column: outcome.get(column) for column in COLUMNS}
    spec = TrialSpec.from_json(record["spec"])
    known = {
        **{
            name: getattr(spec, name)
            for name in ("method", "variant", "task", "model", "preset", "seed", "device", "dtype")
        },
        "hardware_id": record.get("provenance", {}).get("hardware_id"),
        "data_copy": f"{spec.data_copy['kind']}-{spec.data_copy['checksum'][:8]}",
        "parameters": canonical_json(spec.parameters),
        "batch_size": spec.recipe["batch_size"],
        "epochs": spec.recipe["epochs"],
        "execution": spec.recipe.get("execution", "eager"),  # records from before there was a choice
    }
    measured = record.get("result", {})
    if unknown := set(measured) - set(COLUMNS):
        outcome |= {"status": "error", "message": f"damaged record: results.csv has no column {min(unknown)}"}
    values = {**measured, **known, **outcome}
    return {column: values.get(column) for column in COLUMNS}


def rows(store: Store, none_runs: bool = False) -> list[dict[str, Any]]:
    """The rows of all trials that ended, by trial id; one that runs now has none yet.

    Args:
        store: the folder.
        none_runs: the caller holds the folder's lock and runs nothing: what says that it runs was left by a killed
            command.
    """
    busy = not none_runs and store.is_locked()
    found = []
    for folder in store.trial_folders():
        record = read_record(folder)
        if record is not None and not (record["status"] == RUNNING and busy):
            found.append(row(folder, record))
    return found


def write_results(store: Store, none_runs: bool = False) -> list[dict[str, Any]]:
    """Rebuild `results.csv` and `results.parquet`, each atomically, and return the rows. Unmeasured: empty."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    found = rows(store, none_runs)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in found)
    files.write(store.folder / "results.csv", text.getvalue())

    # The types are fixed: a column in which nothing was measured would else change its type from folder to folder.
    types = dict.fromkeys(COLUMNS, pa.float64())
    types |= dict.fromkeys(TEXT_COLUMNS, pa.string()) | dict.fromkeys(INTEGER_COLUMNS, pa.int64())
    # Counts above 2**53 do not fit a float exactly, and pyarrow refuses them; 16 digits of a FLOP count are enough.
    plain = [
        {
            key: float(value) if isinstance(value, int) and types[key] == pa.float64() else value
            for key, value in row.items()
        }
        for row in found
    ]
    table = pa.Table.from_pylist(plain, schema=pa.schema(list(types.items())))
    with files.replacing(store.folder / "results.parquet") as file:
        parquet.write_table(table, file)
    return found
