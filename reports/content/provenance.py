"""The last section of a report, on where its numbers come from and what they mean, and that about failed trials."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reports import formatting
from reports.content.model import Cell, Column, Problems, Provenance, Table, missing_cell
from reports.data.records import NO_PRUNING, Records, is_disturbed, is_without_pruning, mark_disturbed
from suite.files import clean, without_home
from suite.trials.folder.records import TrialRecord
from suite.trials.groups import label
from suite.trials.search import Tuned, TunedMethod


def problem_section(records: Records) -> Problems | None:
    """Return the trials that are not done and the damaged files; `None` if there are none."""
    bad = [trial for trial in records.trials if (not trial.done and not trial.is_needless) or trial.damage]
    if not bad and not records.damage and not records.damaged:
        return None
    texts = [
        (trial.name, "done, but damaged" if trial.done else trial.text("status"),
         "; ".join(filter(None, (trial.text("message"), *trial.damage))))
        for trial in bad
    ]  # fmt: skip
    texts += [(name, "damaged", reason) for name, reason in records.damaged.items()]
    texts += [("suite.json", "damaged", line) for line in records.damage]
    columns = tuple(Column(title, numeric=False) for title in ("Trial", "Status", "Message"))
    rows = tuple((Cell(name, code=True), Cell(status), Cell(message)) for name, status, message in texts)
    subject = "One trial or file has" if len(rows) == 1 else f"{len(rows)} trials or files have"
    table = Table("problems", f"{subject} no valid result.", columns, rows)
    if all(trial.done for trial in bad) and not records.damaged:
        return Problems(
            table, (), "Every trial is done. Run the command of this folder again to repeat trials with damaged files."
        )
    # A folder may hold the trials of several commands, and `--only failed` selects only those of its own command.
    commands = [rerun_command(line, records.folder) for line in command_lines(records.suite)]
    if not commands:
        return Problems(table, (), "suite.json does not name the command that created this folder.")
    return Problems(table, tuple(dict.fromkeys(commands)), "")


def left_out(records: Records) -> tuple[str, ...]:
    """Return one line for each method that a command left out and that has no trial in the folder."""
    entries = [one for command in _commands(records.suite) for one in command["spec"].get("left_out", ())]
    trained = {(label(trial), trial.text("model"), trial.text("task")) for trial in records.trials}
    lines = [
        f"{one['method']} cannot train {one['model']} on {one['task']}: {one['reason']}"
        for one in entries
        if (one["method"], one["model"], one["task"]) not in trained
    ]
    return tuple(dict.fromkeys(map(clean, lines)))


def command_lines(suite: Mapping[str, Any]) -> list[str]:
    """Return the distinct command lines that wrote to the folder, oldest first."""
    return list(dict.fromkeys(clean(command["command_line"]) for command in _commands(suite)))


def _commands(suite: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    commands: list[Mapping[str, Any]] = suite.get("commands", [])
    return commands


def out_option(folder: Path) -> str:
    """Return the option with which a command continues in a folder: `--out ~/runs/a`."""
    return f"--out {_shell_path(without_home(str(folder)))}"


def rerun_command(line: str, folder: Path) -> str:
    """Return a recorded command line, changed to run only the failed trials of this folder."""
    words = shlex.split(line)
    start = next((place for place, word in enumerate(words[:3], 1) if word.endswith(("pdt", ".py"))), 0)
    kept = without_options(words[start:], "--only", "--out")
    words = ["python", "run_suite.py", *kept, "--out", without_home(str(folder)), "--only", "failed"]
    return " ".join(_shell_path(word) for word in words)


def without_options(words: Sequence[str], *options: str) -> list[str]:
    """Return the words of a command line without some options and their values."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(option)
    return parser.parse_known_args(words)[1]


def _shell_path(word: str) -> str:
    # Quotes would keep the shell from expanding ~.
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") and len(word) > 2 else shlex.quote(word)


# The table of the environment leaves these entries of a record out: they name the trial, appear elsewhere, or differ in
# most trials.
_LEFT_OUT = (
    *("method", "variant", "parameters", "seed", "hash", "trial_id", "source", "command_line"),
    *("at_default", "initial_weights", "products", "depends_on"),
)
MOST_NAMED = 4
"""Trials that a row of the table of differences names. Of more, it counts those of each method."""
MEANING = (
    "Measured: by a clock or counter on this hardware, in these runs. Training time is the wall time of the training "
    "loop, including the input pipeline, pruning, regulariser and reconfigurations; it excludes evaluation, "
    "checkpoints, start-up and compilation.",
    "Counted: exact, from shapes and masks. One multiply-add is 2 FLOPs. Two-dimensional convolutions with their "
    "padding, linear layers, the two products of scaled dot-product attention, and other matrix products are counted. "
    "The first layer has no data gradient. The arithmetic of a method itself is overhead and not part of the training "
    "FLOPs. Other operations of a network that multiply, or may do so, are not counted. They are named here if there "
    "are any.",
    "FLOPs are counted in four ways: dense (the original network), current (the present shapes), effective (current "
    "times density: the cost on hardware that skips) and executed (what the kernels computed; if a method chooses "
    "backends by their speed, other load on the machine can affect this count).",
    "Modelled: assumes something that this hardware did not do. Published: quoted from a paper. The ranking uses "
    "neither.",
    "Accuracy is the share of correct answers on the test set after the final epoch. ± is the half-width of the 95 % "
    "confidence interval (Student's t) over seeds. Ratios to dense are geometric means, paired by seed, with an "
    "interval in brackets that is computed from logarithms. Differences of accuracy are not paired. If an interval "
    "covers dense, the method is not distinguishable from dense.",
)


def provenance_section(records: Records) -> Provenance:
    """Return definitions, commands, and tables of all trials, methods and environments."""
    equal, differing = _split(records.trials)
    tables = [_trial_table(records.trials), _method_table(records.trials)]
    if records.tuned is not None:
        tables.append(_tuned_table(records.tuned, records.trials))
    heads = (Column("Name", numeric=False), Column("Value", numeric=False))
    if equal:
        caption = "Settings, hardware, software and data that are the same in all trials that recorded them"
        rows = tuple((Cell(key, code=True), Cell(value)) for key, value in equal.items())
        tables.append(Table("environment", caption, heads, rows))
    if differing:
        body = tuple(_differing_rows(differing, len(records.trials)))
        columns = (*heads, Column("Trials", numeric=False))
        tables.append(Table("differences", "Differences between trials", columns, body))
    meaning = (*MEANING[:2], *_not_counted(records.trials), *MEANING[2:])
    if records.untested:
        count = "1 trial" if records.untested == 1 else f"{records.untested} trials"
        meaning += (f"Not shown: {count} of tune, which used validation images and no test images.",)
    return Provenance(meaning, tuple(command_lines(records.suite)), tuple(tables))


def _not_counted(trials: Sequence[TrialRecord]) -> list[str]:
    """Return a line for each network with operations that no FLOPs include."""
    lines: dict[str, str] = {}
    for trial in trials:
        if named := trial.provenance.get("not_counted"):
            lines[trial.text("model")] = clean("; ".join(map(_text, named)))
    return [f"Not included in any FLOPs of {clean(model)}: {operations}." for model, operations in lines.items()]


def _trial_table(trials: Sequence[TrialRecord]) -> Table:
    columns = (
        Column("Trial", numeric=False),
        Column("Method", numeric=False),
        Column("Status", numeric=False),
        Column("Seed"),
        Column("Test accuracy", "%", "measured"),
        Column("Training time", "", "measured"),
        Column("Data copy", numeric=False),
        Column("Hardware", numeric=False),
    )
    return Table("trials", "All trials", columns, tuple(_trial_row(trial) for trial in trials))


def _trial_row(trial: TrialRecord) -> tuple[Cell, ...]:
    seed, accuracy, time = (trial.number(column) for column in ("seed", "test_accuracy", "train_time_s"))
    missing = missing_cell("Not measured in this trial.")
    return (
        Cell(trial.name, code=True),
        Cell(label(trial), code=True, mark=NO_PRUNING if is_without_pruning(trial) else ""),
        Cell(trial.text("status")),
        missing if seed is None else Cell(f"{seed:.0f}", value=seed),
        missing if accuracy is None else Cell(f"{100 * accuracy:.2f}", value=accuracy),
        missing if time is None else Cell(mark_disturbed(formatting.duration(time), is_disturbed(trial)), value=time),
        *(Cell(trial.text(column), code=True) for column in ("data_copy", "hardware_id")),
    )


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Flatten nested records to `{"a.b": "text"}`. A list of plain values becomes one text."""
    if isinstance(value, Mapping):
        flat: dict[str, str] = {}
        for key, inner in value.items():
            flat.update(flatten(inner, f"{prefix}.{clean(str(key))}" if prefix else clean(str(key))))
        return flat
    if isinstance(value, list) and not any(isinstance(inner, (Mapping, list)) for inner in value):
        return {prefix: clean(", ".join(map(_text, value)))}
    return {prefix: clean(_text(value))}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _facts(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of a specification or a provenance, without empty ones."""
    facts = flatten({key: value for key, value in record.items() if key not in _LEFT_OUT})
    return {
        key: without_home(value)
        for key, value in facts.items()
        if value not in ("", "null") and key.rpartition(".")[2] != "source"
    }


def _split(trials: Sequence[TrialRecord]) -> tuple[dict[str, str], dict[str, dict[str, list[TrialRecord]]]]:
    """Return the facts that all trials share, and for each other fact the trials by value."""
    values: dict[str, dict[str, list[TrialRecord]]] = {}
    for trial in trials:
        for key, value in (_facts(trial.spec.to_json()) | _facts(trial.provenance)).items():
            values.setdefault(key, {}).setdefault(value, []).append(trial)
    equal = {key: next(iter(by_value)) for key, by_value in values.items() if len(by_value) == 1}
    return equal, {key: by_value for key, by_value in values.items() if len(by_value) > 1}


def _differing_rows(differing: Mapping[str, Mapping[str, list[TrialRecord]]], count: int) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for key, by_value in differing.items():
        if len(by_value) > max(4, count // 2):
            text = f"{len(by_value)} different values; see each trial's trial.json"
            rows.append((Cell(key, code=True), Cell(text), Cell("all")))
            continue
        for value, trials in by_value.items():
            if len(trials) <= MOST_NAMED:
                names = [trial.name for trial in trials]
            else:
                names = [f"{name} ({number})" for name, number in Counter(map(label, trials)).items()]
            rows.append((Cell(key, code=True), Cell(value), Cell(", ".join(names))))
    return rows


def _method_table(trials: Sequence[TrialRecord]) -> Table:
    """List each method with its parameters, its source, and how its defaults were chosen, if this was recorded."""
    columns = tuple(Column(title, numeric=False) for title in ("Method", "All parameters", "Source", "Defaults chosen"))
    rows: dict[tuple[str, str], tuple[Cell, ...]] = {}
    for trial in trials:
        parameters, card = trial.text("parameters"), trial.provenance.get("method", {})
        key = (label(trial), parameters)
        if key not in rows or card:
            named = ", ".join(f"{name}={value}" for name, value in flatten(json.loads(parameters or "{}")).items())
            tuning = "; ".join(map(_text, card.get("tuning", ())))
            texts = (named, clean(card.get("source", "")), clean(tuning))
            cells = (Cell(text) if text else missing_cell("The records name none") for text in texts)
            rows[key] = (Cell(label(trial), code=True), *cells)
    return Table("methods", "Methods", columns, tuple(rows.values()))


def _tuned_table(tuned: Tuned, trials: Sequence[TrialRecord]) -> Table:
    """List how each method was tuned, and whether the trials of this report use the chosen setting."""
    columns = (
        Column("Method", numeric=False),
        Column("Settings tried"),
        Column("Seeds of each"),
        Column("Searched", numeric=False),
        Column("Validation accuracy", "%", "measured", "Of the chosen setting, on training images that were held out."),
        Column("Compared here", numeric=False),
    )
    caption = f"Tuning on {tuned.validation_images:,} validation images: every method had a budget of {tuned.budget}"
    rows = []
    for method in tuned.methods:
        chosen = None if method.chosen is None else method.settings[method.chosen]
        accuracy = None if chosen is None else chosen.val_accuracy
        names = ", ".join(dimension.name for dimension in method.space)
        rows.append(
            (
                Cell(clean(method.label or method.method), code=True),
                Cell(f"{len(method.settings)}", value=len(method.settings)),
                Cell(f"{len(tuned.seeds)}", value=len(tuned.seeds)),
                Cell(clean(names)),
                missing_cell("No setting could be chosen.")
                if accuracy is None
                else Cell(f"{100 * accuracy:.2f}", value=accuracy),
                Cell("yes" if any(_uses(trial, method) for trial in trials) else "no"),
            )
        )
    return Table("tuning", caption, columns, tuple(rows))


def _uses(trial: TrialRecord, tuned: TunedMethod) -> bool:
    """Return whether a trial has the chosen setting of a method, learning rate included."""
    if tuned.chosen is None or label(trial) != tuned.label:
        return False
    default = next((dimension.default for dimension in tuned.space if dimension.name == "recipe.learning_rate"), None)
    rate = tuned.settings[tuned.chosen].values.get("recipe.learning_rate", default)
    return rate is None or (trial.spec.recipe).get("learning_rate") == rate
