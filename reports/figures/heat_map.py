"""Heat maps of channels or weight density by layer over epochs, for methods that change them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.figure
import numpy as np
import pandas as pd
import seaborn

from reports.data.method_rows import MethodRow
from reports.figures import svg
from reports.figures.figure import Figure
from suite.trials.folder.reader import Trial
from suite.trials.groups import seed_of

MOST_MAPS = 6
# Maps with more columns do not show numbers in their cells.
_MAX_WRITTEN_COLUMNS = 12
# Smaller changes of density come from rounding, or from the few weights that are zero in any network.
_CHANGE = 0.01
_INCHES_PER_LETTER = 0.085  # width of a letter in the names of layers, which have nine points or less
_COLOURS = "cividis"
_LETTERS = 75  # in all labels of columns together
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # labels of the colour scale


def shape_figures(rows: Sequence[MethodRow], slug: str) -> tuple[list[Figure], bool]:
    """Draw a heat map for each method: of channels if these change, otherwise of weight density if that changes.

    Controls get no map. The first `MOST_MAPS` methods of the report get one.

    Returns:
        The figures, and whether every method that needs a map has one.
    """
    figures: list[Figure] = []
    for row in rows:
        if row.is_control:
            continue
        with_epochs = sorted((trial for trial in row.done if trial.epochs), key=seed_of)
        if not with_epochs:
            continue
        trial = with_epochs[0]
        name = f"{slug}-shape-{row.look.marker}"
        channels, original = _channels(trial)
        if channels and any(len({original[layer], *values}) > 1 for layer, values in channels.items()):
            # Epoch 0 is the network before its first cut.
            channels = {layer: [original[layer], *values] for layer, values in channels.items()}
            shares = {layer: [value / original[layer] for value in values] for layer, values in channels.items()}
            written = {layer: [f"{value:.0f}" for value in values] for layer, values in channels.items()}
            what, epochs = "Output channels", [0]
        else:
            shares = _densities(trial)
            if not any(max(values) - min(values) > _CHANGE for values in shares.values()):
                continue
            written = {layer: [f"{value:.2f}" for value in values] for layer, values in shares.items()}
            what, epochs = "Density of weights", []
        if len(figures) == MOST_MAPS:
            return figures, False
        epochs += [int(record["epoch"]) for record in trial.epochs]
        figures.append(_draw(name, row, trial, epochs, shares, written, what))
    return figures, True


def _channels(trial: Trial) -> tuple[dict[str, list[float]], dict[str, float]]:
    channels = _by_layer(trial, "out")
    original = {layer: max(values) for layer, values in channels.items()}
    # A reconfiguration may end the first epoch; the rows of layers.csv have the shapes before it.
    usable = [row for row in trial.layers if {"layer", "interval", "out_channels"} <= set(row)]
    first: dict[str, float] = {}
    for row in sorted(usable, key=lambda row: float(row["interval"] or 0)):
        first.setdefault(str(row["layer"]), float(row["out_channels"] or 0))
    original |= {layer: max(first[layer], original[layer]) for layer in original if layer in first}
    return channels, original


def _densities(trial: Trial) -> dict[str, list[float]]:
    return _by_layer(trial, "weight_density")


def _by_layer(trial: Trial, key: str) -> dict[str, list[float]]:
    """Return one value per epoch for each layer of the first epoch; 0 after the layer was removed."""
    layers = [record.get("layers") or {} for record in trial.epochs]
    found: dict[str, list[float]] = {}
    for layer in layers[0]:
        values = [_value(epoch.get(layer), key) for epoch in layers]
        if all(value is not None for value in values):
            found[layer] = [value for value in values if value is not None]
    return {layer: values for layer, values in found.items() if max(values) > 0}


def _value(layer: Mapping[str, Any] | None, key: str) -> float | None:
    if layer is None:
        return 0.0
    value = layer.get(key)
    return float(value) if isinstance(value, (int, float)) else None


def _draw(
    name: str,
    row: MethodRow,
    trial: Trial,
    epochs: Sequence[int],
    shares: Mapping[str, Sequence[float]],
    written: Mapping[str, Sequence[str]],
    what: str,
) -> Figure:
    title = f"{what} by layer over epochs: {row.label}"
    values = np.array([list(layer) for layer in shares.values()])
    # Neighbouring epochs with equal values share one number.
    starts = [0] + [
        column for column in range(1, len(epochs)) if not np.allclose(values[:, column], values[:, column - 1])
    ]
    alt = f"{title}, seed {seed_of(trial)}. At the end: " + "; ".join(
        f"{layer} {texts[-1]} ({100 * shares[layer][-1]:.0f} %)" for layer, texts in written.items()
    )
    spans = [_span(epochs, start, end) for start, end in zip(starts, [*starts[1:], len(epochs)], strict=True)]
    few = len(starts) <= _MAX_WRITTEN_COLUMNS
    texts = np.array([[layer[column] for column in starts] for layer in written.values()])
    share_of = "Share of original channels" if what == "Output channels" else "Share of nonzero weights"
    with svg.style():
        # Computing the margins here is faster: measuring all labels would take most of the time of a map.
        width, height = 8.6, 1.2 + 0.22 * len(shares)
        left = 0.5 + _INCHES_PER_LETTER * max(map(len, shares))
        figure = matplotlib.figure.Figure(figsize=(width, height))
        margins = {"left": left / width, "right": 1 - 0.75 / width, "bottom": 0.6 / height, "top": 1 - 0.15 / height}
        axes, scale = figure.subplots(1, 2, width_ratios=(35, 1), gridspec_kw={**margins, "wspace": 0.03})
        seaborn.heatmap(
            pd.DataFrame(values[:, starts], [*shares], spans), vmin=0, vmax=1, cmap=_COLOURS, ax=axes, cbar_ax=scale,
            annot=texts if few else None, fmt="", annot_kws={"size": 8}, xticklabels=False, yticklabels=False,
            cbar_kws={"label": share_of, "ticks": _SHARES}, rasterized=not few,
        )  # fmt: skip
        axes.collections[0].set_edgecolor("face")  # otherwise the page shows through between cells
        # Seaborn would measure whether labels overlap, which takes longer than drawing the map.
        every = max(1, math.ceil(len(starts) * max(map(len, spans)) / _LETTERS))
        axes.set_xticks(np.arange(0, len(starts), every) + 0.5, spans[::every])
        axes.set_yticks(np.arange(len(shares)) + 0.5, [*shares])
        axes.tick_params(length=0)
        scale.tick_params(length=0)
        began = "; 0: before the first cut" if epochs[0] == 0 else ""
        axes.set(xlabel=f"Epoch (shapes at its end{began})", ylabel="Layer")
        inline, standalone = svg.render(figure, name, title, alt)
    caption = f"One trial, seed {seed_of(trial)}: {trial.name}. A cell spans the epochs in which nothing changed."
    return Figure(name, title, alt, caption, inline, standalone, wide=True)


def _span(epochs: Sequence[int], start: int, end: int) -> str:
    """Return the epochs of a column, from number `start` to before number `end`."""
    first, last = epochs[start], epochs[end - 1]
    return str(first) if first == last else f"{first}–{last}"
