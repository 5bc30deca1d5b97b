"""Small trials, by default on digits, that run in the process of the test."""

import dataclasses
import json
from pathlib import Path

from suite import registry
from suite.choices import MethodChoice
from suite.recipe import FLUSH, IEEE, Recipe
from suite.trials.folder.records import COMPRESSED, TrialRecord, pack, write_record
from suite.trials.planning import plan
from suite.trials.spec import SuiteSpec, TrialSpec
from suite.trials.trial_run import TrialRun


def spec(method, seed=0, task="digits", model="", **changes):
    """Return the spec of a small trial; `changes` are fields of the recipe."""
    name, task = task, registry.get("task", task)()
    choice = MethodChoice.read(method)
    recipe = Recipe(**task.recipe("smoke").fields() | {"train_images": 256, "epochs": 4} | changes)
    return TrialSpec(
        method=choice.name,
        variant=choice.variant,
        parameters=choice.parameters(name, "smoke"),
        task=name,
        model=model or task.default_model("smoke"),
        preset="smoke",
        recipe=recipe.fields(),
        seed=seed,
        device="cpu",
        dtype="float32",
        arithmetic=IEEE,
        data_copy=vars(task.prepare(Path("unused"), "smoke")),
    )


def untrained(seed=0, **fields):
    """Return the spec of a trial whose result is made up."""
    recipe = Recipe(epochs=3, batch_size=4, learning_rate=0.1).fields()
    copy = {"kind": "original", "checksum": "ab" * 32, "path": "", "note": ""}
    known = {"method": "dense", "task": "digits", "model": "resnet9", "preset": "smoke", "device": "cpu"}
    return TrialSpec(**{**known, "recipe": recipe, "seed": seed, "dtype": "float32", "data_copy": copy, **fields})


def recorded(result=None, *, status="done", epochs=(), provenance=None, **fields):
    """Return the record of a trial that exists only in memory; `fields` are those of its spec."""
    return TrialRecord(
        spec=untrained(**fields), status=status, result=result or {}, epochs=epochs, provenance=provenance or {}
    )


def planned(methods, **changes):
    """Return the trials that a command plans; `changes` are fields of its `SuiteSpec`."""
    fields = {"tasks": "digits", "preset": "smoke", "seeds": (0,), "device": "cpu", "dtype": "float32", "data_root": ""}
    return plan(SuiteSpec(methods=methods, **(fields | changes)))


def flushed(method, **changes):
    """Return the spec of a small trial that flushes subnormal numbers, as those of commands do.

    A test that trains it calls `torch.set_flush_denormal(False)` at its end.
    """
    return dataclasses.replace(spec(method, **changes), arithmetic=FLUSH)


def train(folder, trial):
    """Train a trial in a folder, and return the records of its epochs."""
    folder.mkdir(parents=True, exist_ok=True)
    run = TrialRun(trial, folder)
    run.run()
    write_record(folder, trial, "done", "", run.result, run.provenance)
    return [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]


CONTENTS = {"model.pt": "x", "epochs.jsonl": '{"epoch": 1}\n{"epoch": 2}\n', "layers.csv": "layer\nconv\n"}


def put(out, trial, status="done", message="", **more):
    """Write a trial in its place in a suite's folder, where its files are made up, and return the trial's folder."""
    folder = out / "trials" / trial.trial_id
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENTS.items() if status == "done" else ():
        (folder / name).write_text(content)
    write_record(folder, trial, status, message, **more)
    return folder


def put_export(out, trial):
    """Write a finished trial as `export` does, and return the trial's folder."""
    folder = put(out, trial)
    (folder / "model.pt").unlink()
    for name in COMPRESSED:
        (folder / f"{name}.gz").write_bytes(pack((folder / name).read_bytes()))
        (folder / name).unlink()
    return folder


def train_in_suite(out, trial):
    """Train a trial in its place in a suite's folder, and return the trial's folder."""
    folder = out / "trials" / trial.trial_id
    train(folder, trial)
    return folder
