"""The records of a folder as pandas frames, with the unit and kind of each column: `suite.load_results`."""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from reports.content.tables import cost_cell
from reports.content.verdict import main_cost, word
from reports.data.records import Records, read
from reports.data.verdict import COSTS, gain_shown, judged_groups, margins
from reports.sentences import counted
from suite.measure.times import GroupTimes
from suite.trials.folder.reader import table_row
from suite.trials.folder.records import TrialRecord
from suite.trials.folder.table import COLUMNS, SCHEMA, Column, recipe_columns
from suite.trials.folder.targets import declared_targets
from suite.trials.groups import BASELINE
from suite.trials.stages import FLOPS

Frame = Literal["verdicts", "trials", "epochs", "layers", "times"]

_PRODUCTS = ("forward", "dgrad", "wgrad")
# The bytes of a training step are counted. Those of everything that the processes communicate are measured.
_COUNTED = ("gradients", "decisions")
MEASURED_COMMUNICATION = ("gradients", "statistics", "decisions", "bookkeeping", "start")


def _like(name: str, meaning: str, source: str = "") -> Column:
    """Return the column of `results.csv` with this name, which means something else here."""
    return replace(COLUMNS[name], meaning=meaning, source=source)


_TRIAL_ID = COLUMNS["trial_id"]
_EVALUATED = "Of the model after the epoch; empty if this split was not evaluated."
EPOCHS: tuple[Column, ...] = (
    _TRIAL_ID,
    Column("epoch", int, "", "trial", "Epochs done, counted from 1."),
    Column("epochs_left", int, "", "trial", "Epochs that remain."),
    Column("train_loss", float, "", "measured", "Loss of the task, averaged over the images of the epoch."),
    Column("regularization", float, "", "measured", "Term of the regularizer, averaged over steps."),
    _like("test_accuracy", _EVALUATED),
    _like("test_accuracy_one_view", "Of each test image as it is, in a last epoch that averages six views."),
    _like("test_loss", _EVALUATED),
    _like("val_accuracy", _EVALUATED),
    Column("val_loss", float, "", "measured", _EVALUATED),
    _like("learning_rate", "Learning rate of the epoch's last step."),
    _like("batch_size", "Batch size of the epoch; a method may change it."),
    Column("steps", int, "", "counted", "Steps of the epoch."),
    Column("frozen", bool, "", "setting", "Whether the parameters of `recipe.freeze` were frozen; otherwise empty."),
    Column("skipped_steps", int, "", "measured", "Steps that were skipped because gradients were not finite."),
    Column("loss_scale", float, "", "measured", "Loss scale after the epoch; with float16 only."),
    *(_like(name, "Since the trial began, summed over attempts.")
      for name in ("train_time_s", "eval_time_s", "reconfigure_time_s", "compile_time_s", "energy_j")),
    Column("step_memory_bytes", int, "bytes", "measured",
           "Memory of one training step. CUDA: maximum of the allocator. CPU: counted, as for `peak_memory_bytes`."),
    *(Column(f"step_flops_{kind}", float, "FLOPs", "counted", "Of the epoch's last step with a full batch.",
             source=f"step_flops.{kind}") for kind in FLOPS),
    Column("step_overhead", float, "FLOPs", "counted", "Operations of the method itself in that step."),
    *(_like(f"train_flops_{kind}", "Since the trial began.", f"train_flops.{kind}") for kind in FLOPS),
    *(Column(f"step_communication_{kind}", int, "bytes", "counted",
             "What a process of data-parallel training communicates in that step.",
             source=f"step_communication.{kind}") for kind in _COUNTED),
    *(Column(f"train_communication_{kind}", int, "bytes", "counted", "Since the trial began.",
             source=f"train_communication.{kind}") for kind in _COUNTED),
    *(Column(f"communication_{kind}", int, "bytes", "measured",
             "What the first process communicated since the trial began; empty with one process.",
             source=f"communication.{kind}") for kind in MEASURED_COMMUNICATION),
    _like("params", "Weights and biases of the model after the epoch."),
    _like("inference_flops", "Of the shapes after the epoch, one image."),
    Column("reconfigured", bool, "", "trial", "Whether the epoch ended with a reconfiguration."),
)  # fmt: skip
LAYERS: tuple[Column, ...] = (
    _TRIAL_ID,
    Column("interval", int, "", "trial", "Reconfiguration interval."),
    Column("first_epoch", int, "", "trial", "First epoch of the interval."),
    Column("last_epoch", int, "", "trial", "Last epoch of the interval."),
    Column("steps", int, "", "counted", "Steps of the interval."),
    Column("samples", int, "images", "counted", "Training images of the interval."),
    Column("layer", str, "", "trial", "Name of the layer's module."),
    Column("kind", str, "", "trial", "`conv`, `linear` or `attention`."),
    Column("in_channels", int, "", "counted", "Input channels in the interval."),
    Column("out_channels", int, "", "counted", "Output channels in the interval."),
    Column("kernel", str, "", "counted", "Height and width of the kernel."),
    Column("input", str, "", "counted", "Height and width of the input."),
    Column("output", str, "", "counted", "Height and width of the output."),
    _like("params", "Weights and biases of the layer."),
    Column("weight_density", float, "fraction", "counted", "Share of its weights that are not zero."),
    *(Column(f"{product}_{kind}", float, "FLOPs", "counted", "Summed over the interval.")
      for product in _PRODUCTS for kind in FLOPS),
    Column("overhead", float, "FLOPs", "counted", "Operations of the method itself, summed over the interval."),
)  # fmt: skip
_NAMED = (  # a method, and its group of comparable trials
    *(COLUMNS[name] for name in ("method", "variant", "task", "data_copy", "model", "preset", "dtype", "arithmetic")),
    *(COLUMNS[name] for name in ("hardware_id", "threads", "torch", "epochs", "batch_size", "execution")),
    Column("recipe", str, "", "setting", "Recipe as JSON, as it identifies the group of comparable trials."),
)
VERDICTS: tuple[Column, ...] = (
    *_NAMED[:2],
    Column("outcome", str, "", "measured", "What the report says of it at equal cost; empty if nothing."),
    Column("gain", float, "points", "measured", "Accuracy minus that of dense training for the same cost."),
    Column("gain_low", float, "points", "measured", "Lower end of its interval for all gains of the page together."),
    Column("gain_high", float, "points", "measured", "Upper end of that interval."),
    Column("time_ratio", float, "× dense", "measured", "Training time over that of dense, from time passes."),
    Column("flops_ratio", float, "× dense", "counted", "Executed training FLOPs over those of dense."),
    Column("seeds", int, "", "trial", "Different seeds of its finished trials."),
    Column("equal_cost", str, "", "setting", "Cost that is equal: `time` with undisturbed time passes, or `flops`."),
    Column("reason", str, "", "trial", "Why there is no outcome."),
    *_NAMED[2:],
)
_OF_PASS = (
    Column("trial_id", str, "", "trial", COLUMNS["trial_id"].meaning, source="trial"),
    Column("time_ratio", float, "× dense", "measured", "Training time over that of dense, reconfigurations included.",
           source="ratio"),
    Column("reconfiguration", float, "× dense", "measured", "Part of the ratio that is time of reconfigurations.",
           source="reconfiguration"),
    Column("dense_twice", float, "× dense", "measured", "Steps of a second dense trainer over dense steps.",
           source="dense_twice"),
    Column("pairs", int, "", "setting", "Pairs of steps that were measured, in all stages.", source="pairs"),
    Column("stages", int, "", "counted", "Stages of the trial.", source="stages", read=len),
    Column("load", float, "cores", "measured", "Most cores that other programs used during the pass.", source="load"),
    Column("time_utc", str, "", "machine", "When the measurement began.", source="provenance.time_utc"),
)  # fmt: skip
TIMES: tuple[Column, ...] = (*_NAMED, Column("pass", int, "", "trial", "Number of the pass, from 1."), *_OF_PASS)

_DTYPES: dict[type, Any] = {str: "string", int: "Int64", float: "float64", bool: "boolean"}


@dataclass(frozen=True)
class Results:
    """The results of a suite's folder.

    Texts have the dtype `string`, integers `Int64`, floating-point numbers `float64` and truth values `boolean`. A
    number that was not measured is missing (`pandas.NA` or NaN), and never 0. `frame.attrs["units"]` and
    `frame.attrs["kinds"]` of each frame give the unit and the kind of its columns.

    Attributes:
        folder: The folder.
        verdicts: One row per method and group of comparable trials, from the code of the report's first table. Dense,
            controls and smoke tests have costs and no outcome.
        trials: One row per trial with the columns of `results.csv`, in the order of the table. Fields of the recipe in
            which trials differ, such as `recipe.cutout`, come last. The report uses the same values. The numbers of a
            trial count only if its `status` is `done`.
        epochs: One row per trial and epoch, from `epochs.jsonl`. FLOPs are `step_flops_KIND` and `train_flops_KIND`,
            and communicated bytes `step_communication_KIND`, `train_communication_KIND` and `communication_KIND`; the
            objects `layers`, `backends` and `method` are left out.
        layers: One row per trial, reconfiguration interval and layer, from `layers.csv`.
        times: One row per time pass of a method and group, from `time.json`.
        columns: The schema: one row per frame and column with `type`, `unit`, `kind` and `meaning`.
        damage: One line for each file that cannot be read and each value that is not valid.
    """

    folder: Path
    verdicts: pd.DataFrame
    trials: pd.DataFrame
    epochs: pd.DataFrame
    layers: pd.DataFrame
    times: pd.DataFrame
    columns: pd.DataFrame
    damage: tuple[str, ...]

    def __repr__(self) -> str:
        trials, labels = self.trials, self.verdicts["method"] + ("[" + self.verdicts["variant"] + "]").fillna("")
        outcomes = labels.groupby(self.verdicts["outcome"])
        said = [f"{word}: {textwrap.shorten(', '.join(of.unique()), 400)}" for word, of in outcomes]
        seeds, methods = counted(trials["seed"].nunique(), "seed"), counted(len({*labels} - {BASELINE}), "method")
        done = sum(trials["status"] == "done")
        lines = [
            f"Results of {self.folder}: {len(trials)} trials, {done} done; {seeds}; {methods} besides dense",
            f"Against dense for the same cost: {'; '.join(said) or 'nothing was compared'}",
        ]
        for name in (*typing.get_args(Frame), "columns"):
            line = f"{name}, {len(frame := getattr(self, name))} rows: {', '.join(frame)}"
            lines.append(f"  {textwrap.shorten(line, 100, placeholder=' ...')}")
        return "\n".join([*lines, f"  damage, {counted(len(self.damage), 'line')}"])


def load(folder: Path) -> Results:
    """Return the present results of a suite's folder."""
    records = read(folder)
    of_trials = (*SCHEMA, *recipe_columns(trial.spec for trial in records.trials))
    targets = (declared_targets(records.suite) or [()])[-1]
    contents: dict[Frame, tuple[Sequence[Column], Iterable[Mapping[str, Any]]]] = {
        "verdicts": (VERDICTS, _verdicts(records)),
        "trials": (of_trials, (table_row(trial, of_trials, targets) for trial in records.trials)),
        "epochs": (EPOCHS, (_epoch(trial, record) for trial in records.trials for record in trial.epochs)),
        "layers": (LAYERS, ({"trial_id": trial.name, **row} for trial in records.trials for row in trial.layers)),
        "times": (TIMES, _times(records.times)),
    }
    frames: dict[str, pd.DataFrame] = {name: _frame(*content) for name, content in contents.items()}
    schema = [
        (frame, one.name, one.type.__name__, one.unit, one.kind, one.meaning)
        for frame, (several, _) in contents.items()
        for one in several
    ]
    columns = pd.DataFrame(schema, columns=["frame", "column", "type", "unit", "kind", "meaning"])
    return Results(
        folder=records.folder, **frames, columns=columns.set_index(["frame", "column"]), damage=records.all_damage()
    )


def _frame(schema: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a frame with the columns of a schema, without other values of the rows."""
    content = list(rows)
    frame = pd.DataFrame(
        {
            column.name: pd.array([_value(column, row.get(column.name)) for row in content], dtype=_DTYPES[column.type])
            for column in schema
        }
    )
    frame.attrs["units"] = {column.name: column.unit for column in schema}
    frame.attrs["kinds"] = {column.name: column.kind for column in schema}
    return frame


def _value(column: Column, value: Any) -> Any:
    """Return a value with the column's type; a number that was written as text, such as `NaN`, is missing."""
    if value is None or (isinstance(value, str) and column.type is not str):
        return float("nan") if column.type is float else None
    return column.type(value)


def _epoch(trial: TrialRecord, record: Mapping[str, Any]) -> dict[str, Any]:
    nested = {column.name: column.of(record) for column in EPOCHS if "." in column.source}
    return {**record, **nested, "trial_id": trial.name}


def _named(label: str, key: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that name a method, and its group of comparable trials."""
    method, _, rest = label.partition("[")
    numbers = {name: float(text) if (text := key.get(name)) else None for name in ("epochs", "batch_size", "threads")}
    texts = {name: text or None for name, text in key.items()}
    return {**texts, **numbers, "method": method, "variant": rest.removesuffix("]") or None}


def _verdicts(records: Records) -> Iterable[dict[str, Any]]:
    margin = 100 * margins(records.suite)[-1]
    for group, rows, answers in judged_groups(records):
        equal = main_cost(rows)
        for row in rows:
            judged = {cost: answer.of(row.label) for cost, answer in (answers or {}).items()}
            values: dict[str, Any] = {f"{cost}_ratio": cost_cell(row, cost, judged.get(cost)).value for cost in COSTS}
            if (said := judged.get(equal)) is not None:
                values |= {"outcome": word(said, margin), "reason": said.reason or None}
                if (gain := gain_shown(said)) is not None:
                    values |= {"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high}
            yield {**_named(row.label, group.key), **values, "seeds": row.seeds, "equal_cost": equal}


def _times(groups: Sequence[GroupTimes]) -> Iterable[dict[str, Any]]:
    for group in groups:
        for label, time in group.methods.items():
            named = _named(label, group.key)
            for number, one in enumerate(time.passes, 1):
                measured = {column.name: column.of(one) for column in _OF_PASS}
                yield {**named, "pass": number, "threads": one.threads, **measured}
