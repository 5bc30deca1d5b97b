"""The section about failed trials and damaged files, and the commands that run them again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports.content.model import Cell, Column, Problems, Table, missing_cell
from reports.data.records import Records
from suite.files import clean, without_home
from suite.runs.folder.columns import is_needless


def problem_section(records: Records) -> Problems | None:
    """Return the trials that are not done and the damaged files; `None` if there are none."""
    bad = [
        trial
        for trial in records.trials
        if (not trial.done and not is_needless(trial.text("status"), trial.text("message"))) or trial.damage
    ]
    if not bad and not records.damage:
        return None
    no_message = missing_cell("The record has no message.")
    rows: list[tuple[Cell, ...]] = [
        (
            Cell(trial.name, code=True),
            Cell("done, but damaged" if trial.done else trial.text("status") or "without a status"),
            Cell(trial.text("message")) if trial.text("message") else no_message,
            Cell("; ".join(trial.damage)) if trial.damage else missing_cell("No file is damaged."),
        )
        for trial in bad
    ]
    for line in records.damage:
        rows.append((Cell("suite.json", code=True), Cell("damaged"), no_message, Cell(line)))
    columns = tuple(Column(title, numeric=False) for title in ("Trial", "Status", "Message", "Damage"))
    # Leave the last column out if nothing is damaged.
    if not records.damage and not any(trial.damage for trial in bad):
        columns, rows = columns[:3], [row[:3] for row in rows]
    subject = "One trial or file has" if len(rows) == 1 else f"{len(rows)} trials or files have"
    table = Table("problems", f"{subject} no valid result.", columns, tuple(rows))
    if all(trial.done for trial in bad):
        return Problems(
            table, (), "Every trial is done. Run the command of this folder again to repeat trials with damaged files."
        )
    # A folder may hold the trials of several commands, and `--only failed` selects only those of its own command.
    commands = [rerun_command(line, records.folder) for line in command_lines(records.suite)]
    if not commands:
        return Problems(table, (), "suite.json does not name the command that created this folder.")
    return Problems(table, tuple(dict.fromkeys(commands)), "")


def command_lines(suite: Mapping[str, Any]) -> list[str]:
    """Return the distinct command lines that wrote to the folder, oldest first."""
    commands = suite.get("commands")
    entries = [entry for entry in commands if isinstance(entry, Mapping)] if isinstance(commands, list) else []
    lines = [entry.get("command_line") for entry in (*entries, suite)]
    return list(dict.fromkeys(clean(line) for line in lines if isinstance(line, str) and line.strip()))


def out_option(folder: Path) -> str:
    """Return the option with which a command continues in a folder: `--out ~/runs/a`."""
    return f"--out {_shell_path(without_home(str(folder)))}"


def rerun_command(line: str, folder: Path) -> str:
    """Return a recorded command line, changed to run only the failed trials of this folder.

    If the quotes in the line are not balanced, the options are added to the unchanged line.
    """
    try:
        words = shlex.split(line)
    except ValueError:
        return f"{line} --out {_shell_path(str(folder))} --only failed"
    # Cut off the interpreter and the program.
    for position, word in enumerate(words[:3]):
        if word.endswith(".py") or word.rpartition("/")[2] == "pdt":
            words = words[position + 1 :]
            break
    # Drop the old values of the options that are set below.
    remaining: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("--only", "--out"):
            skip = True
        elif not word.startswith(("--only=", "--out=")):
            remaining.append(word)
    words = ["python", "run_suite.py", *remaining, "--out", without_home(str(folder)), "--only", "failed"]
    return " ".join(_shell_path(word) for word in words)


def _shell_path(word: str) -> str:
    # Quotes would keep the shell from expanding ~.
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") and len(word) > 2 else shlex.quote(word)
