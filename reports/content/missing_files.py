"""What a report could not say because files are not there that it would be made from: all of it in one place."""

from __future__ import annotations

from collections.abc import Sequence

from reports.data.records import Records, Trial

# By file of a trial, what is missing from the report without it.
_WITHOUT = {
    "trial.json": (
        "their recipe, hardware, versions and settings, their whole hash, whether other programs were at work as they "
        "ran, whether they were interrupted, and what there is to say of their copy of the data (accuracies on JPEG "
        "copies are lower than on the published images) are not known"
    ),
    "epochs.jsonl": (
        "curves over epochs and over time, FLOPs of a step, shapes by layer, the layers' backends and the check for "
        "unsteady times do not include them"
    ),
    "layers.csv": "shapes by layer begin with the end of the first epoch",
}


def lacks(records: Records) -> tuple[str, ...]:
    """A line for each kind of file that trials which are done do not have, and for the suite's own record."""
    done = [trial for trial in records.trials if trial.done]
    lines = []
    for file, consequence in _WITHOUT.items():
        without = [trial for trial in done if file in trial.missing_files]
        if without:
            lines.append(f"{_count(without, done)} no {file}: {consequence}.")
    if not records.suite and not records.damage:
        lines.append("There is no suite.json: the commands that made these results are not known.")
    return tuple(lines)


def _count(without: Sequence[Trial], done: Sequence[Trial]) -> str:
    if len(without) == len(done):
        return "The trial has" if len(done) == 1 else f"All {len(done)} trials that are done have"
    names = ", ".join(trial.name for trial in without[:3]) + (", ..." if len(without) > 3 else "")
    return f"{len(without)} of the {len(done)} trials that are done ({names}) {'has' if len(without) == 1 else 'have'}"


def kept_line(figures: Sequence[str]) -> tuple[str, ...]:
    """A line on figures of an earlier report, by their names without the group's; nothing where there are none."""
    if not figures:
        return ()
    count = "One figure" if len(figures) == 1 else f"{len(figures)} figures"
    return (
        f"{count} of an earlier report cannot be drawn again from what is here, and stay in figures/ as they were: "
        f"{', '.join(figures)}.",
    )
