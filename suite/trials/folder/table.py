"""The results table: the one place that says which columns `results.csv` has, and where each comes from.

The table is a view of the trials' records, which every command replaces. Heads of the report's tables, the frames of
`load_results` and `docs/results.md` follow this schema. `python -m suite.trials.folder.table` prints it for the docs.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from suite.files import canonical_json
from suite.parameters import resolve
from suite.recipe import Recipe
from suite.trials.spec import TrialSpec

Kind = Literal["trial", "setting", "machine", "declared", "measured", "counted"]

KINDS: dict[Kind, str] = {
    "trial": "identifies the trial and says how it ended",
    "setting": "decided before the trial started; two trials that differ in one are different trials",
    "machine": "where the trial ran; times are compared only where these are equal",
    "declared": "declared for the report; no training depends on it",
    "measured": "observed with a clock, an allocator or a data set",
    "counted": "computed from shapes, plans and masks; exact, and independent of the machine",
}
_LARGEST: dict[type, float] = {int: 2**63 - 1, float: 1e30}  # sums and squares of such floats are finite


@dataclass(frozen=True)
class Column:
    """One column of the results table.

    Attributes:
        name: Name in `results.csv` and, for measured and counted columns, in the `result` of `trial.json`.
        type: `str`, `int` (64 bits) or `float`.
        unit: Unit of the value; empty for texts and numbers without one.
        kind: Where the value comes from; one of `KINDS`.
        title: Head of the column in reports.
        meaning: One sentence for the docs.
        maximum: Largest valid value.
        source: Where the value is in a `TrialRecord` (default: `result.NAME`).
        read: Function that makes the cell of what is there.
    """

    name: str
    type: type
    unit: str
    kind: Kind
    title: str
    meaning: str
    maximum: float = math.inf
    source: str = ""
    read: Callable[[Any], Any] | None = None

    def of(self, record: Any) -> Any:
        """Return the value of a `TrialRecord`; `None` if it has none."""
        value = record
        for part in (self.source or f"result.{self.name}").split("."):
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
        if value is None or value == "":
            return None
        return self.read(value) if self.read else value

    def fault(self, value: Any) -> str:
        """Return why a value cannot be in this column; empty if it can."""
        if self.type is str:
            return "" if isinstance(value, str) else "not text"
        if type(value) not in _LARGEST:
            return "not a number"
        largest = min(self.maximum, _LARGEST[self.type])
        return "" if 0 <= value <= largest else f"not between 0 and {largest:.6g}"


def _data_copy(copy: Mapping[str, Any]) -> str:
    return f"{copy.get('kind', '')}-{str(copy.get('checksum', ''))[:8]}"


def _execution(spec: TrialSpec) -> str:
    execution, processes = spec.recipe.get("execution", "eager"), spec.processes
    return str(execution) if processes == 1 else f"{execution} in {processes} processes"


def minor_version(version: str) -> str:
    """Return `2.15` for `2.15.0+cu132`. The speed of operations may change between minor releases."""
    match = re.match(r"[0-9]+\.[0-9]+", version)
    return match[0] if match else version


_FLOPS = "FLOPs"
SCHEMA: tuple[Column, ...] = (
    Column("trial_id", str, "", "trial", "Trial",
           "Name of the trial's folder; it ends with the hash of its settings.", source="name"),
    Column("method", str, "", "setting", "Method", "Registered name of the method.", source="spec.method"),
    Column("variant", str, "", "setting", "Parameters",
           "Parameters that were typed, `k=v` joined by commas.", source="spec.variant"),
    Column("task", str, "", "setting", "Task",
           "Task with the parameters that differ from those of the preset.", source="spec.task"),
    Column("model", str, "", "setting", "Model",
           "Model with the parameters that differ from its defaults.", source="spec.model"),
    Column("preset", str, "", "setting", "Preset", "`smoke`, `quick` or `paper`.", source="spec.preset"),
    Column("seed", int, "", "setting", "Seed",
           "Seed of initial weights, batch order and augmentation.", source="spec.seed"),
    Column("status", str, "", "trial", "Status",
           "`done`, `diverged`, `oom`, `timeout`, `error` or `skipped`; the numbers of a trial that is not "
           "`done` do not count.", source="status"),
    Column("message", str, "", "trial", "Message", "Why the trial is not `done`.", source="message"),
    Column("device", str, "", "setting", "Device", "`cpu` or `cuda`.", source="spec.device"),
    Column("hardware_id", str, "", "machine", "Hardware",
           "Hash of the CPU's model, instruction set and usable cores, or of the GPU and the driver's major "
           "version.", source="provenance.hardware_id"),
    Column("dtype", str, "", "setting", "Number format", "`float32`, `bfloat16` or `float16`.", source="spec.dtype"),
    Column("arithmetic", str, "", "setting", "Arithmetic",
           "`flush` if subnormal numbers count as zero, otherwise `ieee`.", source="spec.arithmetic"),
    Column("data_copy", str, "", "setting", "Data",
           "Kind of the data set's copy and the start of its checksum.", source="spec.data_copy", read=_data_copy),
    Column("parameters", str, "", "setting", "All parameters",
           "Values of all parameters of the method, as JSON.", source="spec.parameters", read=canonical_json),
    Column("batch_size", int, "images", "setting", "Batch size",
           "Batch size of the recipe.", source="spec.recipe.batch_size"),
    Column("epochs", float, "", "setting", "Epochs", "Epochs of the recipe.", source="spec.recipe.epochs"),
    Column("test_accuracy", float, "fraction", "measured", "Test accuracy",
           "Of the final model, on the whole test set.", 1),
    Column("test_accuracy_one_view", float, "fraction", "measured", "Test accuracy of one view",
           "Of each test image as it is, where `test_accuracy` is that of six views (`recipe.six_views`); else "
           "empty.", 1),
    Column("test_loss", float, "", "measured", "Test loss", "Cross entropy of the final model on the test set."),
    Column("val_accuracy", float, "fraction", "measured", "Validation accuracy",
           "Of the final model; empty without a validation split.", 1),
    Column("best_epoch_accuracy", float, "fraction", "measured", "Best test accuracy",
           "Highest test accuracy of any epoch with an evaluation, to compare with papers that report it.", 1),
    Column("train_time_s", float, "s", "measured", "Training time",
           "Training steps with input, pruning, regularizer and reconfiguration; without evaluation and compilation."),
    Column("eval_time_s", float, "s", "measured", "Evaluation time", "Evaluations after the epochs."),
    Column("reconfigure_time_s", float, "s", "measured", "Reconfiguration time",
           "Surgery, and `precise_bn`; part of `train_time_s`."),
    Column("wall_time_s", float, "s", "measured", "Wall time",
           "From start to end of the trial's process, all attempts."),
    Column("samples_per_s", float, "images/s", "measured", "Training throughput",
           "Training images per second of `train_time_s`."),
    Column("inference_images_per_s", float, "images/s", "measured", "Inference throughput",
           "Of the final model: median of three to five forward passes of one evaluation batch."),
    Column("train_flops_dense", float, _FLOPS, "counted", "Training FLOPs, dense",
           "Of the original network over the whole training."),
    Column("train_flops_current", float, _FLOPS, "counted", "Training FLOPs, current shapes",
           "Of the shapes that existed at each step."),
    Column("train_flops_effective", float, _FLOPS, "counted", "Training FLOPs, effective",
           "Multiply-adds with both operands nonzero; only hardware that skips zeros can save the others."),
    Column("train_flops_executed", float, _FLOPS, "counted", "Training FLOPs, executed", "What the backends computed."),
    Column("inference_flops_dense", float, _FLOPS, "counted", "Inference FLOPs, dense",
           "Of the original network, one image."),
    Column("inference_flops", float, _FLOPS, "counted", "Inference FLOPs", "Of the final network's shapes, one image."),
    Column("inference_flops_effective", float, _FLOPS, "counted", "Inference FLOPs, effective",
           "As `inference_flops`, times each layer's fraction of nonzero weights."),
    Column("params_dense", int, "", "counted", "Parameters, dense", "Weights and biases of the original network."),
    Column("params", int, "", "counted", "Parameters", "Weights and biases of the final network."),
    Column("nonzero_params", int, "", "counted", "Nonzero parameters", "Those of the final network that are not zero."),
    Column("peak_memory_bytes", int, "bytes", "measured", "Peak memory",
           "CUDA: the allocator's maximum while training. CPU: counted from saved tensors, parameters, gradients"
           " and optimizer state."),
    Column("peak_rss_bytes", int, "bytes", "measured", "Peak resident memory", "Of the trial's process, all attempts."),
    Column("allreduce_bytes", int, "bytes", "measured", "All-reduced bytes",
           "What one process handed to all-reduce operations during training; empty with one process."),
    Column("execution", str, "", "setting", "Execution",
           "`eager`, `compile` or `cuda_graph`; with several processes, `eager in 2 processes`.",
           source="spec", read=_execution),
    Column("compile_time_s", float, "s", "measured", "Compilation time",
           "Compilation or capture of graphs; not in `train_time_s`."),
    Column("threads", int, "", "machine", "Threads",
           "Threads that torch computed with.", source="provenance.hardware.threads"),
    Column("torch", str, "", "machine", "torch", "Major and minor version of torch.",
           source="provenance.software.torch", read=minor_version),
    Column("energy_j", float, "J", "measured", "Training energy",
           "Of the GPU, or of the whole CPU package with all other programs, during `train_time_s`; empty where "
           "no counter can be read."),
    Column("target_accuracy", float, "fraction", "declared", "Target accuracy",
           "First accuracy of `--target`; empty without this option.", 1),
    Column("time_to_target_s", float, "s", "measured", "Time to target",
           "Part of `train_time_s` until the end of the first epoch whose test accuracy is at least "
           "`target_accuracy`; empty if no epoch reached it."),
    Column("flops_to_target", float, _FLOPS, "counted", "FLOPs to target",
           "Part of `train_flops_executed` until then."),
    Column("energy_to_target_j", float, "J", "measured", "Energy to target", "Part of `energy_j` until then."),
    Column("optimizer", str, "", "setting", "Optimizer", "Optimizer of the recipe.", source="spec.recipe.optimizer"),
    Column("learning_rate", float, "", "setting", "Learning rate",
           "Highest learning rate of the recipe.", source="spec.recipe.learning_rate"),
    Column("schedule", str, "", "setting", "Schedule", "Schedule of the learning rate.", source="spec.recipe.schedule"),
    Column("weight_decay", float, "", "setting", "Weight decay",
           "Weight decay of the recipe.", source="spec.recipe.weight_decay"),
)  # fmt: skip
COLUMNS: dict[str, Column] = {column.name: column for column in SCHEMA}
REMOVED_NOTHING = "removed nothing"
"""End of the message of a control that was skipped because its methods removed nothing."""
NUMBER_COLUMNS = tuple(column.name for column in SCHEMA if column.type is not str)

RECIPE_PREFIX = "recipe."
"""Other fields of the recipe are columns with this prefix, as JSON, if trials of the table differ in them."""


def recipe_columns(specs: Iterable[TrialSpec]) -> list[Column]:
    """Return a column for each field of the recipe that has none and in which the trials differ, by name."""
    fields = [{**resolve(Recipe), **spec.recipe} for spec in specs]
    names = sorted({name for recipe in fields for name in recipe} - {*COLUMNS})
    values = {name: {canonical_json(recipe.get(name)) for recipe in fields} for name in names}
    return [_recipe_column(name) for name, found in values.items() if len(found) > 1]


def _recipe_column(name: str) -> Column:
    column, default = f"{RECIPE_PREFIX}{name}", resolve(Recipe).get(name)
    meaning = "Field of the recipe, as JSON; trials of the table differ in it."
    return Column(
        *(column, str, "", "setting", column, meaning),
        source="spec.recipe",
        read=lambda recipe: canonical_json(recipe.get(name, default)),
    )


def markdown() -> Iterator[str]:
    """Yield the lines of the schema as a Markdown list."""
    for column in SCHEMA:
        facts = ", ".join(filter(None, (column.unit, column.kind)))
        line = f"- `{column.name}` ({facts}): {column.meaning}"
        yield from textwrap.wrap(line, 130, subsequent_indent="  ", break_on_hyphens=False)


if __name__ == "__main__":
    print("\n".join(markdown()))
