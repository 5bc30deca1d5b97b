"""The suite of the fault tests, its content without a fault, and conditions that must hold after one."""

import csv
import json
import os
import sys
from pathlib import Path

import torch
from forked import SamePopen, import_as, pdt, quick_facts

from suite.cli import main as cli

# One independent trial, one that another trial depends on, and that other trial. The threshold removes channels in a
# few steps: `scratch` of a network that lost none is not trained.
OPTIONS = (
    *("--methods", "dense,scratch[of=prunetrain[threshold=0.08]]", "--task", "digits", "--preset", "smoke"),
    *(
        "--model",
        "resnet9[width=0.0625]",
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--epochs",
        "2",
        "--set",
        "recipe.train_images=64",
    ),
    *("--set", "recipe.test_images=32", "--set", "recipe.batch_size=16"),
)
TRIALS = 3
EPOCHS = 2
MEASURED = ("_time_s", "_per_s", "peak_", "hardware", "time_to")


def warm_up(scratch):
    """Import the modules of commands and trials once, before processes are forked."""

    def train():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        quick_facts(SamePopen)  # in the process of the command, so that its imports are recorded
        return cli.main(["run", *OPTIONS, "--data-root", str(scratch), "--out", str(scratch / "warm")])

    import_as(train)


def run(out, scratch, *more, **keywords):
    """Return the command line of the suite for a folder."""
    return pdt(["run", *OPTIONS, "--data-root", str(scratch), "--out", str(out), *more], scratch, **keywords)


def trials(out):
    return sorted((out / "trials").iterdir()) if (out / "trials").is_dir() else []


def content(folder):
    """Return the result of a trial without times."""
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
    """Return the content of a finished folder that is equal for two runs of the same command."""
    with open(out / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        "trials": {folder.name: content(folder) for folder in trials(out)},
        "rows": [
            {key: value for key, value in row.items() if not any(part in key for part in MEASURED)} for row in rows
        ],
    }


def bytes_of(out):
    """Return the content of the relevant files by path."""
    names = ("trial.json", "model.pt", "epochs.jsonl", "layers.csv")
    return {(folder.name, name): (folder / name).read_bytes() for folder in trials(out) for name in names}


def left_behind(out):
    """Return partial files of killed writers, and checkpoints of finished trials."""
    return [path for path in out.rglob("*") if path.name.endswith(".part") or path.name == "checkpoint.pt"]


def age(out):
    """Make partial files old enough to be considered abandoned by the next command."""
    for path in Path(out).rglob("*.part"):
        os.utime(path, (0, 0))


def one_line(ended):
    """Return whether a refused command printed exactly one line."""
    lines = [line for line in ended.output.splitlines() if line.startswith("pdt: error:")]
    return ended.status == 2 and len(lines) == 1
