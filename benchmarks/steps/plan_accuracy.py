"""Compare the times that `plan` predicts with those of the trials, for ten settings.

    python -m benchmarks.steps.plan_accuracy -o results/NAME.csv

Each setting is trained for 20 to 60 seconds: a first plan says how many epochs that is, and a second one, with this
number of epochs, makes the prediction that is compared. No constant of the prediction was fitted to any trial. Methods
that shrink the network are left out where they would shrink it, since `plan` states an upper bound for them; their
other costs, such as the lasso, are compared. Other programs disturb both times, and not alike: use an idle machine.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGET_S = 40.0
TOLERANCE = 0.25
COLUMNS = (
    *("setting", "epochs", "steps", "predicted_train_s", "measured_train_s", "ratio"),
    *("predicted_wall_s", "measured_wall_s", "wall_ratio", "busy_cores"),
)


@dataclass(frozen=True)
class Setting:
    """One trial of the comparison, in the preset `smoke`."""

    method: str
    task: str
    model: str
    batch_size: int
    dtype: str = "float32"

    @property
    def text(self) -> str:
        return f"{self.method}, {self.model} on {self.task}, {self.batch_size} images, {self.dtype}"

    def options(self, epochs: int) -> list[str]:
        """Return the options of `run` and `plan`."""
        return [
            *("--methods", self.method, "--task", self.task, "--model", self.model, "--preset", "smoke"),
            *("--batch-size", str(self.batch_size), "--dtype", self.dtype, "--epochs", str(epochs), "--seeds", "0,"),
        ]


SETTINGS = (
    Setting("dense", "digits", "resnet9[width=0.125]", 64),
    Setting("sdgp", "digits", "resnet9[width=0.25]", 32),
    Setting("clicktrain", "digits", "resnet9[width=0.25]", 128),
    Setting("dense", "digits", "mlp", 16),
    Setting("dense", "cifar10", "resnet9[width=0.25]", 128),
    Setting("sdgp[backend=skip]", "cifar10", "resnet9[width=0.5]", 64),
    Setting("clicktrain[backend=masked]", "cifar10", "resnet9[width=0.25]", 64),
    Setting("prunetrain[interval=1000]", "cifar10", "resnet32", 128),
    Setting("dense", "cifar10", "vgg11[width=0.5]", 32),
    Setting("dense", "cifar10", "resnet9[width=0.5]", 256, "bfloat16"),
)


def epochs_for(predicted: Mapping[str, Any], seconds: float) -> int:
    """Return the number of epochs that take about so many seconds, at least 3."""
    return max(3, math.ceil(seconds / (predicted["train_s"] / predicted["epochs"])))


def command(*arguments: str) -> str:
    """Run a command of the suite, and return what it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_suite.py"), *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def plan(setting: Setting, epochs: int, more: Sequence[str]) -> dict[str, Any]:
    """Return what `plan` predicts for a setting, and fail if it could not probe it."""
    (trial,) = json.loads(command("plan", *setting.options(epochs), "--json", *more))["trials"]
    return dict(trial["predicted"])


def compare(setting: Setting, seconds: float, more: Sequence[str]) -> dict[str, Any]:
    """Predict and train one setting, and return the row of the table."""
    epochs = epochs_for(plan(setting, 4, more), seconds)
    predicted = plan(setting, epochs, more)
    with tempfile.TemporaryDirectory() as folder:
        command("run", *setting.options(epochs), "--out", folder, *more)
        (path,) = Path(folder, "trials").glob("*/trial.json")
        record = json.loads(path.read_text(encoding="utf-8"))
    return row(setting, predicted, record)


def row(setting: Setting, predicted: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a setting from the prediction and the trial's record."""
    result = record["result"]
    return {
        "setting": setting.text,
        "epochs": predicted["epochs"],
        "steps": predicted["steps"],
        "predicted_train_s": predicted["train_s"],
        "measured_train_s": result["train_time_s"],
        "ratio": predicted["train_s"] / result["train_time_s"],
        "predicted_wall_s": predicted["wall_s"],
        "measured_wall_s": result["wall_time_s"],
        "wall_ratio": predicted["wall_s"] / result["wall_time_s"],
        "busy_cores": record["provenance"]["busy_cores"],
    }


def line(found: Mapping[str, Any]) -> str:
    """Return one line of the table for the terminal."""
    mark = "" if abs(found["ratio"] - 1) <= TOLERANCE else "  outside"
    return (
        f"{found['setting']:62} {found['epochs']:4} epochs  predicted {found['predicted_train_s']:6.1f} s  measured "
        f"{found['measured_train_s']:6.1f} s  ratio {found['ratio']:.3f}  (all: {found['wall_ratio']:.3f}){mark}"
    )


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one line: how many predictions are within the tolerance, and the extreme ratios."""
    ratios = [found["ratio"] for found in rows]
    within = sum(abs(ratio - 1) <= TOLERANCE for ratio in ratios)
    return (
        f"{within} of {len(ratios)} training times within {100 * TOLERANCE:.0f} %; ratios {min(ratios):.3f} to "
        f"{max(ratios):.3f}"
    )


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", metavar="FILE", type=Path, help="CSV file to write after each setting")
    parser.add_argument("--settings", metavar="LIST", help="numbers of the settings, from 1 (default: all)")
    parser.add_argument("--seconds", metavar="S", type=float, default=TARGET_S, help="training time of a setting")
    typed, more = parser.parse_known_args()
    numbers = [int(text) for text in typed.settings.split(",")] if typed.settings else range(1, len(SETTINGS) + 1)
    rows: list[dict[str, Any]] = []
    for number in numbers:
        rows.append(compare(SETTINGS[number - 1], typed.seconds, more))
        print(line(rows[-1]), flush=True)
        if typed.o:
            with open(typed.o, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    print(summary(rows))


if __name__ == "__main__":
    main()
