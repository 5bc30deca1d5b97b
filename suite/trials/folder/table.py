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
from operator import attrgetter
from typing import Any, Literal

from suite.files import canonical_json
from suite.parameters import resolve
from suite.recipe import Recipe
from suite.trials.spec import TrialSpec

Kind = Literal["trial", "setting", "machine", "declared", "measured", "counted"]

# Where a value of each kind is in a `TrialRecord`, if its column does not say it: the part before its name.
_SOURCES: dict[Kind, str] = {"trial": "", "setting": "spec."}
_LARGEST: dict[type, float] = {int: 2**63 - 1, float: 1e30}  # sums and squares of such floats are finite


@dataclass(frozen=True)
class Column:
    """One column of the results table.

    Attributes:
        name: Name in `results.csv` and, for measured and counted columns, in the `result` of `trial.json`.
        type: `str`, `int` (64 bits) or `float`.
        unit: Unit of the value; empty for texts and numbers without one.
        kind: Where the value comes from; docs/results.md says what each kind means.
        meaning: One sentence for the docs.
        maximum: Largest valid value.
        title: Head of the column in those tables of a report that show it.
        source: Where the value is in a `TrialRecord`; default: `spec.NAME` for a setting, otherwise `result.NAME`,
            which `suite.trials.trial_run` writes. `suite.trials.folder.targets` computes what depends on `--target`.
        read: Function that makes the cell of what is there.
    """

    name: str
    type: type
    unit: str
    kind: Kind
    meaning: str
    maximum: float = math.inf
    title: str = ""
    source: str = ""
    read: Callable[[Any], Any] | None = None

    def of(self, record: Any) -> Any:
        """Return the value of a `TrialRecord`; `None` if it has none."""
        value = record
        for part in (self.source or _SOURCES.get(self.kind, "result.") + self.name).split("."):
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
    Column("trial_id", str, "", "trial",
           "Name of the trial's folder; it ends with the hash of its settings.", source="name"),
    Column("method", str, "", "setting", "Registered name of the method."),
    Column("variant", str, "", "setting", "Parameters that were typed, `k=v` joined by commas."),
    Column("task", str, "", "setting", "Task with the parameters that differ from those of the preset."),
    Column("model", str, "", "setting", "Model with the parameters that differ from its defaults."),
    Column("preset", str, "", "setting", "`smoke`, `quick` or `paper`."),
    Column("seed", int, "", "setting", "Seed of initial weights, batch order and augmentation."),
    Column("status", str, "", "trial",
           "`done`, `diverged`, `oom`, `timeout`, `error` or `skipped`; the numbers of a trial that is not `done` "
           "do not count."),
    Column("message", str, "", "trial", "Why the trial is not `done`."),
    Column("device", str, "", "setting", "`cpu` or `cuda`."),
    Column("hardware_id", str, "", "machine",
           "Hash of the CPU's model, instruction set and usable cores, or of the GPU and the driver's major "
           "version.", source="provenance.hardware_id"),
    Column("dtype", str, "", "setting", "`float32`, `bfloat16` or `float16`."),
    Column("arithmetic", str, "", "setting", "`flush` if subnormal numbers count as zero, otherwise `ieee`."),
    Column("data_copy", str, "", "setting",
           "Kind of the data set's copy and the start of its checksum.", read=_data_copy),
    Column("parameters", str, "", "setting", "Values of all parameters of the method, as JSON.", read=canonical_json),
    Column("batch_size", int, "images", "setting", "Batch size of the recipe.", source="spec.recipe.batch_size"),
    Column("epochs", float, "", "setting", "Epochs of the recipe.", source="spec.recipe.epochs"),
    Column("test_accuracy", float, "fraction", "measured",
           "Of the final model, on the whole test set.", 1, title="Test accuracy"),
    Column("test_accuracy_one_view", float, "fraction", "measured",
           "Of each test image as it is, where `test_accuracy` is that of six views (`recipe.six_views`); else "
           "empty.", 1),
    Column("test_loss", float, "", "measured", "Cross entropy of the final model on the test set."),
    Column("val_accuracy", float, "fraction", "measured", "Of the final model; empty without a validation split.", 1),
    Column("best_epoch_accuracy", float, "fraction", "measured",
           "Highest test accuracy of any epoch with an evaluation, to compare with papers that report it.", 1),
    Column("train_time_s", float, "s", "measured",
           "Training steps with input, pruning, regularizer and reconfiguration; without evaluation and "
           "compilation.", title="Training time"),
    Column("eval_time_s", float, "s", "measured", "Evaluations after the epochs."),
    Column("reconfigure_time_s", float, "s", "measured", "Surgery, and `precise_bn`; part of `train_time_s`."),
    Column("wall_time_s", float, "s", "measured", "From start to end of the trial's process, all attempts."),
    Column("samples_per_s", float, "images/s", "measured", "Training images per second of `train_time_s`."),
    Column("inference_images_per_s", float, "images/s", "measured",
           "Of the final model: median of three to five forward passes of one evaluation batch."),
    Column("train_flops_dense", float, _FLOPS, "counted",
           "Of the original network over the whole training.", title="Training FLOPs, dense"),
    Column("train_flops_current", float, _FLOPS, "counted",
           "Of the shapes that existed at each step.", title="Training FLOPs, current shapes"),
    Column("train_flops_effective", float, _FLOPS, "counted",
           "Multiply-adds with both operands nonzero; only hardware that skips zeros can save the others.",
           title="Training FLOPs, effective"),
    Column("train_flops_executed", float, _FLOPS, "counted",
           "What the backends computed.", title="Training FLOPs, executed"),
    Column("inference_flops_dense", float, _FLOPS, "counted", "Of the original network, one image."),
    Column("inference_flops", float, _FLOPS, "counted",
           "Of the final network's shapes, one image.", title="Inference FLOPs"),
    Column("inference_flops_effective", float, _FLOPS, "counted",
           "As `inference_flops`, times each layer's fraction of nonzero weights.", title="Inference FLOPs, effective"),
    Column("params_dense", int, "", "counted", "Weights and biases of the original network."),
    Column("params", int, "", "counted", "Weights and biases of the final network.", title="Parameters"),
    Column("nonzero_params", int, "", "counted",
           "Those of the final network that are not zero.", title="Nonzero parameters"),
    Column("peak_memory_bytes", int, "bytes", "measured",
           "CUDA: the allocator's maximum while training. CPU: counted from saved tensors, parameters, gradients "
           "and optimizer state.", title="Peak memory"),
    Column("peak_rss_bytes", int, "bytes", "measured", "Of the trial's process, all attempts."),
    Column("allreduce_bytes", int, "bytes", "measured",
           "What one process handed to all-reduce operations during training; empty with one process."),
    Column("execution", str, "", "setting",
           "`eager`, `compile` or `cuda_graph`; with several processes, `eager in 2 processes`.",
           source="spec", read=_execution),
    Column("compile_time_s", float, "s", "measured", "Compilation or capture of graphs; not in `train_time_s`."),
    Column("threads", int, "", "machine", "Threads that torch computed with.", source="provenance.hardware.threads"),
    Column("torch", str, "", "machine",
           "Major and minor version of torch.", source="provenance.software.torch", read=minor_version),
    Column("energy_j", float, "J", "measured",
           "Of the GPU, or of the whole CPU package with all other programs, during `train_time_s`; empty where no "
           "counter can be read."),
    Column("target_accuracy", float, "fraction", "declared",
           "First accuracy of `--target`; empty without this option.", 1),
    Column("time_to_target_s", float, "s", "measured",
           "Part of `train_time_s` until the end of the first epoch whose test accuracy is at least "
           "`target_accuracy`; empty if no epoch reached it."),
    Column("flops_to_target", float, _FLOPS, "counted", "Part of `train_flops_executed` until then."),
    Column("energy_to_target_j", float, "J", "measured", "Part of `energy_j` until then."),
    Column("optimizer", str, "", "setting", "Optimizer of the recipe.", source="spec.recipe.optimizer"),
    Column("learning_rate", float, "", "setting",
           "Highest learning rate of the recipe.", source="spec.recipe.learning_rate"),
    Column("schedule", str, "", "setting", "Schedule of the learning rate.", source="spec.recipe.schedule"),
    Column("weight_decay", float, "", "setting", "Weight decay of the recipe.", source="spec.recipe.weight_decay"),
)  # fmt: skip
COLUMNS: dict[str, Column] = dict(zip(map(attrgetter("name"), SCHEMA), SCHEMA, strict=True))


def recipe_columns(specs: Iterable[TrialSpec]) -> list[Column]:
    """Return a column for each field of the recipe that has none and in which the trials differ, by name."""
    defaults = resolve(Recipe)
    recipes = [{**defaults, **spec.recipe} for spec in specs]
    names = sorted({name for recipe in recipes for name in recipe} - {*COLUMNS})
    differing = [name for name in names if len({canonical_json(recipe.get(name)) for recipe in recipes}) > 1]
    return [_recipe_column(name, defaults.get(name)) for name in differing]


def _recipe_column(name: str, default: Any) -> Column:
    meaning = "Field of the recipe, as JSON; trials of the table differ in it."
    return Column(
        *(f"recipe.{name}", str, "", "setting", meaning),
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
