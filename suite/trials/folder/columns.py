"""Schema and reader of the results table: the one place that says which columns `results.csv` has.

The writer (`suite.trials.folder.results`), the reader (`suite.trials.folder.reader`), the heads of the report's tables
and `docs/results.md` follow this schema. `python -m suite.trials.folder.columns` prints the list for the docs.
"""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from suite.errors import UsageError
from suite.files import canonical_json
from suite.parameters import resolve
from suite.recipe import Recipe

Kind = Literal["trial", "setting", "machine", "declared", "measured", "counted"]

KINDS: dict[Kind, str] = {
    "trial": "identifies the trial and says how it ended",
    "setting": "decided before the trial started; two trials that differ in one are different trials",
    "machine": "where the trial ran; times are compared only where these are equal",
    "declared": "declared for the report; no training depends on it",
    "measured": "observed with a clock, an allocator or a data set",
    "counted": "computed from shapes, plans and masks; exact, and independent of the machine",
}
MAX_INTEGER = 2**63 - 1


@dataclass(frozen=True)
class Column:
    """One column of the results table.

    Attributes:
        name: Name in `results.csv` and, for measured and counted columns, in `trial.json`.
        type: `str`, `int` (64 bits) or `float`.
        unit: Unit of the value; empty for texts and numbers without one.
        kind: Where the value comes from; one of `KINDS`.
        title: Head of the column in reports.
        meaning: One sentence for the docs.
        maximum: Largest valid value.
    """

    name: str
    type: type
    unit: str
    kind: Kind
    title: str
    meaning: str
    maximum: float = math.inf

    def fault(self, value: Any) -> str:
        """Return why this column cannot hold a value; empty if it can."""
        if self.type is str:
            return "" if isinstance(value, str) else "not a text"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return "not a number"
        try:
            finite = math.isfinite(value)
        except OverflowError:  # an integer beyond the largest float
            finite = False
        if not finite:
            return "not a finite number"
        if self.type is int and not (isinstance(value, int) and abs(value) <= MAX_INTEGER):
            return "not an integer of 64 bits"
        return ""

    def parse(self, value: Any) -> Any:
        """Return a cell of `results.csv`, or a value, with this column's type; `None` for an invalid number."""
        if self.type is str or value is None:
            return value
        try:
            # A float cannot hold FLOPs above 2**53 exactly; its 16 digits suffice.
            number = int(value) if self.type is int else float(value)
        except (ValueError, OverflowError):
            return None
        return None if self.fault(number) else number


_FLOPS = "FLOPs"
SCHEMA: tuple[Column, ...] = (
    Column("trial_id", str, "", "trial", "Trial", "Name of the trial's folder; it ends with the hash of its settings."),
    Column("method", str, "", "setting", "Method", "Registered name of the method."),
    Column("variant", str, "", "setting", "Parameters", "Parameters that were typed, `k=v` joined by commas."),
    Column("task", str, "", "setting", "Task", "Task with the parameters that differ from those of the preset."),
    Column("model", str, "", "setting", "Model", "Model with the parameters that differ from its defaults."),
    Column("preset", str, "", "setting", "Preset", "`smoke`, `quick` or `paper`."),
    Column("seed", int, "", "setting", "Seed", "Seed of initial weights, batch order and augmentation."),
    Column(
        "status",
        str,
        "",
        "trial",
        "Status",
        "`done`, `diverged`, `oom`, `timeout`, `error` or `skipped`; the numbers "
        "of a trial that is not `done` do not count.",
    ),
    Column("message", str, "", "trial", "Message", "Why the trial is not `done`."),
    Column("device", str, "", "setting", "Device", "`cpu` or `cuda`."),
    Column(
        "hardware_id",
        str,
        "",
        "machine",
        "Hardware",
        "Hash of the CPU's model, instruction set and usable cores, or of the GPU and the driver's major version.",
    ),
    Column("dtype", str, "", "setting", "Number format", "`float32`, `bfloat16` or `float16`."),
    Column(
        "arithmetic",
        str,
        "",
        "setting",
        "Arithmetic",
        "`flush` if subnormal numbers count as zero, otherwise `ieee`, as in all tables without this column.",
    ),
    Column("data_copy", str, "", "setting", "Data", "Kind of the data set's copy and the start of its checksum."),
    Column("parameters", str, "", "setting", "All parameters", "Values of all parameters of the method, as JSON."),
    Column("batch_size", int, "images", "setting", "Batch size", "Batch size of the recipe."),
    Column("epochs", float, "", "setting", "Epochs", "Epochs of the recipe."),
    Column(
        "test_accuracy", float, "fraction", "measured", "Test accuracy", "Of the final model, on the whole test set.", 1
    ),
    Column(
        "test_accuracy_one_view",
        float,
        "fraction",
        "measured",
        "Test accuracy of one view",
        "Of each test image as it is, where `test_accuracy` is that of six views (`recipe.six_views`); else empty.",
        1,
    ),
    Column("test_loss", float, "", "measured", "Test loss", "Cross entropy of the final model on the test set."),
    Column(
        "val_accuracy",
        float,
        "fraction",
        "measured",
        "Validation accuracy",
        "Of the final model; empty without a validation split.",
        1,
    ),
    Column(
        "best_epoch_accuracy",
        float,
        "fraction",
        "measured",
        "Best test accuracy",
        "Highest test accuracy of any epoch with an evaluation, to compare with papers that report it.",
        1,
    ),
    Column(
        "train_time_s",
        float,
        "s",
        "measured",
        "Training time",
        "Training steps with input, pruning, regularizer and reconfiguration; without evaluation and compilation.",
    ),
    Column("eval_time_s", float, "s", "measured", "Evaluation time", "Evaluations after the epochs."),
    Column(
        "reconfigure_time_s",
        float,
        "s",
        "measured",
        "Reconfiguration time",
        "Surgery, and `precise_bn`; part of `train_time_s`.",
    ),
    Column(
        "wall_time_s", float, "s", "measured", "Wall time", "From start to end of the trial's process, all attempts."
    ),
    Column(
        "samples_per_s",
        float,
        "images/s",
        "measured",
        "Training throughput",
        "Training images per second of `train_time_s`.",
    ),
    Column(
        "inference_images_per_s",
        float,
        "images/s",
        "measured",
        "Inference throughput",
        "Of the final model: median of three to five forward passes of one evaluation batch.",
    ),
    Column(
        "train_flops_dense",
        float,
        _FLOPS,
        "counted",
        "Training FLOPs, dense",
        "Of the original network over the whole training.",
    ),
    Column(
        "train_flops_current",
        float,
        _FLOPS,
        "counted",
        "Training FLOPs, current shapes",
        "Of the shapes that existed at each step.",
    ),
    Column(
        "train_flops_effective",
        float,
        _FLOPS,
        "counted",
        "Training FLOPs, effective",
        "Multiply-adds with both operands nonzero; only hardware that skips zeros can save the others.",
    ),
    Column("train_flops_executed", float, _FLOPS, "counted", "Training FLOPs, executed", "What the backends computed."),
    Column(
        "inference_flops_dense",
        float,
        _FLOPS,
        "counted",
        "Inference FLOPs, dense",
        "Of the original network, one image.",
    ),
    Column("inference_flops", float, _FLOPS, "counted", "Inference FLOPs", "Of the final network's shapes, one image."),
    Column(
        "inference_flops_effective",
        float,
        _FLOPS,
        "counted",
        "Inference FLOPs, effective",
        "As `inference_flops`, times each layer's fraction of nonzero weights.",
    ),
    Column("params_dense", int, "", "counted", "Parameters, dense", "Weights and biases of the original network."),
    Column("params", int, "", "counted", "Parameters", "Weights and biases of the final network."),
    Column("nonzero_params", int, "", "counted", "Nonzero parameters", "Those of the final network that are not zero."),
    Column(
        "peak_memory_bytes",
        int,
        "bytes",
        "measured",
        "Peak memory",
        "CUDA: the allocator's maximum while training. "
        "CPU: counted from saved tensors, parameters, gradients and optimizer state.",
    ),
    Column("peak_rss_bytes", int, "bytes", "measured", "Peak resident memory", "Of the trial's process, all attempts."),
    Column(
        "allreduce_bytes",
        int,
        "bytes",
        "measured",
        "All-reduced bytes",
        "What one process handed to all-reduce operations during training; empty with one process.",
    ),
    Column(
        "execution",
        str,
        "",
        "setting",
        "Execution",
        "`eager`, `compile` or `cuda_graph`; with several processes per trial, `eager in 2 processes`.",
    ),
    Column(
        "compile_time_s",
        float,
        "s",
        "measured",
        "Compilation time",
        "Compilation or capture of graphs; not in `train_time_s`.",
    ),
    Column("threads", int, "", "machine", "Threads", "Threads that torch computed with."),
    Column("torch", str, "", "machine", "torch", "Major and minor version of torch."),
    Column(
        "energy_j",
        float,
        "J",
        "measured",
        "Training energy",
        "Of the GPU, or of the whole CPU package with all other programs, during `train_time_s`; empty where no "
        "counter can be read.",
    ),
    Column(
        "target_accuracy",
        float,
        "fraction",
        "declared",
        "Target accuracy",
        "First accuracy of `--target`; empty without this option.",
        1,
    ),
    Column(
        "time_to_target_s",
        float,
        "s",
        "measured",
        "Time to target",
        "Part of `train_time_s` until the end of the first epoch whose test accuracy is at least `target_accuracy`; "
        "empty if no epoch reached it.",
    ),
    Column(
        "flops_to_target",
        float,
        _FLOPS,
        "counted",
        "FLOPs to target",
        "Part of `train_flops_executed` until then.",
    ),
    Column("energy_to_target_j", float, "J", "measured", "Energy to target", "Part of `energy_j` until then."),
    Column("optimizer", str, "", "setting", "Optimizer", "Optimizer of the recipe."),
    Column("learning_rate", float, "", "setting", "Learning rate", "Highest learning rate of the recipe."),
    Column("schedule", str, "", "setting", "Schedule", "Schedule of the learning rate."),
    Column("weight_decay", float, "", "setting", "Weight decay", "Weight decay of the recipe."),
)
COLUMNS: dict[str, Column] = {column.name: column for column in SCHEMA}
REMOVED_NOTHING = "removed nothing"
"""End of the message of a control that was skipped because its methods removed nothing (`is_needless`)."""
TEXT_COLUMNS = tuple(column.name for column in SCHEMA if column.type is str)
NUMBER_COLUMNS = tuple(column.name for column in SCHEMA if column.type is not str)
REQUIRED_COLUMNS = ("trial_id", "method", "status")
"""Columns of every results table; a file without them is refused."""

RECIPE_COLUMNS = ("batch_size", "epochs", "optimizer", "learning_rate", "schedule", "weight_decay")
"""Fields of the recipe that every table has."""
RECIPE_PREFIX = "recipe."
"""Other fields are columns with this prefix, as JSON, if trials of the table differ in them (`differing_fields`)."""


def is_needless(status: str, message: str) -> bool:
    """Return whether a trial was skipped because it would repeat dense training. That is no failure."""
    return status == "skipped" and message.endswith(REMOVED_NOTHING)


def minor_version(version: str) -> str:
    """Return `2.15` for `2.15.0+cu132`. The speed of operations may change between minor releases."""
    match = re.match(r"[0-9]+\.[0-9]+", version)
    return match[0] if match else version


def recipe_cells(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a recipe by column."""
    fields = {**resolve(Recipe), **recipe} if recipe else {}
    others = {f"{RECIPE_PREFIX}{name}": canonical_json(value) for name, value in fields.items() if name not in COLUMNS}
    return {**{name: recipe.get(name) for name in RECIPE_COLUMNS}, **others}


def differing_fields(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns with `RECIPE_PREFIX` in which rows differ, in alphabetical order."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith(RECIPE_PREFIX) and value is not None:
                values.setdefault(name, set()).add(value)
    return sorted(name for name, found in values.items() if len(found) > 1)


def recipe_column(name: str) -> Column:
    """Return the schema of a column with `RECIPE_PREFIX`."""
    return Column(name, str, "", "setting", name, "Field of the recipe, as JSON; trials of the table differ in it.")


def markdown() -> Iterator[str]:
    """Yield the lines of the schema as a Markdown list."""
    for column in SCHEMA:
        facts = ", ".join(filter(None, (column.unit, column.kind)))
        line = f"- `{column.name}` ({facts}): {column.meaning}"
        yield from textwrap.wrap(line, 130, subsequent_indent="  ", break_on_hyphens=False)


def read_table(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of `results.csv` by trial id, as text, with `None` for empty cells; empty without the file.

    Raises:
        UsageError: The file is not a results table. Rewriting the file would lose its content.
    """
    path = folder / "results.csv"
    if path.is_dir():
        raise UsageError(f"{path} must be a file; move it away")
    if not path.is_file():
        return {}
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""), strict=True)
        rows = [dict(line) for line in reader]
        names = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: cannot be read as CSV: {error}; repair it, or move it away") from error
    if missing := [name for name in REQUIRED_COLUMNS if name not in names]:
        raise UsageError(f"{path}: has no column '{missing[0]}'; repair it, or move it away")
    if damaged := _damaged_column(names):
        raise UsageError(f"{path}: has a column {damaged} is expected; repair it, or move it away")
    for number, line in enumerate(rows, 2):
        if None in line or any(value is None for value in line.values()):
            raise UsageError(f"{path}: row {number} does not have {len(names)} fields; repair it, or move it away")
    table = {line["trial_id"]: {name: value or None for name, value in line.items()} for line in rows}
    if len(table) < len(rows):
        raise UsageError(f"{path}: a trial has two rows; repair it, or move it away")
    return table


def _damaged_column(names: Sequence[str]) -> str:
    """Describe the first unknown name in the place of a known column; empty if there is none.

    Columns of the user stand after those of this schema, or next to a complete pair of them, and are kept.
    """
    following = dict(pairwise(COLUMNS))
    for at, (left, name) in enumerate(pairwise(names), 1):
        expected = following.get(left)
        if name in COLUMNS or expected is None or expected in names:
            continue
        if any(later in COLUMNS for later in names[at:]) or get_close_matches(name, [expected]):
            return f"'{name}' where '{expected}'"
    return ""


if __name__ == "__main__":
    print("\n".join(markdown()))


def execution_text(execution: Any, processes: Any) -> Any:
    """Return the column `execution` of a trial: that of the recipe, with the number of processes if it is above 1."""
    return execution if processes in (None, 1) else f"{execution} in {processes} processes"
