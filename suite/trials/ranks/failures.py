"""Why a rank of a trial failed, and which of several failures is the cause of the others."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import MaxLen

from suite import files

FOLDER = "PDT_RANK_FAILURES"
"""Environment variable of a rank: the folder for the file that says how it failed."""


FailedStatus = Literal["diverged", "oom", "error"]


@dataclass(frozen=True)
class Failure:
    """How a rank ended that did not finish.

    Attributes:
        rank: Its number.
        status, message: As in `trial.json`.
        lost_others: Whether the connection to another rank ended, so that the cause is elsewhere.
    """

    rank: int
    status: FailedStatus
    message: Annotated[str, MaxLen(10_000)]
    lost_others: bool = False

    def in_words(self) -> str:
        """Return the message, with the number of the rank unless it is 0."""
        named = self.rank == 0 or self.message.startswith("rank ")
        return self.message if named else f"rank {self.rank}: {self.message}"


def report(failure: Failure) -> None:
    """Tell the process that started this rank how the rank failed."""
    with contextlib.suppress(OSError):  # the disk may be full; the exit status also says that the rank failed
        # Complete as soon as it exists: the process that waits for the ranks reads it while they run.
        files.write(Path(os.environ[FOLDER], f"{failure.rank}.json"), json.dumps(asdict(failure)), durable=False)


def reported(folder: Path, rank: int) -> Failure | None:
    """Return what a rank has reported to a folder."""
    path = folder / f"{rank}.json"
    return Failure(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def cause(failures: Sequence[Failure]) -> Failure:
    """Return the failure that caused the others: that of the lowest rank which has not merely lost a connection."""
    return min(failures, key=lambda one: (one.lost_others, one.rank))
