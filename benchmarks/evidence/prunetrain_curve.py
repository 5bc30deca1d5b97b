"""Write the table and the figure of accuracy against PruneTrain's remaining FLOPs, from the folder of a suite.

    python run_suite.py --methods "$(python -m benchmarks.evidence.prunetrain_curve --methods)" --task cifar10 \\
        --model resnet32 --preset quick --recipe resnet9 --seeds 0, --jobs 2 --out DIR
    python -m benchmarks.evidence.prunetrain_curve DIR -o results/NAME

The last command writes NAME.csv and NAME.svg. Times are omitted, because two trials ran at the same time.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

from reports.data.records import Trial, read
from reports.figures.panels import Line, Panel, curves_figure

# Penalty ratios per kind of update; a proximal step shrinks groups that are far from zero less.
RATIOS = {"subgradient": 0.3, "proximal": 0.81}
THRESHOLDS = (0.03, 0.05, 0.07, 0.09, 0.12)
PARAMETERS = ("ratio", "threshold", "update")
COLUMNS = (
    *("seed", "epochs", "dtype", "data_copy", "test_accuracy", "inference_flops", "inference_flops_dense"),
    *("train_flops_current", "train_flops_dense", "params", "hardware_id"),
)


def methods() -> str:
    """Return the value of `--methods` for the trials of the curve."""
    proximal = {"subgradient": "", "proximal": ",update=proximal"}
    return ",".join(
        ["dense"]
        + [
            f"prunetrain[ratio={ratio},threshold={threshold}{proximal[update]}]"
            for threshold in THRESHOLDS
            for update, ratio in RATIOS.items()
        ]
    )


def table_of(trials: list[Trial]) -> pd.DataFrame:
    """Return one row per finished trial: settings, accuracy, FLOPs, and the commit of the code."""
    rows: list[dict[str, Any]] = []
    for trial in trials:
        if trial.done:
            spec, git = trial.spec["parameters"], trial.provenance.get("git") or {}
            rows.append({
                "trial_id": trial.name,
                "method": trial.text("method"),
                **{name: spec.get(name) for name in PARAMETERS},
                **{name: trial.numbers.get(name, trial.text(name)) for name in COLUMNS},
                "commit": f"{git.get('commit', '')[:12]}{'+changes' if git.get('dirty') else ''}",
            })  # fmt: skip
    return pd.DataFrame(rows).convert_dtypes().sort_values(["method", "update", "threshold"], na_position="first")


def figure_of(table: pd.DataFrame) -> str:
    """Draw accuracy over both kinds of FLOPs, and return the SVG."""
    panels = []
    for title, cost, whole in (
        ("Inference", "inference_flops", "inference_flops_dense"),
        ("Training", "train_flops_current", "train_flops_dense"),
    ):
        lines = []
        for (method, update, ratio), part in table.groupby(["method", "update", "ratio"], dropna=False):
            points = [
                (100 * float(left), 100 * float(accuracy))
                for left, accuracy in zip(part[cost] / part[whole], part["test_accuracy"], strict=True)
            ]
            label = str(method) if pd.isna(update) else f"{method}, {update}, ratio {ratio:g}"
            lines.append(Line(label, points))
        panels.append(Panel(title, f"{title} FLOPs left (%)", "Test accuracy (%)", lines))
    found = curves_figure("prunetrain-resnet32", "ResNet-32 on CIFAR-10 in seven epochs", "", panels)
    assert found is not None
    return found.standalone


def main() -> None:
    """Write the table and the figure, or print the list of methods."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="folder of the suite")
    parser.add_argument("-o", "--out", type=Path, metavar="NAME", help="path of the files, without suffix")
    parser.add_argument("--methods", action="store_true", help="only print the list of methods")
    chosen = parser.parse_args()
    if chosen.methods:
        print(methods())
        return
    if not (chosen.folder and chosen.out):
        parser.error("DIR and -o NAME, or --methods")
    if not (chosen.folder / "trials").is_dir():
        parser.error(f"{chosen.folder} is not the folder of a suite")
    table = table_of(list(read(chosen.folder).trials))
    table.to_csv(chosen.out.with_suffix(".csv"), index=False, lineterminator="\n")
    chosen.out.with_suffix(".svg").write_text(figure_of(table), encoding="utf-8")


if __name__ == "__main__":
    main()
