"""Messages of the commands of an allocation in its store: plain data, which the reader checks.

The store of `torchrun` has no password, and listens on all interfaces: anyone who reaches it can write to it. A message
therefore names no path and no program. It can start only a trial that its reader has planned itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from annotated_types import Interval
from pydantic import StringConstraints, TypeAdapter, ValidationError

from suite.errors import UsageError
from suite.trials.ranks.failures import Failure

ExitStatus = Annotated[int, Interval(ge=-255, le=255)]
Message = TypeVar("Message")


@dataclass(frozen=True)
class Start:
    """Every rank must start a trial.

    Attributes:
        trial: Id of the trial.
        meeting: Where its ranks meet: a port, or the random end of the name of a file.
    """

    trial: Annotated[str, StringConstraints(max_length=255)]
    meeting: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{1,32}$")]


@dataclass(frozen=True)
class RankEnd:
    """A rank of a trial has ended.

    Attributes:
        status: Exit status of its process, negative for a signal.
        failure: How it failed; `None` if it did not fail or sent no reason.
    """

    status: ExitStatus
    failure: Failure | None = None


def send(store: Any, key: str, message: object) -> None:
    """Write a message to the store."""
    store.set(key, TypeAdapter(type(message)).dump_json(message))


def receive(store: Any, key: str, kind: type[Message]) -> Message:
    """Wait for a message in the store, and return it.

    Raises:
        UsageError: The store has other data in its place.
    """
    content = store.get(key)
    try:
        return TypeAdapter(kind).validate_json(content, strict=True)
    except ValidationError:
        raise UsageError(
            f"the store of the ranks has {content[:80]!r} as {key}, which no command of this suite has written"
        ) from None
