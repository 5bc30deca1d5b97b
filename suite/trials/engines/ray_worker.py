"""One trial on a machine of a cluster, in the output folder if the machine sees it, otherwise in a temporary folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from suite import files
from suite.engine.cost.hardware import available_cores
from suite.errors import UsageError
from suite.trials.engines.cpu_cores import Place
from suite.trials.engines.local import LocalEngine
from suite.trials.folder.records import read_record
from suite.trials.progress import Position, ProgressFile
from suite.trials.spec import TrialSpec

TEMPORARY = "pdt-ray-"
"""Beginning of the names of temporary folders."""
EARLIER_WORKER_S = 60.0
"""Seconds to wait until an earlier process of the same trial, for example of a killed command, has ended."""

Content = dict[str, bytes]
"""Files of a folder by their path in it."""


@dataclass(frozen=True)
class Job:
    """A trial for a worker.

    Attributes:
        folder: Its folder on the machine of the command.
        token: File that the command has written. A worker sees it if the output folder is shared.
        secret: Content of that file.
        variables: Environment variables of the command that trials read.
        timeout: Seconds after which the trial is killed; `None` for no limit.
    """

    spec: TrialSpec
    folder: Path
    token: Path
    secret: str
    variables: Mapping[str, str]
    timeout: float | None


@dataclass(frozen=True)
class Ended:
    """What a worker sends back.

    Attributes:
        record: The trial's record, or its status and message.
        seconds: How long the trial took.
        content: Files of the trial's folder; `None` if the worker has written to the output folder itself.
    """

    record: dict[str, Any]
    seconds: float
    content: Content | None


class _Quiet:
    """A listener that keeps only how the trial ended. The command reads progress from the shared folder."""

    def __init__(self) -> None:
        self.record: dict[str, Any] = {}
        self.seconds = 0.0

    def started(self, trial: TrialSpec) -> None:
        pass

    def position(self, trial: TrialSpec, position: Position) -> None:
        pass

    def epoch(self, trial: TrialSpec, record: dict[str, Any]) -> None:
        pass

    def ended(self, trial: TrialSpec, record: dict[str, Any], seconds: float) -> None:
        self.record, self.seconds = record, seconds


def run_job(job: Job, at_a_time: int, sent: Mapping[str, Content]) -> Ended:
    """Run a trial on this machine.

    Args:
        at_a_time: Number of such trials that this machine runs at a time.
        sent: Content of the folders of the trial and of those that it depends on, by trial.

    Raises:
        UsageError: An earlier process of the same trial does not end.
    """
    if is_shared(job):
        with only_process_of(job.folder):
            return _run(job, job.folder, at_a_time, None)
    with files.temporary_folder(TEMPORARY) as parent:
        for name, content in sent.items():
            write_content(parent / name, content)
        folder = parent / job.spec.trial_id
        return _run(job, folder, at_a_time, folder)


def is_shared(job: Job) -> bool:
    """Return whether this machine sees the output folder of the command."""
    try:
        return job.token.read_text(encoding="ascii") == job.secret
    except OSError:
        return False


def _run(job: Job, folder: Path, at_a_time: int, sent_back: Path | None) -> Ended:
    threads = max(1, available_cores() // (at_a_time * job.spec.processes))
    shared_with = at_a_time - 1 if job.spec.device == "cpu" else 0  # Ray gives each task its own GPUs
    variables = {"OMP_NUM_THREADS": str(threads), **job.variables}  # Ray's own value counts hardware threads
    listener = _Quiet()
    engine = LocalEngine(1, job.timeout, place=Place(shared_with=shared_with), variables=variables)
    engine.run([(job.spec, folder)], listener)
    written = read_record(folder)
    record = (written.to_json() if written else {}) | listener.record
    return Ended(record, listener.seconds, None if sent_back is None else read_content(sent_back))


def only_process_of(folder: Path) -> FileIO:
    """Lock a trial until the result is closed or this process ends. It locks the log, so that no file is added.

    Processes of a killed command end soon, but on another machine they do not end at once.

    Raises:
        UsageError: Another process holds the lock after `EARLIER_WORKER_S`.
    """
    files.make_folder(folder)
    try:
        return files.lock(folder / "log.txt", EARLIER_WORKER_S)
    except TimeoutError:
        raise UsageError(f"another process has trained {folder.name} for {EARLIER_WORKER_S:.0f} s") from None


def read_content(folder: Path) -> Content:
    """Return the files of a folder and its subfolders, without temporary files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.suffix != ".part" and path.name != ProgressFile.NAME
    }


def write_content(folder: Path, content: Content) -> None:
    """Replace the files of a folder, each atomically and the record last. Other files are removed.

    Raises:
        UsageError: A path leads out of the folder, or through a symbolic link.
        OSError: A file cannot be written.
    """
    files.make_folder(folder)
    old = set(read_content(folder)) - set(content)
    for name in sorted(content, key=lambda name: (name == "trial.json", name)):
        path = folder / name
        if ".." in path.parts or not path.is_relative_to(folder):
            raise UsageError(f"a worker sent the file {name}, which is not in the folder of its trial")
        files.make_folder(path.parent)
        files.write(path, content[name])
    for name in old:
        (folder / name).unlink(missing_ok=True)
