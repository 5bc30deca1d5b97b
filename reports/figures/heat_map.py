"""Heat maps of channels or weight density by layer over epochs, for methods that change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.figure
import numpy as np
from matplotlib.ticker import MaxNLocator

from reports.data.groups import seed_of
from reports.data.method_rows import MethodRow
from reports.data.records import Trial
from reports.figures import svg
from reports.figures.figure import Figure

# Larger maps are stored as a bitmap.
_MAX_VECTOR_CELLS = 3000
# Maps with more columns do not show numbers in their cells.
_MAX_WRITTEN_COLUMNS = 12
# Smaller changes of density are rounding, or the few weights that are zero in any network.
_CHANGE = 0.01
_INCHES_PER_LETTER = 0.085  # of the names of layers, which are of nine points or less


def shape_figures(rows: Sequence[MethodRow], slug: str) -> list[Figure]:
    """Return a heat map for each method: of channels if these change, otherwise of weight density if that changes."""
    figures = []
    for row in rows:
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
        epochs += [int(record["epoch"]) for record in trial.epochs]
        figures.append(_draw(name, row, trial, epochs, shares, written, what))
    return figures


def _channels(trial: Trial) -> tuple[dict[str, list[float]], dict[str, float]]:
    channels = _by_layer(trial, "out")
    original = {layer: max(values) for layer, values in channels.items()}
    # The rows of layers.csv contain the shapes before the first reconfiguration, which may end the first epoch.
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
    # Join epochs without a change into one wide cell.
    starts = [0] + [
        column for column in range(1, len(epochs)) if not np.allclose(values[:, column], values[:, column - 1])
    ]
    edges = np.array([epochs[column] - 0.5 for column in starts] + [epochs[-1] + 0.5])
    alt = f"{title}, seed {seed_of(trial)}. At the end: " + "; ".join(
        f"{layer} {texts[-1]} ({100 * shares[layer][-1]:.0f} %)" for layer, texts in written.items()
    )
    with svg.style():
        # The margins are computed here: to measure all labels takes more time than to draw the map.
        width, height = 11.6, 1.3 + 0.26 * len(shares)
        left = 0.5 + _INCHES_PER_LETTER * max(map(len, shares))
        figure = matplotlib.figure.Figure(figsize=(width, height))
        axes = figure.add_axes((left / width, 0.6 / height, 1 - (left + 1.3) / width, 1 - 0.75 / height))
        axes.grid(False)
        mesh = axes.pcolormesh(edges, np.arange(len(shares) + 1), values[:, starts], cmap="cividis", vmin=0, vmax=1,
                               edgecolors="none", rasterized=values[:, starts].size > _MAX_VECTOR_CELLS)  # fmt: skip
        if len(starts) <= _MAX_WRITTEN_COLUMNS:
            _write_cells(axes, edges, list(written.values()), values, starts)
        axes.set_yticks(np.arange(len(shares)) + 0.5, list(shares))
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.spines[:].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        began = "; 0: before the first cut" if epochs[0] == 0 else ""
        axes.set(xlabel=f"Epoch (shapes at its end{began})", ylabel="Layer")
        bar = figure.colorbar(
            mesh, cax=figure.add_axes((1 - 1.15 / width, 0.6 / height, 0.2 / width, 1 - 0.75 / height))
        )
        bar.set_label("Share of original channels" if what == "Output channels" else "Share of nonzero weights")
        bar.outline.set_visible(False)  # type: ignore[operator]
        inline, standalone = svg.render(figure, name, title, alt)
    caption = f"One trial, seed {seed_of(trial)}: {trial.name}. A cell spans the epochs in which nothing changed."
    return Figure(name, title, alt, caption, inline, standalone, wide=True)


def _write_cells(
    axes: Any, edges: np.ndarray, written: Sequence[Sequence[str]], values: np.ndarray, starts: Sequence[int]
) -> None:
    for line, texts in enumerate(written):
        for position, column in enumerate(starts):
            centre = (edges[position] + edges[position + 1]) / 2
            # The lower half of the colour map is dark. The cells are the same in the light and the dark scheme.
            ink = "#000000" if values[line, column] > 0.55 else "#ffffff"
            axes.text(centre, line + 0.5, texts[column], ha="center", va="center", fontsize=8, color=ink)
