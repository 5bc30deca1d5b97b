"""Commands whose processes are killed at a write, whose disk is full, and whose finished files are damaged.

The same command continues, and nothing is lost, orphaned, duplicated or accepted although it is damaged.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch

from suite.engine.network.model_files import load

ROOT = Path(__file__).resolve().parents[2]
# One independent trial, one that another trial depends on, and that other trial. The threshold removes channels in a
# few steps: `scratch` of a network that lost none is not trained.
OPTIONS = (
    *("--methods", "dense,scratch[of=prunetrain[threshold=0.25]]", "--task", "digits", "--preset", "smoke"),
    *("--plugin", str(ROOT / "tests/support/tiny_net.py"), "--model", "tiny_net", "--epochs", "2"),
    *("--device", "cpu", "--dtype", "float32", "--set", "recipe.batch_size=16"),
    *("--set", "recipe.train_images=64", "--set", "recipe.test_images=32"),
)
MEASURED = ("_time_s", "_per_s", "peak_", "hardware", "time_to")


@dataclass
class Ended:
    """How a command ended: its status, negative for a signal, its output, its writes, and what was killed."""

    status: int
    output: str
    writes: int
    killed: str


@dataclass
class Base:
    """A finished folder, its content, and the number of writes that created it."""

    out: Path
    whole: dict
    writes: int


def run(out: Path, at: int = 0, victim: str = "writer") -> Ended:
    """Train into a folder; nothing that was started may still run a few seconds after the end."""
    counter = out.with_name("counter")
    counter.write_bytes(bytes(8) + bytes(192))
    words = ["run", *OPTIONS, "--data-root", str(out.parent), "--out", str(out)]
    others = set(psutil.Process().children(recursive=True))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("killing.py")), str(out), str(counter), str(at), victim, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    left = set(psutil.Process().children(recursive=True)) - others
    _, alive = psutil.wait_procs(left, timeout=20)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE], "a process goes on"
    assert "Traceback" not in done.stdout, done.stdout
    counted = counter.read_bytes()
    return Ended(done.returncode, done.stdout, int.from_bytes(counted[:8], "big"), counted[8:].decode().strip("\0 "))


def trials(out: Path) -> list[Path]:
    return sorted((out / "trials").iterdir())


def counted(values: dict) -> dict:
    """Return values that are equal for two runs of the same command."""
    return {name: value for name, value in values.items() if not any(part in name for part in MEASURED)}


def content(trial: Path) -> dict:
    state = torch.load(trial / "model.pt", weights_only=True)
    record = json.loads((trial / "trial.json").read_text())
    return {
        "epochs": [counted(json.loads(line)) for line in (trial / "epochs.jsonl").read_text().splitlines()],
        "model": (state["architecture"], {name: tensor.tolist() for name, tensor in state["tensors"].items()}),
        "layers": (trial / "layers.csv").read_text(),
        "status": record["status"],
        "result": counted(record["result"]),
    }


def whole(out: Path) -> dict:
    """Return what a finished folder contains."""
    with open(out / "results.csv", newline="") as file:
        rows = [counted(row) for row in csv.DictReader(file)]
    return {"rows": rows, **{trial.name: content(trial) for trial in trials(out)}}


def check_continues(out: Path, base: Base) -> None:
    """Check that the same command finishes a folder, keeps what is done, and leaves no file of a killed process."""
    for part in out.rglob("*.part"):  # as old as what the next command takes for abandoned
        os.utime(part, (0, 0))
    records = {path: path.read_bytes() for path in out.glob("trials/*/trial.json")}
    done = {path: content for path, content in records.items() if json.loads(content)["status"] == "done"}
    saved = {path.parent: load(path)["trainer"]["hooks"]["epochs_done"] for path in out.rglob("checkpoint.pt")}
    ended = run(out)
    assert ended.status == 0, ended.output
    assert {path: path.read_bytes() for path in done} == done
    for trial, epoch in saved.items():
        assert trial / "trial.json" in done or f"resumed after epoch {epoch}" in (trial / "log.txt").read_text()
    assert whole(out) == base.whole
    assert not [path for path in out.rglob("*") if path.name.endswith(".part") or path.name == "checkpoint.pt"]


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Base:
    subprocess.run([sys.executable, "-c", ""], check=True)  # starts what forks all others, and goes on
    out = tmp_path_factory.mktemp("faults") / "out"
    ended = run(out)
    assert ended.status == 0, ended.output
    assert ended.writes > 100, "trials do not count their writes: they were not forked from the command"
    return Base(out, whole(out), ended.writes)


def killed_and_run_again(base: Base, folder: Path, at: int, victim: str) -> None:
    folder.mkdir()
    ended = run(folder / "out", at, victim)
    assert ended.killed
    assert ended.status in (0, 1, -9), ended.output  # 0: a trial was killed whose record says that it is done
    check_continues(folder / "out", base)
    assert len(json.loads((folder / "out" / "suite.json").read_text())["commands"]) <= 2


@pytest.mark.parametrize(("share", "victim"), [(0.2, "writer"), (0.6, "command")])
def test_a_process_that_is_killed_at_a_write(base, tmp_path, share, victim):
    killed_and_run_again(base, tmp_path / "killed", round(share * base.writes), victim)


@pytest.mark.parametrize("step", [pytest.param(12, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.timeout(3600)
def test_a_process_that_is_killed_at_every_write(base, tmp_path, step):
    for at in range(1, base.writes + 1, step):
        killed_and_run_again(base, tmp_path / str(at), at, "command" if at // step % 4 == 1 else "writer")


@pytest.mark.parametrize("share", [0.5, *(pytest.param(one, marks=pytest.mark.slow) for one in (0.1, 0.3, 0.9))])
def test_a_disk_that_is_full_is_named_and_the_command_continues(base, tmp_path, share):
    disk = tmp_path / "disk"
    disk.mkdir()
    used = sum(path.stat().st_size for path in base.out.rglob("*") if path.is_file())

    def mount(*options: str) -> None:
        done = subprocess.run(["mount", *options, str(disk)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no file system of a chosen size can be mounted here: {done.stderr.strip()}")

    if shutil.which("mount") is None:
        pytest.skip("there is no program `mount`")
    # Sizes in pages of 4 KiB; each file and folder takes some.
    mount("-t", "tmpfs", "-o", f"size={max(4096, int(share * used))}", "tmpfs")
    try:
        ended = run(disk / "out")
        assert ended.status in (1, 2), ended.output
        assert "No space left on device: " in ended.output
        mount("-o", "remount,size=64m")
        check_continues(disk / "out", base)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("name", ["trial.json", "model.pt"])
def test_a_damaged_file_is_named_and_its_trial_is_trained_again(base, tmp_path, name):
    out = Path(shutil.copytree(base.out, tmp_path / "out"))
    trial = next(one for one in trials(out) if one.name.startswith("dense"))
    (trial / name).write_bytes((trial / name).read_bytes()[:-2])
    ended = run(out)
    assert ended.status == 0, ended.output
    assert f"{trial.name} is run again: " in ended.output
    assert "1 of 3 trials to run" in ended.output
    assert whole(out) == base.whole


def test_a_damaged_list_of_commands_is_one_line_and_a_damaged_table_is_written_anew(base, tmp_path):
    out = Path(shutil.copytree(base.out, tmp_path / "out"))
    for name in ("results.csv", "suite.json"):
        (out / name).write_bytes(b"\xff\xfe" + bytes(100))
        ended = run(out)
        assert (ended.status, name == "suite.json") in ((0, False), (2, True))
    (line,) = [line for line in ended.output.splitlines() if line.startswith("pdt: error: ")]
    assert "suite.json" in line
    assert whole(out) == base.whole
