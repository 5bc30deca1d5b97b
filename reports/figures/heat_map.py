"""Heat maps of channels or weight density by layer over epochs, for methods that change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from reports.data.groups import seed_of
from reports.data.method_rows import MethodRow
from reports.data.records import Trial
from reports.figures import svg
from reports.figures.figure import Figure

# Maps with more columns do not show numbers in their cells.
_MAX_WRITTEN_COLUMNS = 12
# Smaller changes of density are rounding, or the few weights that are zero in any network.
_CHANGE = 0.01
_INCHES_PER_LETTER = 0.085  # of the names of layers, which are of nine points or less
_GAP = 0.06  # inches between an axis and its labels
_COLOURS = "cividis"
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # labels of the colour scale


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
    # Epochs without a change have one number together.
    starts = [0] + [
        column for column in range(1, len(epochs)) if not np.allclose(values[:, column], values[:, column - 1])
    ]
    edges = np.array([epochs[column] - 0.5 for column in starts] + [epochs[-1] + 0.5])
    alt = f"{title}, seed {seed_of(trial)}. At the end: " + "; ".join(
        f"{layer} {texts[-1]} ({100 * shares[layer][-1]:.0f} %)" for layer, texts in written.items()
    )
    with svg.style():
        # The margins are computed here, and labels are texts: to measure all labels, and to make ticks, takes most of
        # the time that a map with ordinary axes needs.
        width, height = 8.6, 1.2 + 0.22 * len(shares)
        left = 0.5 + _INCHES_PER_LETTER * max(map(len, shares))
        bottom, top = 0.6 / height, 1 - 0.15 / height
        figure = matplotlib.figure.Figure(figsize=(width, height))
        axes = figure.add_axes((left / width, bottom, 1 - (left + 1.3) / width, top - bottom))
        # One small image: as paths, the cells of a long training take ten times as long to draw and to show.
        axes.imshow(values, cmap=_COLOURS, vmin=0, vmax=1, aspect="auto", interpolation="none",
                    extent=(edges[0], edges[-1], len(shares), 0))  # fmt: skip
        if len(starts) <= _MAX_WRITTEN_COLUMNS:
            _write_cells(axes, edges, list(written.values()), values, starts)
        epochs_axis = MaxNLocator(integer=True).tick_values(edges[0], edges[-1])
        shown = [epoch for epoch in epochs_axis if edges[0] <= epoch <= edges[-1]]
        _label(axes, [(epoch, f"{epoch:.0f}") for epoch in shown], "bottom")
        _label(axes, [(line + 0.5, layer) for line, layer in enumerate(shares)], "left")
        began = "; 0: before the first cut" if epochs[0] == 0 else ""
        figure.text((1 + (left - 1.3) / width) / 2, 0.12 / height, f"Epoch (shapes at its end{began})", ha="center")
        figure.text(0.12 / width, (bottom + top) / 2, "Layer", rotation=90, va="center")
        scale = figure.add_axes((1 - 1.15 / width, bottom, 0.2 / width, top - bottom))
        scale.imshow(np.linspace(1, 0, 256)[:, None], cmap=_COLOURS, aspect="auto", extent=(0, 1, 0, 1))
        _label(scale, [(share, f"{share:.2f}") for share in _SHARES], "right")
        share_of = "Share of original channels" if what == "Output channels" else "Share of nonzero weights"
        figure.text(1 - 0.3 / width, (bottom + top) / 2, share_of, rotation=90, va="center")
        inline, standalone = svg.render(figure, name, title, alt)
    caption = f"One trial, seed {seed_of(trial)}: {trial.name}. A cell spans the epochs in which nothing changed."
    return Figure(name, title, alt, caption, inline, standalone, wide=True)


def _write_cells(
    axes: Axes, edges: np.ndarray, written: Sequence[Sequence[str]], values: np.ndarray, starts: Sequence[int]
) -> None:
    figure = axes.get_figure(root=True)
    assert figure is not None
    for line, texts in enumerate(written):
        for position, column in enumerate(starts):
            centre = (edges[position] + edges[position + 1]) / 2
            # The lower half of the colour map is dark. The cells are the same in the light and the dark scheme.
            ink = "#000000" if values[line, column] > 0.55 else "#ffffff"
            figure.text(centre, line + 0.5, texts[column], transform=axes.transData, ha="center", va="center",
                        fontsize=8, color=ink)  # fmt: skip


def _label(axes: Axes, labels: Sequence[tuple[float, str]], side: Literal["bottom", "left", "right"]) -> None:
    """Write texts next to axes that are not drawn themselves, each at its position on the axis along this side."""
    axes.set_axis_off()
    figure = axes.get_figure(root=True)
    assert figure is not None
    size = axes.get_position().size * figure.get_size_inches()
    for position, text in labels:
        if side == "bottom":
            figure.text(position, -_GAP / size[1], text, transform=axes.get_xaxis_transform(), ha="center", va="top",
                        fontsize=8.5)  # fmt: skip
        else:
            edge, ha = (-_GAP / size[0], "right") if side == "left" else (1 + _GAP / size[0], "left")
            figure.text(edge, position, text, transform=axes.get_yaxis_transform(), ha=ha, va="center", fontsize=8.5)
