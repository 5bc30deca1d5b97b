"""Measure the time and memory of a report of many trials, on a synthetic folder.

    python -m benchmarks.reports.many_trials [--trials 1000] [--folder DIR]

The folder has 12 methods, dense with several numbers of epochs among them, on four models with equally many seeds, and
every trial has 3 to 30 epochs and the ledger of 20 layers. Printed are the processor time and the largest resident
memory of `python run_suite.py report DIR`, whose bounds are 15 s and 1 GB.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from suite.trials.folder.frame_columns import FLOPS_KINDS, LAYERS, PRODUCTS
from suite.trials.folder.records import write_record
from suite.trials.spec import TrialSpec

ROOT = Path(__file__).parents[2]
METHODS = ("dense", *(f"method{index}" for index in range(10)))
MODELS = ("resnet9", "resnet32", "vgg11", "vgg13")
WIDTHS = (64, 128, 256, 512)
LAYERS_OF_MODEL = 20
SECONDS, BYTES = 15.0, 1e9
STEP = 1e9  # FLOPs of a step
STEPS = 390


def add_trial(folder: Path, method: str, model: str, seed: int, epochs: int, random: np.random.Generator) -> None:
    """Write the record, the epochs and the layers of one finished trial."""
    recipe = {"epochs": epochs, "batch_size": 128, "learning_rate": 0.2, "execution": "eager"}
    copy = {"kind": "original", "checksum": "ab" * 32, "path": "", "note": ""}
    spec = TrialSpec(
        method=method, task="cifar10", model=model, preset="quick", recipe=recipe, seed=seed, device="cpu",
        dtype="float32", data_copy=copy, parameters={"ratio": 0.2},
    )  # fmt: skip
    place = folder / "trials" / spec.trial_id
    place.mkdir(parents=True)
    saved = 0.0 if method == "dense" else 0.05 * (1 + METHODS.index(method) % 5)
    accuracy = 0.9 - 0.02 * saved + random.normal(0, 0.002)
    seconds = epochs * 10.0 * (1 - saved) * random.normal(1, 0.01)
    lines = []
    for epoch in range(1, epochs + 1):
        share = 1 - saved * epoch / epochs
        step = dict.fromkeys(FLOPS_KINDS, STEP * share) | {"dense": STEP}
        lines.append(
            {
                "epoch": epoch, "epochs_left": epochs - epoch, "train_loss": 2.0 / epoch, "regularization": 0.0,
                "learning_rate": 0.1, "batch_size": 128, "steps": STEPS, "skipped_steps": 0, "step_flops": step,
                "test_accuracy": accuracy * (1 - 0.5**epoch), "test_loss": 1.0 / epoch,
                "train_time_s": seconds * epoch / epochs, "eval_time_s": 0.5 * epoch,
                "train_flops": {kind: value * STEPS * epoch for kind, value in step.items()},
                "layers": {
                    f"block{index}.conv": {"out": max(1, round(WIDTHS[index % 4] * share)), "in": WIDTHS[index % 4],
                                           "density": [1.0, 1.0, 1.0], "weight_density": share}
                    for index in range(LAYERS_OF_MODEL)
                },
                "backends": {f"block{index}.conv": "torch" for index in range(LAYERS_OF_MODEL)}, "reconfigured": False,
            }
        )  # fmt: skip
    (place / "epochs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with (place / "layers.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [column.name for column in LAYERS[1:]], restval=0)
        writer.writeheader()
        for interval in (1, 2):
            for index in range(LAYERS_OF_MODEL):
                flops = {f"{product}_{kind}": 1e12 for product in PRODUCTS for kind in FLOPS_KINDS}
                names = {
                    "layer": f"block{index}.conv",
                    "kind": "conv",
                    "kernel": "3x3",
                    "input": "8x8",
                    "output": "8x8",
                }
                channels = {"in_channels": WIDTHS[index % 4], "out_channels": WIDTHS[index % 4] // interval}
                writer.writerow({"interval": interval, "weight_density": 1.0, **names, **channels, **flops})
    result: dict[str, Any] = {
        "test_accuracy": accuracy, "test_loss": 0.4, "train_time_s": seconds, "inference_flops_dense": 1e8,
        "inference_flops": 1e8 * (1 - saved), "params_dense": 500_000, "params": 400_000,
        **{f"train_flops_{kind}": value for kind, value in lines[-1]["train_flops"].items()},
    }  # fmt: skip
    machine = {"hardware_id": "h1234567", "hardware": {"threads": 2}, "software": {"torch": "2.15.0"}}
    provenance = {**machine, "time_utc": f"2026-01-01T00:00:{seed:02d}Z", "busy_cores": 0.0}
    write_record(place, spec, "done", result=result, provenance=provenance)


def make_folder(folder: Path, trials: int) -> int:
    """Write a folder with about so many trials, and return their number."""
    random = np.random.default_rng(0)
    count, seed = 0, 0
    while count < trials:
        for model, epochs in zip(MODELS, (7, 12, 20, 30), strict=True):
            kinds = [(method, epochs) for method in METHODS] + [("dense", epochs // 2)]
            for method, length in kinds:
                if count < trials:
                    add_trial(folder, method, model, seed, length, random)
                    count += 1
        seed += 1
    spec: dict[str, Any] = {"command_line": "run_suite.py", "spec": {}, "time_utc": ""}
    (folder / "suite.json").write_text(json.dumps({**spec, "provenance": {}, "commands": [spec]}))
    return count


def main() -> int:
    """Write a folder, report on it, and return 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="number of trials (default: 1000)")
    parser.add_argument("--folder", type=Path, help="new folder for them, which stays (default: a temporary one)")
    typed = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = typed.folder or Path(temporary)
        count = make_folder(folder, typed.trials)
        start = time.perf_counter()
        subprocess.run([sys.executable, "run_suite.py", "report", str(folder)], cwd=ROOT, check=True)
        wall = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        size = sum(path.stat().st_size for path in folder.glob("report.*"))
    seconds, memory = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    print(
        f"{count} trials: {seconds:.1f} s of processor time ({wall:.1f} s elapsed), {memory / 1e6:.0f} MB of resident "
        f"memory, {size / 1e6:.1f} MB of reports; bounds {SECONDS:g} s and {BYTES / 1e6:.0f} MB"
    )
    return 0 if seconds <= SECONDS and memory <= BYTES else 1


if __name__ == "__main__":
    raise SystemExit(main())
