"""Sections 6 and 7: what went wrong, and what a reader needs who does not believe the numbers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reports import formatting
from reports.content.model import Cell, Column, Problems, Table, Trust, missing_cell
from reports.data.disturbed_times import is_disturbed, mark_disturbed
from reports.data.groups import label
from reports.data.records import Records, Trial
from reports.data.trial_files import clean

# What is in a record and in no table of facts: it names the trial, or is shown elsewhere.
_NOT_FACTS = ("method", "variant", "parameters", "seed", "hash", "trial_id", "source", "command_line", "commands")
DISTURBED_NOTE = (
    "Measured: a clock or a counter on this hardware, in these runs. Training time is that of the "
    "training loop: the input pipeline, pruning, regulariser and reconfigurations are inside; evaluation, checkpoints, "
    "start-up and compilation are outside.",
    "Counted: exact, from shapes and masks. One multiply-add is 2 FLOPs; two-dimensional convolutions with their "
    "padding, linear layers, and the two products of scaled dot-product attention; the first layer has no data "
    "gradient; a method's own arithmetic is overhead and in no count of training. What else a network multiplies is "
    "not counted, and is named here.",
    "FLOPs have four counts: of the original dense net, of the current shapes, effective (current times density: what "
    "would be left on hardware that skips) and executed (what the kernels really did; where a method lets the clock "
    "choose who multiplies, what else the machine did has a part in that).",
    "Modelled: assumes something this hardware did not do. Published: quoted from a paper. Neither ranks anything.",
    "Accuracy is the share of the untouched test set at the final epoch. ± is the half-width of the 95 % t-interval "
    "over seeds, differences and ratios to dense paired by seed; where it covers dense, that is 'not told apart'.",
)


def problems(records: Records) -> Problems | None:
    """The trials that are not done, and damaged files; `None` when there are none."""
    bad = [trial for trial in records.trials if not trial.done or trial.damage]
    if not bad and not records.damage:
        return None
    rows: list[tuple[Cell, ...]] = [
        (
            Cell(trial.name, code=True),
            Cell("done, but damaged" if trial.done else trial.text("status") or "without a status"),
            Cell(trial.text("message")) if trial.text("message") else missing_cell("The record has no message."),
            Cell("; ".join(trial.damage)) if trial.damage else missing_cell("Nothing is damaged."),
        )
        for trial in bad
    ]
    for line in records.damage:
        rows.append(
            (Cell("suite.json", code=True), Cell("damaged"), missing_cell("The record has no message."), Cell(line))
        )
    columns: tuple[Column, ...] = tuple(
        Column(title, numeric=False) for title in ("Trial", "Status", "Message", "Damage")
    )
    if not records.damage and not any(trial.damage for trial in bad):
        columns, rows = columns[:3], [row[:3] for row in rows]
    many = "One trial or file has" if len(rows) == 1 else f"{len(rows)} trials or files have"
    table = Table("problems", f"{many} no sound result.", columns, tuple(rows))
    if all(trial.done for trial in bad):
        return Problems(table, (), "Every trial is done; the command that made what is damaged runs it again.")
    # A folder collects the trials of several commands, and `--only failed` looks at those of its own command alone.
    again = [rerun_command(line, records.folder) for line in command_lines(records.suite)]
    if not again:
        return Problems(table, (), "suite.json does not say which command made this folder, so none can be given here.")
    return Problems(table, tuple(dict.fromkeys(again)), "")


def command_lines(suite: Mapping[str, Any]) -> list[str]:
    """The distinct command lines that worked in the folder, the oldest first."""
    commands = suite.get("commands")
    entries = [entry for entry in commands if isinstance(entry, Mapping)] if isinstance(commands, list) else []
    lines = [entry.get("command_line") for entry in (*entries, suite)]
    return list(dict.fromkeys(clean(line) for line in lines if isinstance(line, str) and line.strip()))


def rerun_command(line: str, folder: Path) -> str:
    """The command of a recorded line for this folder and for the trials that ended without being done.

    A line whose quotes are not balanced is kept as it is, with the options added.
    """
    try:
        words = shlex.split(line)
    except ValueError:
        return f"{line} --out {_shell_path(str(folder))} --only failed"
    for position, word in enumerate(words[:3]):
        if word.endswith(".py") or word.rpartition("/")[2] == "pdt":
            words = words[position + 1 :]
            break
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("--only", "--out"):
            skip = True
        elif not word.startswith(("--only=", "--out=")):
            kept.append(word)
    words = ["python", "run_suite.py", *kept, "--out", _without_home(str(folder)), "--only", "failed"]
    return " ".join(_shell_path(word) for word in words)


def _shell_path(word: str) -> str:
    # A quoted ~ is no home folder any more.
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") and len(word) > 2 else shlex.quote(word)


def _without_home(text: str) -> str:
    """The text with the home folder, which holds the user's name, as `~`: reports are made to be shown."""
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def trust(records: Records) -> Trust:
    """What stands behind the numbers."""
    equal, differing = _split(records.trials)
    tables = [_trial_table(records.trials)]
    tables.append(_method_table(records.trials))
    facts = (Column("What", numeric=False), Column("Value", numeric=False))
    if equal:
        caption = "Settings, hardware, software and data: equal in all trials that recorded them"
        rows = tuple((Cell(key, code=True), Cell(value)) for key, value in equal.items())
        tables.append(Table("environment", caption, facts, rows))
    if differing:
        by_trial = (*facts, Column("Trials", numeric=False))
        body = tuple(_differing_rows(differing, len(records.trials)))
        tables.append(Table("differences", "What differs between trials", by_trial, body))
    known = set(equal.items())
    more = {key: value for key, value in _facts(records.suite).items() if (key.partition(".")[2], value) not in known}
    if more:
        rows = tuple((Cell(key, code=True), Cell(value)) for key, value in more.items())
        tables.append(Table("suite", "The suite's own record, where it says more", facts, rows))
    meaning = (*DISTURBED_NOTE[:2], *_not_counted(records.trials), *DISTURBED_NOTE[2:])
    return Trust(meaning, tuple(command_lines(records.suite)), records.source, tuple(tables))


def _not_counted(trials: Sequence[Trial]) -> list[str]:
    """For each network whose FLOPs leave something out, a line that names it."""
    found: dict[str, str] = {}
    for trial in trials:
        named = trial.provenance.get("not_counted")
        if isinstance(named, list) and named:
            operations = "; ".join(clean(_text(operation)) for operation in named)
            found[trial.text("model") or trial.name] = f"{operations}."
    return [f"Not counted in any FLOPs of {clean(model)}: {operations}" for model, operations in found.items()]


def _trial_table(trials: Sequence[Trial]) -> Table:
    columns = (
        Column("Trial", numeric=False),
        Column("Method", numeric=False),
        Column("Hash", numeric=False, note="Of what determines the result; see docs/architecture.md."),
        Column("Status", numeric=False),
        Column("Seed"),
        Column("Test accuracy", "%", "measured"),
        Column("Training time", "", "measured"),
        Column("Data copy", numeric=False),
        Column("Hardware", numeric=False),
    )
    return Table("trials", "Every trial", columns, tuple(_trial_row(trial) for trial in trials))


def _trial_row(trial: Trial) -> tuple[Cell, ...]:
    seed, accuracy, time = (trial.number(column) for column in ("seed", "test_accuracy", "train_time_s"))
    missing = missing_cell("Not measured in this trial.")
    digest = str(trial.spec.get("hash", ""))[:16] or trial.name.rsplit("-", 1)[-1]
    return (
        Cell(trial.name, code=True),
        Cell(label(trial), code=True) if trial.text("method") else missing,
        Cell(clean(digest), code=True),
        Cell(trial.text("status") or "without a status"),
        missing if seed is None else Cell(f"{seed:.0f}", value=seed),
        missing if accuracy is None else Cell(f"{100 * accuracy:.2f}", value=accuracy),
        missing if time is None else Cell(mark_disturbed(formatting.duration(time), is_disturbed(trial)), value=time),
        *(Cell(text, code=True) if text else missing for text in (trial.text("data_copy"), trial.text("hardware_id"))),
    )


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested records as `{"a.b": "text"}`; lists of plain values as one text."""
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
    """The facts of a spec, a provenance or a suite, without what is empty."""
    facts = flatten({key: value for key, value in record.items() if key not in _NOT_FACTS})
    return {
        key: _without_home(value)
        for key, value in facts.items()
        if value not in ("", "null") and key.rpartition(".")[2] not in ("source", "command_line")
    }


def _split(trials: Sequence[Trial]) -> tuple[dict[str, str], dict[str, dict[str, list[str]]]]:
    """Facts that all trials share, and for the others which trials have which value."""
    values: dict[str, dict[str, list[str]]] = {}
    for trial in trials:
        for key, value in (_facts(trial.spec) | _facts(trial.provenance)).items():
            values.setdefault(key, {}).setdefault(value, []).append(trial.name)
    equal = {key: next(iter(by_value)) for key, by_value in values.items() if len(by_value) == 1}
    return equal, {key: by_value for key, by_value in values.items() if len(by_value) > 1}


def _differing_rows(differing: Mapping[str, Mapping[str, list[str]]], count: int) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for key, by_value in differing.items():
        if len(by_value) > max(4, count // 2):
            text = f"{len(by_value)} different values: in each trial's trial.json"
            rows.append((Cell(key, code=True), Cell(text), Cell("all")))
            continue
        for value, names in by_value.items():
            rows.append((Cell(key, code=True), Cell(value), Cell(", ".join(names))))
    return rows


def _method_table(trials: Sequence[Trial]) -> Table:
    """Each method with the values of all its parameters, typed or not, and its source where a record has it."""
    columns = tuple(Column(title, numeric=False) for title in ("Method", "All its parameters", "Source"))
    rows: dict[tuple[str, str], tuple[Cell, ...]] = {}
    for trial in trials:
        parameters, source = trial.text("parameters"), _source(trial)
        key = (label(trial), parameters)
        if trial.text("method") and (key not in rows or source):
            rows[key] = (
                Cell(label(trial), code=True),
                Cell(_parameters(parameters))
                if parameters not in ("", "{}")
                else missing_cell("It has none, or none recorded."),
                Cell(source) if source else missing_cell("No record of a trial names it."),
            )
    return Table("methods", "The methods", columns, tuple(rows.values()))


def _parameters(text: str) -> str:
    try:
        return ", ".join(f"{key}={value}" for key, value in flatten(json.loads(text)).items())
    except json.JSONDecodeError:
        # Not the JSON that this suite writes: shown as it stands.
        return text


def _source(trial: Trial) -> str:
    card = trial.provenance.get("method")
    held = card.get("source") if isinstance(card, Mapping) else trial.provenance.get("source")
    return clean(held) if isinstance(held, str) else ""
