"""What every trial needs, and nothing about any one method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reports.frames import Results
    from suite.trials.callbacks.calls import CallbackTrial

__version__ = "0.1.0"


def load_results(folder: str | Path) -> Results:
    """Return the results of a suite as pandas frames, with the unit and kind of each column.

    Args:
        folder: Output folder of a command, or an exported copy, which has compressed records.

    Returns:
        Frames of verdicts, trials, epochs, layers and times, and their schema (`reports.frames.Results`).

    Raises:
        suite.errors.UsageError: The folder has no results.
    """
    from reports.frames import load  # imports pandas

    return load(Path(folder).expanduser())


def run(
    arguments: Sequence[str],
    on_epoch: Callable[[CallbackTrial, dict[str, Any]], object] | None = None,
    on_trial: Callable[[CallbackTrial, dict[str, Any]], object] | None = None,
) -> int:
    """Run a suite from Python, as the verb `run` does.

    The trials run in processes of their own; both functions are called in this process, soon after what they report. A
    function that raises an exception is not called again for that trial, and the trials go on. `docs/callbacks.md`
    describes trials and records, and callbacks in the process of the trial.

    Args:
        arguments: Options of `run`, as typed: `["--methods", "dense,sdgp", "--task", "digits"]`.
        on_epoch: Function of a trial and the record of an epoch.
        on_trial: Function of a trial and its record, when it has ended with any status.

    Returns:
        The exit status: 0 if every trial of the command is done, otherwise 1.

    Raises:
        suite.errors.UsageError: The arguments, a function, a file or a plugin can be corrected.
    """
    from suite.cli.run import run_with_functions  # methods and tasks import this package without commands

    return run_with_functions(arguments, on_epoch=on_epoch, on_trial=on_trial)
