"""Figures of reproductions: differences to dense, a grid of two parameters, gradients before and after pruning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.colors
import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from reports import formatting
from reports.figures import svg
from reports.figures.figure import Figure
from reports.papers.comparison import Comparison
from suite.trials.estimates import Estimate

WIDTH = 7.2
# Share of the largest magnitudes to clip. Otherwise the tail of a gradient would make all other values white.
_CLIPPED = 0.02
_ZERO = "#8c959f"
_OURS, _THEIRS = 1, 2
_HOLLOW: dict[str, Any] = {"marker": "D", "markerfacecolor": "none", "linestyle": "none"}


def differences_figure(name: str, title: str, comparisons: Sequence[Comparison]) -> Figure | None:
    """Draw differences to dense in points, one row per method: the published number, and ours with its interval.

    Returns:
        The figure, or `None` if no method was run.
    """
    rows = [one for one in comparisons if one.is_difference and one.unit == "points" and isinstance(one.ours, Estimate)]
    if not rows:
        return None
    alts = []
    with svg.style():
        figure = matplotlib.figure.Figure(figsize=(WIDTH, 1.2 + 0.3 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        axes.axvline(0, color=svg.DENSE, linewidth=1.0)
        for height, row in enumerate(rows):
            texts = []
            if row.published is not None:
                axes.plot(row.published, height - 0.14, color=svg.colour(_THEIRS), markersize=5.5, **_HOLLOW)
                texts.append(f"published {formatting.signed(row.published, 1)}")
            if isinstance(row.ours, Estimate):
                axes.errorbar(row.ours.mean, height + 0.14, xerr=row.ours.half_width, color=svg.colour(_OURS),
                              marker="o", markersize=5.5, linestyle="none", capsize=2.5, elinewidth=1.1)  # fmt: skip
                texts.append(f"ours {formatting.interval(row.ours, 2, sign=True)}")
            alts.append(f"{row.quantity}: {', '.join(texts)}")
        axes.set_yticks(range(len(rows)), [row.quantity.removesuffix(" minus dense") for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(False, axis="y")
        axes.set(xlabel="Accuracy minus dense (points); ours measured, with its 95 % interval over seeds")
        _legend(figure)
        alt = f"{title}. {'; '.join(alts)}."
        inline, standalone = svg.render(figure, name, title, alt)
    caption = "Differences to the dense network of the same setting. A single seed has no interval."
    return Figure(name, title, alt, caption, inline, standalone)


def _legend(figure: matplotlib.figure.Figure) -> None:
    handles = [
        Line2D([], [], color=svg.colour(_OURS), marker="o", linestyle="none", label="ours"),
        Line2D([], [], color=svg.colour(_THEIRS), label="published", **_HOLLOW),
        Line2D([], [], color=svg.DENSE, linewidth=1.0, label="dense"),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=3, fontsize=8.5, handletextpad=0.3)


def grid_figure(
    name: str,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[str, str], tuple[Comparison, Comparison] | None],
    axis_names: tuple[str, str],
) -> Figure:
    """Draw published numbers and ours as two heat maps on one colour scale: accuracy and its difference to dense.

    Args:
        name, title: Name and title of the figure.
        rows, columns: Labels of the rows (the first on top) and columns.
        cells: Comparisons of accuracy and of its difference to dense by row and column; `None` if the combination is
            not possible.
        axis_names: Names of the row axis and the column axis.
    """
    values = {
        "published": np.full((len(rows), len(columns)), np.nan),
        "ours": np.full((len(rows), len(columns)), np.nan),
    }
    written: dict[tuple[str, int, int], str] = {}
    alts = []
    for line, row in enumerate(rows):
        for index, column in enumerate(columns):
            cell = cells[row, column]
            if cell is None:
                for panel in values:
                    written[panel, line, index] = "N/A"
                continue
            absolute, difference = cell
            texts = {
                "published": _written(_plain(absolute.published), _plain(difference.published, sign=True)),
                "ours": _written(_estimated(absolute), _estimated(difference, sign=True)),
            }
            gaps = {"published": difference.published, "ours": _mean(difference)}
            for panel, grid in values.items():
                written[panel, line, index] = texts[panel]
                gap = gaps[panel]
                if gap is not None:
                    grid[line, index] = gap
            both = ", ".join(f"{panel} {' '.join(text.split())}" for panel, text in texts.items())
            alts.append(f"{axis_names[0]} {row}, {axis_names[1]} {column}: {both}")
    known = np.concatenate([panel[np.isfinite(panel)] for panel in values.values()])
    low, high = (float(known.min()), float(known.max())) if known.size else (-1.0, 0.0)
    low = low if high - low > 0.1 else high - 0.1
    with svg.style():
        figure = matplotlib.figure.Figure(figsize=(WIDTH + 2.4, 1.3 + 0.55 * len(rows)), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (panel, grid) in zip(panels, values.items(), strict=True):
            mesh = axes.pcolormesh(grid, cmap="cividis", vmin=low, vmax=high, edgecolors="none")
            _label_cells(axes, grid, {key[1:]: text for key, text in written.items() if key[0] == panel}, low, high)
            axes.set_xticks(np.arange(len(columns)) + 0.5, columns)
            axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
            axes.set(title="Published" if panel == "published" else "Ours, measured", xlabel=axis_names[1])
            axes.title.set_fontsize(9.0)
            axes.tick_params(length=0)
            axes.grid(False)
            axes.spines[:].set_visible(False)
        panels[0].set_ylabel(axis_names[0])
        panels[0].invert_yaxis()
        bar = figure.colorbar(mesh, ax=panels, pad=0.01, aspect=20)
        bar.set_label("Minus dense (points)")
        bar.outline.set_visible(False)  # type: ignore[operator]
        alt = f"{title}. {'; '.join(alts)}."
        inline, standalone = svg.render(figure, name, title, alt)
    caption = "In each cell the accuracy in % and, below, its difference to dense in points, which is also the colour."
    return Figure(name, title, alt, caption, inline, standalone, wide=True)


def _mean(one: Comparison) -> float | None:
    return one.ours.mean if isinstance(one.ours, Estimate) else None


def _plain(value: float | None, *, sign: bool = False) -> str:
    return "" if value is None else formatting.signed(value, 1) if sign else formatting.plain(value, 1)


def _estimated(one: Comparison, *, sign: bool = False) -> str:
    return formatting.interval(one.ours, 2, sign=sign) if isinstance(one.ours, Estimate) else ""


def _written(value: str, gap: str) -> str:
    return (f"{value}\n({gap})" if gap else value) or "not run"


def _label_cells(axes: Axes, grid: np.ndarray, texts: Mapping[tuple[int, int], str], low: float, high: float) -> None:
    for (line, column), text in texts.items():
        value = grid[line, column]
        # Cividis is dark below its middle. A cell without a number is transparent, so that its text must suit the page.
        ink = svg.MUTED if np.isnan(value) else "#000000" if (value - low) / (high - low) > 0.55 else "#ffffff"
        axes.text(column + 0.5, line + 0.5, text, ha="center", va="center", fontsize=7.5, color=ink)


def matrices_figure(name: str, title: str, caption: str, matrices: Mapping[str, np.ndarray]) -> Figure:
    """Draw small matrices side by side on one colour scale, with their values as text.

    Args:
        name, title, caption: Texts of the figure.
        matrices: Array (rows, columns) by title; the largest magnitude of all sets the scale.
    """
    limit = max(float(np.abs(matrix).max()) for matrix in matrices.values()) or 1.0
    colours = matplotlib.colormaps["PuOr_r"].with_extremes(bad=_ZERO)
    with svg.style():
        figure = matplotlib.figure.Figure(figsize=(WIDTH, 2.2), layout="constrained")
        panels = figure.subplots(1, len(matrices), squeeze=False)[0]
        for axes, (label, matrix) in zip(panels, matrices.items(), strict=True):
            axes.imshow(np.ma.masked_equal(matrix, 0), cmap=colours, vmin=-limit, vmax=limit, interpolation="none")
            for (row, column), value in np.ndenumerate(matrix):
                ink = "#ffffff" if abs(value) > 0.6 * limit else "#000000"
                text = formatting.plain(10 * value / limit, 1)
                axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color=ink)
            axes.set_title(label, fontsize=9.0)
            axes.set(xticks=[], yticks=[], xlabel="Channels")
            axes.spines[:].set_visible(False)
        panels[0].set_ylabel("Pixels")
        alt = f"{title}. {'; '.join(f'{label}: {int((m == 0).sum())} zeros' for label, m in matrices.items())}."
        inline, standalone = svg.render(figure, name, title, alt)
    note = f" Values are multiples of a tenth of the largest magnitude, {limit:.2g}. Grey: exact zeros."
    return Figure(name, title, alt, caption + note, inline, standalone, wide=True)


def gradient_figure(
    name: str, title: str, caption: str, images: Mapping[str, np.ndarray], channels: Sequence[int]
) -> Figure:
    """Draw gradients as images on one colour scale, one row per way of pruning and one column per channel.

    Args:
        name, title, caption: Texts of the figure.
        images: Array (channels, height, width) by label of the row; the first row sets the scale.
        channels: Indices of the channels in the layer.
    """
    first = next(iter(images.values()))
    magnitudes = np.abs(first[first != 0])
    limit = float(np.quantile(magnitudes, 1 - _CLIPPED)) if magnitudes.size else 1.0
    colours = matplotlib.colormaps["PuOr_r"].with_extremes(bad=_ZERO)
    alts = []
    with svg.style():
        shape = (len(images), len(first))
        figure = matplotlib.figure.Figure(figsize=(WIDTH, 0.7 + 1.45 * shape[0]), layout="constrained")
        grid = figure.subplots(*shape, squeeze=False)
        for axes, channel in zip(grid[0], channels, strict=True):
            axes.set_title(f"channel {channel}", fontsize=8.5)
        for line, (label, stack) in zip(grid, images.items(), strict=True):
            for axes, image in zip(line, stack, strict=True):
                shown = np.ma.masked_equal(image, 0)
                drawn = axes.imshow(shown, cmap=colours, vmin=-limit, vmax=limit, interpolation="none")
                axes.set_xticks([])
                axes.set_yticks([])
                axes.spines[:].set_visible(False)
            line[0].set_ylabel(label)
            alts.append(f"{label}: {100 * float(np.mean(stack == 0)):.0f} % zeros")
        bar = figure.colorbar(drawn, ax=grid, extend="both", aspect=40, pad=0.01)
        bar.set_label("Output gradient")
        bar.outline.set_visible(False)  # type: ignore[operator]
        alt = f"{title}. {'; '.join(alts)}."
        inline, standalone = svg.render(figure, name, title, alt)
    note = f" Grey: exact zeros. The largest {100 * _CLIPPED:.0f} % of the dense magnitudes are clipped."
    return Figure(name, title, alt, caption + note, inline, standalone, wide=True)
