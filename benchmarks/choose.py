"""What the search of campaign 2 chooses, by the rule that results/campaign-2.md declares.

python -m benchmarks.choose results/cpu-zen4-2cores/search
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.campaign import ROOT, read_settings
from suite.choices import MethodChoice
from suite.errors import UsageError
from suite.parameters import split
from suite.trials.folder.reader import read_trials
from suite.trials.groups import BASELINE, label

SETTINGS = ROOT / "benchmarks" / "search.toml"
SEEDS = 2


def table(folder: Path) -> pd.DataFrame:
    """Return one row for each trained setting: its accuracies in percent, their mean, and its mean executed FLOPs."""
    trials = pd.DataFrame(
        [
            {
                "setting": label(trial),
                "epochs": trial.spec.recipe["epochs"],
                "accuracy": 100 * trial.number("val_accuracy"),
                "flops": trial.number("train_flops_executed"),
            }
            for trial in read_trials(folder)[0]
            if trial.done and trial.number("val_accuracy") is not None
        ],
        columns=["setting", "epochs", "accuracy", "flops"],
    )
    groups = trials.groupby(["setting", "epochs"])
    return groups.agg(accuracies=("accuracy", list), mean=("accuracy", "mean"), flops=("flops", "mean")).reset_index()


def scores(rows: pd.DataFrame) -> pd.Series:
    """Return each row's mean minus that of dense training for the same executed FLOPs, in points.

    Dense's accuracy lies on the straight line in ln(FLOPs) through its highest means at its two lengths.
    """
    dense = rows[rows["setting"].str.fullmatch(rf"{BASELINE}(\[recipe\.learning_rate=[\d.]+\])?")]
    best = dense.loc[dense.groupby("epochs")["mean"].idxmax()]
    if [len(values) for values in best["accuracies"]] != [SEEDS, SEEDS]:
        raise UsageError(f"the folder needs dense training of two lengths with {SEEDS} seeds each")
    line = np.poly1d(np.polyfit(np.log(best["flops"]), best["mean"], 1))
    return rows["mean"] - line(np.log(rows["flops"]))


def chosen(settings: list[str], rows: Mapping[str, pd.Series]) -> tuple[str, float]:
    """Return the setting that is chosen of some, of which the first is the default, and the standard error."""
    variance = np.mean([np.var(rows[one]["accuracies"], ddof=1) for one in settings])
    error = math.sqrt(variance * (1 / SEEDS + 1 / SEEDS))
    best = max(settings, key=lambda one: rows[one]["score"])
    return (settings[0] if rows[settings[0]]["score"] > rows[best]["score"] - error else best), error


def main() -> None:
    """Print the scores and the choice of each method that has all of its trainings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    typed = parser.parse_args()
    try:
        rows = table(typed.folder)
        rows["score"] = scores(rows)
    except UsageError as error:
        parser.error(str(error))
    print("| setting | accuracies (%) \\[measured\\] | executed FLOPs | score (points) |\n| --- | ---: | ---: | ---: |")
    whole = [one for one in read_settings(SETTINGS) if "epochs" not in one]
    for number, setting in enumerate(whole):
        names = [str(MethodChoice.read(text.strip())) for text in split(setting["methods"])]
        # Rows are in order of their epochs, so that the whole dense training is kept.
        own = {row["setting"]: row for _, row in rows[rows["setting"].isin(names)].iterrows()}
        if any(name not in own or len(own[name]["accuracies"]) < SEEDS for name in names):
            continue
        choice, error = chosen(names, own)
        if number == 0:  # dense's rate is that of the highest mean
            choice = max(names, key=lambda name: own[name]["mean"])
        for name in names:
            row, mark = own[name], "**" if name == choice else ""
            values = ", ".join(f"{value:.2f}" for value in row["accuracies"])
            print(f"| {mark}`{name}`{mark} | {values} | {row['flops']:.3g} | {row['score']:+.2f} |")
        print(f"| *one standard error* | | | {error:.2f} |")


if __name__ == "__main__":
    main()
