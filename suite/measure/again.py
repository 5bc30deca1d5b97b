"""Trains a trial again in its own folder, if the states from which its steps are timed are not here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from suite.errors import UsageError
from suite.measure.candidates import AGAIN, Candidate
from suite.trials.building import with_data_here
from suite.trials.engines.local import LocalEngine
from suite.trials.folder.records import read_record
from suite.trials.folder.store import Store
from suite.trials.progress import TrialProgress
from suite.trials.spec import TrialSpec


def train_again(
    folder: Path, wanted: Sequence[Candidate], plugins: Sequence[str], threads: int, show: Callable[[str], None]
) -> bool:
    """Train trials whose states the candidates lack, and the trials that those depend on.

    Args:
        folder: Folder of the suite.
        wanted: Candidates with `lacking`.
        plugins: Plugin files that the user has typed.
        threads: Number of threads of the training, equal to that of the passes.
        show: Function that prints a line.

    Returns:
        Whether any trial had to be trained. A line shows how each ended that is not done.
    """
    own: dict[str, TrialSpec] = {}
    others: dict[str, TrialSpec] = {}
    for candidate in wanted:
        assert candidate.lacking is not None
        try:
            *before, spec = (
                dataclasses.replace(with_data_here(spec.of_record(plugins)), callbacks=())
                for spec in _with_others(folder, candidate.lacking)
            )
        except UsageError as error:
            show(f"{candidate.label}: not trained: {error}")
            continue
        reason = candidate.reason.partition(";")[0]
        show(f"{candidate.label}: {reason}; {candidate.trial} is trained here first, into {folder / AGAIN}")
        own[spec.trial_id] = spec
        others |= {other.trial_id: other for other in before}
    if not own:
        return False
    store = Store(folder / AGAIN)
    with store.lock():
        # A trial that is done there ran on another machine, or has lost its states.
        done = [spec for spec in own.values() if store.status(spec.trial_id) == "done"]
        store.choose(done, "all")
        chosen = store.choose(list((others | own).values()), "missing")
        with TrialProgress([trial for trial, _ in chosen], Console()) as progress:
            LocalEngine(variables={"OMP_NUM_THREADS": str(threads)}).run(chosen, progress)
        for trial, place in chosen:
            record = read_record(place)
            if record is None or not record.done:
                show(f"{trial.trial_id}: {f'{record.status}: {record.message}' if record else 'not trained'}")
    return True


def _with_others(folder: Path, spec: TrialSpec) -> list[TrialSpec]:
    specs = []
    for trial_id in spec.depends_on.values():
        record = read_record(folder / "trials" / trial_id)
        if record is None:
            raise UsageError(f"it depends on {trial_id}, which is not in the folder")
        specs += _with_others(folder, record.spec)
    return [*specs, spec]
