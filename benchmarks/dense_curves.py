"""Compare dense training of several lengths and recipes: accuracy by counted training FLOPs, as CSV and as a figure.

    python -m benchmarks.dense_curves NAME=RESULTS [NAME=RESULTS ...] -o results/MACHINE/dense-curves

RESULTS is the folder of a suite, or an exported copy. The dense trials of each model in it are a line; the table has
the mean and the standard deviation over seeds of each length, with and without the views of test-time augmentation.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from reports.figures.figure import Figure
from reports.figures.panels import Line, Panel, curves_figure
from suite import load_results
from suite.trials.estimates import Estimate, estimate
from suite.trials.groups import BASELINE

KEYS = ["name", "model", "epochs"]


def table_of(folders: dict[str, Path]) -> pd.DataFrame:
    """Return one row per folder, model and number of epochs: seeds, FLOPs, and accuracies in percent."""
    frames = [load_results(path).trials.assign(name=name) for name, path in folders.items()]
    trials = pd.concat(frames, ignore_index=True)
    dense = trials[(trials["status"] == "done") & (trials["method"] == BASELINE) & trials["variant"].isna()].copy()
    for column in ("test_accuracy", "test_accuracy_one_view"):
        dense[column] *= 100
    return (
        dense.groupby(KEYS, sort=False)
        .agg(
            seeds=("seed", "nunique"),
            train_flops=("train_flops_dense", "mean"),
            accuracy=("test_accuracy", "mean"),
            accuracy_sd=("test_accuracy", "std"),
            one_view=("test_accuracy_one_view", "mean"),
            one_view_sd=("test_accuracy_one_view", "std"),
            accuracies=("test_accuracy", list),
        )
        .reset_index()
        .sort_values(["name", "model", "train_flops"])
    )


def figure_of(table: pd.DataFrame) -> Figure:
    """Return the figure: a line a folder and model, with 95 % intervals where a length has several seeds."""
    lines = []
    for (name, model), rows in table.groupby(["name", "model"], sort=False):
        points = [(row.train_flops / 1e15, estimate(row.accuracies, "")) for row in rows.itertuples()]
        lines.append(Line(f"{name}: {model}", [(x, y) for x, y in points if isinstance(y, Estimate)]))
    figure = curves_figure(
        "dense-curves",
        "Dense training of several lengths",
        "Each point is a length with its whole schedule: the mean over seeds with its 95 % interval.",
        [Panel("", "Training FLOPs, counted (PFLOPs)", "Test accuracy, measured (%)", lines)],
        baseline=lines[0].label,
    )
    assert figure is not None
    return figure


def main() -> int:
    """Write the table and the figure, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="NAME=RESULTS")
    parser.add_argument("-o", "--out", type=Path, required=True, help="path of both files without their suffix")
    typed = parser.parse_args()
    named = dict(text.partition("=")[::2] for text in typed.folders)
    if not all(named.values()):
        parser.error("each folder needs a name: NAME=RESULTS")
    table = table_of({name: Path(path) for name, path in named.items()})
    if table.empty:
        parser.error("no dense trial is done in these folders")
    shown = table.drop(columns="accuracies").round({"accuracy": 2, "accuracy_sd": 2, "one_view": 2, "one_view_sd": 2})
    shown.to_csv(typed.out.with_suffix(".csv"), index=False)
    typed.out.with_suffix(".svg").write_text(figure_of(table).standalone, encoding="utf-8")
    print(shown.to_string(index=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
