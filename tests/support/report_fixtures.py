"""Synthetic folders of a suite: the files that a run writes, with known and plausible numbers."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports import write_report
from reports.data.method_rows import NUMBER_COLUMNS
from reports.figures import svg
from suite.trials.folder.reader import update_table
from suite.trials.folder.records import write_record
from suite.trials.folder.table import COLUMNS
from suite.trials.spec import TrialSpec

EPOCHS = 5
KINDS = ("measured", "counted", "declared")  # of the columns that are in the result of a trial
LAYERS = {
    "stem": (3, 16),
    "block1.conv1": (16, 32),
    "block1.conv2": (32, 32),
    "block2.conv1": (32, 64),
    "head": (64, 10),
}
DENSE_STEP = 2.4e9
STEPS = 150
# Accuracies in percent and training seconds of each method, seed by seed.
ACCURACIES = {"dense": (71.2, 71.9, 70.8), "sdgp": (71.0, 71.3, 71.1), "prunetrain": (68.1, 69.0, 68.2)}
TIMES = {"dense": (372.0, 365.0, 379.0), "sdgp": (391.0, 388.0, 395.0), "prunetrain": (298.0, 301.0, 295.0)}
VARIANTS = {"dense": "", "sdgp": "n=2,m=4", "prunetrain": "ratio=0.2"}
# Share of channels left after each epoch.
SHRINK = {"prunetrain": (1.0, 0.875, 0.75, 0.75, 0.5)}
DATA_COPY = {"kind": "sample", "checksum": "0123456789abcdef", "path": "", "note": "2,000 images; not the real job."}
RECIPE = {"epochs": EPOCHS, "batch_size": 128, "learning_rate": 0.4}
SETTINGS = ("method", "variant", "task", "model", "preset", "device", "dtype", "arithmetic")
COMMAND = "run_suite.py --methods 'dense,sdgp[n=2,m=4]' --out elsewhere --seeds 3 --only missing"
PROVENANCE: dict[str, Any] = {
    "hardware": {"device": "Synthetic CPU @ 2.0 GHz", "threads": 2},
    "settings": {"deterministic": True},
    "git": {"commit": "670a1fa", "dirty": False},
    "hardware_id": "12e45678",
    "method": {"source": "A paper, 2022"},
}


class Suite:
    """Writes a suite's folder trial by trial."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self, method: str, seed: int, *, accuracy: float | None, time: float | None, **changed: Any
    ) -> dict[str, Any]:
        """Add a trial. `accuracy` is in percent; `changed` overrides columns, and `None` leaves one empty.

        `recipe`, `task_parameters` and `spec` add to those parts of `trial.json` instead.
        """
        variant = changed.pop("variant", VARIANTS.get(method, ""))
        recipe = changed.pop("recipe", {})
        task_parameters, recorded = changed.pop("task_parameters", {}), changed.pop("spec", {})
        parameters = dict(part.split("=", 1) for part in variant.split(",") if "=" in part)
        columns: dict[str, Any] = {
            "method": method, "variant": variant, "task": "cifar10", "model": "resnet9[width=0.25]", "preset": "quick",
            "seed": seed, "status": "done", "message": "", "device": "cpu", "hardware_id": "12e45678",
            "threads": PROVENANCE["hardware"]["threads"], "dtype": "float32", "arithmetic": "flush",
            "data_copy": "sample-01234567", "batch_size": 128, "epochs": EPOCHS, "test_loss": 0.91,
            "test_accuracy": None if accuracy is None else accuracy / 100, "train_time_s": time,
            "peak_memory_bytes": 300 * 2**20 + seed * 2**20, "params_dense": 400_000, "inference_flops_dense": 8e7,
        }  # fmt: skip
        shrink = SHRINK.get(method, (1.0,) * EPOCHS)
        effective = [share**2 * (5 / 6 if method == "sdgp" else 1) for share in shrink]
        total = DENSE_STEP * STEPS
        columns |= {
            "train_flops_dense": total * EPOCHS,
            "train_flops_current": total * sum(share**2 for share in shrink),
            "train_flops_executed": total * sum(share**2 for share in shrink),
            "train_flops_effective": total * sum(effective),
            "inference_flops": 8e7 * shrink[-1] ** 2,
            "inference_flops_effective": 8e7 * shrink[-1] ** 2,
            "params": round(400_000 * shrink[-1] ** 2),
            "nonzero_params": round(400_000 * shrink[-1] ** 2) - 12,
        }
        columns |= changed
        kind, _, checksum = columns["data_copy"].partition("-")
        fields = {
            **{name: columns[name] or "" for name in SETTINGS},
            **{"recipe": {**RECIPE, **{name: columns[name] for name in RECIPE if columns.get(name)}, **recipe}},
            **{"data_copy": {**DATA_COPY, "kind": kind, "checksum": checksum}, "seed": seed},
            **{"parameters": parameters, "task_parameters": task_parameters, **recorded},
        }
        spec = TrialSpec(**fields)
        while (self.folder / "trials" / spec.trial_id).exists():  # the same setting in a second version
            spec = dataclasses.replace(spec, method_version=spec.method_version + 1)
        provenance = {**PROVENANCE, "hardware": {**PROVENANCE["hardware"], "threads": columns["threads"]}}
        provenance |= {
            "hardware_id": columns["hardware_id"] or "",
            "software": {"python": "3.11.7", "torch": columns.get("torch", "")},
        }
        result = {name: columns[name] for name in columns if name in COLUMNS and COLUMNS[name].kind in KINDS}
        folder = self.folder / "trials" / spec.trial_id
        folder.mkdir(parents=True)
        self._write_files(folder, columns, shrink, effective)
        write_record(folder, spec, columns["status"], columns["message"], result, provenance)
        return {"trial_id": spec.trial_id, **columns}

    def _write_files(self, folder: Path, columns: dict[str, Any], shrink: Any, effective: Any) -> None:
        if columns["status"] != "done":
            return
        lines, rows = [], []
        for epoch in range(EPOCHS):
            risen = 1 - 0.5 ** (epoch + 1)
            widths = {
                name: max(1, round(out * shrink[epoch])) if name != "head" else out for name, (_, out) in LAYERS.items()
            }
            record = {
                "epoch": epoch + 1,
                "steps": STEPS,
                "batch_size": 128,
                "train_loss": 2.3 - 1.6 * risen + 0.02 * columns["seed"],
                "step_flops": {"dense": DENSE_STEP, "current": DENSE_STEP * shrink[epoch] ** 2,
                               "effective": DENSE_STEP * effective[epoch], "executed": DENSE_STEP * shrink[epoch] ** 2},
                "layers": {name: {"out": out, "in": 1, "density": [1, 1, 1], "weight_density": 1.0}
                           for name, out in widths.items()},
                "reconfigured": epoch > 0 and shrink[epoch] != shrink[epoch - 1],
            }  # fmt: skip
            if columns["test_accuracy"] is not None:
                record["test_accuracy"] = columns["test_accuracy"] * risen / (1 - 0.5**EPOCHS)
            if columns["train_time_s"] is not None:
                record["train_time_s"] = columns["train_time_s"] * (epoch + 1) / EPOCHS
            lines.append(json.dumps(record))
            for name in widths:
                before = (
                    LAYERS[name][1]
                    if epoch == 0 or name == "head"
                    else max(1, round(LAYERS[name][1] * shrink[epoch - 1]))
                )
                rows.append({"interval": epoch, "layer": name, "out_channels": before})
        (folder / "epochs.jsonl").write_text("\n".join(lines) + "\n")
        with (folder / "layers.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["interval", "layer", "out_channels"])
            writer.writeheader()
            writer.writerows(rows)

    def write(self, *, command: str = COMMAND) -> Path:
        """Write `suite.json`."""
        commands = [{"command_line": command, "spec": {}}]
        content = {"command_line": command, "spec": {"preset": "smoke"}, "provenance": PROVENANCE, "commands": commands}
        (self.folder / "suite.json").write_text(json.dumps(content))
        return self.folder

    def change(self, match: str = "*", **parts: dict[str, Any]) -> None:
        """Change parts of the records of the trials whose names match."""
        for path in self.folder.glob(f"trials/{match}/trial.json"):
            record = json.loads(path.read_text())
            path.write_text(json.dumps(record | {name: record[name] | part for name, part in parts.items()}))

    def add_all(
        self, methods: tuple[str, ...] = ("dense", "sdgp", "prunetrain"), seeds: int = 3, **changed: Any
    ) -> None:
        """Add trials of some methods with their known accuracies and times."""
        for method in methods:
            for seed in range(seeds):
                self.add(method, seed, accuracy=ACCURACIES[method][seed], time=TIMES[method][seed], **changed)


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """Return an empty suite."""
    return Suite(tmp_path)


@pytest.fixture(scope="session")
def full_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with its report: three methods with three seeds, one with one seed, and two failed trials."""
    suite = Suite(tmp_path_factory.mktemp("full"))
    suite.add_all()
    suite.add("oneshot", 0, accuracy=65.5, time=380.0, peak_memory_bytes=None, train_flops_executed=1.62e12)
    empty = {key: None for key in NUMBER_COLUMNS if key != "seed"}
    suite.add("sdgp", 3, accuracy=None, time=None, **{**empty, "status": "error", "message": "killed by signal 9",
              "hardware_id": "", "dtype": ""})  # fmt: skip
    suite.add("prunetrain", 3, accuracy=None, time=None, **{**empty, "status": "diverged",
              "message": "loss is NaN at epoch 2"})  # fmt: skip
    update_table(suite.write())
    write_report(suite.folder)
    return suite.folder


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build reports without figures, which take seconds to draw."""
    monkeypatch.setattr("reports.content.build.tradeoff_figures", lambda rows, slug, curve: ([], []))
    monkeypatch.setattr("reports.content.build.curve_figures", lambda rows, slug: ([], []))
    monkeypatch.setattr("reports.content.build.gain_figure", lambda *arguments: None)


@pytest.fixture
def suites(tmp_path: Path) -> Callable[[str], Suite]:
    """Return a function that makes an empty suite with a name."""

    def make(name: str) -> Suite:
        (tmp_path / name).mkdir()
        return Suite(tmp_path / name)

    return make


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of figures that are rendered, from any module."""
    figures: list[Any] = []

    def render(figure: Any, *texts: str) -> tuple[str, str]:
        figures.append(figure)
        return "", ""

    monkeypatch.setattr(svg, "render", render)
    return figures
