"""The answer as a picture: the gain of each method over dense training for the same cost, with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.figure
import pandas as pd

from reports.data.method_rows import MethodRow
from reports.data.rule import Answer
from reports.data.verdict import Cost, gain_shown
from reports.figures import svg
from reports.figures.figure import Figure
from reports.figures.svg import draw_points, name_rows
from reports.formatting import points

_WIDTH, _MARGINS, _ROW = 6.2, 0.85, 0.27  # inches
_CAPTION = (
    "Points: mean accuracy minus that of dense training for the same {cost}. Lines: intervals that cover all gains of "
    "the page together with 95 %. Grey band: less than the margin of {margin:g} points. Arrowheads: it goes on."
)
_REACH = 2  # largest gain times this is where the axis ends
_WITHOUT_PRUNING = " Below the line: ways without pruning, whose intervals hold together by themselves."


def gain_figure(
    rows: Sequence[MethodRow], answer: Answer, words: Mapping[str, str], cost: Cost, margin: float, slug: str
) -> Figure | None:
    """Draw a row for each method, in the order of the table; return `None` if no gain is known.

    Args:
        rows: Ranked rows of one group.
        answer: What the rule says about their methods.
        words: The answer at equal cost in words, by method.
        cost: The cost that is equal.
        margin: δ, in points.
        slug: Prefix of the figure's name.
    """
    judged = {judged_method.candidate.label: judged_method for judged_method in answer.both}
    gains = {row.label: gain_shown(judged[row.label]) for row in rows if row.label in judged}
    if not any(gains.values()):
        return None
    name, equal = f"{slug}-gain-{cost}", "time" if cost == "time" else "executed FLOPs"
    title = f"Gain over dense training at equal {equal}"
    all_looks = {row.label: row.look for row in rows}
    texts = {label: f"{points(gain)} points: {words[label]}" if gain else words[label] for label, gain in gains.items()}
    places = {label: place for place, label in enumerate(gains)}
    frame = pd.DataFrame(
        {"method": label, "gain": gain.mean, "low": gain.low, "high": gain.high, "row": places[label]}
        for label, gain in gains.items()
        if gain
    )
    looks = {label: look for label, look in all_looks.items() if gains.get(label)}
    without = len(answer.without_pruning)
    with svg.style():
        figure = matplotlib.figure.Figure(figsize=(_WIDTH, _MARGINS + _ROW * len(gains)), layout="constrained")
        axes = figure.add_subplot()
        axes.axvspan(-margin, margin, color=svg.GRID, alpha=0.6, linewidth=0, zorder=0)
        axes.axvline(0, color=svg.DENSE, linewidth=1.2, zorder=1)
        colours = [svg.colour(look.colour) for look in looks.values()]
        # A wide interval must not hide narrow ones.
        reach = max(margin, *frame["gain"].abs()) * _REACH
        for end, head in (("low", "<"), ("high", ">")):
            longer = frame[end].abs() > reach
            frame[end] = frame[end].clip(-reach, reach)
            axes.scatter(frame[end][longer], frame["row"][longer], marker=head, color=svg.DENSE, s=14, zorder=4)
        axes.hlines(frame["row"], frame["low"], frame["high"], colors=colours, linewidth=1.6)
        draw_points(axes, frame, "gain", "row", looks, s=45, zorder=3)
        for label, place in places.items():
            axes.annotate(words[label], (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=8.5)
        name_rows(axes, [*places], all_looks)
        if 0 < without < len(gains):
            axes.axhline(len(gains) - without - 0.5, color=svg.MUTED, linewidth=0.8)
        axes.set(xlabel="Gain, measured (points of test accuracy)", ylabel="")
        alt = f"{title}. {'; '.join(f'{all_looks[label].named(label)}: {text}' for label, text in texts.items())}."
        inline, standalone = svg.render(figure, name, title, alt)
    caption = _CAPTION.format(cost=equal, margin=margin) + (_WITHOUT_PRUNING if without else "")
    return Figure(name, title, alt, caption, inline, standalone, wide=True)
