"""Where the time of a training step goes, as stacked bars."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.figure

from reports.figures import svg
from reports.figures.figure import Figure
from reports.figures.svg import name_rows

_WIDTH, _MARGINS, _ROW = 6.2, 1.0, 0.3  # inches
_REST = "rest"


def step_figure(steps: Mapping[str, Mapping[str, float]], name: str, caption: str) -> Figure:
    """Draw a bar for each step, stacked from its parts.

    Args:
        steps: Milliseconds of the parts of a step by method, dense first. All have the same parts, in order; the last
            is called `rest`.
        name: Name of the figure.
        caption: Text below the figure.
    """
    title = "Where the time of a training step goes"
    totals = {label: sum(parts.values()) for label, parts in steps.items()}
    first = next(iter(steps))
    with svg.style():
        figure = matplotlib.figure.Figure(figsize=(_WIDTH, _MARGINS + _ROW * len(steps)), layout="constrained")
        axes = figure.add_subplot()
        ends = dict.fromkeys(steps, 0.0)
        for number, part in enumerate(steps[first]):
            widths = [parts[part] for parts in steps.values()]
            colour = svg.MUTED if part == _REST else svg.PALETTE[number % len(svg.PALETTE)]
            axes.barh(range(len(steps)), widths, 0.7, [*ends.values()], color=colour, label=part)
            ends = {label: end + steps[label][part] for label, end in ends.items()}
        for row, total in enumerate(totals.values()):
            text = f" {_ms(total)}" + (f", {total / totals[first]:.2f} × {first}" if row else "")
            axes.annotate(text, (total, row), va="center", fontsize=8.5)
        name_rows(axes, [*steps])
        axes.set(xlabel="Time of a step, measured (ms)", xlim=(0, 1.25 * max(totals.values())))
        figure.legend(loc="outside upper left", ncols=len(steps[first]), fontsize=8.5, handlelength=1.0)
        shown = (f"{label} {_ms(totals[label])} ({', '.join(f'{part} {_ms(ms)}' for part, ms in parts.items())})"
                 for label, parts in steps.items())  # fmt: skip
        alt = f"{title}. {'; '.join(shown)}."
        inline, standalone = svg.render(figure, name, title, alt)
    return Figure(name, title, alt, caption, inline, standalone, wide=True)


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"
