"""Remarks on the backends that computed a method's products, if they were not PyTorch's dense ones everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.data.groups import seed_of
from reports.data.method_rows import MethodRow
from reports.data.records import Trial
from reports.data.trial_files import clean

_DENSE = "torch"
_MAX_NAMES = 6


def backend_remarks(rows: Sequence[MethodRow]) -> list[str]:
    """Return one line for each method of which some layer used another backend than `torch` in the last epoch."""
    lines = []
    for row in rows:
        # The first seed with another backend stands for the method; other seeds are compared with it.
        by_seed = [(trial, _last_backends(trial)) for trial in sorted(row.done, key=seed_of)]
        trial, first = next(((trial, found) for trial, found in by_seed if set(found.values()) - {_DENSE}), (None, {}))
        if trial is None:
            continue
        sparse = _sparse_layers(trial)
        parts = [
            f"{backend} in {_layers(layers, len(first), None if backend != _DENSE else sparse)}"
            for backend, layers in _by_backend(first)
        ]
        others = "" if all(found == first for _, found in by_seed) else "; other seeds differ"
        lines.append(
            clean(
                f"Backend used per layer in the last epoch of {row.label} (seed {seed_of(trial)}): "
                f"{'; '.join(parts)}{others}."
            )
        )
    return lines


def _last_backends(trial: Trial) -> dict[str, str]:
    """Return the backend of each layer in the last epoch; empty if the records do not name them."""
    backends = trial.epochs[-1].get("backends") if trial.epochs else None
    return {str(layer): str(name) for layer, name in backends.items()} if isinstance(backends, Mapping) else {}


def _by_backend(chosen: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return each backend with its layers, `torch` last."""
    backends = sorted(set(chosen.values()), key=lambda name: (name == _DENSE, name))
    return [(backend, [layer for layer in chosen if chosen[layer] == backend]) for backend in backends]


def _layers(layers: Sequence[str], total: int, sparse: set[str] | None) -> str:
    """Name all layers of a sparse backend; of the dense backend only those in `sparse`."""
    count = f"{len(layers)} of {total} layers"
    if sparse is None:
        return f"{count} ({_names(layers)})"
    with_zeros = [layer for layer in layers if layer in sparse]
    return f"{count}, multiplying zeros in {len(with_zeros)} ({_names(with_zeros)})" if with_zeros else count


def _names(layers: Sequence[str]) -> str:
    return ", ".join(layers[:_MAX_NAMES]) + (", ..." if len(layers) > _MAX_NAMES else "")


def _sparse_layers(trial: Trial) -> set[str]:
    """Return the layers of which a product could skip multiply-adds in the last epoch, whatever the backend."""
    layers = trial.epochs[-1].get("layers") if trial.epochs else None
    found = layers.items() if isinstance(layers, Mapping) else ()
    return {str(name) for name, record in found if min(record.get("density", ()), default=1.0) < 1}
