"""Which backends multiplied, where it was not torch's dense products everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.model import MethodRow
from reports.records import Trial, clean
from reports.rows import seed_of

_DENSE = "torch"
_MOST_NAMES = 6


def multipliers(rows: Sequence[MethodRow]) -> list[str]:
    """One line for each method of which another backend multiplied in some layer in the last epoch."""
    lines = []
    for row in rows:
        by_seed = [(trial, _at_the_end(trial)) for trial in sorted(row.done, key=seed_of)]
        trial, first = next(((trial, found) for trial, found in by_seed if set(found.values()) - {_DENSE}), (None, {}))
        if trial is None:
            continue
        parts = [
            f"{backend} in {_layers(layers, len(first), named=backend != _DENSE)}"
            for backend, layers in _by_backend(first)
        ]
        others = "" if all(found == first for _, found in by_seed) else "; other seeds differ"
        lines.append(
            clean(
                f"Who multiplied in the last epoch of {row.label} (seed {seed_of(trial)}): {'; '.join(parts)}{others}."
            )
        )
    return lines


def _at_the_end(trial: Trial) -> dict[str, str]:
    """By layer, the backend of the last epoch; of records without that, nothing."""
    backends = trial.epochs[-1].get("backends") if trial.epochs else None
    return {str(layer): str(name) for layer, name in backends.items()} if isinstance(backends, Mapping) else {}


def _by_backend(chosen: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Each backend's layers, torch's last."""
    backends = sorted(set(chosen.values()), key=lambda name: (name == _DENSE, name))
    return [(backend, [layer for layer in chosen if chosen[layer] == backend]) for backend in backends]


def _layers(layers: Sequence[str], of: int, *, named: bool) -> str:
    names = ", ".join(layers[:_MOST_NAMES]) + (", ..." if len(layers) > _MOST_NAMES else "")
    return f"{len(layers)} of {of} layers" + (f" ({names})" if named else "")
