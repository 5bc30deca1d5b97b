"""Why a rank of a trial failed, and which of several failures caused the others."""

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
"""Environment variable of a rank: the folder for the report of its failure."""


FailedStatus = Literal["diverged", "oom", "error"]


@dataclass(frozen=True)
class Failure:
    """How a rank ended without finishing.

    Attributes:
        rank: Its number.
        status, message: As in `trial.json`.
        lost_others: Whether its connection to another rank ended. The cause is then elsewhere.
    """

    rank: int
    status: FailedStatus
    message: Annotated[str, MaxLen(10_000)]
    lost_others: bool = False

    def in_words(self) -> str:
        """Return the message, with the number of the rank if it is above 0."""
        named = self.rank == 0 or self.message.startswith("rank ")
        return self.message if named else f"rank {self.rank}: {self.message}"


def report(failure: Failure) -> None:
    """Tell the process that started this rank how the rank failed."""
    with contextlib.suppress(OSError):  # the disk may be full; the exit status too tells that the rank failed
        # The file is complete as soon as it exists, because another process reads it while the ranks run.
        files.write(Path(os.environ[FOLDER], f"{failure.rank}.json"), json.dumps(asdict(failure)), durable=False)


def reported(folder: Path, rank: int) -> Failure | None:
    """Return what a rank has reported in a folder."""
    path = folder / f"{rank}.json"
    return Failure(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def cause(failures: Sequence[Failure]) -> Failure:
    """Return the failure that caused the others: that of the lowest rank which has not only lost a connection."""
    return min(failures, key=lambda one: (one.lost_others, one.rank))
