"""A command with a real Ray cluster on this machine is killed, and nothing is lost."""

import pytest
from engine_children import wait_until
from ray_runs import (
    descendants,
    end,
    epochs,
    in_training,
    in_use,
    kill,
    options,
    start,
    starts,
)

from suite.trials.folder.records import read_record

pytest.importorskip("ray", reason="needs the extra [ray]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
SEEDS, EPOCHS = 4, 30


def folders(out):
    return sorted((out / "trials").glob("dense-*"))


def check_done(out):
    """Check that every trial is done and has each epoch once, and that nothing else is left."""
    found = folders(out)
    assert len(found) == SEEDS
    for folder in found:
        assert read_record(folder).status == "done"
        assert epochs(folder) == list(range(1, EPOCHS + 1))
        assert not (folder / "checkpoint.pt").exists()
    assert list((out / "trials").glob(".shared-*")) == []


def check_ended(process, log):
    assert process.wait(timeout=1800) == 0, log.read_text()


def test_a_killed_command_continues_without_what_is_done(tmp_path):
    out, log = tmp_path / "out", tmp_path / "log.txt"
    arguments = options(out, SEEDS, EPOCHS)
    process = start(log, arguments)
    started = []
    try:
        wait_until(lambda: any(one.done for one in map(read_record, folders(out)) if one), 240, process)
        wait_until(lambda: in_training(out), 240, process)
        started = descendants(process.pid)
        assert any(map(in_use, started))
    finally:
        kill(process)
    try:
        wait_until(lambda: not any(map(in_use, started)), seconds=60)
    finally:
        end(started)
    done = {one: (one / "trial.json").read_bytes() for one in folders(out) if read_record(one).status == "done"}
    assert 0 < len(done) < SEEDS
    check_ended(start(log, arguments), log)
    check_done(out)
    assert done == {one: (one / "trial.json").read_bytes() for one in done}
    assert max(starts(folder) for folder in folders(out)) == 2
    assert all(starts(folder) == 1 for folder in done)
