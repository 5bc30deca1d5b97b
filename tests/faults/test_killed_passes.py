"""The time pass, killed at random moments: the same command continues; nothing is lost, orphaned or measured twice."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from suite.measure.times import TIMES

PASSES, KILLS = 7, 3
SUITE = (
    *("--methods", "dense,sdgp[backend=masked],ssl", "--task", "digits", "--preset", "smoke"),
    *("--device", "cpu", "--dtype", "float32", "--epochs", "2", "--batch-size", "16"),
    *("--set", "recipe.train_images=64", "--set", "recipe.test_images=32"),
)


def command(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "suite.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def stored(folder):
    """Return the passes of each method."""
    return {label: one.passes for group in TIMES.read(folder) for label, one in group.methods.items()}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_time_pass_that_is_killed_at_random_moments(tmp_path):
    out, chance = tmp_path / "out", random.Random(40)
    run = command("run", *SUITE, "--data-root", str(tmp_path), "--out", str(out))
    assert "report: " in run.communicate()[0]
    words = ("time", str(out), "--busy", "--pairs", "3", "--passes")
    began = time.monotonic()
    first = command(*words, "1")
    assert "every method has its passes" in first.communicate()[0]
    seconds = (time.monotonic() - began) / 2  # of a pass of one method
    before, kills = stored(out), 0
    while kills < KILLS:
        process = command(*words, str(PASSES))
        # From the moment in which a measurement has begun, to some time after it.
        while not (children := psutil.Process(process.pid).children(recursive=True)):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1.2 * seconds))
        with contextlib.suppress(psutil.NoSuchProcess):
            children += psutil.Process(process.pid).children(recursive=True)
        assert process.poll() is None, f"it has ended after {kills} kills: {process.communicate()[0]}"
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        kills += 1
        _, alive = psutil.wait_procs(set(children), timeout=10)
        assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE], "a measurement goes on"
        after = stored(out)
        for label, passes in before.items():
            assert after[label][: len(passes)] == passes
        before = after
    between = sum(map(len, before.values())) - 2
    assert between < 2 * PASSES - 2, "all passes were stored between the kills"
    output, _ = (last := command(*words, str(PASSES))).communicate()
    assert last.returncode == 0, output
    after = stored(out)
    for label, passes in after.items():
        assert passes[: len(before.get(label, ()))] == before.get(label, ())
        assert len(passes) == PASSES
        assert len({one.model_dump_json() for one in passes}) == PASSES
    assert len(after) == 2
    assert not list(out.rglob("*.part"))
