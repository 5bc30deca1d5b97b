"""Processes that are killed at a write: the same command continues, and nothing is lost, orphaned or duplicated."""

import json
import re

import pytest
import suites
from forked import Operations
from shards import shards

from suite.engine.network.model_files import load

SHARDS = 8
SAMPLE = 3


def positions(count, shard):
    return range(1 + shard, count + 1, SHARDS)


def killed_and_run_again(base, folder, at, victim, tally):
    """Kill a process at one write, run the command again, and count everything that is wrong."""
    out, operations = folder / "out", Operations(folder / "out", at, victim)
    ended = suites.run(out, folder / "killed", operations=operations)
    where = f"{victim} at {at} of {base.operations}, {ended.killed}"
    assert ended.killed, f"nothing was killed: {where}"
    # Status 0: the trial was killed after its record had status done.
    assert ended.status in (0, 1, -9), f"{where}: {ended.output}"
    tally["kills"] += 1
    tally["tracebacks"] += "Traceback" in ended.output
    tally["orphaned"] += ended.orphans
    assert not ended.orphans, where
    suites.age(out)
    done, saved = finished(out), epochs_saved(out)
    again = suites.run(out, folder / "again")
    tally["tracebacks"] += "Traceback" in again.output
    assert again.status == 0, f"{where}: {again.output}"
    assert "Traceback" not in ended.output + again.output, f"{where}: {ended.output}{again.output}"
    # Lost: a finished trial that runs again, a saved epoch that is trained again, or a different result.
    lost = sum(finished(out).get(name) != content for name, content in done.items())
    for name, epoch in saved.items():
        resumed = re.findall(r"resumed after epoch (\d+)", (out / "trials" / name / "log.txt").read_text())
        lost += epoch not in map(int, resumed)
    whole = suites.whole(out)
    lost += whole != base.whole
    doubled = len(whole["rows"]) - len({row["trial_id"] for row in whole["rows"]})
    doubled += sum(len(trial["epochs"]) > suites.EPOCHS for trial in whole["trials"].values())
    doubled += max(0, len(json.loads((out / "suite.json").read_text())["commands"]) - 2)
    left = suites.left_behind(out)
    tally["lost"] += lost
    tally["doubled"] += doubled
    tally["orphaned"] += len(left)
    assert (lost, doubled, left) == (0, 0, []), where


def finished(out):
    """Return the records of finished trials, as stored on the disk."""
    found = {}
    for folder in suites.trials(out):
        path = folder / "trial.json"
        if path.is_file() and json.loads(path.read_text())["status"] == "done":
            found[folder.name] = path.read_bytes()
    return found


def epochs_saved(out):
    """Return the epoch of each checkpoint of an unfinished trial."""
    done = finished(out)
    paths = {path.parent.name: path for path in (out / "trials").glob("*/checkpoint.pt")}
    return {name: load(path)["trainer"]["hooks"]["epochs_done"] for name, path in paths.items() if name not in done}


@pytest.mark.parametrize("number", range(SAMPLE))
def test_a_process_that_is_killed_at_a_write(base, tmp_path, tally, number):
    victim = "command" if number % 2 else "writer"
    killed_and_run_again(base, tmp_path, 7 + number * base.operations // SAMPLE, victim, tally)


@pytest.mark.timeout(1800)  # many commands, on a machine that may be busy
@shards(range(SHARDS), slow=(0, 4))
def test_a_process_that_is_killed_at_every_write(base, tmp_path, tally, number):
    for at in positions(base.operations, number):
        killed_and_run_again(base, tmp_path / f"writer-{at}", at, "writer", tally)
        tally["operations"] += 1
        if at % 4 == 0:
            killed_and_run_again(base, tmp_path / f"command-{at}", at, "command", tally)
