"""The suite that the faults happen to, what it leaves when nothing happens, and what must hold after a fault."""

import csv
import json
import os
import sys
from pathlib import Path

from forked import SamePopen, import_as, pdt, quick_facts

# One trial of each kind: on its own, one that another depends on, and that other.
OPTIONS = (
    *("--methods", "dense,scratch", "--task", "digits", "--model", "resnet9[width=0.0625]", "--preset", "smoke"),
    *("--device", "cpu", "--dtype", "float32", "--epochs", "2", "--set", "recipe.train_images=64"),
    *("--set", "recipe.test_images=32", "--set", "recipe.batch_size=16"),
)
TRIALS = 3
EPOCHS = 2
MEASURED = ("_time_s", "_per_s", "peak_", "hardware", "time_to")


def warm_up(scratch):
    """Import what commands and trials need, once, before processes are forked."""
    from suite.command import cli

    def train():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        quick_facts(SamePopen)  # in the command's own process, so that the imports are seen
        return cli.main(["run", *OPTIONS, "--data-root", str(scratch), "--out", str(scratch / "warm")])

    import_as(train)


def run(out, scratch, *more, **keywords):
    """The suite's command, into a folder."""
    return pdt(["run", *OPTIONS, "--data-root", str(scratch), "--out", str(out), *more], scratch, **keywords)


def trials(out):
    return sorted((out / "trials").iterdir()) if (out / "trials").is_dir() else []


def content(folder):
    """What a trial left, but for times."""
    import torch

    lines = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    state = torch.load(folder / "model.pt", weights_only=True)
    record = json.loads((folder / "trial.json").read_text())
    return {
        "epochs": [{key: value for key, value in line.items() if not key.endswith("_time_s")} for line in lines],
        "architecture": state["architecture"],
        "tensors": {name: tensor.tolist() for name, tensor in state["tensors"].items()},
        "layers": (folder / "layers.csv").read_text(),
        "status": record["status"],
        "result": {key: value for key, value in record["result"].items() if not any(m in key for m in MEASURED)},
    }


def whole(out):
    """What a finished folder holds; equal for two runs of the same command."""
    with open(out / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        "trials": {folder.name: content(folder) for folder in trials(out)},
        "rows": [
            {key: value for key, value in row.items() if not any(part in key for part in MEASURED)} for row in rows
        ],
    }


def bytes_of(out):
    """The content of the files whose content counts, by path."""
    names = ("trial.json", "model.pt", "epochs.jsonl", "layers.csv")
    return {(folder.name, name): (folder / name).read_bytes() for folder in trials(out) for name in names}


def left_behind(out):
    """Files that killed writers left half-written, and checkpoints of trials that are done."""
    return [path for path in out.rglob("*") if path.name.endswith(".part") or path.name == "checkpoint.pt"]


def age(out):
    """Make half-written files look as old as they would be when the next command finds them abandoned."""
    for path in Path(out).rglob("*.part"):
        os.utime(path, (0, 0))


def one_line(ended):
    """Whether a command that was refused said so in one line."""
    lines = [line for line in ended.output.splitlines() if line.startswith("pdt: error:")]
    return ended.status == 2 and len(lines) == 1
