"""What a report cannot show because files are missing."""

from __future__ import annotations

from collections.abc import Sequence

from reports.data.records import Records, Trial

# For each file of a trial, what the report does not show without it.
_CONSEQUENCES = {
    "trial.json": (
        "their recipe, hardware, versions, settings and full hash are unknown, and so is whether other programs were "
        "running, whether the trials were interrupted, and what is noted about their copy of the data (accuracies on "
        "JPEG copies are lower than on the published images)"
    ),
    "epochs.jsonl": (
        "curves over epochs and over time, FLOPs per step, shapes by layer, backends of the layers and the check for "
        "unsteady times do not include them"
    ),
    "layers.csv": "their shapes by layer start at the end of the first epoch",
}


def missing_file_notes(records: Records) -> tuple[str, ...]:
    """Return one line for each kind of file that finished trials lack, and one if `suite.json` is missing."""
    done = [trial for trial in records.trials if trial.done]
    lines = []
    for file, consequence in _CONSEQUENCES.items():
        without = [trial for trial in done if file in trial.missing_files]
        if without:
            lines.append(f"{_subject(without, done)} no {file}: {consequence}.")
    if not records.suite and not records.damage:
        lines.append("The folder has no suite.json: the commands that produced these results are unknown.")
    return tuple(lines)


def _subject(without: Sequence[Trial], done: Sequence[Trial]) -> str:
    if len(without) == len(done):
        return "The finished trial has" if len(done) == 1 else f"All {len(done)} finished trials have"
    names = ", ".join(trial.name for trial in without[:3]) + (", ..." if len(without) > 3 else "")
    return f"{len(without)} of the {len(done)} finished trials ({names}) {'has' if len(without) == 1 else 'have'}"


def retained_figure_notes(figures: Sequence[str]) -> tuple[str, ...]:
    """Return a line that names figures of an earlier report that cannot be drawn again, if any.

    Args:
        figures: File names without the prefix of the group.
    """
    if not figures:
        return ()
    count = "One figure" if len(figures) == 1 else f"{len(figures)} figures"
    return (
        f"{count} of an earlier report cannot be drawn again from these files and "
        f"{'is' if len(figures) == 1 else 'are'} kept unchanged in figures/: {', '.join(figures)}.",
    )
