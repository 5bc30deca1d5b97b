"""How each method is drawn: one colour per method in every report."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from suite.trials.folder.records import TrialRecord
from suite.trials.groups import BASELINE, is_control, is_without_pruning, label

COLOURS = 7  # of methods other than dense
CONTROL = -1  # number of the colour of controls, and of ways without pruning
NO_PRUNING = "(no pruning)"
"""Words after the name of a way to train without pruning, wherever a report gives its numbers."""
# A colour follows from a hash. With this prefix, the methods of this repository get different colours.
_COLOUR_PREFIX = "8869:"


@dataclass(frozen=True)
class Look:
    """How a method is drawn.

    Attributes:
        colour: Number of the colour: 0 for dense, `CONTROL` for all that is no method. Other colours follow from the
            method's name alone. Only the shade depends on the report: it distinguishes methods and variants of one
            colour.
        marker: Number of the marker, different for all variants of a report.
        dash: Number of the dashes, different for all variants of a report that have the same colour.
        mark: Words after the name: `NO_PRUNING`, or nothing.
    """

    colour: int = 0
    marker: int = 0
    dash: int = 0
    mark: str = ""

    def named(self, name: str) -> str:
        """Return a name with the words after it."""
        return f"{name} {self.mark}" if self.mark else name


def looks(
    labels: Iterable[str], controls: Collection[str] = (), without_pruning: Collection[str] = ()
) -> dict[str, Look]:
    """Return how each method is drawn. A method has the same colour in every report.

    Args:
        labels: Methods with their parameters, in the order of the table.
        controls: Those that are controls of others.
        without_pruning: Those that are ways to train without pruning.
    """
    found: dict[str, Look] = {}
    drawn: Counter[int] = Counter()
    for name in dict.fromkeys([BASELINE, *labels]):
        colour = CONTROL if name in controls or name in without_pruning else colour_of(name)
        shade = drawn[colour] if colour > 0 else 0
        mark = NO_PRUNING if name in without_pruning else ""
        found[name] = Look(colour + shade * COLOURS, len(found), drawn[colour], mark)
        drawn[colour] += 1
    return found


def looks_of(trials: Sequence[TrialRecord]) -> dict[str, Look]:
    """Return how each method of a folder's trials is drawn."""
    controls, ways = ({label(one) for one in trials if is_one(one)} for is_one in (is_control, is_without_pruning))
    return looks(map(label, trials), controls, ways)


def colour_of(name: str) -> int:
    """Return the number of a method's colour, which follows from its name without parameters."""
    method = name.partition("[")[0]
    if method == BASELINE:
        return 0
    return 1 + hashlib.blake2s(f"{_COLOUR_PREFIX}{method}".encode()).digest()[0] % COLOURS
