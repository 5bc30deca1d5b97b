"""Runs a pass over the methods of a suite's folder, and stores its measurements."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from suite.engine.cost.hardware import available_cores, busy_advice, busy_cores, competition
from suite.errors import UsageError
from suite.files import clean
from suite.measure.candidates import Candidate, find_candidates
from suite.trials.engines.subprocess_call import call_in_subprocess
from suite.trials.folder.columns import minor_version
from suite.trials.folder.entries import EntryFile, Strict
from suite.trials.folder.store import Store
from suite.trials.plugin_files import load_recorded

METHOD_S = 120.0
"""Seconds that the measured steps of one method should take together."""

Entry = TypeVar("Entry", bound=Strict)
Measure = Callable[[Candidate, Mapping[str, Any], int], dict[str, Any]]
"""Measures stages, given the candidate, the arguments of a function and the number of threads."""


def run_pass(
    verb: str,
    file: EntryFile[Entry],
    folder: Path,
    methods: str,
    threads: int | None,
    busy: bool,
    entry_of: Callable[[Candidate, int], Entry | None],
    line: Callable[[str, Entry], str],
    show: Callable[[str], None],
    with_dense: bool = False,
    plugins: Sequence[str] = (),
    number: int = 0,
    shuffle: bool = False,
    anywhere: bool = False,
    train: Callable[[Sequence[Candidate]], bool] | None = None,
) -> bool:
    """Measure the methods of a suite's folder, and add their entries to a file.

    Args:
        verb: Verb of the command, for messages.
        folder: Folder of a suite.
        methods: Comma list of methods; empty for all.
        threads: Number of threads; `None` for that of the trials.
        busy: Whether to measure while other programs use the machine.
        entry_of: Measures a candidate with a number of threads. It raises `UsageError` if the candidate cannot be run
            again, and returns `None` if it has already been measured.
        line: Returns the line to print for a method and its entry.
        show: Function that prints a line.
        with_dense: Whether dense training may be one of the methods (`find_candidates`).
        plugins: Plugin files that the user has typed.
        number: Number of the pass, from 0 (`find_candidates`).
        shuffle: Whether the number of the pass draws the order of the methods. Every second order is the reverse of the
            one before.
        anywhere: Whether trials of other machines are measured here too.
        train: Trains trials whose states candidates lack, and returns whether it trained any.

    Returns:
        Whether every method could be measured.

    Raises:
        UsageError: The folder is in use or has no results, a method is unknown, or the machine is busy.
    """
    store = Store(folder)
    with store.lock():
        file.read(folder)  # a damaged file is refused before any measurement
        count = (threads or available_cores()) if anywhere else None

        def found() -> list[Candidate]:
            return find_candidates(folder, verb, methods, with_dense, number, count)

        candidates = found()
        for path in plugins:
            specs = (one.spec or one.lacking for one in candidates)
            load_recorded(path, [spec.defined_by for spec in specs if spec is not None])
        if not busy:
            _refuse_competition(verb, folder, [threads or one.threads or available_cores() for one in candidates])
        if train is not None and train(candidates):
            candidates = found()
        if shuffle:
            random.Random(number // 2).shuffle(candidates)
            candidates = candidates[:: -1 if number % 2 else 1]
        several = len({tuple(one.key.items()) for one in candidates}) > 1
        measured = 0
        for place, candidate in enumerate(candidates, 1):
            where = f"{candidate.key['task']}, {candidate.key['model']}: " if several else ""
            try:
                if candidate.spec is None:
                    raise UsageError(candidate.reason)
                candidate = dataclasses.replace(candidate, spec=candidate.spec.of_record(plugins), place=place)
                entry = entry_of(candidate, threads or candidate.threads or available_cores())
            except UsageError as error:
                show(clean(f"{where}{candidate.label}: not measured: {' '.join(str(error).split())}"))
                continue
            if entry is not None:
                file.add(folder, candidate.key, candidate.label, entry)
                show(f"{where}{line(candidate.label, entry)}")
            measured += 1
    return measured == len(candidates)


def in_subprocess(function: str) -> Measure:
    """Return a function that calls `module:name` in a new process with the environment of a trial.

    The function raises `UsageError` if the process fails.
    """

    def measure(candidate: Candidate, arguments: Mapping[str, Any], threads: int) -> dict[str, Any]:
        spec = candidate.spec
        assert spec is not None
        try:
            result = call_in_subprocess(function, arguments, spec.device, spec.plugins, threads, spec.arithmetic)
        except RuntimeError as error:
            raise UsageError(str(error)) from error
        return dict(result.value)

    return measure


def measure_here(measure: Measure, candidate: Candidate, arguments: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Measure stages of a trial on the machine that the trial ran on.

    Raises:
        UsageError: The trial cannot be run again, or ran on other hardware or with another version of torch.
    """
    result = measure(candidate, arguments, threads)
    if "error" in result:
        raise UsageError(result["error"])
    _refuse_other_machine(candidate, result["provenance"])
    return result


def _refuse_other_machine(candidate: Candidate, provenance: Mapping[str, Any]) -> None:
    """Check that the trials ran on this machine, because the report combines their results with the measurements."""
    here = {
        "hardware_id": str(provenance.get("hardware_id") or ""),
        "torch": minor_version(str((provenance.get("software") or {}).get("torch") or "")),
    }
    for name, found in here.items():
        known = candidate.key.get(name)
        if found and known and found != known:
            raise UsageError(
                f"its trials have the {name} {known}, and this machine has {found}; measure where they ran"
            )


def _refuse_competition(verb: str, folder: Path, threads: Iterable[int]) -> None:
    load, cores = busy_cores(1.0), min(threads)
    if competition(load, cores):
        raise UsageError(
            f"{verb} {folder}: {load:.1f} cores are busy with other programs, which slow one step more than another; "
            f"stop them, or measure all the same with --busy{busy_advice()}"
        )


def disturbance(load: float, threads: int) -> str:
    """Return the end of a line about a measurement that other programs disturbed; empty if they did not."""
    return f"; disturbed: other programs used {load:.1f} cores" if competition(load, threads) else ""
