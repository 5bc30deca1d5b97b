"""Which backends multiplied, where it was not torch's dense products everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.data.groups import seed_of
from reports.data.method_rows import MethodRow
from reports.data.records import Trial
from reports.data.trial_files import clean

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
        sparse = _sparse(trial)
        parts = [
            f"{backend} in {_layers(layers, len(first), None if backend != _DENSE else sparse)}"
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


def _layers(layers: Sequence[str], of: int, sparse: set[str] | None) -> str:
    """All layers of a backend by name; of torch's those that are in `sparse`."""
    count = f"{len(layers)} of {of} layers"
    if sparse is None:
        return f"{count} ({_names(layers)})"
    with_zeros = [layer for layer in layers if layer in sparse]
    return f"{count}, by zeros too in {len(with_zeros)} ({_names(with_zeros)})" if with_zeros else count


def _names(layers: Sequence[str]) -> str:
    return ", ".join(layers[:_MOST_NAMES]) + (", ..." if len(layers) > _MOST_NAMES else "")


def _sparse(trial: Trial) -> set[str]:
    """Layers with something to skip in one of their products at the end, whoever multiplied."""
    layers = trial.epochs[-1].get("layers") if trial.epochs else None
    found = layers.items() if isinstance(layers, Mapping) else ()
    return {str(name) for name, record in found if min(record.get("density", ()), default=1.0) < 1}
