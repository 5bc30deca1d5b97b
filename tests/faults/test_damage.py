"""Edited files lead to one line or to another run of the trial, never to a traceback or to accepted damage."""

import shutil
from random import Random

import pytest
import suites
from edits import edit
from forked import Operations, pdt
from shards import shards

SAMPLE = 5
SHARDS, EDITS = 8, 45  # number of edits per shard
OF_A_TRIAL = ("trial.json", "epochs.jsonl", "layers.csv", "model.pt")
OF_THE_SUITE = ("suite.json", "results.csv", ".lock", "report.html")


@pytest.fixture(scope="session")
def interrupted(base, tmp_path_factory):
    """Folder whose last trial was killed after it saved its first epoch."""
    folder = tmp_path_factory.mktemp("interrupted")
    for at in range(base.operations - 20, 0, -5):
        shutil.rmtree(folder)
        suites.run(folder / "out", folder / "run", operations=Operations(folder / "out", at))
        if list((folder / "out" / "trials").glob("scratch-*/checkpoint.pt")):
            return folder / "out"
    raise AssertionError("no kill left a checkpoint")


def damaged_and_run_again(base, interrupted, folder, seed, tally):
    random = Random(seed)
    source, names = base.out, (*OF_A_TRIAL, *OF_A_TRIAL, *OF_THE_SUITE)
    if random.random() < 0.3:
        source, names = interrupted, ("checkpoint.pt", "epochs.jsonl", "trial.json", "checkpoint.pt")
    out = folder / "out"
    shutil.copytree(source, out)
    name = random.choice(names)
    if name in OF_THE_SUITE:
        path = other = out / name
    elif source is interrupted:
        path = next((out / "trials").glob("scratch-*")) / name
        other = next((base.out / "trials").glob("dense-*")) / name.replace("checkpoint.pt", "model.pt")
    else:
        first, second = random.sample(suites.trials(out), 2)
        path, other = first / name, second / name
    if random.random() < 0.1:
        kind = "removed"
        path.unlink()
    else:
        content, kind = edit(path.read_bytes(), random, other.read_bytes())
        path.write_bytes(content)
    where = f"seed {seed}: {kind} {path.relative_to(out)}"
    tally["edits"] += 1
    outputs = []
    if seed % 5 == 0:
        reported = pdt(["report", str(out)], folder / "report", report=True)
        assert reported.status == 0 or suites.one_line(reported), f"{where}: report: {reported.output}"
        outputs.append(reported.output)
    ended = suites.run(out, folder / "run")
    outputs.append(ended.output)
    tally["tracebacks"] += "Traceback" in "".join(outputs)
    assert "Traceback" not in "".join(outputs), f"{where}: {outputs}"
    assert not ended.orphans, where
    if ended.status == 0:
        accepted = suites.whole(out) != base.whole
        tally["accepted"] += accepted
        assert not accepted, f"{where} is accepted as done: {ended.output}"
        again = suites.run(out, folder / "again")
        assert (again.status, "nothing to run" in again.output) == (0, True), f"{where}: {again.output}"
        tally["repaired"] += 1
    else:
        assert ended.status == 1 or suites.one_line(ended), f"{where}: {ended.status}: {ended.output}"
        tally["refused"] += 1


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_an_edited_file(base, interrupted, tmp_path, tally, seed):
    damaged_and_run_again(base, interrupted, tmp_path, seed, tally)


@pytest.mark.timeout(1800)  # many edits, on a machine that may be busy
@shards(range(SHARDS), slow=(0, 4))
def test_edits_of_every_file(base, interrupted, tmp_path, tally, number):
    for seed in range(1000 + number * EDITS, 1000 + (number + 1) * EDITS):
        damaged_and_run_again(base, interrupted, tmp_path / str(seed), seed, tally)


CONFIG = """methods = "dense"
task = "digits"
preset = "smoke"
seeds = 1
[recipe]
epochs = 2
learning_rate = 0.1
"""
PLUGIN = '''"""A method."""
from suite.method import Method
from suite.registry import register

@register("method", "mine")
class Mine(Method):
    """A method for tests."""
    source = "nowhere"
    n: int = 2
'''


def edited_input(folder, seed, tally):
    """An edited configuration or plugin file leads to one line or to an allowed plan. Nothing is trained."""
    random = Random(seed)
    text, option = ((CONFIG, "--config"), (PLUGIN, "--plugin"))[seed % 2]
    content, kind = edit(text.encode(), random, b"\xff\xfe" + random.randbytes(50))
    path = folder / ("mine.toml" if option == "--config" else "mine.py")
    folder.mkdir()
    path.write_bytes(content)
    (folder / "out").write_text("in the way: planning is all that happens")
    methods = [] if option == "--config" else ["--methods", "mine", *suites.OPTIONS[2:]]
    ended = pdt(["run", option, str(path), *methods, "--out", str(folder / "out")], folder / "run")
    tally["edits"] += 1
    tally["refused"] += 1
    tally["tracebacks"] += "Traceback" in ended.output
    assert suites.one_line(ended), f"seed {seed}: {kind} {path.name}: {ended.status}: {ended.output}"


def test_an_edited_configuration_or_plugin(base, tmp_path, tally):
    for seed in range(4):
        edited_input(tmp_path / str(seed), seed, tally)


@pytest.mark.slow
def test_edits_of_configurations_and_plugins(base, tmp_path, tally):
    for seed in range(100, 180):
        edited_input(tmp_path / str(seed), seed, tally)
