"""Check the requirements ("bars") on the committed results of the main job, one line each.

    python -m benchmarks.evidence.main_job_bars results/cpu-zen4-2cores/main-job

The exit status is 1 if a bar is missed, or if the table in `report.md` disagrees with `results.csv`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

LONGEST_TRIAL_S = 600
LEAST_DENSE_ACCURACY = 0.85
MOST_POINTS_BELOW = {"sdgp[mode=rescaled]": 1.5, "sdgp[mode=magnitude]": 1.5, "prunetrain": 3.0}
LEAST_INFERENCE_SAVED = 0.20


def read(folder: Path) -> pd.DataFrame:
    """Return the trials with status done, with the method and its parameters in the column `label`."""
    trials = pd.read_csv(folder / "results.csv").query("status == 'done'")
    variant = trials["variant"].fillna("").map(lambda text: f"[{text}]" if text else "")
    return trials.assign(label=trials["method"] + variant)


def bars(trials: pd.DataFrame) -> Iterator[tuple[str, bool]]:
    """Yield each bar as a line with its value, and whether it is met."""
    longest = trials["wall_time_s"].max()
    yield f"longest trial {longest:.0f} s, at most {LONGEST_TRIAL_S} s allowed", longest < LONGEST_TRIAL_S
    seeds = trials.groupby("label")["seed"].nunique()
    yield f"seeds {', '.join(f'{label} {count}' for label, count in seeds.items())}", bool((seeds >= 3).all())
    accuracy = trials.groupby("label")["test_accuracy"].mean()
    dense = accuracy["dense"]
    yield f"dense {dense:.4f}, at least {LEAST_DENSE_ACCURACY} required", dense >= LEAST_DENSE_ACCURACY
    for label, most in MOST_POINTS_BELOW.items():
        below = 100 * (dense - accuracy[label])
        yield f"{label} {accuracy[label]:.4f}, {below:.2f} points below dense, at most {most} allowed", below <= most
    pruned = trials[trials["label"] == "prunetrain"]
    saved = 1 - (pruned["inference_flops"] / pruned["inference_flops_dense"]).mean()
    least = f"at least {100 * LEAST_INFERENCE_SAVED:.0f} % required"
    line = f"prunetrain removes {100 * saved:.1f} % of inference FLOPs, {least}"
    yield line, saved >= LEAST_INFERENCE_SAVED


def disagreements(folder: Path, trials: pd.DataFrame) -> Iterator[str]:
    """Yield a line for each method whose mean accuracy in the report's table of results differs from `results.csv`."""
    # The table before the first section has other columns.
    _, _, sections = (folder / "report.md").read_text("utf-8").partition("\n## ")
    rows = re.findall(r"^\| `([^`]+)`[^|]*\| [^|]+\| (-?[\d.]+)", sections, re.MULTILINE)
    written: dict[str, str] = {}
    for label, text in rows:
        written.setdefault(label, text)
    for label, mean in (100 * trials.groupby("label")["test_accuracy"].mean()).items():
        text = written.get(str(label), "nothing")
        decimals = len(text.partition(".")[2])
        if text != f"{mean:.{decimals}f}":
            yield f"report.md says {text} % for {label}, results.csv {mean:.4f} %"


def main() -> int:
    """Print a line per bar and per disagreement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with results.csv and report.md of the main job")
    folder = parser.parse_args().folder
    trials = read(folder)
    holds = True
    for line, kept in bars(trials):
        print(f"{'holds ' if kept else 'MISSED'}  {line}")
        holds = holds and kept
    wrong = list(disagreements(folder, trials))
    print(
        "\n".join(f"MISSED  {line}" for line in wrong) or "holds   report.md and results.csv give the same accuracies"
    )
    return 0 if holds and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
