"""Charts of the kernel benchmarks, in the report's style."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import matplotlib.figure
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.kernels.alternatives import TOPK
from benchmarks.kernels.bars import verdicts
from benchmarks.kernels.results import Row, Run
from reports.figures import svg
from reports.figures.figure import Figure

# Ways of pruning in the order of the palette, the same in every chart; index 0 (black) is the copy.
PRUNINGS = ("magnitude", "random", "rescaled by sample_channel", "rescaled by group", "rescaled by channel", "unbiased")
COPY, KERNEL = "copy", "prune_nm"
PANEL = (3.1, 3.1)
CHARACTERS_PER_INCH = 13.5  # in the font of the legend
DTYPES = ("float32", "bfloat16", "float16")


def charts(runs: Sequence[Run]) -> list[Figure]:
    """Draw the fraction of a copy's rate by n:m and by size, and the times of the alternatives."""
    pairs = [(row, run) for run in runs for row in run.rows if row.kernel == "prune_nm"]
    if not pairs:
        return []
    # Choose the gradient with the most cases; on a tie, the largest.
    counts = Counter(row.shape for row, _ in pairs)
    shape = max(counts, key=lambda found: (counts[found], math.prod(found)))
    large = [(row, run) for row, run in pairs if row.shape == shape]
    group = _commonest_group([row for row, _ in pairs])
    found = [_by_group(large), _by_size([row for row, _ in pairs if (row.n, row.m) == group], runs[0])]
    timed = [row for row, _ in large if row.pruning == "magnitude" and row.instead]
    return [*found, *([_against_alternatives(timed)] if timed else [])]


def _commonest_group(rows: Sequence[Row]) -> tuple[int, int]:
    """Return 2:4 if it was measured, otherwise the n:m with the most rows."""
    groups = [(row.n, row.m) for row in rows]
    return (2, 4) if (2, 4) in groups else max(groups, key=groups.count)


def _by_group(pairs: Sequence[tuple[Row, Run]]) -> Figure:
    rows = [row for row, _ in pairs]
    places = _places(rows)

    def draw(axes: Axes, own: list[Row], index: int, shift: float) -> None:
        x = [places[row.n, row.m] + shift for row in own]
        _points(axes, x, own, index)

    def mark(axes: Axes, dtype: str) -> None:
        for row, run in pairs:
            for verdict in verdicts(row, run) if row.dtype == dtype else ():
                if verdict.bar.least < 1:  # a bar on the fraction of a copy, not on a speedup
                    x = places[row.n, row.m]
                    ends = [x - 0.42, x + 0.42]
                    axes.plot(ends, [verdict.bar.least] * 2, color=svg.MUTED, linewidth=1, linestyle=(0, (3, 2)))
        _name_groups(axes, places)
        axes.axhline(1, color=svg.DENSE, linewidth=0.8)

    title = f"Fraction of a copy's rate, {rows[0].size}"
    caption = "Median of interleaved pairs with 95 % interval. Black: a copy. Dashed: required rates."
    return _panels("fraction-by-group", title, caption, rows, draw, mark, "Fraction of a copy (measured)")


def _by_size(rows: Sequence[Row], run: Run) -> Figure:
    def draw(axes: Axes, own: list[Row], index: int, shift: float) -> None:
        # Shift the modes of one tensor horizontally on the logarithmic axis, so that they do not overlap.
        _points(axes, [row.tensor_bytes / 1e6 * 10 ** (shift / 4) for row in own], own, index)

    def mark(axes: Axes, dtype: str) -> None:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.axhline(1, color=svg.DENSE, linewidth=0.8)
        axes.axvline(run.cache_bytes / 1e6, color=svg.MUTED, linewidth=1, linestyle=(0, (1, 2)))
        axes.set_xlabel("Size of the gradient (MB)")

    title = f"Fraction of a copy's rate by size, {rows[0].n}:{rows[0].m}"
    caption = (
        "One point per shape; points are shifted horizontally so that ways of pruning do not overlap. Black: a copy. "
        "Dotted: size of the last-level cache."
    )
    return _panels("fraction-by-size", title, caption, rows, draw, mark, "Fraction of a copy (measured)")


def _points(axes: Axes, x: list[float], rows: list[Row], index: int) -> None:
    middle = [row.fraction.median for row in rows]
    below = [row.fraction.median - row.fraction.low for row in rows]
    above = [row.fraction.high - row.fraction.median for row in rows]
    colour, marker = svg.colour(index), svg.marker(index)
    axes.errorbar(
        x, middle, yerr=(below, above), color=colour, marker=marker, markersize=5, linestyle="none", elinewidth=1
    )


def _panels(
    name: str,
    title: str,
    caption: str,
    rows: Sequence[Row],
    draw: Callable[[Axes, list[Row], int, float], None],
    mark: Callable[[Axes, str], None],
    ylabel: str,
) -> Figure:
    """Draw one panel per number type and one colour per way of pruning."""
    dtypes = [dtype for dtype in DTYPES if any(row.dtype == dtype for row in rows)]
    shown = [pruning for pruning in PRUNINGS if any(row.pruning == pruning for row in rows)]
    with svg.style():
        figure, panels = _figure(len(dtypes))
        for axes, dtype in zip(panels, dtypes, strict=True):
            for position, pruning in enumerate(shown):
                own = [row for row in rows if row.dtype == dtype and row.pruning == pruning]
                shift = (position - (len(shown) - 1) / 2) * 0.15
                if own:
                    draw(axes, own, PRUNINGS.index(pruning) + 1, shift)
            mark(axes, dtype)
            axes.set_title(dtype, fontsize=9)
        panels[0].set_ylabel(ylabel)
        panels[0].set_ylim(0, 1.06 * max(1.0, *(row.fraction.high for row in rows)))
        _legend(panels[0], [(pruning, PRUNINGS.index(pruning) + 1) for pruning in shown])
        alt = f"{title}. {'; '.join(_ranges(rows, dtypes, shown))}."
        inline, standalone = svg.render(figure, name, title, alt)
    return Figure(name, title, alt, caption, inline, standalone)


def _ranges(rows: Sequence[Row], dtypes: Sequence[str], prunings: Sequence[str]) -> Iterator[str]:
    """Yield the smallest and the largest fraction per panel and colour, in words."""
    for dtype in dtypes:
        for pruning in prunings:
            own = [row.fraction.median for row in rows if (row.dtype, row.pruning) == (dtype, pruning)]
            if own:
                yield f"{dtype} {pruning} {min(own):.2f} to {max(own):.2f}"


def _against_alternatives(rows: Sequence[Row]) -> Figure:
    """Draw the times of magnitude pruning by the kernel and by each alternative, and of a copy."""
    places = _places(rows)
    frame = pd.DataFrame(_times(rows), columns=["dtype", "n", "m", "method", "seconds"])
    names = [COPY, KERNEL, *dict.fromkeys(item.name for row in rows for item in row.instead if item.times_as_long)]
    names.sort(key=lambda name: [COPY, KERNEL, TOPK].index(name) if name in (COPY, KERNEL, TOPK) else 3)
    title = f"Time of magnitude pruning, {rows[0].size}"
    dtypes = [dtype for dtype in DTYPES if dtype in set(frame["dtype"])]
    with svg.style():
        figure, panels = _figure(len(dtypes))
        for axes, dtype in zip(panels, dtypes, strict=True):
            for index, name in enumerate(names):
                own = frame[(frame["dtype"] == dtype) & (frame["method"] == name)]
                x = [places[n, m] for n, m in zip(own["n"], own["m"], strict=True)]
                colour = svg.colour(index)
                axes.plot(x, 1e3 * own["seconds"], color=colour, marker=svg.marker(index), linestyle="none")
            _name_groups(axes, places)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.set_title(dtype, fontsize=9)
        panels[0].set_ylabel("Time (ms, measured; log scale)")
        _legend(panels[0], [(name, index) for index, name in enumerate(names)])
        told = (f"{row.dtype} {row.n}:{row.m} {row.method} {1e3 * row.seconds:.3g} ms" for row in frame.itertuples())
        alt = f"{title}. {'; '.join(told)}."
        inline, standalone = svg.render(figure, "time-against-alternatives", title, alt)
    caption = "Medians. The alternatives and their differences are described below the tables."
    return Figure("time-against-alternatives", title, alt, caption, inline, standalone)


def _times(rows: Sequence[Row]) -> list[tuple[str, int, int, str, float]]:
    found = []
    for row in rows:
        copied = 2 * row.tensor_bytes / row.copy_gb_per_s / 1e9
        found += [(row.dtype, row.n, row.m, COPY, copied), (row.dtype, row.n, row.m, KERNEL, row.seconds)]
        found += [(row.dtype, row.n, row.m, item.name, item.seconds) for item in row.instead if item.times_as_long]
    return found


def _figure(count: int) -> tuple[matplotlib.figure.Figure, list[Axes]]:
    width, height = PANEL
    figure = matplotlib.figure.Figure(figsize=(0.6 + width * max(count, 2), height), layout="constrained")
    return figure, list(figure.subplots(1, count, sharey=True, squeeze=False)[0])


def _places(rows: Sequence[Row]) -> dict[tuple[int, int], int]:
    """Return the axis position of each n:m, sorted by group size m, then by n."""
    groups = sorted({(row.m, row.n) for row in rows})
    return {(n, m): place for place, (m, n) in enumerate(groups)}


def _name_groups(axes: Axes, places: dict[tuple[int, int], int]) -> None:
    axes.set_xticks(list(places.values()), [f"{n}:{m}" for n, m in places])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(-0.6, len(places) - 0.4)
    axes.set_xlabel("n:m")


def _legend(axes: Axes, names: list[tuple[str, int]]) -> None:
    """Draw a legend above all panels, in as many columns as fit the width."""
    figure = axes.get_figure()
    assert isinstance(figure, matplotlib.figure.Figure)
    handles = [
        Line2D([], [], color=svg.colour(index), marker=svg.marker(index), linestyle="none", label=name)
        for name, index in names
    ]
    longest = max(len(name) for name, _ in names)
    columns = max(1, min(len(names), int(CHARACTERS_PER_INCH * figure.get_figwidth()) // (longest + 6)))
    if sum(len(name) + 6 for name, _ in names) <= CHARACTERS_PER_INCH * figure.get_figwidth():
        columns = len(names)
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, fontsize=8.5, handletextpad=0.3)
